//! A card that fails on purpose: when, and what it is like then.
//!
//! It does nothing any more until it is reset: no command ends, no frame comes or goes, and its error buffer says so (Linux
//! `mlx4/catas.c` looks at it every 5 s). Or it has left the bus, and no reset brings it back.

use super::Card;
use super::registers::{ERROR_BUFFER, ERROR_BUFFER_WORDS};

/// What the words of the error buffer say. On a card they are the firmware's own.
const ERROR: u32 = 0x0bad_0bad;

/// How a card fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breakdown {
    /// Once: a reset helps.
    Once,
    /// It reads as all ones from then on.
    ForGood,
}

/// When a card fails, and whether it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    how: Breakdown,
    /// Frames that it still sends before.
    left: u64,
    failed: bool,
}

impl Card {
    /// Has the card fail once it has sent `frames` frames, over all its resets.
    pub fn break_down(&mut self, how: Breakdown, frames: u64) {
        self.fate = Some(Fate { how, left: frames, failed: false });
    }

    /// A frame has left.
    pub(super) fn wear(&mut self) {
        let Some(fate) = self.fate.as_mut().filter(|fate| !fate.failed) else { return };
        fate.left = fate.left.saturating_sub(1);
        if fate.left == 0 {
            fate.failed = true;
            log::warn!("the card fails, as it was told to: {:?}", fate.how);
        }
    }

    /// What a reset leaves of it.
    pub(super) fn fate_after_reset(&self) -> Option<Fate> {
        self.fate.filter(|fate| !fate.failed || fate.how == Breakdown::ForGood)
    }

    /// Whether it does nothing any more.
    pub(super) fn is_broken(&self) -> bool {
        self.fate.is_some_and(|fate| fate.failed)
    }

    /// Whether it has left the bus.
    pub(super) fn is_gone(&self) -> bool {
        self.fate.is_some_and(|fate| fate.failed && fate.how == Breakdown::ForGood)
    }

    /// The word of the error buffer at `offset` of BAR 0; `None`: none is there, or the card is well.
    pub(super) fn error_word(&self, offset: u64) -> Option<u32> {
        const END: u64 = ERROR_BUFFER + 4 * ERROR_BUFFER_WORDS as u64;
        (self.is_broken() && (ERROR_BUFFER..END).contains(&offset)).then_some(ERROR)
    }
}
