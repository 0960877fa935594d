//! PCI: the functions on the bus, their registers, and their drivers.
//!
//! Values from a device are never trusted: sizes, offsets and lists from configuration space are checked.
//! (The crate `pci_types` panics on a reserved BAR type and follows capability lists without limit, so it is
//! not used.)

mod address;
mod assign;
mod config;
mod msix;
mod names;
pub(crate) mod quiet;
mod scan;
mod window;

use alloc::vec::Vec;
use core::fmt;
use x86_64::PhysAddr;

use crate::boot::acpi::Tables;
use crate::mm;
use crate::sync::IrqMutex;
pub(crate) use address::Address;
pub(crate) use config::Config;
use config::{COMMAND, COMMAND_MASTER};
pub(crate) use msix::{Message, MsixError, MsixTable};
pub(crate) use window::Window;

/// A base address register: a window of a function's registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bar {
    /// A window in memory space.
    Memory {
        /// The address, if one is assigned.
        address: Option<PhysAddr>,
        /// The size in bytes, a power of two.
        size: u64,
        /// True if the window may lie above 4 GiB.
        wide: bool,
        /// True if reads have no side effects.
        prefetchable: bool,
    },
    /// In port space, which no driver here uses.
    Ports {
        /// The first I/O port.
        port: u16,
    },
}

/// A function on the bus.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// The function's address.
    pub address: Address,
    /// Vendor and device id.
    pub id: (u16, u16),
    /// Subsystem vendor and device id; zero on a bridge.
    pub subsystem: (u16, u16),
    /// Base class, subclass, programming interface.
    pub class: (u8, u8, u8),
    pub revision: u8,
    /// Windows by register number. The upper half of a 64-bit register is `None`.
    pub bars: [Option<Bar>; 6],
    driver: Option<&'static str>,
    config: Config,
}

/// The reason for which a function's registers cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarError {
    /// The function has no base address register with that number, or the register describes I/O ports.
    Absent,
    /// The window has no address.
    NotAssigned,
    /// The window cannot be mapped.
    Map(mm::paging::MapError),
}

impl fmt::Display for BarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no such memory window"),
            Self::NotAssigned => f.write_str("memory window has no address"),
            Self::Map(e) => write!(f, "memory window cannot be mapped: {e}"),
        }
    }
}

/// Ids of the PCI capabilities that the kernel reads.
pub(crate) mod capability {
    /// A capability that the vendor defines; virtio describes its structures there.
    pub(crate) const VENDOR: u8 = 0x09;
    /// The capability MSI-X.
    pub(crate) const MSIX: u8 = 0x11;
}

const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_NO_INTX: u32 = 1 << 10;

impl Function {
    /// Reads the configuration word at `offset`, a multiple of 4.
    pub(crate) fn read(&self, offset: u16) -> u32 {
        self.config.read(self.address, offset)
    }

    /// Writes the configuration word at `offset`, a multiple of 4.
    pub(crate) fn write(&self, offset: u16, value: u32) {
        self.config.write(self.address, offset, value);
    }

    /// Makes the function decode its memory windows and master the bus, with pin interrupts off.
    pub(crate) fn enable(&self) {
        // The upper half is the status register: writing zeros does not change it.
        let command = self.read(COMMAND) & 0xffff;
        self.write(COMMAND, command | COMMAND_MEMORY | COMMAND_MASTER | COMMAND_NO_INTX);
    }

    /// Stops the function from mastering the bus, unless it is a bridge.
    pub(crate) fn stop(&self) {
        self.config.stop(self.address);
    }

    /// Returns true if the function may master the bus.
    #[cfg(feature = "selftest")]
    pub(crate) fn is_master(&self) -> bool {
        self.read(COMMAND) & COMMAND_MASTER != 0
    }

    /// Returns the offsets of the capabilities with `id`, in the list's order.
    pub(crate) fn capabilities(&self, id: u8) -> impl Iterator<Item = u16> + '_ {
        let has_list = self.read(COMMAND) & 1 << 20 != 0;
        let mut next = if has_list { self.read(0x34) as u8 & 0xfc } else { 0 };
        // 48 capabilities of 4 bytes fill the space after the header: a longer list is a loop.
        let all = (0..48).map_while(move |_| {
            let at = u16::from(next);
            if at < 0x40 {
                return None;
            }
            let head = self.read(at);
            next = (head >> 8) as u8 & 0xfc;
            Some((head as u8, at))
        });
        all.filter(move |(found, _)| *found == id).map(|(_, at)| at)
    }

    /// Maps memory window `n` (0 to 5). Returns its address and its size in bytes.
    pub(crate) fn map_bar(&self, n: usize) -> Result<(*mut u8, u64), BarError> {
        let Some(Bar::Memory { address, size, .. }) = self.bars.get(n).copied().flatten() else {
            return Err(BarError::Absent);
        };
        let address = address.ok_or(BarError::NotAssigned)?;
        let at = mm::map_device(address, size).map_err(BarError::Map)?;
        Ok((at, size))
    }

    /// Returns the function's name, for people.
    pub(crate) fn name(&self) -> &'static str {
        names::of(self.id, self.class)
    }

    /// Returns true for a bridge.
    pub(crate) fn is_bridge(&self) -> bool {
        self.class.0 == 6
    }
}

static FUNCTIONS: IrqMutex<Vec<Function>> = IrqMutex::new(Vec::new());

/// Finds all functions and assigns addresses to windows that have none. Call once, at boot.
pub(crate) fn init(acpi: &Tables) {
    let (mut functions, unassigned) = scan::all(&acpi.ecam);
    if unassigned {
        assign::all(&mut functions, &acpi.pci_memory);
    }
    *FUNCTIONS.lock() = functions;
}

pub(crate) fn functions() -> Vec<Function> {
    FUNCTIONS.lock().clone()
}

/// Records that `driver` drives the function at `address`.
pub(crate) fn claim(address: Address, driver: &'static str) {
    if let Some(f) = FUNCTIONS.lock().iter_mut().find(|f| f.address == address) {
        f.driver = Some(driver);
    }
}

/// Prints the inventory: each function with its driver, and a warning for each without a driver.
pub(crate) fn report() {
    for f in functions() {
        let (vendor, device) = f.id;
        let (base, sub, interface) = f.class;
        let name = f.name();
        let address = f.address;
        match f.driver {
            Some(driver) => log::info!("pci {address} {vendor:04x}:{device:04x} {name}: {driver}"),
            None if f.is_bridge() => log::info!("pci {address} {vendor:04x}:{device:04x} {name}"),
            None => log::warn!(
                "pci {address} {vendor:04x}:{device:04x} class {base:02x}{sub:02x}{interface:02x} {name}: NO DRIVER"
            ),
        }
        let (sub_vendor, sub_device) = f.subsystem;
        log::debug!("  revision {:02x}, subsystem {sub_vendor:04x}:{sub_device:04x}", f.revision);
        for (n, bar) in f.bars.iter().enumerate() {
            match bar {
                Some(Bar::Memory { address: Some(at), size, .. }) => {
                    log::debug!("  bar {n}: {at:?} + {size:#x}");
                }
                Some(Bar::Memory { address: None, size, .. }) => {
                    log::warn!("pci {address} bar {n} of {size:#x} bytes has no address");
                }
                Some(Bar::Ports { port }) => log::debug!("  bar {n}: port {port:#x}"),
                None => {}
            }
        }
    }
}
