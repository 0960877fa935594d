//! The turns of operations of low priority, which go one at a time while those of high priority need it.

use super::lock::Mutex;
use super::wait::FairQueue;
use core::time::Duration;
use platform::Instant;

/// The least pause after an operation, as a multiple of its duration: three quarters of the time are free of
/// low priority.
const SHARE: u32 = 3;
/// The longest pause that a long operation causes.
const LONGEST: Duration = Duration::from_millis(10);

/// The turns. One operation has the turn at a time.
pub(super) struct Turns {
    state: Mutex<State>,
    /// The operations that wait for their turn.
    pub(super) queue: FairQueue,
}

struct State {
    taken: bool,
    /// The earliest time for the next operation.
    earliest: Instant,
}

/// The turn, which goes back by [`Turns::give_back`].
pub(super) struct Turn {
    earliest: Instant,
    /// The time at which the operation began.
    begun: Option<Instant>,
}

impl Default for Turns {
    fn default() -> Self {
        let state = State { taken: false, earliest: Instant::ZERO };
        Self { state: Mutex::new(state), queue: FairQueue::default() }
    }
}

impl Turns {
    /// Takes the turn, unless an operation has it.
    pub(super) fn take(&self) -> Option<Turn> {
        let mut state = self.state.lock();
        if core::mem::replace(&mut state.taken, true) {
            return None;
        }
        Some(Turn { earliest: state.earliest, begun: None })
    }

    /// Ends a turn at `now`. The pause after it depends on how long its operation has taken.
    pub(super) fn give_back(&self, turn: Turn, now: Instant) {
        let taken = turn.begun.map_or(Duration::ZERO, |begun| now.saturating_since(begun));
        let mut state = self.state.lock();
        state.taken = false;
        state.earliest = now + (taken * SHARE).min(LONGEST);
        drop(state);
        self.queue.wake();
    }
}

impl Turn {
    /// Returns the earliest time for the operation.
    pub(super) fn earliest(&self) -> Instant {
        self.earliest
    }

    /// Records that the operation begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.begun = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_follows_the_operation() {
        let (turns, us) = (Turns::default(), |us: u64| Instant::from_nanos(us * 1000));
        let mut turn = turns.take().unwrap();
        assert!(turns.take().is_none() && turn.earliest() == Instant::ZERO);
        turn.begin(us(100));
        turns.give_back(turn, us(300));
        let turn = turns.take().unwrap();
        assert_eq!(turn.earliest(), us(900));
        // An operation that never began causes no pause.
        turns.give_back(turn, us(1000));
        let mut turn = turns.take().unwrap();
        assert_eq!(turn.earliest(), us(1000));
        turn.begin(us(1000));
        turns.give_back(turn, us(1_000_000));
        assert_eq!(turns.take().unwrap().earliest(), us(1_010_000), "no pause is longer than 10 ms");
    }
}
