//! How often LITE has come into states that it is rarely in. Counted by thread, since simulations of several seeds run at once.

use alloc::collections::BTreeMap;
use core::cell::RefCell;
use std::thread_local;

thread_local! {
    static COUNTS: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Counts that this thread has come into a state.
pub fn count_state(what: &'static str) {
    COUNTS.with_borrow_mut(|counts| *counts.entry(what).or_default() += 1);
}

/// The states that this thread has come into since it last asked, with how often.
#[must_use]
pub fn take_states() -> BTreeMap<&'static str, u64> {
    COUNTS.take()
}
