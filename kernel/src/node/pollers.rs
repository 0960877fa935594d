//! The RNIC and LITE as pollers of core 0.

use alloc::boxed::Box;
use alloc::sync::Arc;
use lite::Lite;
use platform::Instant;
use verbs::Rnic;

use crate::exec::{self, Poller};

/// Makes core 0 drive the RNIC, also from interrupts.
pub(super) fn register_rnic(rnic: Arc<dyn Rnic>) {
    exec::register_poller(0, Box::new(RnicPoller(rnic)));
}

/// Makes core 0 drive LITE, in task context only.
pub(super) fn register_lite(lite: Lite) {
    exec::register_poller(0, Box::new(LitePoller(lite)));
}

struct RnicPoller(Arc<dyn Rnic>);

impl Poller for RnicPoller {
    fn name(&self) -> &'static str {
        "rnic"
    }

    fn poll(&mut self, now: Instant, budget: u32) -> bool {
        self.0.progress(now, budget as usize)
    }

    fn next_deadline(&self) -> Instant {
        self.0.next_deadline().unwrap_or(Instant::MAX)
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn arm(&mut self) -> bool {
        self.0.arm()
    }
}

struct LitePoller(Lite);

impl Poller for LitePoller {
    fn name(&self) -> &'static str {
        "lite"
    }

    fn poll(&mut self, now: Instant, _: u32) -> bool {
        self.0.poll(now)
    }

    fn next_deadline(&self) -> Instant {
        self.0.next_deadline().unwrap_or(Instant::MAX)
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn may_interrupt(&self) -> bool {
        // LITE's poller wakes tasks and may drop them.
        false
    }

    fn arm(&mut self) -> bool {
        // Completions come from the RNIC's poller, which has run before; work that a task has queued since is
        // handled here.
        self.0.poll(crate::time::now())
    }
}
