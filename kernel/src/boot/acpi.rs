//! The few ACPI tables that are needed first: processors, PCI windows, timers, power, IOMMUs. AML is not
//! interpreted. Each table's length and checksum are verified, and it is read through bounds-checked
//! accessors.

use alloc::vec::Vec;
use core::slice;
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

/// The location of a register (generic address structure).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    /// A register in memory.
    Memory(PhysAddr),
    /// A register at an I/O port.
    Port(u16),
}

/// The contents of the tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
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
    /// The power management timer, 3.579545 MHz. The flag is true if it has 32 bits rather than 24.
    pub pm_timer: Option<(Register, bool)>,
    /// HPET registers.
    pub hpet: Option<PhysAddr>,
    /// The register that resets the machine, and the value to write to it.
    pub reset: Option<(Register, u8)>,
    /// The sleep control register of a hardware-reduced platform (QEMU microvm).
    pub sleep_control: Option<Register>,
    /// PM1a control block and the `SLP_TYP` for soft off.
    pub soft_off: Option<(u16, u8)>,
    /// IOMMUs (DMAR, IVRS).
    pub iommus: Vec<iommu::Unit>,
}

/// A table in physical memory, or another run of bytes.
#[derive(Clone, Copy)]
struct Bytes(&'static [u8]);

impl Bytes {
    /// # Safety
    /// `addr` to `addr + len` must be memory (RAM or ROM) in the direct map.
    unsafe fn at(addr: u64, len: usize) -> Self {
        // SAFETY: the caller's promise; nothing writes to firmware tables while they are read.
        Self(unsafe { slice::from_raw_parts((DIRECT_MAP + addr) as *const u8, len) })
    }
    fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }
    fn u16(self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.0.get(at..at + 2)?.try_into().ok()?))
    }
    fn u32(self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }
    fn u64(self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(self.0.get(at..at + 8)?.try_into().ok()?))
    }
    fn sum_is_zero(self) -> bool {
        self.0.iter().fold(0u8, |a, b| a.wrapping_add(*b)) == 0
    }
    fn address(self, at: usize) -> Option<Register> {
        let addr = self.u64(at + 4).filter(|a| *a != 0)?;
        match self.u8(at)? {
            0 => Some(Register::Memory(PhysAddr::new_truncate(addr))),
            1 => Some(Register::Port(u16::try_from(addr).ok()?)),
            _ => None,
        }
    }
}

/// Tables beyond the range of the boot page tables are ignored.
const LIMIT: u64 = 4 << 30;
const MAX_TABLE: u32 = 1 << 20;

/// Returns the table at `addr`, if it has a plausible length and a correct checksum.
unsafe fn table(addr: u64) -> Option<Bytes> {
    if addr == 0 || addr > LIMIT - u64::from(MAX_TABLE) {
        return None;
    }
    // SAFETY: the first 4 GiB are in the direct map.
    let len = unsafe { Bytes::at(addr, 36) }.u32(4).filter(|l| (36..=MAX_TABLE).contains(l))?;
    // SAFETY: as above.
    let table = unsafe { Bytes::at(addr, len as usize) };
    table.sum_is_zero().then_some(table)
}

unsafe fn find_rsdp(hint: Option<PhysAddr>) -> Option<Bytes> {
    let scan = (0xe_0000..0x10_0000).step_by(16);
    hint.map(PhysAddr::as_u64).into_iter().chain(scan).filter(|a| *a < LIMIT - 64).find_map(|addr| {
        // SAFETY: below 4 GiB, in the direct map.
        let rsdp = unsafe { Bytes::at(addr, 20) };
        // SAFETY: as above.
        (rsdp.0.starts_with(b"RSD PTR ") && rsdp.sum_is_zero()).then(|| unsafe { Bytes::at(addr, 36) })
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
    for at in (36..root.0.len()).step_by(width) {
        let addr = if width == 8 { root.u64(at) } else { root.u32(at).map(u64::from) };
        // SAFETY: the caller's promise.
        let Some(t) = addr.and_then(|a| unsafe { table(a) }) else { continue };
        match t.0.get(..4) {
            Some(b"APIC") => madt(t, &mut found),
            Some(b"MCFG") => mcfg(t, &mut found),
            // SAFETY: the caller's promise.
            Some(b"FACP") => unsafe { fadt(t, &mut found) },
            Some(b"HPET") => {
                if let Some(Register::Memory(a)) = t.address(40) {
                    found.hpet = Some(a);
                }
            }
            Some(b"DMAR" | b"IVRS") => iommus(t, &mut found),
            _ => {}
        }
    }
    if found.ecam.is_empty() {
        found.ecam.extend(found.cba);
    }
    found
}

fn iommus(t: Bytes, found: &mut Tables) {
    for unit in iommu::units(t.0) {
        // A unit may be described more than once.
        if !found.iommus.contains(&unit) {
            found.iommus.push(unit);
        }
    }
}

fn madt(t: Bytes, found: &mut Tables) {
    found.local_apic = t.u32(36).map(|a| PhysAddr::new_truncate(u64::from(a)));
    let mut at = 44;
    while let (Some(kind), Some(len)) = (t.u8(at), t.u8(at + 1)) {
        if len < 2 {
            break;
        }
        let (id, flags) = match kind {
            0 => (t.u8(at + 3).map(u32::from), t.u32(at + 4)),
            9 => (t.u32(at + 4), t.u32(at + 8)),
            _ => (None, None),
        };
        if let (Some(id), Some(flags)) = (id, flags)
            && flags & 1 != 0
            && !found.processors.contains(&id)
        {
            found.processors.push(id);
        }
        if kind == 5 {
            found.local_apic = t.u64(at + 4).map(PhysAddr::new_truncate).or(found.local_apic);
        }
        at += usize::from(len);
    }
}

fn mcfg(t: Bytes, found: &mut Tables) {
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
unsafe fn fadt(t: Bytes, found: &mut Tables) {
    let flags = t.u32(112).unwrap_or(0);
    let hardware_reduced = flags & 1 << 20 != 0;
    // X_DSDT has precedence over DSDT.
    let at = t.u64(140).filter(|a| *a != 0).or_else(|| t.u32(40).map(u64::from));
    // SAFETY: the caller's promise.
    let dsdt = at.and_then(|a| unsafe { table(a) });
    if !hardware_reduced {
        let port = t.u32(76).and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0).map(Register::Port);
        found.pm_timer = t.address(208).or(port).map(|r| (r, flags & 1 << 8 != 0));
        let pm1a = t.u32(64).and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0);
        found.soft_off = pm1a.zip(dsdt.and_then(slp_typ_s5));
    }
    if let Some(dsdt) = dsdt {
        pci_root(dsdt, found);
    }
    if flags & 1 << 10 != 0 {
        found.reset = t.address(116).zip(t.u8(128));
    }
    if hardware_reduced {
        found.sleep_control = t.address(244);
    }
}

/// Returns `SLP_TYPa` of `\_S5`, from its byte code in the DSDT:
/// `"_S5_" PackageOp PkgLength NumElements [BytePrefix] value`.
fn slp_typ_s5(dsdt: Bytes) -> Option<u8> {
    let at = dsdt.0.windows(5).position(|w| w == b"_S5_\x12")? + 5;
    let length_bytes = 1 + usize::from(dsdt.u8(at)? >> 6);
    let first = at + length_bytes + 1;
    match dsdt.u8(first)? {
        0x0a => dsdt.u8(first + 1),
        value @ (0 | 1) => Some(value),
        _ => None,
    }
}

/// Extracts the PCI host bridge's properties from constant byte code of the DSDT: its configuration window,
/// where there is no MCFG (QEMU's microvm: `Method (_CBA) { Return (integer) }`), and its memory windows
/// (`_CRS`: DWord and QWord address space descriptors of type 0, ACPI 6.5, section 6.4.3.5).
fn pci_root(dsdt: Bytes, found: &mut Tables) {
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
