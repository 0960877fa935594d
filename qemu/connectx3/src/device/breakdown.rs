//! Planned failures of a card, for tests of recovery.
//!
//! A card that has failed does nothing until it is reset: no command ends, no frame is sent or received, and
//! its error buffer reports the failure (Linux `mlx4/catas.c` polls the buffer every 5 s). A card can also
//! leave the bus; then no reset brings it back.

use super::bar0::{ERROR_BUFFER, ERROR_BUFFER_WORDS};

/// The value of each word of the error buffer. On a card the values are specific to the firmware.
const ERROR: u32 = 0x0bad_0bad;

/// The way in which a card fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Breakdown {
    /// The card fails once; a reset repairs it.
    Once,
    /// The card leaves the bus permanently; all its registers read as all ones.
    Permanent,
}

/// A failure that is planned for a card, and whether it has happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedFailure {
    how: Breakdown,
    /// The number of frames that the card still sends before it fails.
    left: u64,
    failed: bool,
}

impl PlannedFailure {
    /// Plans the failure of a card after it has sent `frames` frames, counted across resets.
    pub(super) const fn new(how: Breakdown, frames: u64) -> Self {
        Self { how, left: frames, failed: false }
    }

    /// Counts a sent frame.
    pub(super) fn count_sent_frame(&mut self) {
        if self.failed {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.failed = true;
            log::warn!("the card fails as planned: {:?}", self.how);
        }
    }

    /// Returns the part of the planned failure that survives a reset.
    pub(super) fn after_reset(self) -> Option<Self> {
        (!self.failed || self.how == Breakdown::Permanent).then_some(self)
    }

    /// Returns whether the card has failed.
    pub(super) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether the card has left the bus.
    pub(super) fn has_left_bus(&self) -> bool {
        self.failed && self.how == Breakdown::Permanent
    }
}

/// Returns the word of a failed card's error buffer at `offset` of BAR 0. Returns `None` outside of the
/// buffer.
pub(super) fn error_word(offset: u64) -> Option<u32> {
    const END: u64 = ERROR_BUFFER + 4 * ERROR_BUFFER_WORDS as u64;
    (ERROR_BUFFER..END).contains(&offset).then_some(ERROR)
}
