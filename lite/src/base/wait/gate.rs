//! A gate: operations pass while it is open. It can be closed for ever, or paused: the state that
//! operations rely on may be changed once all are out, and an operation that looked before the change
//! cannot enter after it.

use super::Waiters;
use crate::base::writers::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;
const PAUSED: u64 = 1 << 62;
/// The low half counts the operations inside; the bits between count the times that the gate was opened
/// again.
const INSIDE: u64 = (1 << 32) - 1;
const REOPENED: u64 = 1 << 32;

/// Counts the operations inside, and admits an operation only if it has seen the present state of the gate.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU64,
    change: Waiters,
}

/// A state in which a gate was open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch(u64);

/// The reason for which the gate cannot be entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shut {
    /// The gate is closed for ever.
    Closed,
    /// The gate is paused, or was since: look again when it is [open](Gate::opened).
    Changed,
}

fn shut(state: u64) -> Shut {
    if state & CLOSED != 0 { Shut::Closed } else { Shut::Changed }
}

impl Gate {
    /// Returns the present state, if the gate is open.
    pub(crate) fn epoch(&self) -> Result<Epoch, Shut> {
        let state = self.state.load(Ordering::SeqCst);
        if state & (CLOSED | PAUSED) == 0 { Ok(Epoch(state & !INSIDE)) } else { Err(shut(state)) }
    }

    /// Fails unless the gate's state is still `seen`.
    pub(crate) fn check(&self, seen: Epoch) -> Result<(), Shut> {
        let state = self.state.load(Ordering::SeqCst);
        if state & !INSIDE == seen.0 { Ok(()) } else { Err(shut(state)) }
    }

    /// Enters, unless the gate has been shut since `seen`. Each `Ok` needs one [`exit`](Self::exit).
    pub(crate) fn enter(&self, seen: Epoch) -> Result<(), Shut> {
        let state = self.state.fetch_add(1, Ordering::SeqCst);
        if state & !INSIDE == seen.0 {
            return Ok(());
        }
        self.exit();
        Err(shut(state))
    }

    /// Records that an operation has left the gate.
    pub(crate) fn exit(&self) {
        let state = self.state.fetch_sub(1, Ordering::SeqCst);
        if state & (CLOSED | PAUSED) != 0 && state & INSIDE == 1 {
            self.change.wake_all();
        }
    }

    /// Closes the gate for ever.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::SeqCst);
        self.change.wake_all();
    }

    /// Returns true if the gate is closed for ever.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Shuts the gate until [`reopen`](Self::reopen).
    pub(crate) fn pause(&self) {
        self.state.fetch_or(PAUSED, Ordering::SeqCst);
    }

    /// Ends a pause of the gate.
    pub(crate) fn reopen(&self) {
        let next = |state| (state & PAUSED != 0).then(|| reopened(state));
        if self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok() {
            self.change.wake_all();
        }
    }

    /// Waits while the gate is paused; returns `false` if it is closed for ever.
    pub(crate) async fn opened(&self) -> bool {
        let opened = || match self.epoch() {
            Ok(_) => Some(true),
            Err(Shut::Closed) => Some(false),
            Err(Shut::Changed) => None,
        };
        self.change.until(opened).await
    }

    /// Returns true if no operation is inside.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.load(Ordering::SeqCst) & INSIDE == 0
    }

    /// Waits until no operation is inside. That stays true only while the gate is shut.
    pub(crate) async fn drained(&self) {
        self.change.until(|| self.is_empty().then_some(())).await;
    }
}

/// Returns the state after a pause: only the count of pauses differs, which wraps after 2^30.
fn reopened(state: u64) -> u64 {
    let count = (state & (PAUSED - 1) & !INSIDE).wrapping_add(REOPENED) & (PAUSED - 1);
    state & (CLOSED | INSIDE) | count
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Waker};

    #[test]
    fn closes_and_drains() {
        let gate = Gate::default();
        let open = gate.epoch().unwrap();
        gate.enter(open).unwrap();
        gate.close();
        assert_eq!(gate.enter(open), Err(Shut::Closed));
        let mut cx = Context::from_waker(Waker::noop());
        let mut drained = pin!(gate.drained());
        assert!(drained.as_mut().poll(&mut cx).is_pending());
        gate.exit();
        assert!(drained.as_mut().poll(&mut cx).is_ready());
        gate.reopen();
        assert!(gate.is_closed());
        assert!(pin!(gate.opened()).poll(&mut cx).is_ready());
    }

    #[test]
    fn who_looked_before_a_pause_does_not_get_in_after_it() {
        let gate = Gate::default();
        let mut cx = Context::from_waker(Waker::noop());
        let before = gate.epoch().unwrap();
        gate.enter(before).unwrap();
        gate.pause();
        assert_eq!(gate.epoch(), Err(Shut::Changed));
        assert_eq!(gate.enter(before), Err(Shut::Changed));
        let mut opened = pin!(gate.opened());
        let mut drained = pin!(gate.drained());
        assert!(opened.as_mut().poll(&mut cx).is_pending() && drained.as_mut().poll(&mut cx).is_pending());
        gate.exit();
        assert!(opened.as_mut().poll(&mut cx).is_pending() && drained.as_mut().poll(&mut cx).is_ready());
        gate.reopen();
        assert!(opened.as_mut().poll(&mut cx).is_ready());
        assert_eq!(gate.enter(before), Err(Shut::Changed));
        let after = gate.epoch().unwrap();
        gate.enter(after).unwrap();
        gate.exit();
        // The gate was not paused, so nothing changes.
        gate.reopen();
        assert_eq!(gate.epoch(), Ok(after));
    }

    #[test]
    fn the_number_of_times_goes_round() {
        let last = PAUSED | (PAUSED - 1);
        assert_eq!(reopened(last), INSIDE);
        assert_eq!(reopened(CLOSED | PAUSED | 5), CLOSED | REOPENED | 5);
    }
}
