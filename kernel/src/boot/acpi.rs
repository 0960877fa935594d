//! The few ACPI tables that are needed first: processors, NUMA nodes, PCI windows, timers, power, IOMMUs, the
//! console. AML is not interpreted. Each table's length and checksum are verified, and it is read through
//! bounds-checked accessors ([`firmware`]).

use alloc::vec::Vec;
use core::slice;
use firmware::numa::Numa;
use firmware::power::Power;
use firmware::spcr::Spcr;
use firmware::{Bytes, Register, fadt, madt, spcr};
use spin::Once;
use x86_64::PhysAddr;

use super::{DIRECT_MAP, Region};

/// A PCI Express configuration window (MCFG).
#[derive(Clone, Copy, Debug)]
pub(crate) struct EcamWindow {
    /// The address that bus 0 would have. The address of a bus is this plus `bus << 20`.
    pub base: PhysAddr,
    /// PCI segment group.
    pub segment: u16,
    /// First bus in the window.
    pub first_bus: u8,
    /// Last bus in the window.
    pub last_bus: u8,
}

/// The contents of the tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// The signatures of all tables, in the order of the root table.
    pub names: Vec<[u8; 4]>,
    /// Local APIC ids of enabled processors, the boot processor among them.
    pub processors: Vec<u32>,
    /// Local APIC registers (xAPIC).
    pub local_apic: Option<PhysAddr>,
    /// PCI configuration windows.
    pub ecam: Vec<EcamWindow>,
    /// The configuration window that the byte code names, used if there is no MCFG.
    cba: Option<EcamWindow>,
    /// Memory windows that the PCI host bridge decodes, from its `_CRS`. Empty if the byte code computes them
    /// at run time, as the firmware of servers does.
    pub pci_memory: Vec<Region>,
    /// HPET registers.
    pub hpet: Option<PhysAddr>,
    /// The registers for power, and the power management timer.
    pub power: Power,
    /// The NUMA nodes of memory and processors.
    pub numa: Numa,
    /// The serial port of the console.
    pub console: Option<Spcr>,
    /// True if firmware asks for the local APICs to stay in xAPIC mode.
    pub keep_xapic: bool,
    /// IOMMUs (DMAR, IVRS).
    pub iommus: Vec<iommu::Unit>,
}

/// Returns `len` bytes at `addr`.
///
/// # Safety
/// `addr` to `addr + len` must be memory (RAM or ROM) in the direct map.
unsafe fn bytes(addr: u64, len: usize) -> Bytes<'static> {
    // SAFETY: the caller's promise; nothing writes to firmware tables while they are read.
    Bytes(unsafe { slice::from_raw_parts((DIRECT_MAP + addr) as *const u8, len) })
}

/// Tables beyond the range of the boot page tables are ignored.
const LIMIT: u64 = 4 << 30;
const MAX_TABLE: u32 = 1 << 20;

/// Returns the table at `addr`, if it has a plausible length and a correct checksum.
unsafe fn table(addr: u64) -> Option<Bytes<'static>> {
    if addr == 0 || addr > LIMIT - u64::from(MAX_TABLE) {
        return None;
    }
    // SAFETY: the first 4 GiB are in the direct map.
    let len = unsafe { bytes(addr, 36) }.u32(4).filter(|l| (36..=MAX_TABLE).contains(l))?;
    // SAFETY: as above.
    let table = unsafe { bytes(addr, len as usize) };
    table.sum_is_zero().then_some(table)
}

unsafe fn find_rsdp(hint: Option<PhysAddr>) -> Option<Bytes<'static>> {
    // A BIOS leaves it in the first KiB of its extended data area, whose segment is at 0x40e, or in its ROM.
    // SAFETY: the data of the BIOS, which is RAM below 4 GiB.
    let segment = u64::from(unsafe { bytes(0x400, 16) }.u16(0xe).unwrap_or(0));
    let extended = segment << 4..(segment << 4) + 1024;
    let extended = extended.filter(|_| (0x8000..0xa000).contains(&segment)).step_by(16);
    let scan = extended.chain((0xe_0000..0x10_0000).step_by(16));
    hint.map(PhysAddr::as_u64).into_iter().chain(scan).filter(|a| *a < LIMIT - 64).find_map(|addr| {
        // SAFETY: below 4 GiB, in the direct map.
        let rsdp = unsafe { bytes(addr, 20) };
        // SAFETY: as above.
        (rsdp.0.starts_with(b"RSD PTR ") && rsdp.sum_is_zero()).then(|| unsafe { bytes(addr, 36) })
    })
}

static TABLES: Once<Tables> = Once::new();

/// Reads the tables, and keeps them for [`tables`].
///
/// # Safety
/// The first 4 GiB must be in the direct map, as by the boot page tables.
pub(crate) unsafe fn init(rsdp: Option<PhysAddr>) -> &'static Tables {
    // SAFETY: the caller's promise.
    TABLES.call_once(|| unsafe { read(rsdp) })
}

/// Returns the tables of this machine.
///
/// # Panics
/// Panics before [`init`].
pub(crate) fn tables() -> &'static Tables {
    TABLES.get().expect("ACPI's tables before the boot has read them")
}

/// Reads the tables. Fields without a table stay empty.
///
/// # Safety
/// The first 4 GiB must be in the direct map, as by the boot page tables.
unsafe fn read(rsdp: Option<PhysAddr>) -> Tables {
    let mut found = Tables::default();
    // SAFETY: the caller's promise.
    let Some(rsdp) = (unsafe { find_rsdp(rsdp) }) else { return found };
    let extended = rsdp.u8(15).is_some_and(|r| r >= 2);
    // SAFETY: the caller's promise.
    let xsdt = if extended { rsdp.u64(24).and_then(|a| unsafe { table(a) }) } else { None };
    // SAFETY: the caller's promise.
    let root = xsdt.or_else(|| rsdp.u32(16).and_then(|a| unsafe { table(u64::from(a)) }));
    let Some(root) = root else { return found };
    let width = if xsdt.is_some() { 8 } else { 4 };
    let (mut srat, mut slit) = (None, None);
    for at in (36..root.0.len()).step_by(width) {
        let addr = if width == 8 { root.u64(at) } else { root.u32(at).map(u64::from) };
        // SAFETY: the caller's promise.
        let Some(t) = addr.and_then(|a| unsafe { table(a) }) else { continue };
        found.names.extend(t.0.first_chunk());
        match t.0.get(..4) {
            Some(b"APIC") => {
                let madt = madt::read(t);
                found.processors = madt.processors;
                found.local_apic = madt.local_apic.map(PhysAddr::new_truncate);
            }
            Some(b"MCFG") => mcfg(t, &mut found),
            // SAFETY: the caller's promise.
            Some(b"FACP") => unsafe { fixed(t, &mut found) },
            Some(b"SSDT") => found.power.soft_off = found.power.soft_off.or_else(|| fadt::soft_off(t)),
            Some(b"HPET") => {
                if let Some(Register::Memory(a)) = t.register(40) {
                    found.hpet = Some(PhysAddr::new_truncate(a));
                }
            }
            Some(b"SRAT") => srat = Some(t),
            Some(b"SLIT") => slit = Some(t),
            Some(b"SPCR") => found.console = spcr::read(t),
            Some(b"DMAR" | b"IVRS") => iommus(t, &mut found),
            _ => {}
        }
    }
    if let Some(srat) = srat {
        found.numa = Numa::read(srat, slit);
    }
    if found.ecam.is_empty() {
        found.ecam.extend(found.cba);
    }
    found
}

fn iommus(t: Bytes<'_>, found: &mut Tables) {
    // X2APIC_OPT_OUT of the flags of DMAR (VT-d specification 8.1).
    found.keep_xapic |= t.0.starts_with(b"DMAR") && t.u8(37).is_some_and(|flags| flags & 2 != 0);
    for unit in iommu::units(t.0) {
        // A unit may be described more than once.
        if !found.iommus.contains(&unit) {
            found.iommus.push(unit);
        }
    }
}

fn mcfg(t: Bytes<'_>, found: &mut Tables) {
    let mut at = 44;
    while let (Some(base), Some(segment), Some(first_bus), Some(last_bus)) =
        (t.u64(at), t.u16(at + 8), t.u8(at + 10), t.u8(at + 11))
    {
        found.ecam.push(EcamWindow { base: PhysAddr::new_truncate(base), segment, first_bus, last_bus });
        at += 16;
    }
}

/// # Safety
/// The requirements of [`read`] apply.
unsafe fn fixed(t: Bytes<'_>, found: &mut Tables) {
    found.power.fadt = fadt::read(t);
    // SAFETY: the caller's promise.
    let Some(dsdt) = found.power.fadt.dsdt.and_then(|a| unsafe { table(a) }) else { return };
    found.power.soft_off = fadt::soft_off(dsdt).or(found.power.soft_off);
    pci_root(dsdt, found);
}

/// Extracts the PCI host bridge's properties from constant byte code of the DSDT: its configuration window,
/// where there is no MCFG (QEMU's microvm: `Method (_CBA) { Return (integer) }`), and its memory windows
/// (`_CRS`: DWord and QWord address space descriptors of type 0, ACPI 6.5, section 6.4.3.5).
fn pci_root(dsdt: Bytes<'_>, found: &mut Tables) {
    let find = |wanted: &[u8]| dsdt.0.windows(wanted.len()).position(|w| w == wanted);
    let cba = find(b"_CBA\x00\xa4").map(|at| at + 6).and_then(|at| match dsdt.u8(at)? {
        0x0c => dsdt.u32(at + 1).map(u64::from),
        0x0e => dsdt.u64(at + 1),
        _ => None,
    });
    let Some(base) = cba.filter(|b| *b != 0) else { return };
    found.cba =
        Some(EcamWindow { base: PhysAddr::new_truncate(base), segment: 0, first_bus: 0, last_bus: 255 });
    let dword = find(&[0x87, 0x17, 0, 0]);
    let dword = dword.and_then(|at| Some((dsdt.u32(at + 10)?.into(), dsdt.u32(at + 22)?.into())));
    let qword = find(&[0x8a, 0x2b, 0, 0]).and_then(|at| Some((dsdt.u64(at + 14)?, dsdt.u64(at + 38)?)));
    for (start, len) in [dword, qword].into_iter().flatten() {
        found.pci_memory.push(Region::new(start, len));
    }
}
