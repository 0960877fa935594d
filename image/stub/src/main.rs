//! The boot stub: a small position-independent program in front of the kernel's ELF file. The file of both is
//! a Linux kernel image (with 16-, 32- and 64-bit entries), an EFI application, and an EFI handover kernel at
//! once; `image/pack` writes its headers. The stub turns what each of these loaders passes into the start
//! info of PVH, loads the kernel's segments, and enters the kernel by its one entry.
//!
//! ```text
//! BIOS, PXE, QEMU --> setup16.s (real mode) --+
//! GRUB, monitors ---> head32 -----------------+--> linux.rs --+
//! kexec ------------> head64 -----------------+               +--> leave.rs --> the kernel
//! UEFI -------------> efi_start, handover --------> efi.rs ---+
//! ```
#![no_std]
#![no_main]

mod efi;
mod leave;
mod linux;
mod mem;
mod payload;
mod serial;
mod workspace;

use core::arch::global_asm;

global_asm!(include_str!("entry.s"), options(att_syntax));
global_asm!(include_str!("setup16.s"), options(att_syntax));

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    serial::text("the stub has failed");
    halt()
}

/// Stops the processor for ever.
fn halt() -> ! {
    loop {
        // SAFETY: the instruction waits for an interrupt, and changes nothing.
        unsafe { core::arch::asm!("hlt", options(nomem, nostack)) };
    }
}
