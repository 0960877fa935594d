//! Planned failures of a card, for tests of recovery.
//!
//! A card that has failed does nothing until it is reset: no command ends, no frame is sent or received, and
//! its error buffer reports the failure (Linux `mlx4/catas.c` polls the buffer every 5 s). A card can also
//! leave the bus; then no reset brings it back.

use super::Card;
use super::registers::{ERROR_BUFFER, ERROR_BUFFER_WORDS};

/// The value of each word of the error buffer. On a card the values are specific to the firmware.
const ERROR: u32 = 0x0bad_0bad;

/// The way in which a card fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breakdown {
    /// The card fails once; a reset repairs it.
    Once,
    /// The card leaves the bus permanently; all its registers read as all ones.
    ForGood,
}

/// A planned failure, and whether it has happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    how: Breakdown,
    /// The number of frames that the card still sends before it fails.
    left: u64,
    failed: bool,
}

impl Card {
    /// Makes the card fail after it has sent `frames` frames, counted across resets.
    pub fn break_down(&mut self, how: Breakdown, frames: u64) {
        self.fate = Some(Fate { how, left: frames, failed: false });
    }

    /// Counts a sent frame towards the planned failure.
    pub(super) fn wear(&mut self) {
        let Some(fate) = self.fate.as_mut().filter(|fate| !fate.failed) else { return };
        fate.left = fate.left.saturating_sub(1);
        if fate.left == 0 {
            fate.failed = true;
            log::warn!("the card fails, as it was told to: {:?}", fate.how);
        }
    }

    /// Returns the part of the planned failure that survives a reset.
    pub(super) fn fate_after_reset(&self) -> Option<Fate> {
        self.fate.filter(|fate| !fate.failed || fate.how == Breakdown::ForGood)
    }

    /// Returns whether the card has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.fate.is_some_and(|fate| fate.failed)
    }

    /// Returns whether the card has left the bus.
    pub(super) fn is_gone(&self) -> bool {
        self.fate.is_some_and(|fate| fate.failed && fate.how == Breakdown::ForGood)
    }

    /// Returns the word of the error buffer at `offset` of BAR 0. Returns `None` outside of the buffer, and
    /// if the card has not failed.
    pub(super) fn error_word(&self, offset: u64) -> Option<u32> {
        const END: u64 = ERROR_BUFFER + 4 * ERROR_BUFFER_WORDS as u64;
        (self.is_broken() && (ERROR_BUFFER..END).contains(&offset)).then_some(ERROR)
    }
}
