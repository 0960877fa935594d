//! Copies of the core's state, from the core's task to the requests.

use crate::core::{Core, View};
use platform::Instant;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// The shortest time between two copies.
const PERIOD: Duration = Duration::from_millis(500);

/// A copy of the core's state.
#[derive(Debug)]
pub struct Snapshot {
    /// The state.
    pub view: View,
    /// The time of the copy.
    pub taken: SystemTime,
    /// The time of the copy by a monotonic clock.
    pub monotonic: std::time::Instant,
}

impl Snapshot {
    /// Returns the age of something, as the manager's clock had it when the copy was taken.
    #[must_use]
    pub fn age(&self, at: Instant) -> Duration {
        self.view.at.saturating_since(at)
    }

    /// Returns the time of day of something.
    #[must_use]
    pub fn time(&self, at: Instant) -> SystemTime {
        self.taken - self.age(at)
    }
}

/// The last copy, for requests.
pub(crate) type Feed = watch::Receiver<Arc<Snapshot>>;

impl Snapshot {
    /// Returns the present time, in milliseconds since the beginning of 1970 (UTC).
    pub(super) fn unix_ms(&self) -> u64 {
        let since = self.time(self.view.at).duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The side of the core's task.
#[derive(Debug)]
pub(crate) struct Publisher {
    last: std::time::Instant,
    sender: watch::Sender<Arc<Snapshot>>,
}

impl Publisher {
    /// Publishes a first copy.
    pub(crate) fn new(core: &Core) -> (Self, Feed) {
        let first = take(core);
        let last = first.monotonic;
        let (sender, feed) = watch::channel(Arc::new(first));
        (Self { last, sender }, feed)
    }

    /// Publishes a copy, unless the last one is recent. Does not wait.
    pub(crate) fn publish(&mut self, core: &Core) {
        if self.last.elapsed() >= PERIOD {
            let copy = take(core);
            self.last = copy.monotonic;
            self.sender.send_replace(Arc::new(copy));
        }
    }
}

fn take(core: &Core) -> Snapshot {
    Snapshot { view: core.view(), taken: SystemTime::now(), monotonic: std::time::Instant::now() }
}
