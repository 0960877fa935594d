//! What must hold: models of memory, atomics, locks, barriers and calls, fed with what tasks see.

use super::Failure;
use lite::{Error, NodeId};
use platform::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Something that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property.
    pub property: &'static str,
    /// What was seen.
    pub seen: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.property, self.seen)
    }
}

/// What a task may find in its part of a region: the bytes that it knows, or those of a write whose outcome it does not.
#[derive(Default)]
struct Part {
    sure: Vec<u8>,
    maybe: Vec<(Range<usize>, Vec<u8>)>,
}

/// One operation on a counter: between when and when, and the value before.
struct Added {
    from: Instant,
    to: Instant,
    value: u64,
}

#[derive(Default)]
struct Count {
    added: Vec<Added>,
    /// Operations whose outcome is not known.
    maybe: u64,
}

/// The number that a lock protects.
#[derive(Default)]
struct Guarded {
    written: BTreeSet<u64>,
    /// A write to it has an unknown outcome, and may still come.
    tainted: bool,
}

/// How a task's wait at a barrier ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Passed {
    Open,
    Failed(Error),
    /// The task did not wait to hear.
    Dropped,
}

#[derive(Default)]
struct State {
    violation: Option<Violation>,
    log: Vec<String>,
    operations: [u64; 3],
    /// Tasks under way, and what they do.
    tasks: BTreeMap<(usize, usize), String>,
    /// When nodes stood still, or were cut off from what they need to see time pass.
    stood: BTreeMap<usize, Vec<(Instant, Option<Instant>)>>,
    parts: BTreeMap<(usize, usize), Part>,
    counts: BTreeMap<usize, Count>,
    swapped: BTreeMap<usize, BTreeSet<u64>>,
    guarded: BTreeMap<usize, Guarded>,
    barriers: BTreeMap<String, Vec<(NodeId, NodeId, Passed)>>,
    executed: BTreeMap<u64, u32>,
    signals: BTreeMap<usize, u64>,
}

/// The models, and the first violation.
#[derive(Default)]
pub struct Check(Mutex<State>);

impl Check {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under the lock")
    }

    /// Something does not hold. The first such thing counts.
    pub(super) fn violated(&self, property: &'static str, seen: impl Display) {
        let mut state = self.lock();
        let seen = seen.to_string();
        state.violation.get_or_insert(Violation { property, seen });
    }

    pub(super) fn is_violated(&self) -> bool {
        self.lock().violation.is_some()
    }

    pub(super) fn failure(&self) -> Failure {
        let state = self.lock();
        let violation = state.violation.clone().expect("there is one");
        Failure { violation, log: state.log.clone() }
    }

    pub(super) fn log(&self, now: Instant, line: impl Display) {
        let mut state = self.lock();
        state.log.push(format!("{:>12.6} {line}", now.as_nanos() as f64 / 1e9));
    }

    pub(super) fn operations(&self) -> [u64; 3] {
        self.lock().operations
    }

    /// Counts an operation: 0 it succeeded, 1 it failed, 2 it was dropped.
    pub(super) fn count(&self, outcome: usize) {
        self.lock().operations[outcome] += 1;
    }

    // ---- Tasks ----

    pub(super) fn begin(&self, node: usize, task: usize, step: impl Display) {
        self.lock().tasks.insert((node, task), step.to_string());
    }

    pub(super) fn finish(&self, node: usize, task: usize) {
        self.lock().tasks.remove(&(node, task));
    }

    pub(super) fn died(&self, node: usize) {
        self.lock().tasks.retain(|(n, _), _| *n != node);
    }

    pub(super) fn all_done(&self) -> bool {
        self.lock().tasks.is_empty()
    }

    pub(super) fn unfinished(&self) -> String {
        format!("{:?}", self.lock().tasks)
    }

    // ---- Deadlines ----

    /// A node stands still from `now` on, or moves again.
    pub(super) fn stands(&self, node: usize, now: Instant, still: bool) {
        let mut state = self.lock();
        let stood = state.stood.entry(node).or_default();
        match stood.last_mut() {
            Some((_, to @ None)) if !still => *to = Some(now),
            _ if still => stood.push((now, None)),
            _ => {}
        }
    }

    /// Whether a node stood still at some time between the two.
    pub(super) fn stood_still(&self, node: usize, from: Instant, to: Instant) -> bool {
        let state = self.lock();
        let stood = state.stood.get(&node).into_iter().flatten();
        stood.clone().any(|(a, b)| *a <= to && b.is_none_or(|b| b >= from))
    }

    // ---- Memory ----

    /// Task `who` begins to write `data` into its part of region `region` from `at` on. Until it [has](Self::wrote), and if its
    /// node dies meanwhile, either may be found.
    pub(super) fn writes(&self, region: usize, who: usize, at: usize, data: &[u8]) {
        let mut state = self.lock();
        let part = state.parts.entry((region, who)).or_default();
        part.maybe.push((at..at + data.len(), data.to_vec()));
    }

    /// What it began to write last is there, or is not and never will be.
    pub(super) fn wrote(&self, region: usize, who: usize, there: bool) {
        let mut state = self.lock();
        let part = state.parts.entry((region, who)).or_default();
        let Some((range, data)) = part.maybe.pop() else { return };
        if there {
            if part.sure.len() < range.end {
                part.sure.resize(range.end, 0);
            }
            part.sure[range].copy_from_slice(&data);
        }
    }

    /// Task `who`'s part of region `region` has these bytes from `at` on.
    pub(super) fn read(&self, region: usize, who: usize, at: usize, got: &[u8]) {
        let mut state = self.lock();
        let part = state.parts.entry((region, who)).or_default();
        let wrong = got.iter().enumerate().find(|(i, byte)| {
            let place = at + i;
            part.sure.get(place).copied().unwrap_or(0) != **byte
                && !part.maybe.iter().any(|(r, d)| r.contains(&place) && d[place - r.start] == **byte)
        });
        let wrong = wrong.map(|(i, byte)| {
            let sure = part.sure.get(at + i).copied().unwrap_or(0);
            format!("region {region}, part {who}: {byte:#x} instead of {sure:#x} at {}", at + i)
        });
        drop(state);
        if let Some(seen) = wrong {
            self.violated("memory equals the model", seen);
        }
    }

    // ---- Atomics ----

    /// An addition begins. Until it [has](Self::added) ended, and if its node dies meanwhile, it may have happened.
    pub(super) fn adds(&self, counter: usize) {
        self.lock().counts.entry(counter).or_default().maybe += 1;
    }

    /// An addition between these times gave a value, or had no effect.
    pub(super) fn added(&self, counter: usize, from: Instant, to: Instant, value: Option<u64>) {
        let mut state = self.lock();
        let count = state.counts.entry(counter).or_default();
        count.maybe -= 1;
        count.added.extend(value.map(|value| Added { from, to, value }));
    }

    /// A compare-and-swap from that value succeeded; no value is there twice.
    pub(super) fn swapped(&self, cell: usize, from: u64) {
        if !self.lock().swapped.entry(cell).or_default().insert(from) {
            self.violated("atomics are linearizable", format!("two compare-and-swaps took {from:#x} away"));
        }
    }

    /// All counters are linearizable: each value was given once, later operations saw greater ones, and none is missing
    /// that is not explained by an operation of unknown outcome.
    pub(super) fn counters_hold(&self) {
        let mut state = self.lock();
        let mut wrong = None;
        for (n, count) in &mut state.counts {
            count.added.sort_by_key(|a| a.value);
            if let Some(pair) = count.added.windows(2).find(|pair| pair[0].value == pair[1].value) {
                wrong = Some(format!("counter {n} gave {} twice", pair[0].value));
            }
            let mut earliest = Instant::MAX;
            for a in count.added.iter().rev() {
                if earliest < a.from {
                    wrong = Some(format!("counter {n} gave {} after a greater value", a.value));
                }
                earliest = earliest.min(a.to);
            }
            let least = count.added.last().map_or(0, |a| a.value + 1);
            let sure = count.added.len() as u64;
            if least > sure + count.maybe {
                wrong =
                    Some(format!("counter {n} is {least} after {sure} additions and {} lost", count.maybe));
            }
        }
        drop(state);
        if let Some(seen) = wrong {
            self.violated("atomics are linearizable", seen);
        }
    }

    // ---- Locks ----

    /// Whoever holds lock `lock` alone has read its number.
    pub(super) fn guarded_read(&self, lock: usize, value: u64) {
        let mut state = self.lock();
        let guarded = state.guarded.entry(lock).or_default();
        let last = guarded.written.last().copied().unwrap_or(0);
        let wrong = !guarded.tainted && value < last;
        drop(state);
        if wrong {
            self.violated(
                "a lock has one holder",
                format!("lock {lock}: read {value} after {last} was written"),
            );
        }
    }

    /// Whoever holds lock `lock` alone has written its number, or may have.
    pub(super) fn guarded_write(&self, lock: usize, value: u64, sure: bool) {
        let mut state = self.lock();
        let guarded = state.guarded.entry(lock).or_default();
        guarded.tainted |= !sure;
        let wrong = sure && !guarded.tainted && !guarded.written.insert(value);
        drop(state);
        if wrong {
            self.violated("a lock has one holder", format!("lock {lock}: {value} was written twice"));
        }
    }

    /// Whoever holds lock `lock` shared has read its number twice.
    pub(super) fn guarded_twice(&self, lock: usize, first: u64, second: u64) {
        let tainted = self.lock().guarded.entry(lock).or_default().tainted;
        if first != second && !tainted {
            let seen = format!("lock {lock}: {first} became {second} while held shared");
            self.violated("a lock has one holder", seen);
        }
    }

    // ---- Barriers ----

    /// A task of `node` is through with a barrier, whose home is `home`; `None` if it did not wait to hear.
    pub(super) fn passed(
        &self,
        barrier: &str,
        home: NodeId,
        node: NodeId,
        result: Option<Result<(), Error>>,
    ) {
        let passed = match result {
            Some(Ok(())) => Passed::Open,
            Some(Err(error)) => Passed::Failed(error),
            None => Passed::Dropped,
        };
        self.lock().barriers.entry(barrier.into()).or_default().push((node, home, passed));
    }

    /// Each barrier let all pass or none. Who was told nothing certain does not count: whoever lost its membership, got
    /// `Unknown`, or lost the barrier's home while it opened.
    pub(super) fn barriers_hold(&self) {
        let state = self.lock();
        let split = state.barriers.iter().find(|(_, all)| {
            let open = all.iter().any(|(.., passed)| *passed == Passed::Open);
            let failed = all.iter().any(|(_, home, passed)| match passed {
                Passed::Failed(Error::Unknown | Error::LinkDown) | Passed::Open | Passed::Dropped => false,
                Passed::Failed(Error::NodeDown(node)) => node != home,
                Passed::Failed(_) => true,
            });
            open && failed
        });
        let seen = split.map(|(name, all)| format!("{name}: {all:?}"));
        drop(state);
        if let Some(seen) = seen {
            self.violated("barriers let all pass or none", seen);
        }
    }

    // ---- Calls and messages ----

    /// A handler, or a receiver of messages, has this one.
    pub(super) fn executed(&self, id: u64) {
        let times = {
            let mut state = self.lock();
            let times = state.executed.entry(id).or_default();
            *times += 1;
            *times
        };
        if times > 1 {
            self.violated("a call runs at most once", format!("call {id:#x} ran {times} times"));
        }
    }

    /// A call has succeeded: it has run.
    pub(super) fn answered(&self, id: u64) {
        if !self.lock().executed.contains_key(&id) {
            self.violated("a call runs at most once", format!("call {id:#x} was answered and did not run"));
        }
    }

    // ---- Events ----

    pub(super) fn signals(&self, event: usize) {
        *self.lock().signals.entry(event).or_default() += 1;
    }

    /// A wait for more than `past` has ended with `count`.
    pub(super) fn seen(&self, event: usize, past: u64, count: u64) {
        let signals = self.lock().signals.get(&event).copied().unwrap_or(0);
        if count <= past || count > signals {
            let seen = format!("event {event}: {count} after {past}, of {signals} signals");
            self.violated("an event counts its signals", seen);
        }
    }
}
