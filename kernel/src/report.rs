//! `hardware-report=on`: a block of lines with what the machine's firmware and devices have said,
//! for people who have not seen the machine.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;

use crate::arch::{apic, cpu};
use crate::boot::BootInfo;
use crate::boot::acpi::Tables;
use crate::pci::{self, Bar, Function};
use crate::{cmdline, io_addresses, mm, println, time};

/// The key of the command line.
const KEY: &str = "hardware-report";
/// The most runs of RAM that are listed.
const MOST_RUNS: usize = 100;

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
    println!("hardware report: begin (Ferrolite {})", env!("CARGO_PKG_VERSION"));
    println!("loader: {}", boot.loader().unwrap_or("no boot stub: started by PVH"));
    processor(acpi);
    memory(boot);
    tables(acpi);
    iommus(acpi);
    for function in pci::functions() {
        device(&function);
    }
    println!("hardware report: end");
}

fn processor(acpi: &Tables) {
    let mut brand = [0; 48];
    let (mode, timer) = apic::describe();
    let (one, seven) = (cpu::cpuid(1, 0), cpu::cpuid(7, 0));
    println!("processor: {}, signature {:#x}", cpu::brand(&mut brand), one.eax);
    println!(
        "processor: features {:#010x} {:#010x} {:#010x} {:#010x}, hypervisor {}",
        one.ecx,
        one.edx,
        seven.ebx,
        seven.ecx,
        cpu::is_virtual()
    );
    println!("processor: {mode}, timer {timer}, clock {} Hz", time::hertz());
    println!("processor: local APIC ids {:?}, keep xAPIC {}", acpi.processors, acpi.keep_xapic);
}

fn memory(boot: &BootInfo) {
    let (total, free) = mm::frames::totals();
    println!(
        "memory: {} KiB, {} KiB free, image at {:#x}, {} runs not used",
        total >> 10,
        free >> 10,
        mm::image().phys,
        boot.ram.dropped()
    );
    for run in boot.ram.iter().take(MOST_RUNS) {
        println!("memory: RAM {:#x} to {:#x}", run.start.as_u64(), run.end.as_u64());
    }
    for module in boot.modules.iter() {
        println!("memory: module {:#x}, {} bytes", module.start.as_u64(), module.len());
    }
    match boot.framebuffer {
        Some(screen) => println!("screen: {screen:?}"),
        None => println!("screen: no pixels"),
    }
}

fn tables(acpi: &Tables) {
    let mut names = String::new();
    for name in &acpi.names {
        let _ = write!(names, " {}", name.escape_ascii());
    }
    println!("acpi:{names}");
    for window in &acpi.ecam {
        println!("acpi: {window:?}");
    }
    println!("acpi: PCI memory {:?}", acpi.pci_memory);
    println!("acpi: HPET {:?}, local APIC {:?}", acpi.hpet, acpi.local_apic);
    println!("acpi: console {:?}", acpi.console);
    println!("acpi: {:?}", acpi.power);
    println!("acpi: {:?}", acpi.numa);
}

fn iommus(acpi: &Tables) {
    if acpi.iommus.is_empty() {
        println!("iommu: none");
    }
    for &unit in &acpi.iommus {
        match io_addresses::state(unit) {
            Ok((status, None)) => println!("iommu: {unit}: status {status:#010x}"),
            Ok((status, Some(protection))) => {
                println!("iommu: {unit}: status {status:#010x}, protected memory {protection:#010x}");
            }
            Err(why) => println!("iommu: {why}"),
        }
    }
}

fn device(function: &Function) {
    let Function { address, id, subsystem, class, revision, bars, .. } = function;
    println!(
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
    println!("pci {address}: command and status {:#010x}", function.read(4));
    for (index, bar) in bars.iter().enumerate() {
        match bar {
            Some(Bar::Memory { address: at, size, wide, prefetchable }) => println!(
                "pci {address}: window {index}: {:#x} bytes at {:#x}, 64 bits {wide}, prefetchable {prefetchable}",
                size,
                at.map_or(0, x86_64::PhysAddr::as_u64)
            ),
            Some(Bar::Ports { port }) => println!("pci {address}: ports {index}: {port:#x}"),
            None => {}
        }
    }
}

/// Prints what the RNIC's driver knows of it, if a report is asked for.
pub(crate) fn rnic(rnic: &dyn verbs::Rnic) {
    if is_wanted() {
        println!("hardware report: {:?}", rnic.attributes());
    }
}
