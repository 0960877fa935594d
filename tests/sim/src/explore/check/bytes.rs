//! The bytes of regions. Each task writes to a part of its own, one write after the other; all tasks read.
//!
//! A byte has the value that was last written with certainty, or a value of a write of unknown outcome that
//! may have happened after that.

use super::{Check, MemberId, Tick};
use std::collections::BTreeMap;
use std::ops::Range;

/// The end of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteEnd {
    Done,
    /// The write had no effect.
    Never,
    /// The outcome of the write is lost: `Lite::settled` waits for it.
    Unknown,
    /// Another node does the write, and the outcome is lost: it may happen as long as the handler of that
    /// node runs.
    Asked,
}

/// A write that may have happened in whole or in part, or may yet happen.
struct Open {
    id: Tick,
    member: MemberId,
    end: Option<(Tick, WriteEnd)>,
    /// The moment after which the write does not happen any more.
    closed: Tick,
    /// The bytes that the write may still be found to have written.
    pieces: Vec<(usize, Vec<u8>)>,
}

impl Open {
    fn byte(&self, at: usize) -> Option<u8> {
        let mut bytes = self.pieces.iter().filter_map(|(from, data)| data.get(at.checked_sub(*from)?));
        bytes.next().copied()
    }

    /// Removes a range from the bytes that the write may have written.
    fn cut(&mut self, range: &Range<usize>) {
        let mut rest = Vec::new();
        for (from, data) in self.pieces.drain(..) {
            let end = from + data.len();
            if from < range.start {
                rest.push((from, data[..range.start.min(end) - from].to_vec()));
            }
            if end > range.end {
                let first = range.end.max(from);
                rest.push((first, data[first - from..].to_vec()));
            }
        }
        self.pieces = rest;
    }
}

/// Bytes that were overwritten while a task read.
struct Past {
    until: Tick,
    at: usize,
    data: Vec<u8>,
}

#[derive(Default)]
struct Part {
    sure: Vec<u8>,
    open: Vec<Open>,
    past: Vec<Past>,
    /// The moments at which the present reads began.
    readers: Vec<Tick>,
}

impl Part {
    fn sure(&self, at: usize) -> u8 {
        self.sure.get(at).copied().unwrap_or(0)
    }

    fn put(&mut self, at: usize, data: &[u8], now: Tick) {
        let range = at..at + data.len();
        if self.sure.len() < range.end {
            self.sure.resize(range.end, 0);
        }
        if !self.readers.is_empty() {
            self.past.push(Past { until: now, at, data: self.sure[range.clone()].to_vec() });
        }
        self.sure[range].copy_from_slice(data);
    }

    /// Records that the open write `id` has happened.
    fn done(&mut self, id: Tick, now: Tick) {
        let Some(at) = self.open.iter().position(|open| open.id == id) else { return };
        let open = self.open.remove(at);
        for (at, data) in &open.pieces {
            self.put(*at, data, now);
            let range = *at..at + data.len();
            for before in self.open.iter_mut().filter(|before| before.closed <= id) {
                if !self.readers.is_empty() {
                    let cut = before.pieces.iter();
                    self.past.extend(cut.map(|(at, data)| Past { until: now, at: *at, data: data.clone() }));
                }
                before.cut(&range);
            }
        }
        self.open.retain(|open| !open.pieces.is_empty());
    }

    /// Returns the index of the first byte without an explanation, among those read since `since`.
    fn wrong(&self, at: usize, got: &[u8], since: Tick) -> Option<usize> {
        let is_past = |place: usize, byte: u8| {
            let mut past = self.past.iter().filter(|past| past.until > since);
            past.any(|past| place.checked_sub(past.at).and_then(|i| past.data.get(i)) == Some(&byte))
        };
        got.iter().zip(at..).position(|(byte, place)| {
            self.sure(place) != *byte
                && !self.open.iter().any(|open| open.byte(place) == Some(*byte))
                && !is_past(place, *byte)
        })
    }

    /// Learns from bytes that were read since `since`, while no task wrote: these bytes are there, and writes
    /// that were closed by then do not happen later.
    fn learn(&mut self, at: usize, got: &[u8], since: Tick) {
        let quiet = self.past.is_empty()
            && self.readers.is_empty()
            && self
                .open
                .iter()
                .all(|open| open.end.is_some_and(|(end, _)| end < since) || open.closed <= since);
        if !quiet || self.open.is_empty() {
            return;
        }
        self.put(at, got, since);
        for open in self.open.iter_mut().filter(|open| open.closed <= since) {
            open.cut(&(at..at + got.len()));
        }
        self.open.retain(|open| !open.pieces.is_empty());
    }
}

#[derive(Default)]
pub(super) struct Parts(BTreeMap<(usize, usize), Part>);

impl Parts {
    fn close(&mut self, now: Tick, which: impl Fn(&Open) -> bool) {
        for open in self.0.values_mut().flat_map(|part| &mut part.open) {
            if open.closed == Tick::MAX && which(open) {
                open.closed = now;
            }
        }
    }

    pub(super) fn settled(&mut self, member: MemberId, since: Tick, now: Tick) {
        self.close(now, |open| {
            open.member == member && matches!(open.end, Some((at, WriteEnd::Unknown)) if at < since)
        });
    }

    /// Records that all members know of the end of an incarnation: no operation of it happens later.
    pub(super) fn ended(&mut self, member: MemberId, now: Tick) {
        self.close(now, |open| open.member == member);
    }
}

impl Check {
    /// Records that a task of `member` begins to write `data` into part `who` of region `region` from `at`
    /// on.
    pub(crate) fn writes(&self, member: MemberId, region: usize, who: usize, at: usize, data: &[u8]) -> Tick {
        let mut state = self.lock();
        let id = state.tick();
        let part = state.bytes.0.entry((region, who)).or_default();
        let pieces = vec![(at, data.to_vec())];
        part.open.push(Open { id, member, end: None, closed: Tick::MAX, pieces });
        id
    }

    /// Records the end of that write.
    pub(crate) fn wrote(&self, region: usize, who: usize, id: Tick, end: WriteEnd) {
        let mut state = self.lock();
        let now = state.tick();
        let part = state.bytes.0.entry((region, who)).or_default();
        match end {
            WriteEnd::Done => part.done(id, now),
            WriteEnd::Never => part.open.retain(|open| open.id != id),
            WriteEnd::Unknown | WriteEnd::Asked => {
                if let Some(open) = part.open.iter_mut().find(|open| open.id == id) {
                    open.end = Some((now, end));
                }
            }
        }
    }

    /// Returns the parts of a region that some write may have changed, and that it does not change any more.
    pub(crate) fn orphans(&self, region: usize) -> Vec<usize> {
        let state = self.lock();
        let parts = state.bytes.0.range((region, 0)..(region + 1, 0));
        let is_left = |open: &Open| open.closed < Tick::MAX || state.is_over(&open.member);
        let orphans = parts.filter(|(_, part)| part.open.iter().any(is_left));
        orphans.map(|((_, who), _)| *who).collect()
    }

    /// Records that a task begins to read a part.
    pub(crate) fn reads(&self, region: usize, who: usize) -> Tick {
        let mut state = self.lock();
        let since = state.tick();
        state.bytes.0.entry((region, who)).or_default().readers.push(since);
        since
    }

    /// Records the end of that read. `got` is the position and the bytes that it has read, if any.
    pub(crate) fn read(&self, region: usize, who: usize, since: Tick, got: Option<(usize, &[u8])>) {
        let mut state = self.lock();
        let part = state.bytes.0.entry((region, who)).or_default();
        part.readers.retain(|reader| *reader != since);
        let mut wrong = None;
        if let Some((at, got)) = got {
            wrong = part.wrong(at, got, since).map(|i| {
                let (byte, sure) = (got[i], part.sure(at + i));
                format!("region {region}, part {who}: {byte:#x} instead of {sure:#x} at {}", at + i)
            });
            part.learn(at, got, since);
        }
        let oldest = part.readers.iter().min().copied().unwrap_or(Tick::MAX);
        part.past.retain(|past| past.until > oldest);
        if let Some(seen) = wrong {
            state.violated("memory equals the model", seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lite::{Incarnation, NodeId};

    const MEMBER: MemberId = (NodeId(1), Incarnation(1));

    fn finds(check: &Check, byte: u8) -> bool {
        let since = check.reads(0, 0);
        check.read(0, 0, since, Some((0, &[byte])));
        !check.is_violated()
    }

    fn write(check: &Check, byte: u8, end: WriteEnd) {
        let id = check.writes(MEMBER, 0, 0, 0, &[byte]);
        check.wrote(0, 0, id, end);
    }

    /// Writes 1 with certainty, 2 with an unknown outcome, and 3 with certainty. The outcome of 2 is settled
    /// before 3 is written, or not.
    fn three(settled: bool) -> std::sync::Arc<Check> {
        let check = Check::new();
        write(&check, 1, WriteEnd::Done);
        write(&check, 2, WriteEnd::Unknown);
        if settled {
            check.settled(MEMBER, check.moment());
        }
        write(&check, 3, WriteEnd::Done);
        check
    }

    #[test]
    fn a_write_of_unknown_outcome_may_come_until_it_is_settled() {
        assert!(finds(&three(false), 2) && finds(&three(false), 3) && !finds(&three(false), 1));
        assert!(!finds(&three(true), 2) && finds(&three(true), 3));
    }

    #[test]
    fn what_was_found_once_all_is_settled_stays() {
        let check = Check::new();
        write(&check, 2, WriteEnd::Unknown);
        assert!(finds(&check, 0) && finds(&check, 2), "it came late");
        assert!(!finds(&check, 0), "and does not go");
        let check = Check::new();
        write(&check, 2, WriteEnd::Unknown);
        check.settled(MEMBER, check.moment());
        assert!(finds(&check, 0) && !finds(&check, 2), "it never came");
    }

    #[test]
    fn a_read_beside_a_write_finds_the_old_or_the_new() {
        for (byte, fits) in [(0, true), (7, true), (9, false)] {
            let check = Check::new();
            let since = check.reads(0, 0);
            write(&check, 7, WriteEnd::Done);
            check.read(0, 0, since, Some((0, &[byte])));
            assert_eq!(!check.is_violated(), fits, "{byte}");
        }
    }
}
