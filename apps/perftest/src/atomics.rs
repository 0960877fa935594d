//! Checks the results of atomics: the value that each fetched, and the values that remain in memory.

use crate::buffer::{Side, Slots};
use crate::error::Error;
use crate::options::{Atomic, Options};
use crate::session::Session;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

/// The value that the last atomic on each of the peer's words has fetched, by queue pair and slot.
///
/// No other operation works on these words, and a queue pair executes its atomics in order. Each atomic must
/// therefore fetch the value that the previous one left.
pub(crate) struct Fetched {
    atomic: Atomic,
    last: Vec<Vec<Option<u64>>>,
}

impl Fetched {
    /// Returns a record without results.
    #[must_use]
    pub(crate) fn new(options: &Options, slots: &Slots) -> Self {
        let last = vec![vec![None; slots.count as usize]; options.queue_pairs as usize];
        Self { atomic: options.atomic, last }
    }

    /// Records and checks the value that operation `m` has fetched.
    pub(crate) fn take(
        &mut self,
        session: &Session<'_>,
        queue_pair: u32,
        m: u32,
        slots: &Slots,
    ) -> Result<(), Error> {
        let mut bytes = [0; 8];
        session.buffers.read(Side::Near, queue_pair, slots, m.into(), &mut bytes)?;
        let value = u64::from_ne_bytes(bytes);
        let slot = (m % slots.count) as usize;
        let last = self.last.get_mut(queue_pair as usize).and_then(|of| of.get_mut(slot));
        let before = last.and_then(|last| last.replace(value));
        match before.map(|before| left(self.atomic, before)) {
            Some(expected) if expected != value => Err(Error::Content(format!(
                "atomic {m} of queue pair {queue_pair} fetched {value:#x}, but the one before left {expected:#x}"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the values that must be left in the peer's words, in order of queue pairs and slots.
    #[must_use]
    pub(crate) fn expected(&self) -> Vec<u64> {
        self.last.iter().flatten().filter_map(|last| Some(left(self.atomic, (*last)?))).collect()
    }
}

/// Returns the value that an atomic leaves in memory where it fetched `before`.
const fn left(atomic: Atomic, before: u64) -> u64 {
    match atomic {
        Atomic::FetchAdd => before.wrapping_add(1),
        // The swap replaces 0 by 0 and leaves any other value.
        Atomic::CompareSwap => before,
    }
}

/// Checks that this side's words are what the peer's atomics must have made of the words `before`.
pub(crate) fn check(options: &Options, before: &[Vec<u64>], after: &[Vec<u64>]) -> Result<(), Error> {
    for (queue_pair, (before, after)) in before.iter().zip(after).enumerate() {
        let count = before.len() as u32;
        for (slot, (&before, &after)) in before.iter().zip(after).enumerate() {
            let times = options.iterations / count + u32::from((slot as u32) < options.iterations % count);
            let expected = match options.atomic {
                Atomic::FetchAdd => before.wrapping_add(times.into()),
                Atomic::CompareSwap => before,
            };
            if after != expected {
                return Err(Error::Content(format!(
                    "word {slot} of queue pair {queue_pair} was {before:#x} and is {after:#x}, not {expected:#x}"
                )));
            }
        }
    }
    Ok(())
}
