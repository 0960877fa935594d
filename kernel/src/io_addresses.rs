//! Checks that devices address memory as this kernel does: no IOMMU may translate their addresses, nor keep
//! them away from memory.

use alloc::format;
use alloc::string::String;
use iommu::Unit;
use x86_64::PhysAddr;

use crate::mm;

/// Bytes of an IOMMU's registers that are mapped. All registers that are read lie in the first page.
const REGISTERS: u64 = mm::PAGE;

/// Maps the registers of an IOMMU.
///
/// # Errors
/// A line for the user: the registers cannot be mapped.
pub(crate) fn registers(unit: Unit) -> Result<*mut u8, String> {
    let at = PhysAddr::try_new(unit.registers).map_err(|_| format!("{unit} has an impossible address"))?;
    mm::map_device(at, REGISTERS).map_err(|e| format!("{unit} cannot be looked at: {e}"))
}

/// Returns an IOMMU's registers of its state, and of protected memory if it has one.
///
/// # Errors
/// A line for the user: the registers cannot be mapped.
pub(crate) fn state(unit: Unit) -> Result<(u32, Option<u32>), String> {
    let registers = registers(unit)?;
    let read = |offset: u64| {
        // SAFETY: an aligned register within the page that was mapped.
        unsafe { registers.add(offset as usize).cast::<u32>().read_volatile() }
    };
    Ok((read(unit.status_offset()), unit.protection_offset().map(read)))
}

/// Fails if an IOMMU is on, because devices would then use other addresses than the kernel.
///
/// # Errors
/// A line for the user that names the IOMMU and says what to do.
pub(crate) fn check(units: &[Unit]) -> Result<(), String> {
    for &unit in units {
        let (status, protection) = state(unit)?;
        if unit.translates(status) {
            return Err(format!(
                "{unit} translates the addresses of devices: turn it off in the firmware's settings"
            ));
        }
        if protection.is_some_and(|protection| unit.protects(protection)) {
            return Err(format!(
                "{unit} keeps devices away from memory: turn that off in the firmware's settings"
            ));
        }
        log::debug!("{unit} is off");
    }
    Ok(())
}
