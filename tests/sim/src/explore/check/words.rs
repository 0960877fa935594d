//! Words that all tasks change: counters, words under locks, counts of events, bindings of names. Each is
//! linearizable.

use super::history::{Act, Operation, Seen, is_linearizable};
use super::{Check, MemberId, State, Tick};
use lite::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A word of the model: an 8-byte value of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cell {
    /// The value of a [`lite::Counter`] that all tasks add to.
    Counter(usize),
    /// The value of a counter that all tasks swap.
    Swapped(usize),
    /// A word that a lock protects.
    Guarded(usize),
    /// The number of signals of an event.
    Event(usize),
    /// The binding of a name; 0 if there is none.
    Name(usize),
    /// A word that is 0 or 1.
    Flag(usize),
    /// The right of a node to map a region whose rights change, as 0 or 1.
    Right(usize, NodeId),
    /// The right of a node to use its mappings of that region, as 0 or 1. A revocation takes this right
    /// later than the right to map, so each of the two is a word of its own.
    Use(usize, NodeId),
}

impl Cell {
    const fn property(self) -> &'static str {
        match self {
            Self::Counter(_) | Self::Swapped(_) | Self::Flag(_) => "atomics are linearizable",
            Self::Guarded(_) => "what a lock guards is linearizable",
            Self::Event(_) => "an event counts its signals",
            Self::Name(_) => "a name is bound once",
            Self::Right(..) | Self::Use(..) => "rights and bounds hold",
        }
    }
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Saw(u64),
    Done,
    /// The operation was refused because the word is not 0.
    Taken,
    /// The operation had no effect.
    Never,
    /// The outcome of a one-sided operation is lost: `Lite::settled` waits for it.
    Unknown,
    /// The outcome of a request is lost: it may happen as long as its handler runs.
    Asked,
}

/// An operation that has not ended.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordOp {
    cell: Cell,
    at: usize,
}

struct Entry {
    member: MemberId,
    act: Act,
    from: Tick,
    /// The moment and the kind of the operation's end.
    end: Option<(Tick, End)>,
    /// The moment after which the operation has no effect any more.
    closed: Tick,
}

impl Entry {
    /// Returns true if the operation may still have an effect.
    fn is_open(&self) -> bool {
        self.closed == Tick::MAX && matches!(self.end, None | Some((_, End::Unknown | End::Asked)))
    }

    /// Returns whether it may bind a name, or wait for one, between two moments. One that is refused in the
    /// end has waited until then.
    fn binds(&self, from: Tick, to: Tick) -> bool {
        let end = match self.end {
            Some((at, End::Saw(_) | End::Done | End::Never | End::Taken)) => at,
            Some((_, End::Unknown | End::Asked)) | None => self.closed,
        };
        matches!(self.act, Act::Swap(0, _)) && self.from < to && from < end
    }

    fn operation(&self) -> Option<Operation> {
        let (seen, to) = match self.end {
            Some((at, End::Taken)) => {
                let (act, seen) = (Act::Taken, Seen::Done);
                return Some(Operation { act, seen, from: self.from, to: at });
            }
            Some((_, End::Never)) => return None,
            Some((at, End::Saw(value))) => (Seen::Value(value), at),
            Some((at, End::Done)) => (Seen::Done, at),
            Some((_, End::Unknown | End::Asked)) | None => (Seen::Unknown, Tick::MAX),
        };
        if seen == Seen::Unknown && self.act == Act::Read {
            return None;
        }
        Some(Operation { act: self.act, seen, from: self.from, to: to.min(self.closed) })
    }
}

#[derive(Default)]
pub(super) struct Words {
    cells: BTreeMap<Cell, Vec<Entry>>,
    /// The bindings of names: the incarnations with whose end the name is unbound, and the value of the
    /// binding.
    bound: Vec<(Cell, Vec<MemberId>, u64)>,
    /// The incarnations that have vacated: their regions may have any other owner.
    vacated: BTreeSet<MemberId>,
}

impl Words {
    /// Closes the operations that `which` selects: they do not happen later.
    fn close(&mut self, now: Tick, which: impl Fn(Cell, &Entry) -> bool) {
        for (cell, entries) in &mut self.cells {
            for entry in entries.iter_mut().filter(|entry| entry.is_open()) {
                if which(*cell, entry) {
                    entry.closed = now;
                }
            }
        }
    }

    pub(super) fn settled(&mut self, member: MemberId, since: Tick, now: Tick) {
        self.close(now, |_, entry| {
            entry.member == member && matches!(entry.end, Some((at, End::Unknown)) if at < since)
        });
    }

    /// Records that all members know of the end of an incarnation: no operation of it happens later.
    pub(super) fn ended(&mut self, member: MemberId, now: Tick) {
        self.close(now, |_, entry| entry.member == member);
    }

    /// Records that a lock has passed to another holder: operations under it by earlier holders do not happen
    /// later.
    pub(super) fn handed_over(&mut self, lock: usize, now: Tick) {
        self.close(now, |cell, _| cell == Cell::Guarded(lock));
    }
}

impl State {
    /// Returns the operations on a cell, including the unbinding of a name by the end of an incarnation.
    fn history(&self, cell: Cell) -> Vec<Operation> {
        let entries = self.words.cells.get(&cell).map(Vec::as_slice).unwrap_or_default();
        // A name is also taken while another object waits for it, which may then be refused.
        let is_sure = |entry: &&Entry| {
            let Some((at, End::Taken)) = entry.end else { return true };
            let mut others = entries.iter().filter(|other| !std::ptr::eq(*other, *entry));
            !others.any(|other| other.binds(entry.from, at))
        };
        let mut all: Vec<_> = entries.iter().filter(is_sure).filter_map(Entry::operation).collect();
        for (_, members, to) in self.words.bound.iter().filter(|(bound, ..)| *bound == cell) {
            let may_be_anywhere = members.iter().any(|member| self.words.vacated.contains(member));
            let owner_is_over = may_be_anywhere && self.nodes.keys().any(|member| self.is_over(member));
            if owner_is_over || members.iter().any(|member| self.is_over(member)) {
                let act = Act::Swap(*to, 0);
                all.push(Operation { act, seen: Seen::Unknown, from: 0, to: Tick::MAX });
            }
        }
        all
    }
}

impl Check {
    /// Records the start of an operation on a word.
    pub(crate) fn word(&self, member: MemberId, cell: Cell, act: Act) -> WordOp {
        let mut state = self.lock();
        let from = state.tick();
        let entries = state.words.cells.entry(cell).or_default();
        entries.push(Entry { member, act, from, end: None, closed: Tick::MAX });
        WordOp { cell, at: entries.len() - 1 }
    }

    /// Records the end of an operation.
    pub(crate) fn word_ended(&self, op: WordOp, end: End) {
        let mut state = self.lock();
        let now = state.tick();
        let entries = state.words.cells.get_mut(&op.cell).expect("it was begun");
        entries[op.at].end = Some((now, end));
    }

    /// Records that a name is bound to `to`, for as long as `master` and the present incarnation of `home`
    /// last.
    pub(crate) fn bound(&self, name: usize, master: MemberId, home: NodeId, to: u64) {
        let mut state = self.lock();
        let owners: Vec<MemberId> = state.nodes.keys().copied().filter(|(node, _)| *node == home).collect();
        let lives = owners.into_iter().chain([master]).collect();
        state.words.bound.push((Cell::Name(name), lives, to));
    }

    /// Records that the regions of an incarnation may get other owners.
    pub(crate) fn vacates(&self, member: MemberId) {
        self.lock().words.vacated.insert(member);
    }

    /// Checks that each word is linearizable.
    pub(crate) fn words_hold(&self) {
        let mut state = self.lock();
        let cells: Vec<Cell> = state.words.cells.keys().copied().collect();
        for cell in cells {
            let mut history = state.history(cell);
            if !is_linearizable(0, &mut history) {
                let lines: Vec<_> = history
                    .iter()
                    .map(|o| {
                        let to = if o.to == Tick::MAX { "..".to_owned() } else { o.to.to_string() };
                        format!("{:?}={:?}@{}-{to}", o.act, o.seen, o.from)
                    })
                    .collect();
                state.violated(cell.property(), format!("{cell:?}: no order explains {}", lines.join(" ")));
            }
        }
    }
}
