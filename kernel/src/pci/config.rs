//! Configuration space, accessed by memory (ECAM, from ACPI's MCFG) or by ports 0xcf8 and 0xcfc.

use x86_64::instructions::port::Port;

use super::address::Address;
use crate::boot::acpi::EcamWindow;
use crate::mm;
use crate::sync::IrqMutex;

/// The offset of the command register; the status register is in the upper half of its word.
pub(super) const COMMAND: u16 = 0x04;
/// The bit of the command register that lets the function master the bus.
pub(super) const COMMAND_MASTER: u32 = 1 << 2;
/// The class of bridges.
const BRIDGE: u32 = 6;

/// The address and data ports. The lock keeps the pair of accesses together.
static PORTS: IrqMutex<(Port<u32>, Port<u32>)> = IrqMutex::new((Port::new(0xcf8), Port::new(0xcfc)));

/// An access path to the configuration space of some buses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Config {
    /// Memory-mapped configuration space.
    Memory {
        /// The mapped address that bus 0 would have.
        base: usize,
        segment: u16,
        /// First bus.
        first_bus: u8,
        /// Last bus.
        last_bus: u8,
    },
    /// Access by ports: segment 0, the first 256 bytes of each function.
    Ports,
}

impl Config {
    /// Maps `window`. If that fails, prints a line on the console and returns `None`.
    pub(crate) fn memory(window: &EcamWindow) -> Option<Self> {
        let EcamWindow { base, segment, first_bus, last_bus } = *window;
        let start = base + (u64::from(first_bus) << 20);
        let len = (u64::from(last_bus.checked_sub(first_bus)?) + 1) << 20;
        match mm::map_device(start, len) {
            Ok(at) => {
                let base = at as usize - (usize::from(first_bus) << 20);
                Some(Self::Memory { base, segment, first_bus, last_bus })
            }
            Err(e) => {
                log::warn!("pci: configuration window at {start:?}: {e}");
                None
            }
        }
    }

    /// Returns the configuration ports, if a PCI host answers at them.
    pub(crate) fn ports() -> Option<Self> {
        let mut ports = PORTS.lock();
        // SAFETY: 0xcf8 is the configuration address port; on a machine without it nothing listens there.
        let echoed = unsafe {
            ports.0.write(0x8000_0000);
            ports.0.read()
        };
        (echoed == 0x8000_0000).then_some(Self::Ports)
    }

    /// Returns the segment group and the buses that this path reaches.
    pub(crate) fn buses(&self) -> (u16, core::ops::RangeInclusive<u8>) {
        match *self {
            Self::Memory { segment, first_bus, last_bus, .. } => (segment, first_bus..=last_bus),
            Self::Ports => (0, 0..=255),
        }
    }

    fn at(base: usize, a: Address, offset: u16) -> *mut u32 {
        let function =
            usize::from(a.bus) << 20 | usize::from(a.device & 31) << 15 | usize::from(a.function & 7) << 12;
        (base + (function | usize::from(offset & 0xffc))) as *mut u32
    }

    fn select(a: Address, offset: u16) -> u32 {
        let target = u32::from(a.bus) << 16 | u32::from(a.device & 31) << 11 | u32::from(a.function & 7) << 8;
        0x8000_0000 | target | u32::from(offset & 0xfc)
    }

    fn reaches(&self, a: Address, offset: u16) -> bool {
        let (segment, buses) = self.buses();
        segment == a.segment
            && buses.contains(&a.bus)
            && (matches!(self, Self::Memory { .. }) || offset < 256)
    }

    /// Reads the word at `offset` (rounded down to a multiple of 4). Returns all ones if nothing answers.
    pub(crate) fn read(&self, a: Address, offset: u16) -> u32 {
        if !self.reaches(a, offset) {
            return u32::MAX;
        }
        match *self {
            // SAFETY: `base` maps the space of these buses, and `reaches` has checked the bus. Reading
            // configuration space has no effect on memory.
            Self::Memory { base, .. } => unsafe { Self::at(base, a, offset).read_volatile() },
            Self::Ports => {
                let mut ports = PORTS.lock();
                // SAFETY: as in `ports`; reading has no effect on memory.
                unsafe {
                    ports.0.write(Self::select(a, offset));
                    ports.1.read()
                }
            }
        }
    }

    /// Stops a function from mastering the bus, unless it is a bridge, whose bus mastering passes
    /// on that of the devices behind it.
    pub(super) fn stop(&self, address: Address) {
        // The upper half is the status register: writing zeros does not change it.
        let command = self.read(address, COMMAND) & 0xffff;
        if command & COMMAND_MASTER != 0 && self.read(address, 8) >> 24 != BRIDGE {
            self.write(address, COMMAND, command & !COMMAND_MASTER);
        }
    }

    /// Writes the word at `offset` (rounded down to a multiple of 4).
    pub(crate) fn write(&self, a: Address, offset: u16, value: u32) {
        if !self.reaches(a, offset) {
            return;
        }
        match *self {
            // SAFETY: as in `read`. This module controls which writes can affect memory (bus mastering,
            // windows over RAM): only `enable`, sizing and `assign` write the registers concerned, and a
            // driver that has reset its device restores their values.
            Self::Memory { base, .. } => unsafe { Self::at(base, a, offset).write_volatile(value) },
            Self::Ports => {
                let mut ports = PORTS.lock();
                // SAFETY: as above.
                unsafe {
                    ports.0.write(Self::select(a, offset));
                    ports.1.write(value);
                }
            }
        }
    }
}
