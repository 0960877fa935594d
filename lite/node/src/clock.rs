//! The node's clock.

use platform::Instant;
use std::time;

/// Monotonic time since its making; copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock(time::Instant);

impl Clock {
    /// A clock that starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(time::Instant::now())
    }

    /// The time now.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant::from_nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
