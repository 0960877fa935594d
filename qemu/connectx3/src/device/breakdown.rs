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
    Permanent,
}

/// A planned failure, and whether it has happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedFailure {
    how: Breakdown,
    /// The number of frames that the card still sends before it fails.
    left: u64,
    failed: bool,
}

impl Card {
    /// Makes the card fail after it has sent `frames` frames, counted across resets.
    pub fn break_down(&mut self, how: Breakdown, frames: u64) {
        self.planned_failure = Some(PlannedFailure { how, left: frames, failed: false });
    }

    /// Counts a sent frame towards the planned failure.
    pub(super) fn count_sent_frame(&mut self) {
        let Some(failure) = self.planned_failure.as_mut().filter(|failure| !failure.failed) else { return };
        failure.left = failure.left.saturating_sub(1);
        if failure.left == 0 {
            failure.failed = true;
            log::warn!("the card fails as planned: {:?}", failure.how);
        }
    }

    /// Returns the part of the planned failure that survives a reset.
    pub(super) fn failure_after_reset(&self) -> Option<PlannedFailure> {
        self.planned_failure.filter(|failure| !failure.failed || failure.how == Breakdown::Permanent)
    }

    /// Returns whether the card has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.planned_failure.is_some_and(|failure| failure.failed)
    }

    /// Returns whether the card has left the bus.
    pub(super) fn has_left_bus(&self) -> bool {
        self.planned_failure.is_some_and(|failure| failure.failed && failure.how == Breakdown::Permanent)
    }

    /// Returns the word of the error buffer at `offset` of BAR 0. Returns `None` outside of the buffer, and
    /// if the card has not failed.
    pub(super) fn error_word(&self, offset: u64) -> Option<u32> {
        const END: u64 = ERROR_BUFFER + 4 * ERROR_BUFFER_WORDS as u64;
        (self.is_broken() && (ERROR_BUFFER..END).contains(&offset)).then_some(ERROR)
    }
}
