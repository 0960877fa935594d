//! The pollers of one core. Those that a spinning core calls in each turn are in a list of their own, because
//! a turn is so short that even a look at the others costs a part of it.

use super::poller::{BUDGET, INTERRUPT_BUDGET, Poller};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::iter;
use platform::Instant;

/// The pollers that one turn calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// The urgent pollers.
    Urgent,
    /// The urgent pollers, on behalf of a task. Only the work of those that wake tasks counts.
    InTask,
    /// The pollers that are not urgent.
    Others,
    /// The pollers that may run in an interrupt.
    Interrupt,
}

/// A poller, with properties that it had when it was registered.
struct Listed {
    poller: Box<dyn Poller>,
    may_interrupt: bool,
    wakes_tasks: bool,
}

/// The pollers of a core.
#[derive(Default)]
pub(super) struct PollerList {
    urgent: Vec<Listed>,
    others: Vec<Listed>,
}

impl PollerList {
    pub(super) const fn new() -> Self {
        Self { urgent: Vec::new(), others: Vec::new() }
    }

    /// Adds a poller after those of its kind.
    pub(super) fn add(&mut self, poller: Box<dyn Poller>) {
        let list = if poller.is_urgent() { &mut self.urgent } else { &mut self.others };
        let (may_interrupt, wakes_tasks) = (poller.may_interrupt(), poller.wakes_tasks());
        list.push(Listed { poller, may_interrupt, wakes_tasks });
    }

    /// Moves the pollers of `new` to the end of this list.
    pub(super) fn append(&mut self, mut new: Self) {
        self.urgent.append(&mut new.urgent);
        self.others.append(&mut new.others);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    fn all(&self) -> iter::Chain<core::slice::Iter<'_, Listed>, core::slice::Iter<'_, Listed>> {
        self.urgent.iter().chain(&self.others)
    }

    /// Calls the pollers of one kind at `now`, once each. Returns true if any had work.
    #[inline]
    pub(super) fn poll(&mut self, now: Instant, which: Which) -> bool {
        let mut worked = false;
        match which {
            Which::Urgent => self.urgent.iter_mut().for_each(|l| worked |= l.poller.poll(now, BUDGET)),
            Which::InTask => {
                self.urgent.iter_mut().for_each(|l| worked |= l.poller.poll(now, BUDGET) && l.wakes_tasks);
            }
            Which::Others => self.others.iter_mut().for_each(|l| worked |= l.poller.poll(now, BUDGET)),
            Which::Interrupt => {
                let all = self.urgent.iter_mut().chain(&mut self.others).filter(|l| l.may_interrupt);
                all.for_each(|l| worked |= l.poller.poll(now, INTERRUPT_BUDGET));
            }
        }
        worked
    }

    /// Returns the earliest deadline of a poller; [`Instant::MAX`] for none.
    pub(super) fn next_deadline(&self) -> Instant {
        self.all().map(|listed| listed.poller.next_deadline()).fold(Instant::MAX, Instant::min)
    }

    /// Arms the pollers until one has work. Returns true if one has.
    pub(super) fn arm(&mut self) -> bool {
        self.urgent.iter_mut().chain(&mut self.others).any(|listed| listed.poller.arm())
    }
}
