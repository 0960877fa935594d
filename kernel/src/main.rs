//! The Ferrolite kernel: boots by PVH; sets up one address space, an executor on each core, and the devices;
//! then runs as a node of the cluster.
#![no_std]
#![no_main]
#![cfg_attr(
    not(feature = "selftest"),
    allow(dead_code, reason = "self-tests read figures that nothing else reads; the lints run with them")
)]
extern crate alloc;

mod arch;
mod boot;
mod console;
mod diag;
mod exec;
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
#[cfg(feature = "selftest")]
mod selftest;
mod sync;
mod time;
mod virtio;

use alloc::boxed::Box;
use core::arch::asm;
use core::time::Duration;
use spin::Once;

use arch::{apic, cpu, interrupts, percpu, smp};
use boot::acpi::{self, EcamWindow};
use boot::{BootInfo, chart, cmdline};
use mm::stacks::{self, Kind, Stack};

core::arch::global_asm!(include_str!("boot/entry.s"), options(att_syntax));

/// The platform's description, as far as drivers need it.
pub struct Hardware {
    /// PCI configuration windows; empty if there is no MCFG.
    pub ecam: alloc::vec::Vec<EcamWindow>,
    /// Memory windows of the PCI host bridge, as far as ACPI describes them.
    pub pci_memory: alloc::vec::Vec<boot::Region>,
    /// IOMMUs, on or off.
    pub iommus: alloc::vec::Vec<iommu::Unit>,
}

static HARDWARE: Once<Hardware> = Once::new();
static BOOT: Once<BootInfo> = Once::new();
static TABLES: Once<acpi::Tables> = Once::new();

/// Returns ACPI's description of buses. Call only after the boot has read it.
pub fn hardware() -> &'static Hardware {
    HARDWARE.get().expect("hardware description before the boot has read it")
}

/// Returns the loader's description of the machine.
pub fn boot_info() -> &'static BootInfo {
    BOOT.get().expect("boot information before the boot has read it")
}

/// The entry from `boot/entry.s`: in long mode, with the boot page tables, on the boot stack, with interrupts
/// off.
#[unsafe(no_mangle)]
extern "C" fn kernel_entry(start_info: u64, tsc: u64) -> ! {
    time::start(tsc);
    cpu::init_floating_point();
    cpu::init_memory_types();
    arch::mem::init();
    console::init();
    // SAFETY: the loader passed `start_info`, and the boot page tables map the first 4 GiB one to one.
    let boot = match unsafe { boot::read_pvh(start_info) } {
        Some(boot) => BOOT.call_once(|| boot),
        None => panic!("the loader passed no PVH start info with a memory map at {start_info:#x}"),
    };
    // SAFETY: called once, with this machine's memory map.
    unsafe { mm::init_frames(boot) };
    chart::mark("loader info");
    // SAFETY: the boot page tables are still in use.
    let acpi = TABLES.call_once(|| unsafe { acpi::read(boot.rsdp) });
    chart::mark("acpi");
    // SAFETY: called once, after the frame allocator was initialised.
    unsafe { mm::init_paging(boot, acpi.processors.len().clamp(1, percpu::MAX_CPUS)) };
    chart::mark("page tables");
    if let Err(e) = stacks::map_all(0) {
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
    let boot = BOOT.get().expect("set by kernel_entry");
    let acpi = TABLES.get().expect("set by kernel_entry");
    // SAFETY: called once, on the boot processor, whose stacks are mapped.
    unsafe {
        percpu::prepare(0);
        percpu::install(0);
    }
    interrupts::load();
    apic::init(acpi.local_apic);
    apic::enable();
    let clock = time::calibrate::Calibration::begin(acpi);
    let timer = apic::calibrate_begin();
    power::init(power::Registers {
        reset: acpi.reset,
        sleep_control: acpi.sleep_control,
        soft_off: acpi.soft_off,
    });
    random::init();
    exec::init_this_cpu();
    percpu::announce(apic::id());
    chart::mark("interrupts");
    // SAFETY: called once; page tables and heap are final.
    unsafe { smp::start(&acpi.processors) };
    let (hertz, source) = clock.finish();
    time::set_hertz(hertz);
    apic::calibrate_finish(timer);
    chart::mark("clock");
    let errors = cmdline::init(boot.cmdline());
    if let Some(level) = cmdline::get("log") {
        console::set_level(level);
    }
    let cpus = smp::wait(Duration::from_secs(1), &acpi.processors);
    chart::mark("processors");
    inventory(boot, acpi, cpus, source);
    if errors > 0 {
        log::error!("{errors} errors on the command line: this node does not start");
        power::exit(power::Code::Refused);
    }
    HARDWARE.call_once(|| Hardware {
        ecam: acpi.ecam.clone(),
        pci_memory: acpi.pci_memory.clone(),
        iommus: acpi.iommus.clone(),
    });
    if let Some(us) = cmdline::get("spin_us") {
        log::debug!("spinning up to {us} us");
        exec::set_max_spin(Duration::from_micros(cmdline::number("spin_us", 50)));
    }
    console::defer();
    exec::spawn_on(0, "main", Box::pin(start())).detach();
    exec::run()
}

/// Prints the machine's processors, memory and devices.
fn inventory(boot: &BootInfo, acpi: &acpi::Tables, cpus: usize, clock_source: &str) {
    let (total, free) = mm::frames::totals();
    let mut brand = [0; 48];
    let (mode, timer) = apic::describe();
    log::info!("Ferrolite {} on {cpus} x {}", env!("CARGO_PKG_VERSION"), cpu::brand(&mut brand));
    log::info!("memory {} MiB, {} MiB free; {mode}, timer {timer}", total >> 20, free >> 20);
    log::info!(
        "clock {}.{:03} MHz by {clock_source}",
        time::hertz() / 1_000_000,
        time::hertz() / 1000 % 1000
    );
    if boot.ram.dropped + boot.modules.dropped > 0 {
        log::warn!("{} regions of the memory map are not used", boot.ram.dropped + boot.modules.dropped);
    }
    if acpi.processors.is_empty() {
        log::warn!("ACPI lists no processors: only the boot processor is used");
    }
    if !random::is_seeded() {
        log::error!(
            "no source of randomness (RDRAND, RDSEED): this node cannot join a cluster without virtio-rng"
        );
    }
}

/// The first task: starts what the command line asks for.
async fn start() {
    chart::mark("executor");
    pci::init(hardware());
    virtio::rng::init().await;
    // The inventory is printed once the drivers and the boot have finished.
    exec::spawn_on(0, "inventory", async {
        exec::sleep(Duration::from_millis(400)).await;
        pci::report();
    })
    .detach();
    chart::mark("pci");
    if let Some(name) = cmdline::get("probe") {
        probe::run(name).await;
    }
    #[cfg(feature = "selftest")]
    if let Some(name) = cmdline::get("selftest") {
        selftest::run(name).await;
    }
    node::run().await;
}
