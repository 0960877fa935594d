//! Permits for connected peers: as many as the completion queue has room for.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

/// The number of permits in use.
pub(crate) type Seats = Arc<AtomicU32>;

/// A permit, given back when dropped.
pub(crate) struct Seat(Seats);

impl Seat {
    /// Takes a permit unless `most` are in use.
    pub(super) fn take(seats: &Seats, most: u32) -> Option<Self> {
        let one_more = |taken: u32| (taken < most).then_some(taken + 1);
        seats.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(Self(seats.clone()))
    }

    /// Returns the number of permits in use.
    pub(crate) fn taken(seats: &Seats) -> u32 {
        seats.load(Ordering::SeqCst)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
