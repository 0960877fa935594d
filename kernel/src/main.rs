//! The Ferrolite kernel: boots by PVH; sets up one address space, an executor on each core, and the devices;
//! then runs as a node of the cluster.
//!
//! ```text
//! loader (PVH)
//!   |  boot/entry.s        long mode, boot page tables, boot stack
//!   v
//! kernel_entry             console, memory map, ACPI, final page tables, stacks
//!   v
//! on_own_stack             descriptors, interrupts, local APIC, clock, command line
//!   |-- smp::start ------> smp::ap_entry on each other processor
//!   v                        |
//! exec::run, core 0          +--> exec::run, core n
//!   v
//! first_task               PCI, randomness, then one of:
//!                            node::run, probe::run (probe=), selftest::run (selftest=)
//! ```
//!
//! A module imports only modules of lower layers (`xtask/src/language/layers.txt`). Where a lower layer calls
//! an upper one (an interrupt the executor, a lock that is waited for the code that ends the machine), this
//! file passes it a function.
#![no_std]
#![no_main]
extern crate alloc;

mod arch;
mod boot;
mod chart;
mod cmdline;
mod config;
mod console;
mod diag;
mod exec;
mod former;
mod io_addresses;
mod machine;
mod mlx4;
mod mm;
mod net;
mod node;
mod pci;
mod power;
mod probe;
mod random;
mod report;
#[cfg(feature = "selftest")]
mod selftest;
mod smp;
mod sync;
mod time;
mod virtio;
mod warm;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::asm;
use core::time::Duration;
use x86_64::PhysAddr;

use arch::stacks::{Kind, Stack};
use arch::{apic, cpu, interrupts, percpu};
use boot::BootInfo;
use boot::acpi::{self, Tables};
use mm::stacks;

core::arch::global_asm!(include_str!("boot/entry.s"), options(att_syntax));

/// The address of a local APIC's registers if ACPI names none.
const LOCAL_APIC: u64 = 0xfee0_0000;
/// The time without the arrival of a processor after which the boot goes on without the others.
const PROCESSORS_SILENCE: Duration = Duration::from_secs(2);
/// The time after which the drivers and the boot have finished, and the inventory of devices is printed.
const INVENTORY_AFTER: Duration = Duration::from_millis(400);

/// The entry from `boot/entry.s`: in long mode, with the boot page tables, on the boot stack, with interrupts
/// off. `image` is the physical address of the image.
#[unsafe(no_mangle)]
extern "C" fn kernel_entry(start_info: u64, tsc: u64, image: u64) -> ! {
    time::start(tsc);
    mm::set_image_place(image);
    sync::set_wait_hook(diag::end_if_dying);
    cpu::init_floating_point();
    cpu::init_memory_types();
    arch::mem::init();
    console::init();
    // SAFETY: the loader passed `start_info`, and the boot page tables contain the direct map of 4 GiB.
    let boot = unsafe { boot::init(start_info) };
    pci::quiet::early();
    // SAFETY: called once, with this machine's memory map.
    unsafe { mm::init_frames(boot) };
    chart::mark("loader info");
    // SAFETY: the boot page tables are still in use.
    let acpi = unsafe { acpi::init(boot.rsdp) };
    chart::mark("acpi");
    // SAFETY: called once, after the frame allocator was initialised.
    unsafe { mm::init_paging(boot, acpi.processors.len().clamp(1, percpu::MAX_CPUS)) };
    mm::set_numa(&acpi.numa);
    chart::mark("page tables");
    if let Err(e) = stacks::map_all(0, 0) {
        panic!("no stacks: {e}");
    }
    let top = Stack { cpu: 0, kind: Kind::Main }.top();
    // SAFETY: `top` is the top of a mapped, unused stack. Nothing on the boot stack is needed any more.
    unsafe {
        asm!("mov rsp, {}", "xor ebp, ebp", "call {}", "ud2", in(reg) top, sym on_own_stack, options(noreturn))
    }
}

/// Runs the rest of the boot, on the boot processor's guarded stack.
extern "C" fn on_own_stack() -> ! {
    let (boot, acpi) = (boot::info(), acpi::tables());
    start_boot_processor(acpi);
    former::find(boot, boot.ram.start_page(&boot.modules));
    let (starting, clock_source) = start_clock_and_processors(acpi);
    // SAFETY: called once; no driver has started.
    unsafe { config::init(boot) };
    console::choose(cmdline::get("console"), acpi.console, boot.framebuffer);
    if let Some(level) = cmdline::get("log") {
        console::set_level(level);
    }
    // From now on the ports get the lines while all tasks wait.
    console::defer();
    let mut mistakes = cmdline::report();
    mistakes.extend(report::mistake());
    if let Some(us) = cmdline::get("spin_us") {
        log::debug!("spinning up to {us} us");
        exec::set_max_spin(Duration::from_micros(cmdline::number("spin_us", 4000)));
    }
    exec::spawn_on(0, "main", Box::pin(first_task(acpi, mistakes, starting, clock_source))).detach();
    exec::run()
}

/// Makes the boot processor ready for interrupts and tasks.
fn start_boot_processor(acpi: &Tables) {
    // SAFETY: called once, on the boot processor, whose stacks are mapped.
    unsafe {
        percpu::prepare(0);
        percpu::install(0);
    }
    diag::set_current_task(exec::current_task);
    interrupts::init(interrupts::Hooks {
        fault: diag::fault,
        nmi: console::report_nmi,
        interrupt: exec::on_interrupt,
    });
    apic::init(acpi.keep_xapic, || {
        let at = acpi.local_apic.unwrap_or(PhysAddr::new_truncate(LOCAL_APIC));
        mm::map_device(at, mm::PAGE).unwrap_or_else(|e| panic!("local APIC at {at:?}: {e}"))
    });
    apic::enable();
    match interrupts::drain() {
        0 => {}
        stale => log::warn!("{stale} interrupts of devices came that a former kernel has set up"),
    }
}

/// Starts the other processors, and measures the clock meanwhile. Returns the processors that start, and the
/// clock's source.
fn start_clock_and_processors(acpi: &Tables) -> (Option<smp::Starting>, &'static str) {
    let clock = time::calibrate::Calibration::begin(acpi);
    let timer = apic::calibrate_begin();
    power::init(acpi.power);
    random::init();
    exec::init_this_cpu();
    percpu::announce(apic::id(), acpi.numa.node_of(apic::id()).unwrap_or(0));
    chart::mark("interrupts");
    // SAFETY: called once; page tables and heap are final.
    let starting = unsafe { smp::start(acpi, boot::info()) };
    let (hertz, source) = clock.finish();
    time::set_hertz(hertz);
    sync::set_hertz(hertz);
    apic::calibrate_finish(timer, hertz);
    chart::mark("clock");
    (starting, source)
}

/// Prints the machine's processors, memory and devices.
fn inventory(boot: &BootInfo, acpi: &Tables, cpus: usize, clock_source: &str) {
    let (total, free) = mm::frames::totals();
    let mut brand = [0; 48];
    let (mode, timer) = apic::describe();
    log::info!("Ferrolite {} on {cpus} x {}", env!("CARGO_PKG_VERSION"), cpu::brand(&mut brand));
    if let Some(loader) = boot.loader() {
        log::info!("started by {loader}");
    }
    let image = mm::image().phys;
    log::info!(
        "memory {} MiB, {} MiB free, image at {image:#x}; {mode}, timer {timer}",
        total >> 20,
        free >> 20
    );
    log::info!(
        "clock {}.{:03} MHz by {clock_source}",
        time::hertz() / 1_000_000,
        time::hertz() / 1000 % 1000
    );
    if boot.ram.dropped() + boot.modules.dropped > 0 {
        log::warn!("{} regions of the memory map are not used", boot.ram.dropped() + boot.modules.dropped);
    }
    if acpi.processors.is_empty() {
        log::warn!("ACPI lists no processors: only the boot processor is used");
    }
    if let Some(words) = former::words() {
        log::warn!("the former boot of this machine ended: {words}");
    }
    if !random::is_seeded() {
        log::error!(
            "no source of randomness (RDRAND, RDSEED): this node cannot join a cluster without virtio-rng"
        );
    }
}

/// The first task: starts what the command line asks for, unless the settings have mistakes.
async fn first_task(
    acpi: &'static Tables,
    mistakes: Vec<String>,
    starting: Option<smp::Starting>,
    clock_source: &'static str,
) {
    chart::mark("executor");
    pci::init(acpi);
    virtio::rng::init().await;
    chart::mark("pci");
    // The other processors start while this one looks for devices.
    let cpus = starting.map_or(1, |starting| starting.wait(PROCESSORS_SILENCE));
    chart::mark("processors");
    inventory(boot::info(), acpi, cpus, clock_source);
    exec::spawn_on(0, "inventory", async {
        exec::sleep(INVENTORY_AFTER).await;
        pci::report();
    })
    .detach();
    report::machine(boot::info(), acpi);
    if !mistakes.is_empty() {
        node::stay(&mistakes.join("; ")).await;
    }
    if let Some(name) = cmdline::get("probe") {
        probe::run(name).await;
    }
    #[cfg(feature = "selftest")]
    if let Some(name) = cmdline::get("selftest") {
        selftest::run(name).await;
    }
    node::run().await;
}
