//! The search for an order of the operations on one word, in which each happened at a moment between its
//! begin and its end (Wing and Gong 1993, with the memory of dead ends of Lowe 2017).

use super::Tick;
use std::collections::HashSet;

/// The effect of an operation on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Write(u64),
    Add(u64),
    /// Changes the word from the first value to the second, if it has the first.
    Swap(u64, u64),
    /// Finds that the word is not 0.
    Taken,
}

/// The knowledge of the task that did the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The operation happened, and found this value in the word.
    Value(u64),
    /// The operation has happened.
    Done,
    /// The operation happened once or never.
    Unknown,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) act: Act,
    pub(super) seen: Seen,
    /// The operation did not happen before this moment.
    pub(super) from: Tick,
    /// The operation did not happen after this moment.
    pub(super) to: Tick,
}

impl Operation {
    fn is_sure(&self) -> bool {
        self.seen != Seen::Unknown
    }

    /// Returns the word after the operation, if it can happen while the word is `word` and makes a
    /// difference.
    fn apply(&self, word: u64) -> Option<u64> {
        if let Seen::Value(before) = self.seen
            && before != word
        {
            return None;
        }
        match self.act {
            Act::Read => Some(word),
            Act::Write(value) => Some(value),
            Act::Add(more) => Some(word.wrapping_add(more)),
            Act::Swap(from, to) if from == word => Some(to),
            Act::Swap(..) => self.is_sure().then_some(word),
            Act::Taken => (word != 0).then_some(word),
        }
    }
}

/// A search for an order of the operations in which each result is explained.
struct Search<'a> {
    operations: &'a [Operation],
    /// The operations that are placed in the order, as bits.
    placed: Vec<u64>,
    word: u64,
    /// The moment before which no later operation in the order happened.
    latest: Tick,
    /// The number of certain operations that are not placed.
    left: usize,
}

impl Search<'_> {
    fn is_placed(&self, i: usize) -> bool {
        self.placed[i / 64] >> (i % 64) & 1 == 1
    }

    fn flip(&mut self, i: usize) {
        self.placed[i / 64] ^= 1 << (i % 64);
    }

    /// Returns the earliest end of the certain operations that are not placed: no operation that begins later
    /// comes next.
    fn bound(&self) -> Tick {
        let mut bound = Tick::MAX;
        for (i, operation) in self.operations.iter().enumerate() {
            if operation.from > bound {
                break;
            }
            if operation.is_sure() && !self.is_placed(i) {
                bound = bound.min(operation.to);
            }
        }
        bound
    }

    /// Returns whether another uncertain operation that is not placed differs only by an earlier begin:
    /// then trying that one is enough.
    fn has_twin(&self, i: usize) -> bool {
        let one = &self.operations[i];
        (0..i).any(|k| {
            let other = &self.operations[k];
            !other.is_sure() && !self.is_placed(k) && other.act == one.act && other.to == one.to
        })
    }

    /// Returns the next candidate from `try_from` on, with the word after it. Certain operations are tried
    /// first.
    fn next(&self, try_from: usize) -> Option<(usize, u64)> {
        let (count, bound) = (self.operations.len(), self.bound());
        for attempt in try_from..2 * count {
            let (i, sure) = (attempt % count, attempt < count);
            let operation = &self.operations[i];
            let fits = operation.is_sure() == sure
                && !self.is_placed(i)
                && operation.from <= bound
                && operation.to >= self.latest
                && (sure || !self.has_twin(i));
            if let Some(word) = operation.apply(self.word).filter(|_| fits) {
                return Some((attempt, word));
            }
        }
        None
    }
}

/// Returns whether some order explains the results of operations on a word that was `initial`.
pub(super) fn is_linearizable(initial: u64, operations: &mut [Operation]) -> bool {
    operations.sort_by_key(|operation| operation.from);
    let count = operations.len();
    let left = operations.iter().filter(|operation| operation.is_sure()).count();
    let placed = vec![0; count.div_ceil(64)];
    let mut search = Search { operations, placed, word: initial, latest: 0, left };
    let mut dead_ends = HashSet::new();
    let mut path: Vec<(usize, u64, Tick)> = Vec::new();
    let mut try_from = 0;
    while search.left > 0 {
        if let Some((attempt, word)) = search.next(try_from) {
            let i = attempt % count;
            search.flip(i);
            if !dead_ends.insert((search.placed.clone(), word)) {
                search.flip(i);
                try_from = attempt + 1;
                continue;
            }
            path.push((attempt, search.word, search.latest));
            search.left -= usize::from(search.operations[i].is_sure());
            (search.word, search.latest) = (word, search.latest.max(search.operations[i].from));
            try_from = 0;
        } else {
            let Some((attempt, word, latest)) = path.pop() else { return false };
            let i = attempt % count;
            search.flip(i);
            search.left += usize::from(search.operations[i].is_sure());
            (search.word, search.latest) = (word, latest);
            try_from = attempt + 1;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{Act::*, Operation, Seen, Tick, is_linearizable};
    use Seen::{Done, Unknown, Value};

    const OPEN: Tick = Tick::MAX;

    fn holds(all: &[(super::Act, Seen, Tick, Tick)]) -> bool {
        let mut all: Vec<_> = all
            .iter()
            .map(|(act, seen, from, to)| Operation { act: *act, seen: *seen, from: *from, to: *to })
            .collect();
        is_linearizable(0, &mut all)
    }

    #[test]
    fn sure_operations_have_one_order() {
        assert!(holds(&[(Add(1), Value(0), 1, 4), (Add(1), Value(1), 2, 3), (Read, Value(2), 5, 6)]));
        assert!(!holds(&[(Add(1), Value(0), 1, 2), (Add(1), Value(0), 3, 4)]), "a lost addition");
        assert!(!holds(&[(Add(1), Value(1), 1, 2), (Add(1), Value(0), 3, 4)]), "against time");
        assert!(!holds(&[(Write(7), Done, 1, 2), (Read, Value(0), 3, 4)]), "a stale read");
        assert!(holds(&[(Write(7), Done, 1, 4), (Read, Value(0), 2, 3)]), "both at once");
        assert!(!holds(&[(Swap(0, 5), Value(0), 1, 2), (Swap(0, 6), Value(0), 3, 4)]));
        assert!(holds(&[(Swap(0, 5), Value(0), 1, 2), (Swap(0, 6), Value(5), 3, 4), (Taken, Done, 5, 6)]));
        assert!(!holds(&[(Taken, Done, 1, 2)]));
    }

    #[test]
    fn an_unknown_one_happens_until_its_end_and_once() {
        let late = |to| holds(&[(Write(7), Unknown, 1, to), (Read, Value(0), 3, 4), (Read, Value(7), 6, 7)]);
        assert!(late(OPEN) && late(5) && !late(2), "after its end nothing changes");
        assert!(holds(&[(Write(7), Unknown, 1, OPEN), (Read, Value(0), 3, 4)]), "or never");
        let twice = [
            (Write(7), Unknown, 1, OPEN),
            (Write(0), Done, 4, 5),
            (Read, Value(7), 2, 3),
            (Read, Value(7), 6, 7),
        ];
        assert!(!holds(&twice), "not twice");
        let lost = [(Add(1), Unknown, 1, OPEN), (Add(1), Unknown, 2, OPEN)];
        for (value, fits) in [(0, true), (2, true), (3, false)] {
            assert_eq!(holds(&[lost[0], lost[1], (Read, Value(value), 3, 4)]), fits, "{value}");
        }
    }
}
