//! `hardware-report=on`: a block of lines with what the machine's firmware and devices have said,
//! for people who have not seen the machine. The console has it at once, and the manager after the join.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use proto::ToManager;

use crate::arch::{apic, cpu};
use crate::boot::BootInfo;
use crate::boot::acpi::Tables;
use crate::pci::{self, Bar, Function};
use crate::sync::IrqMutex;
use crate::{cmdline, console, io_addresses, mm, time};

/// The key of the command line.
const KEY: &str = "hardware-report";
/// The most runs of RAM that are listed.
const MOST_RUNS: usize = 100;

/// The lines so far, for the manager.
static LINES: IrqMutex<String> = IrqMutex::new(String::new());

/// Prints a line of the report, and keeps it for the manager.
macro_rules! say {
    ($($arg:tt)*) => { say(format!($($arg)*)) };
}

fn say(mut line: String) {
    line.push('\n');
    console::print(format_args!("{line}"));
    let mut lines = LINES.lock();
    if lines.len() + line.len() <= ToManager::MAX_REPORT {
        lines.push_str(&line);
    }
}

/// Returns the lines of the report, unless they were taken before; empty without a report.
pub(crate) fn take() -> String {
    core::mem::take(&mut *LINES.lock())
}

/// Returns true if the settings ask for a report.
fn is_wanted() -> bool {
    cmdline::get(KEY) == Some("on")
}

/// Returns the mistake in the setting, if it has one.
pub(crate) fn mistake() -> Option<String> {
    let value = cmdline::get(KEY).filter(|value| !matches!(*value, "on" | "off"))?;
    Some(format!("{KEY}={value}: want on or off"))
}

/// Prints the report, if it is asked for. Call once PCI has been scanned.
pub(crate) fn machine(boot: &BootInfo, acpi: &Tables) {
    if !is_wanted() {
        return;
    }
    say!("hardware report: begin (Ferrolite {})", env!("CARGO_PKG_VERSION"));
    say!("loader: {}", boot.loader().unwrap_or("no boot stub: started by PVH"));
    processor(acpi);
    memory(boot);
    tables(acpi);
    iommus(acpi);
    for function in pci::functions() {
        device(&function);
    }
    say!("hardware report: end");
}

fn processor(acpi: &Tables) {
    let mut brand = [0; 48];
    let (mode, timer) = apic::describe();
    let (one, seven) = (cpu::cpuid(1, 0), cpu::cpuid(7, 0));
    say!("processor: {}, signature {:#x}", cpu::brand(&mut brand), one.eax);
    say!(
        "processor: features {:#010x} {:#010x} {:#010x} {:#010x}, hypervisor {}",
        one.ecx,
        one.edx,
        seven.ebx,
        seven.ecx,
        cpu::is_virtual()
    );
    say!("processor: {mode}, timer {timer}, clock {} Hz", time::hertz());
    say!("processor: local APIC ids {:?}, keep xAPIC {}", acpi.processors, acpi.keep_xapic);
}

fn memory(boot: &BootInfo) {
    let (total, free) = mm::frames::totals();
    say!(
        "memory: {} KiB, {} KiB free, image at {:#x}, {} runs not used",
        total >> 10,
        free >> 10,
        mm::image().phys,
        boot.ram.dropped()
    );
    for run in boot.ram.iter().take(MOST_RUNS) {
        say!("memory: RAM {:#x} to {:#x}", run.start.as_u64(), run.end.as_u64());
    }
    for module in boot.modules.iter() {
        say!("memory: module {:#x}, {} bytes", module.start.as_u64(), module.len());
    }
    match boot.framebuffer {
        Some(screen) => say!("screen: {screen:?}"),
        None => say!("screen: no pixels"),
    }
}

fn tables(acpi: &Tables) {
    let mut names = String::new();
    for name in &acpi.names {
        let _ = write!(names, " {}", name.escape_ascii());
    }
    say!("acpi:{names}");
    for window in &acpi.ecam {
        say!("acpi: {window:?}");
    }
    say!("acpi: PCI memory {:?}", acpi.pci_memory);
    say!("acpi: HPET {:?}, local APIC {:?}", acpi.hpet, acpi.local_apic);
    say!("acpi: console {:?}", acpi.console);
    say!("acpi: {:?}", acpi.power);
    say!("acpi: {:?}", acpi.numa);
}

fn iommus(acpi: &Tables) {
    if acpi.iommus.is_empty() {
        say!("iommu: none");
    }
    for &unit in &acpi.iommus {
        match io_addresses::state(unit) {
            Ok((status, None)) => say!("iommu: {unit}: status {status:#010x}"),
            Ok((status, Some(protection))) => {
                say!("iommu: {unit}: status {status:#010x}, protected memory {protection:#010x}");
            }
            Err(why) => say!("iommu: {why}"),
        }
    }
}

fn device(function: &Function) {
    let Function { address, id, subsystem, class, revision, bars, .. } = function;
    say!(
        "pci {address}: {:04x}:{:04x} subsystem {:04x}:{:04x} class {:02x}{:02x}{:02x} revision {revision:02x} {}",
        id.0,
        id.1,
        subsystem.0,
        subsystem.1,
        class.0,
        class.1,
        class.2,
        function.name()
    );
    say!("pci {address}: command and status {:#010x}", function.read(4));
    for (index, bar) in bars.iter().enumerate() {
        match bar {
            Some(Bar::Memory { address: at, size, wide, prefetchable }) => say!(
                "pci {address}: window {index}: {:#x} bytes at {:#x}, 64 bits {wide}, prefetchable {prefetchable}",
                size,
                at.map_or(0, x86_64::PhysAddr::as_u64)
            ),
            Some(Bar::Ports { port }) => say!("pci {address}: ports {index}: {port:#x}"),
            None => {}
        }
    }
}

/// Prints what the RNIC's driver knows of it, if a report is asked for.
pub(crate) fn rnic(rnic: &dyn verbs::Rnic) {
    if is_wanted() {
        say!("hardware report: {:?}", rnic.attributes());
    }
}
