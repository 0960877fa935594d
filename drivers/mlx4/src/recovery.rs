//! The states of a card's recovery: a card that has failed is reset and restarted in steps, a bounded number
//! of times. [`Mlx4::recover`](crate::Mlx4::recover) executes the steps.
//!
//! ```text
//!                 failure               reset begun, all work flushed
//!     Working --------------> Reset ------------------------------------> AwaitReset --+
//!        ^                    ^   |                                        |  |  ^     | not back yet:
//!        |                    |   | reset refused                          |  |  +-----+ polled again
//!        |                    |   v                                        |  |
//!        |                    |  attempt failed <--------------------------+  |
//!        |     after a pause  |   |   |          deadline, or restart failed   |
//!        |                    +---+   |                                       |
//!        |                            | MAX_ATTEMPTS in a row                 |
//!        |                            v                                       |
//!        |                          Lost                                      |
//!        +--------------------------------------------------------------------+
//!                                  card is back and restarted
//! ```

use crate::bringup::reset::{POLL_INTERVAL, RESET_LIMIT, Saved};
use crate::card::Health;
use crate::error::Error;
use core::time::Duration;
use platform::Instant;

/// Restarts in a row without success, after which the driver gives the card up.
const MAX_ATTEMPTS: u32 = 5;
/// The time between the first attempt and the second. It doubles with each later attempt.
const BACKOFF: Duration = Duration::from_secs(1);
/// The time without failure after which a card has all its attempts again.
const STABLE_TIME: Duration = Duration::from_secs(600);

/// The state of a recovery.
#[derive(Clone, Copy, Debug)]
enum RecoveryState {
    /// The card works, or its failure has not been seen yet.
    Working,
    /// The card will be reset.
    Reset { at: Instant },
    /// The card was reset and is polled until it is back.
    AwaitReset { at: Instant, deadline: Instant },
    /// The driver has given the card up.
    Lost(Error),
}

/// The next step of a recovery, which is due now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Begin a reset, and report it to [`Recovery::reset_begun`].
    Reset,
    /// Restart the card if its reset has ended, and report the restart to [`Recovery::restarted`]. Otherwise
    /// report [`Recovery::not_back`].
    Restart,
}

/// The recovery of a card.
pub(crate) struct Recovery {
    state: RecoveryState,
    attempts: u32,
    /// The time of the last restart.
    restarted_at: Instant,
    saved: Option<Saved>,
}

impl Recovery {
    /// Begins with a working card; `saved` is the configuration that a reset loses.
    pub(crate) const fn new(saved: Option<Saved>) -> Self {
        Self { state: RecoveryState::Working, attempts: 0, restarted_at: Instant::ZERO, saved }
    }

    /// Returns the configuration that a reset loses, unless the function is virtual.
    pub(crate) const fn saved(&self) -> Option<&Saved> {
        self.saved.as_ref()
    }

    /// Returns the step that is due for a card that has failed.
    pub(crate) fn next_step(&mut self, now: Instant) -> Option<Step> {
        if let RecoveryState::Working = self.state {
            if now >= self.restarted_at + STABLE_TIME {
                self.attempts = 0;
            }
            self.state = RecoveryState::Reset { at: now };
        }
        match self.state {
            RecoveryState::Reset { at } if now >= at => {
                if self.attempts >= MAX_ATTEMPTS {
                    self.attempt_failed(Error::Failed, now);
                    return None;
                }
                self.attempts += 1;
                Some(Step::Reset)
            }
            RecoveryState::AwaitReset { at, .. } if now >= at => Some(Step::Restart),
            _ => None,
        }
    }

    /// Records that a reset has begun, or the error with which it failed to begin.
    pub(crate) fn reset_begun(&mut self, begun: Result<(), Error>, now: Instant) {
        match begun {
            Ok(()) => {
                self.state =
                    RecoveryState::AwaitReset { at: now + POLL_INTERVAL, deadline: now + RESET_LIMIT };
            }
            Err(error) => self.attempt_failed(error, now),
        }
    }

    /// Records that a card in reset is not back yet.
    pub(crate) fn not_back(&mut self, now: Instant) {
        match self.state {
            RecoveryState::AwaitReset { deadline, .. } if now < deadline => {
                self.state = RecoveryState::AwaitReset { at: now + POLL_INTERVAL, deadline };
            }
            _ => self.attempt_failed(Error::ResetTimeout, now),
        }
    }

    /// Records that a card that is back was restarted, or why it was not.
    pub(crate) fn restarted(&mut self, restarted: Result<(), Error>, now: Instant) {
        match restarted {
            Ok(()) => (self.state, self.restarted_at) = (RecoveryState::Working, now),
            Err(error) => self.attempt_failed(error, now),
        }
    }

    /// Records that an attempt has failed.
    fn attempt_failed(&mut self, error: Error, now: Instant) {
        log::error!("mlx4: the card cannot be restarted: {error}");
        self.state = if self.attempts >= MAX_ATTEMPTS {
            RecoveryState::Lost(error)
        } else {
            RecoveryState::Reset { at: now + BACKOFF * (1 << self.attempts.saturating_sub(1)) }
        };
    }

    /// Returns the health of the card.
    pub(crate) const fn health(&self) -> Health {
        match self.state {
            RecoveryState::Working => Health::Ok,
            RecoveryState::Reset { at } | RecoveryState::AwaitReset { at, .. } => {
                Health::Recovering { next: at }
            }
            RecoveryState::Lost(error) => Health::Lost { error },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn attempts_are_repeated_after_longer_and_longer_pauses_until_the_card_is_lost() {
        let mut recovery = Recovery::new(None);
        let mut now = at(700_000);
        for pause in [1000, 2000, 4000, 8000] {
            assert_eq!(recovery.next_step(now), Some(Step::Reset));
            recovery.reset_begun(Err(Error::ResetLocked), now);
            let next = now + Duration::from_millis(pause);
            assert_eq!(recovery.health(), Health::Recovering { next });
            assert_eq!(recovery.next_step(now), None, "before the pause has ended");
            now = next;
        }
        assert_eq!(recovery.next_step(now), Some(Step::Reset));
        recovery.reset_begun(Err(Error::Gone), now);
        assert_eq!(recovery.health(), Health::Lost { error: Error::Gone });
        assert_eq!(recovery.next_step(now + STABLE_TIME), None);
    }

    #[test]
    fn a_card_in_reset_is_polled_until_it_is_back_or_its_deadline_has_passed() {
        let mut recovery = Recovery::new(None);
        assert_eq!(recovery.next_step(at(0)), Some(Step::Reset));
        recovery.reset_begun(Ok(()), at(0));
        assert_eq!(recovery.next_step(at(0)), None);
        assert_eq!(recovery.next_step(at(1)), Some(Step::Restart));
        recovery.not_back(at(1));
        assert_eq!(recovery.health(), Health::Recovering { next: at(2) });
        assert_eq!(recovery.next_step(at(2)), Some(Step::Restart));
        recovery.restarted(Ok(()), at(2));
        assert_eq!(recovery.health(), Health::Ok);
        assert_eq!(recovery.next_step(at(3)), Some(Step::Reset), "another failure");
        recovery.reset_begun(Ok(()), at(3));
        recovery.not_back(at(3) + RESET_LIMIT);
        assert!(matches!(recovery.health(), Health::Recovering { next } if next > at(4000)));
    }

    #[test]
    fn only_a_time_without_failure_gives_all_attempts_again() {
        let mut recovery = Recovery::new(None);
        let mut fail_and_restart = |now| {
            let step = recovery.next_step(now);
            recovery.reset_begun(Ok(()), now);
            recovery.restarted(Ok(()), now);
            step
        };
        for second in 0..u64::from(MAX_ATTEMPTS) {
            assert_eq!(fail_and_restart(at(1000 * second)), Some(Step::Reset));
        }
        let last = at(4000);
        assert_eq!(fail_and_restart(last + STABLE_TIME), Some(Step::Reset));
        for _ in 1..MAX_ATTEMPTS {
            assert_eq!(fail_and_restart(last + STABLE_TIME), Some(Step::Reset));
        }
        assert_eq!(recovery.next_step(last + STABLE_TIME), None);
        assert_eq!(recovery.health(), Health::Lost { error: Error::Failed });
    }
}
