//! Turns on an IOMMU of the machine, which firmware has left off, and checks that this is detected.

use core::time::Duration;
use iommu::{Kind, Unit};

use super::{Outcome, ensure};
use crate::boot::acpi;
use crate::mm::{self, frames};
use crate::{io_addresses, time};

/// Registers of Intel's units (VT-d specification 11.4) and their bits.
const COMMAND: usize = 0x18;
const STATUS: usize = 0x1c;
const ROOT_TABLE: usize = 0x20;
const SET_ROOT_TABLE: u32 = 1 << 30;
const TRANSLATE: u32 = 1 << 31;
/// The longest time for a command.
const LIMIT: Duration = Duration::from_secs(2);

fn intel() -> Result<Unit, alloc::string::String> {
    let unit = acpi::tables().iommus.iter().copied().find(|unit| unit.kind == Kind::Intel);
    Ok(unit.ok_or("this machine has no IOMMU of Intel's")?)
}

/// Turns an IOMMU on with a root table that has no entries, so that no device can access memory.
pub(super) fn turn_on() -> Outcome {
    let unit = intel()?;
    let registers = io_addresses::registers(unit)?;
    let table = frames::alloc_zeroed(mm::PAGE).ok_or("no frame")?;
    // SAFETY: the registers are within the mapped page; devices that lose access to memory do not disturb
    // this test.
    unsafe { registers.add(ROOT_TABLE).cast::<u64>().write_volatile(table.as_u64()) };
    command(registers, SET_ROOT_TABLE, SET_ROOT_TABLE)?;
    command(registers, TRANSLATE, TRANSLATE)?;
    Ok(alloc::format!("{unit}"))
}

/// Issues a command, and waits until the status has the bit.
fn command(registers: *mut u8, command: u32, bit: u32) -> Result<(), alloc::string::String> {
    // SAFETY: the registers are within the mapped page.
    let status = || unsafe { registers.add(STATUS).cast::<u32>().read_volatile() };
    // SAFETY: as above.
    unsafe { registers.add(COMMAND).cast::<u32>().write_volatile(command) };
    let end = time::now() + LIMIT;
    while status() & bit == 0 {
        ensure!(time::now() < end, "the IOMMU does not take command {command:#x}");
    }
    Ok(())
}

/// Checks that the IOMMU is seen to be off, turns it on, and checks that it is seen to be on.
pub(super) fn run() -> Outcome {
    let units = &acpi::tables().iommus;
    intel()?;
    io_addresses::check(units)?;
    let unit = turn_on()?;
    match io_addresses::check(units) {
        Err(why) if why.contains("translates the addresses of devices") => Ok(unit),
        other => Err(alloc::format!("an IOMMU that is on gave {other:?}")),
    }
}
