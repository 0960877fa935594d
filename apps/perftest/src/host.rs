//! The machine on which a test runs.

use alloc::sync::Arc;
use core::time::Duration;
use platform::{Instant, Network, Platform};
use verbs::Rnic;

/// Packets that the RNIC handles before the clock is checked.
const BUDGET: usize = 64;

/// The machine: memory and clock, one RNIC, and TCP on the RNIC's port.
#[derive(Clone)]
pub struct Host {
    /// Memory, clock, randomness.
    pub platform: Arc<dyn Platform>,
    /// The RNIC.
    pub rnic: Arc<dyn Rnic>,
    /// TCP at the RNIC's address, and its neighbours.
    pub network: Arc<dyn Network>,
}

impl Host {
    pub(crate) fn now(&self) -> Instant {
        self.platform.now()
    }

    /// Drives the RNIC: a test does not wait for the node's pollers, which run only between tasks. Returns
    /// the time before that.
    pub(crate) fn drive(&self) -> Instant {
        let now = self.now();
        self.rnic.progress(now, BUDGET);
        now
    }

    /// Drives the RNIC for at least `time`.
    pub(crate) fn drive_for(&self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.drive();
        }
    }
}
