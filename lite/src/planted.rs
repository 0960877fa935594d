//! Bugs that can be put into LITE to see that the simulation finds them. They exist in debug builds with the feature `testing` only.

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Who serves calls does not tell callers that there is room in the ring again.
    LostCredit = 1,
    /// A lock is given to whoever asks.
    DoubleGrant = 2,
    /// The issuing node does not compare offset and length with the region.
    NoBoundsCheck = 3,
    /// After a region has moved its holders go on at the old place.
    StaleMap = 4,
}

#[cfg(all(feature = "testing", debug_assertions))]
mod here {
    use super::Bug;
    use core::sync::atomic::{AtomicU8, Ordering};

    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// From now on every node of this process has that bug.
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
