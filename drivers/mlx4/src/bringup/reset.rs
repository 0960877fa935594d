//! Ownership and reset of a card (Linux `mlx4/reset.c`, iPXE `hermon_reset`).

use crate::bus::{BUS_MASTER, COMMAND};
use crate::card::Function;
use crate::error::Error;
use crate::hardware::Hardware;
use crate::vf::channel::reset_by_flag;
use core::time::Duration;

/// BAR 0: a read of 0 acquires the card, a write of 0 releases it.
const OWNERSHIP: u32 = 0x8069c;
/// BAR 0: not 0 while a tool accesses the card's flash.
const SEMAPHORE: u32 = 0xf03fc;
/// BAR 0: a 1 resets the card.
const RESET: u32 = 0xf0010;

/// The maximum time that a tool may hold the semaphore.
const SEMAPHORE_LIMIT: Duration = Duration::from_secs(10);
/// The maximum time of a reset: Linux waits 1 s and then polls for 2 s.
pub(crate) const RESET_LIMIT: Duration = Duration::from_secs(3);
/// The time between two polls of a card in reset, as in iPXE.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The number of words of the configuration space that a reset loses.
const SAVED: usize = 16;
const VENDOR: u16 = 0x15b3;
const CAPABILITIES: u16 = 0x34;
const PCI_EXPRESS: u32 = 0x10;
/// Words of the PCI Express capability whose low half is a control register: of the device, and of the link.
const CONTROLS: [u16; 2] = [0x08, 0x10];
/// The maximum length of a capability list.
const MAX_CAPABILITIES: usize = 48;

/// Device IDs of virtual functions: of a ConnectX-2, and of a ConnectX-3 and ConnectX-3 Pro.
const VIRTUAL: [u16; 2] = [0x1002, 0x1004];

/// Returns the kind of function that is present.
pub(crate) fn function(hw: &impl Hardware) -> Result<Function, Error> {
    let id = hw.config(0);
    if id as u16 != VENDOR {
        return Err(Error::Gone);
    }
    Ok(if VIRTUAL.contains(&((id >> 16) as u16)) { Function::Virtual } else { Function::Physical })
}

/// The part of the configuration space that a reset loses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    words: [u32; SAVED],
    controls: [Option<(u16, u32)>; CONTROLS.len()],
}

/// Acquires the card and resets it. Afterwards its registers are as after power-on, and its BARs as before.
pub(crate) fn take(hw: &impl Hardware) -> Result<Saved, Error> {
    match hw.register(OWNERSHIP) {
        0 => {}
        u32::MAX => return Err(Error::Gone),
        _ => return Err(Error::Owned),
    }
    let taken = reset(hw);
    if taken.is_err() {
        give_up(hw);
    }
    taken
}

/// Releases the card, so that another driver can acquire it.
pub(crate) fn give_up(hw: &impl Hardware) {
    hw.set_register(OWNERSHIP, 0);
}

/// Makes a card that does not obey commands stop using memory.
pub(crate) fn silence(hw: &impl Hardware, function: Function) {
    match function {
        Function::Physical => {
            hw.set_register(RESET, 1);
            hw.wait(POLL_INTERVAL);
        }
        Function::Virtual => {
            if let Err(error) = reset_by_flag(hw) {
                log::warn!("mlx4: the function cannot be reset: {error}");
            }
        }
    }
}

fn reset(hw: &impl Hardware) -> Result<Saved, Error> {
    let words = core::array::from_fn(|word| hw.config(word as u16 * 4));
    let express = express_capability(hw);
    let controls = CONTROLS.map(|offset| express.map(|at| (at + offset, hw.config(at + offset) & 0xffff)));
    poll(hw, SEMAPHORE_LIMIT, Error::ResetLocked, || begin(hw).is_ok())?;
    poll(hw, RESET_LIMIT, Error::ResetTimeout, || is_back(hw))?;
    let saved = Saved { words, controls };
    finish(hw, &saved);
    Ok(saved)
}

/// Begins a reset, unless a tool has locked the card.
pub(crate) fn begin(hw: &impl Hardware) -> Result<(), Error> {
    match hw.register(SEMAPHORE) {
        0 => {
            hw.set_register(RESET, 1);
            Ok(())
        }
        u32::MAX => Err(Error::Gone),
        _ => Err(Error::ResetLocked),
    }
}

/// Returns true if the card has completed its reset. The caller must pause between two calls.
pub(crate) fn is_back(hw: &impl Hardware) -> bool {
    hw.config(0) as u16 == VENDOR
}

/// Restores the configuration that the reset has lost.
pub(crate) fn finish(hw: &impl Hardware, saved: &Saved) {
    for (offset, value) in saved.controls.into_iter().flatten() {
        hw.set_config(offset, value);
    }
    for (word, value) in saved.words.into_iter().enumerate().filter(|(word, _)| *word != COMMAND) {
        hw.set_config(word as u16 * 4, value);
    }
    // The card may decode addresses only once its BARs are restored. A 1 in the upper half would clear a
    // status bit. A card that was cut off has been reset since, so it may be a bus master again.
    hw.set_config(COMMAND as u16 * 4, saved.words[COMMAND] & 0xffff | BUS_MASTER);
}

/// Polls until `so` returns true, first after a pause. Fails with `error` after the time `limit`.
fn poll(hw: &impl Hardware, limit: Duration, error: Error, so: impl Fn() -> bool) -> Result<(), Error> {
    let deadline = hw.now() + limit;
    loop {
        hw.wait(POLL_INTERVAL);
        if so() {
            return Ok(());
        }
        if hw.now() >= deadline {
            return Err(error);
        }
    }
}

/// Returns the offset of the PCI Express capability.
fn express_capability(hw: &impl Hardware) -> Option<u16> {
    let mut at = hw.config(CAPABILITIES) as u16 & 0xfc;
    for _ in 0..MAX_CAPABILITIES {
        if at < 0x40 {
            return None;
        }
        let head = hw.config(at);
        if head & 0xff == PCI_EXPRESS {
            return Some(at);
        }
        at = (head >> 8) as u16 & 0xfc;
    }
    None
}
