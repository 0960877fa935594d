//! Bugs that can be put into the log to see that the simulation finds them. They exist in debug builds with
//! the feature `testing` only.
//!
//! Each breaks one safety argument of `docs/design/log.md`.

/// A defect that can be planted.
#[cfg_attr(
    not(all(feature = "testing", debug_assertions)),
    expect(unreachable_pub, reason = "only `testing` re-exports it")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Holes of a writer that has died are filled although its late writes are not refused everywhere yet.
    FillUnsettled,
    /// The check of a frame does not cover its position.
    CheckWithoutPosition,
    /// The low mark of a writer forgets reservations whose fetch-add has not been answered.
    MarkForgetsReservations,
    /// The memory of a truncated segment becomes the next segment.
    SegmentReused,
}

#[cfg(all(feature = "testing", debug_assertions))]
impl Bug {
    /// All bugs.
    pub const ALL: &[Self] = &[
        Self::FillUnsettled,
        Self::CheckWithoutPosition,
        Self::MarkForgetsReservations,
        Self::SegmentReused,
    ];

    /// The name, as an operator types it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FillUnsettled => "fill-unsettled",
            Self::CheckWithoutPosition => "check-without-position",
            Self::MarkForgetsReservations => "mark-forgets-reservations",
            Self::SegmentReused => "segment-reused",
        }
    }
}

#[cfg(all(feature = "testing", debug_assertions))]
mod here {
    use super::Bug;
    use core::sync::atomic::{AtomicU8, Ordering};

    /// The value that stands for no bug.
    const NONE: u8 = u8::MAX;

    static PLANTED: AtomicU8 = AtomicU8::new(NONE);

    /// Plants the bug in every node of this process.
    pub fn plant(bug: Bug) {
        PLANTED.store(bug as u8, Ordering::Relaxed);
    }

    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::Relaxed) == bug as u8
    }
}

#[cfg(all(feature = "testing", debug_assertions))]
pub use here::plant;
#[cfg(all(feature = "testing", debug_assertions))]
pub(crate) use here::planted;

#[cfg(not(all(feature = "testing", debug_assertions)))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
