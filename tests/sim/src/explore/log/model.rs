//! The model of a log: all commits, their outcomes, and everything that readers have seen.

use super::super::check::Check;
use super::super::random::Random;
use lite::Lite;
use litelog::{AppendError, Position, ReadError, Record, frame_at};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard};

const ACKNOWLEDGED: &str = "an acknowledged record is at its position";
const ONCE: &str = "a record is in the log at most once";
const NEVER: &str = "what was not appended is not in the log";
const WHOLE: &str = "a record is what was committed";
const ORDER: &str = "commits are in the order of their time";
const STABLE: &str = "what a scan has passed does not change";

/// The state of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The commit is in progress, was dropped, or ended with its node.
    Open,
    Done(Position),
    Unknown(Position),
    Never,
}

struct Commit {
    outcome: Outcome,
    /// The largest position that was acknowledged before the commit began.
    floor: Option<Position>,
    /// The position at which a reader has found it.
    found: Option<Position>,
}

#[derive(Default)]
struct State {
    commits: BTreeMap<u64, Commit>,
    /// The largest position that was acknowledged.
    last: Option<Position>,
    /// The acknowledged records, and those that readers have found, by position.
    records: BTreeMap<Position, u64>,
    /// The slots that readers have passed and at which no record begins.
    empty: BTreeSet<u64>,
    /// Everything below may be truncated.
    truncated: Position,
    counts: BTreeMap<&'static str, u64>,
}

/// The model.
pub(super) struct Model {
    check: Arc<Check>,
    /// The homes of the log.
    homes: Vec<Lite>,
    state: Mutex<State>,
}

/// Returns the entries of a commit. Some contain copies of frames that would be valid at other positions.
pub(super) fn entries(id: u64, key: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(id);
    let mut first = id.to_le_bytes().to_vec();
    let len = random.below(100) as usize;
    first.extend(random.bytes(len));
    let mut all = vec![first];
    match random.below(3) {
        0 => {}
        1 => {
            for _ in 0..random.below(4) {
                let len = random.below(150) as usize;
                all.push(random.bytes(len));
            }
        }
        _ => {
            // With the entries before, each image begins at a slot.
            let mut images = vec![0; 64 * 4 - 32 - 8 - all[0].len()];
            for _ in 0..random.below(5) {
                let at = Position::from_u64(1 << 40 | random.below(2000));
                images.extend(frame_at(key, at, &[&(1u64 << 63).to_le_bytes()]));
                images.resize(images.len().next_multiple_of(4), 0);
                let frame = 32 + 8 + all[0].len() + images.len();
                images.resize(images.len() + frame.next_multiple_of(64) - frame, 0);
            }
            all.push(images);
        }
    }
    all
}

impl Model {
    pub(super) fn new(check: Arc<Check>, homes: Vec<Lite>) -> Self {
        Self { check, homes, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    pub(super) fn violated(&self, property: &'static str, seen: impl Display) {
        self.check.violated(property, seen);
    }

    /// Returns true once a home has lost its membership: the log has ended, or a part of it.
    pub(super) fn is_over(&self) -> bool {
        let ended =
            |home: &Lite| !home.is_member() || self.check.has_departed((home.node_id(), home.incarnation()));
        self.homes.iter().any(ended)
    }

    pub(super) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.lock().counts.iter().map(|(what, count)| (*what, *count)).collect()
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    // ---- Commits ----

    pub(super) fn begins(&self, id: u64) {
        let mut state = self.lock();
        let floor = state.last;
        state.commits.insert(id, Commit { outcome: Outcome::Open, floor, found: None });
    }

    /// Notes the outcome of a commit.
    pub(super) fn ended(&self, id: u64, result: &Result<Position, AppendError>) {
        let outcome = match result {
            Ok(at) => Outcome::Done(*at),
            Err(AppendError::Unknown(at)) => Outcome::Unknown(*at),
            Err(_) => Outcome::Never,
        };
        let mut state = self.lock();
        let Some(commit) = state.commits.get_mut(&id) else { return };
        commit.outcome = outcome;
        let (floor, found) = (commit.floor, commit.found);
        match outcome {
            Outcome::Done(at) => {
                if floor.is_some_and(|floor| floor >= at) {
                    self.violated(ORDER, format_args!("{id:#x} at {at}, and {floor:?} was there before"));
                }
                if found.is_some_and(|found| found != at) {
                    self.violated(ACKNOWLEDGED, format_args!("{id:#x} at {at}, and found at {found:?}"));
                }
                if state.empty.contains(&at.to_u64()) {
                    self.violated(STABLE, format_args!("{id:#x} is done at {at}, which was empty"));
                }
                state.last = state.last.max(Some(at));
                self.note(&mut state, at, id);
            }
            Outcome::Unknown(at) if found.is_some_and(|found| found != at) => {
                self.violated(ONCE, format_args!("{id:#x} may be at {at}, and was found at {found:?}"));
            }
            Outcome::Never if found.is_some() => {
                self.violated(NEVER, format_args!("{id:#x} was found at {found:?}: {result:?}"));
            }
            _ => {}
        }
    }

    fn note(&self, state: &mut State, at: Position, id: u64) {
        let before = state.records.insert(at, id);
        if before.is_some_and(|before| before != id) {
            self.violated(STABLE, format_args!("{before:x?} and then {id:#x} at {at}"));
        }
    }

    // ---- Readers ----

    /// Judges a record that a reader has found.
    pub(super) fn found(&self, record: &Record, key: u64) {
        let at = record.position();
        let mut got = record.entries();
        let id = got.next().and_then(|first| first.first_chunk()).map_or(0, |id| u64::from_le_bytes(*id));
        let mut state = self.lock();
        let Some(commit) = state.commits.get_mut(&id) else {
            return self.violated(WHOLE, format_args!("{at}: nobody has committed {id:#x}"));
        };
        if !record.entries().eq(entries(id, key).iter().map(Vec::as_slice)) {
            return self.violated(WHOLE, format_args!("{at}: the entries of {id:#x} are others"));
        }
        let (outcome, before) = (commit.outcome, commit.found.replace(at));
        if before.is_some_and(|before| before != at) {
            self.violated(ONCE, format_args!("{id:#x} was found at {before:?} and at {at}"));
        }
        match outcome {
            Outcome::Done(place) if place != at => {
                self.violated(ACKNOWLEDGED, format_args!("{id:#x} at {place}, and found at {at}"));
            }
            Outcome::Unknown(place) if place != at => {
                self.violated(ONCE, format_args!("{id:#x} may be at {place}, and was found at {at}"));
            }
            Outcome::Never => self.violated(NEVER, format_args!("{id:#x} was found at {at}")),
            _ => {}
        }
        if (at.to_u64()..record.next().to_u64()).any(|slot| state.empty.contains(&slot)) {
            self.violated(STABLE, format_args!("{id:#x} is at {at}, which was empty"));
        }
        self.note(&mut state, at, id);
    }

    /// Judges a record that a scan has returned which was at `from`.
    pub(super) fn scanned_with(&self, from: Position, record: &Record, key: u64) {
        self.found(record, key);
        self.passed(from, record.position());
    }

    /// Judges that a reader has passed the slots from `from` to `to`, and that there are no records.
    pub(super) fn passed(&self, from: Position, to: Position) {
        let mut state = self.lock();
        if from >= to {
            return;
        }
        if let Some((at, id)) = state.records.range(from..to).next()
            && *at >= state.truncated
        {
            let property = match state.commits.get(id).map(|commit| commit.outcome) {
                Some(Outcome::Done(_)) => ACKNOWLEDGED,
                _ => STABLE,
            };
            self.violated(
                property,
                format_args!("{id:#x} was at {at}, and a scan from {from} did not find it"),
            );
        }
        state.empty.extend(from.to_u64()..to.to_u64());
        *state.counts.entry("slots of holes that scans have passed").or_default() +=
            to.to_u64() - from.to_u64();
    }

    /// Returns true if a record is known to be at a position.
    pub(super) fn knows(&self, at: Position) -> bool {
        self.lock().records.contains_key(&at)
    }

    /// Judges the failure of a read at a position. `known`: a record was known to be there when it began.
    pub(super) fn refused(&self, at: Position, error: &ReadError, known: bool) {
        if self.is_over() {
            return;
        }
        let mut state = self.lock();
        if at < state.truncated {
            return;
        }
        match error {
            ReadError::Truncated => {
                self.violated("only what is truncated is truncated", format_args!("{at} is"));
            }
            ReadError::NotYet | ReadError::NoRecord => {
                let known = known || *error == ReadError::NoRecord;
                if let Some(id) = state.records.get(&at).filter(|_| known) {
                    self.violated(ACKNOWLEDGED, format_args!("{id:#x} was at {at}, and now: {error}"));
                } else if *error == ReadError::NoRecord {
                    // Nothing begins there. The slot may be within a record.
                    let within = state.records.range(..at).next_back().is_some();
                    if !within {
                        state.empty.insert(at.to_u64());
                    }
                }
            }
            ReadError::Lite(_) => {}
        }
    }

    /// Notes that the log will be truncated.
    pub(super) fn truncates(&self, before: Position) {
        let mut state = self.lock();
        state.truncated = state.truncated.max(before);
    }

    pub(super) fn truncated(&self) -> Position {
        self.lock().truncated
    }

    /// Returns a position at which a record is, was, or may be.
    pub(super) fn position(&self, random: &mut Random) -> Option<Position> {
        let state = self.lock();
        let from = if random.one_in(20) { Position::START } else { state.truncated };
        let all: Vec<Position> = state.records.range(from..).map(|(at, _)| *at).collect();
        (!all.is_empty()).then(|| random.pick(&all))
    }

    /// Judges that scans of the whole log have found all acknowledged records.
    pub(super) fn all_are_found(&self) {
        let state = self.lock();
        let from = state.truncated;
        for (id, commit) in &state.commits {
            if let Outcome::Done(at) = commit.outcome
                && at >= from
                && commit.found.is_none()
            {
                self.violated(ACKNOWLEDGED, format_args!("{id:#x} at {at} was never found"));
            }
        }
    }
}
