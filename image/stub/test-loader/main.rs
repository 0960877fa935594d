//! A loader for tests: it does what rust-hypervisor-firmware does with a Linux kernel image, loads
//! it to 2 MiB and enters it by its 64-bit entry. A monitor starts it by PVH; its first module is
//! the image.
#![no_std]
#![no_main]

core::arch::global_asm!(include_str!("loader.s"), options(att_syntax));

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
