//! The access of a card's function to memory, by its bit in the command register of the configuration space.

use crate::hardware::Hardware;

/// The index of the word in the configuration space whose low half is the command register.
pub(crate) const COMMAND: usize = 1;
/// Bit of the command register: the function may reach memory.
pub(crate) const BUS_MASTER: u32 = 1 << 2;

/// Disables a function's access to memory, whatever the card does: a function that is not a bus master cannot
/// send requests. Returns true if it has no access from then on.
pub(crate) fn cut_off(hw: &impl Hardware) -> bool {
    let at = COMMAND as u16 * 4;
    let command = hw.config(at);
    if command != u32::MAX {
        // A 1 in the upper half would clear a status bit.
        hw.set_config(at, command & 0xffff & !BUS_MASTER);
    }
    // The answer to this read arrives after all earlier writes of the function (PCI Express, ordering). An
    // absent function reads as all ones, and reaches nothing.
    let now = hw.config(at);
    now == u32::MAX || now & BUS_MASTER == 0
}

/// Enables a function's access to memory.
pub(crate) fn connect(hw: &impl Hardware) {
    let at = COMMAND as u16 * 4;
    let command = hw.config(at) & 0xffff;
    if command & BUS_MASTER == 0 {
        hw.set_config(at, command | BUS_MASTER);
    }
}
