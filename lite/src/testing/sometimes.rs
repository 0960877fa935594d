//! The number of times that LITE was in rare states. Counted by thread, because simulations of several
//! seeds run at once.

use alloc::collections::BTreeMap;
use core::cell::RefCell;
use std::thread_local;

thread_local! {
    static COUNTS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts that this thread has reached a state.
pub fn count_state(what: &'static str) {
    COUNTS.with_borrow_mut(|counts| *counts.entry(what).or_default() += 1);
}

/// Returns the states that this thread has reached since the last call, with their counts.
#[must_use]
pub fn take_states() -> BTreeMap<&'static str, u64> {
    COUNTS.take()
}
