//! The clock of the node.

use platform::Instant;
use std::time;

/// The monotonic time since the clock was made; copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock(time::Instant);

impl Clock {
    /// Returns a clock that starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(time::Instant::now())
    }

    /// Returns the time now.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
