//! A gate: operations pass while it is open; whoever closes it can wait until all are out.

use super::Waiters;
use core::sync::atomic::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;

/// Counts who is inside; once closed, nobody gets in any more.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU64,
    empty: Waiters,
}

impl Gate {
    /// Goes in; `false` if the gate is closed. Each `true` needs one [`exit`](Self::exit).
    #[must_use]
    pub(crate) fn enter(&self) -> bool {
        if self.state.fetch_add(1, Ordering::SeqCst) & CLOSED == 0 {
            return true;
        }
        self.exit();
        false
    }

    /// Goes out.
    pub(crate) fn exit(&self) {
        if self.state.fetch_sub(1, Ordering::SeqCst) == CLOSED | 1 {
            self.empty.wake_all();
        }
    }

    /// Closes the gate for ever.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Waits until nobody is inside. Only after [`close`](Self::close) does that stay so.
    pub(crate) async fn drained(&self) {
        self.empty.until(|| (self.state.load(Ordering::SeqCst) & !CLOSED == 0).then_some(())).await;
    }
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
        assert!(gate.enter());
        gate.close();
        assert!(!gate.enter());
        let mut cx = Context::from_waker(Waker::noop());
        let mut drained = pin!(gate.drained());
        assert!(drained.as_mut().poll(&mut cx).is_pending());
        gate.exit();
        assert!(drained.as_mut().poll(&mut cx).is_ready());
        assert!(gate.is_closed());
    }
}
