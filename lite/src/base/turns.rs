//! The turns of operations of low priority, which go one at a time while those of high priority need it.

use super::lock::Mutex;
use super::wait::{FairQueue, take_in_turn};
use core::time::Duration;
use platform::Instant;

/// The least pause after an operation, as a multiple of its duration: three quarters of the time are free of
/// low priority.
const SHARE: u32 = 3;
/// The longest pause that a long operation causes.
const LONGEST: Duration = Duration::from_millis(10);

/// The turns. One operation has the turn at a time.
#[derive(Default)]
pub(super) struct Turns(Mutex<State>);

struct State {
    taken: bool,
    /// The earliest time for the next operation.
    earliest: Instant,
    /// The operations that wait for their turn.
    queue: FairQueue,
}

/// The turn, which goes back by [`Turns::give_back`].
pub(super) struct Turn {
    earliest: Instant,
    /// The time at which the operation began.
    begun: Option<Instant>,
}

impl Default for State {
    fn default() -> Self {
        Self { taken: false, earliest: Instant::ZERO, queue: FairQueue::default() }
    }
}

impl State {
    /// Takes the turn, unless an operation has it.
    fn take(&mut self) -> Option<Turn> {
        if core::mem::replace(&mut self.taken, true) {
            return None;
        }
        Some(Turn { earliest: self.earliest, begun: None })
    }
}

impl Turns {
    /// Waits for the turn and takes it; returns `None` as soon as `is_needed` tells that no turn is needed.
    pub(super) async fn take(&self, is_needed: impl Fn() -> bool) -> Option<Turn> {
        let look = |state: &mut State| if is_needed() { state.take().map(Some) } else { Some(None) };
        take_in_turn(&self.0, |state| &mut state.queue, look).await
    }

    /// Ends a turn at `now`. The pause after it depends on how long its operation has taken.
    pub(super) fn give_back(&self, turn: Turn, now: Instant) {
        let taken = turn.begun.map_or(Duration::ZERO, |begun| now.saturating_since(begun));
        let mut state = self.0.lock();
        state.taken = false;
        state.earliest = now + (taken * SHARE).min(LONGEST);
        let woken = state.queue.wake();
        drop(state);
        woken.wake();
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
        let take = || turns.0.lock().take();
        let mut turn = take().unwrap();
        assert!(take().is_none() && turn.earliest() == Instant::ZERO);
        turn.begin(us(100));
        turns.give_back(turn, us(300));
        let turn = take().unwrap();
        assert_eq!(turn.earliest(), us(900));
        // An operation that never began causes no pause.
        turns.give_back(turn, us(1000));
        let mut turn = take().unwrap();
        assert_eq!(turn.earliest(), us(1000));
        turn.begin(us(1000));
        turns.give_back(turn, us(1_000_000));
        assert_eq!(take().unwrap().earliest(), us(1_010_000), "no pause is longer than 10 ms");
    }
}
