//! Taking a card and resetting it (Linux `mlx4/reset.c`, iPXE `hermon_reset`).

use crate::command::reset_by_flag;
use crate::control::Function;
use crate::error::Error;
use crate::hardware::Hardware;
use core::time::Duration;

/// BAR 0: a read of 0 takes the card, a write of 0 gives it up.
const OWNERSHIP: u32 = 0x8069c;
/// BAR 0: not 0 while a tool works on the card's flash.
const SEMAPHORE: u32 = 0xf03fc;
/// BAR 0: a 1 resets.
const RESET: u32 = 0xf0010;

/// How long a tool may take.
const SEMAPHORE_LIMIT: Duration = Duration::from_secs(10);
/// How long a reset may take: Linux waits 1 s and looks for 2 s more.
pub(crate) const LIMIT: Duration = Duration::from_secs(3);
/// Between two looks at a card that resets, as iPXE has it.
pub(crate) const LOOK: Duration = Duration::from_millis(1);

/// Words of the configuration space that a reset loses.
const SAVED: usize = 16;
const COMMAND: usize = 1;
/// Of the command register: the function may reach memory.
const BUS_MASTER: u32 = 1 << 2;
const VENDOR: u16 = 0x15b3;
const CAPABILITIES: u16 = 0x34;
const PCI_EXPRESS: u32 = 0x10;
/// Words of the PCI Express capability whose low half is a control register: of the device, and of the link.
const CONTROLS: [u16; 2] = [0x08, 0x10];
/// A list of capabilities is no longer than this.
const MOST_CAPABILITIES: usize = 48;

/// Device numbers of virtual functions: of a ConnectX-2, and of a ConnectX-3 and ConnectX-3 Pro.
const VIRTUAL: [u16; 2] = [0x1002, 0x1004];

/// Which function of a card is there.
pub(crate) fn function(hw: &impl Hardware) -> Result<Function, Error> {
    let id = hw.config(0);
    if id as u16 != VENDOR {
        return Err(Error::Gone);
    }
    Ok(if VIRTUAL.contains(&((id >> 16) as u16)) { Function::Virtual } else { Function::Physical })
}

/// What of the configuration space a reset loses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    words: [u32; SAVED],
    controls: [Option<(u16, u32)>; CONTROLS.len()],
}

/// Takes the card and resets it: afterwards its registers are as after power-on, and its BARs as before.
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

/// Gives the card up, so that another driver can take it.
pub(crate) fn give_up(hw: &impl Hardware) {
    hw.set_register(OWNERSHIP, 0);
}

/// Takes a function's access to memory away, whatever the card does: requests of a function that is no bus master go nowhere.
/// Gives whether it has none from the return on.
pub(crate) fn cut_off(hw: &impl Hardware) -> bool {
    let at = COMMAND as u16 * 4;
    let command = hw.config(at);
    if command != u32::MAX {
        // The upper half are bits that a 1 clears.
        hw.set_config(at, command & 0xffff & !BUS_MASTER);
    }
    // The answer comes behind what the function has written before (PCI Express, ordering). One that is not there at all
    // reads as all ones, and reaches nothing.
    let now = hw.config(at);
    now == u32::MAX || now & BUS_MASTER == 0
}

/// Gives a function access to memory, if it has none.
pub(crate) fn connect(hw: &impl Hardware) {
    let at = COMMAND as u16 * 4;
    let command = hw.config(at) & 0xffff;
    if command & BUS_MASTER == 0 {
        hw.set_config(at, command | BUS_MASTER);
    }
}

/// Has a card that does not heed commands let go of all memory.
pub(crate) fn silence(hw: &impl Hardware, function: Function) {
    match function {
        Function::Physical => {
            hw.set_register(RESET, 1);
            hw.wait(LOOK);
        }
        Function::Virtual => {
            if let Err(error) = reset_by_flag(hw) {
                log::warn!("mlx4: the function is not reset: {error}");
            }
        }
    }
}

fn reset(hw: &impl Hardware) -> Result<Saved, Error> {
    let words = core::array::from_fn(|word| hw.config(word as u16 * 4));
    let express = express_capability(hw);
    let controls = CONTROLS.map(|offset| express.map(|at| (at + offset, hw.config(at + offset) & 0xffff)));
    poll(hw, SEMAPHORE_LIMIT, Error::ResetLocked, || begin(hw).is_ok())?;
    poll(hw, LIMIT, Error::ResetTimeout, || is_back(hw))?;
    let saved = Saved { words, controls };
    finish(hw, &saved);
    Ok(saved)
}

/// Begins a reset, unless a tool keeps the card from it.
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

/// Whether the card is back. Between two looks some time has to pass.
pub(crate) fn is_back(hw: &impl Hardware) -> bool {
    hw.config(0) as u16 == VENDOR
}

/// Gives the card back what the reset has lost.
pub(crate) fn finish(hw: &impl Hardware, saved: &Saved) {
    for (offset, value) in saved.controls.into_iter().flatten() {
        hw.set_config(offset, value);
    }
    for (word, value) in saved.words.into_iter().enumerate().filter(|(word, _)| *word != COMMAND) {
        hw.set_config(word as u16 * 4, value);
    }
    // Only with its BARs back may it answer to them. The upper half are bits that a 1 clears. One that was cut off before has
    // been reset since.
    hw.set_config(COMMAND as u16 * 4, saved.words[COMMAND] & 0xffff | BUS_MASTER);
}

/// Looks until something is so. The first look is after a pause.
fn poll(hw: &impl Hardware, limit: Duration, error: Error, so: impl Fn() -> bool) -> Result<(), Error> {
    let deadline = hw.now() + limit;
    loop {
        hw.wait(LOOK);
        if so() {
            return Ok(());
        }
        if hw.now() >= deadline {
            return Err(error);
        }
    }
}

/// Where the PCI Express capability is.
fn express_capability(hw: &impl Hardware) -> Option<u16> {
    let mut at = hw.config(CAPABILITIES) as u16 & 0xfc;
    for _ in 0..MOST_CAPABILITIES {
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
