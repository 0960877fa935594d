//! Tallies: words to each of which one task adds, a different power of two each time. A bit of the word so
//! shows whether its addition has happened, and an addition that happens twice clears its bit.

use super::Check;
use std::collections::BTreeMap;

/// A tally: the number of its cell, and that of its task.
pub(crate) type Tally = (usize, usize);

#[derive(Default)]
struct Bits {
    /// The number of additions that have begun.
    begun: u32,
    /// The additions that have happened.
    done: u64,
    /// The additions that have not happened and never will.
    never: u64,
}

#[derive(Default)]
pub(super) struct Tallies(BTreeMap<Tally, Bits>);

impl Check {
    /// Records the begin of an addition, and returns the addend; `None` if the word has no more bits.
    pub(crate) fn adds(&self, tally: Tally) -> Option<u64> {
        let mut state = self.lock();
        let bits = state.tallies.0.entry(tally).or_default();
        let addend = 1u64.checked_shl(bits.begun)?;
        bits.begun += 1;
        Some(addend)
    }

    /// Records that an addition has found the value `before`.
    pub(crate) fn added(&self, tally: Tally, addend: u64, before: u64) {
        let mut state = self.lock();
        let bits = state.tallies.0.entry(tally).or_default();
        let (lost, excess) = (bits.done & !before, before & (bits.never | !(addend - 1)));
        bits.done |= before | addend;
        if lost != 0 || excess != 0 {
            let seen = format!("{tally:?} is {before:#x}: {lost:#x} is lost, {excess:#x} is too much");
            state.violated("atomics are linearizable", seen);
        }
    }

    /// Records that an addition has had no effect.
    pub(crate) fn never_added(&self, tally: Tally, addend: u64) {
        self.lock().tallies.0.entry(tally).or_default().never |= addend;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_addition_happens_at_most_once() {
        for (before, fits) in [(0b001, true), (0b011, true), (0b000, false), (0b010, false), (0b101, false)] {
            let (check, tally) = (Check::new(), (0, 0));
            let first = check.adds(tally).unwrap();
            check.added(tally, first, 0);
            let unknown = check.adds(tally).unwrap();
            let third = check.adds(tally).unwrap();
            assert_eq!((first, unknown, third), (1, 2, 4));
            check.added(tally, third, before);
            assert_eq!(!check.is_violated(), fits, "{before:#b}");
        }
        let (check, tally) = (Check::new(), (0, 0));
        let refused = check.adds(tally).unwrap();
        check.never_added(tally, refused);
        let next = check.adds(tally).unwrap();
        check.added(tally, next, refused);
        assert!(check.is_violated());
    }
}
