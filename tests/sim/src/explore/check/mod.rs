//! What must hold: models of memory, words, locks, barriers, calls and names, fed with what tasks see.
//!
//! The simulation has one thread, so all that tasks see has an order, the [`Tick`]s. An operation of unknown outcome may happen
//! from its begin until what LITE promises ends that: [`Lite::settled`] of its node, a grant of the lock that it happened
//! under, or the word of all members that its node's life has ended. Until then each model takes both outcomes, and after that one.

mod barriers;
mod bytes;
mod calls;
mod history;
mod locks;
mod look;
mod words;

pub(super) use bytes::WriteEnd;
pub(super) use calls::CallEnd;
pub(super) use history::Act;
pub(super) use locks::{Hold, Mode};
pub(super) use words::{Cell, End};

use super::Failure;
use lite::{Incarnation, Lite, NodeId};
use platform::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard};

/// A node in one life of it.
type Life = (NodeId, Incarnation);
/// A moment of the run: how many things tasks have begun and seen by then.
type Tick = u64;

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

#[derive(Default)]
struct State {
    violation: Option<Violation>,
    log: Vec<String>,
    operations: [u64; 3],
    tick: Tick,
    states: BTreeMap<&'static str, u64>,
    /// Tasks under way, and what they do.
    tasks: BTreeMap<(usize, usize), String>,
    /// When nodes stood still, or were cut off from what they need to see time pass.
    stood: BTreeMap<usize, Vec<(Instant, Option<Instant>)>>,
    /// All nodes that have joined, by their lives.
    nodes: BTreeMap<Life, Lite>,
    /// Incarnations whose machines were killed.
    killed: BTreeSet<Life>,
    /// Lives of whose end all members have heard.
    settled: BTreeSet<Life>,
    bytes: bytes::Parts,
    words: words::Words,
    locks: locks::Locks,
    barriers: barriers::Barriers,
    calls: calls::Calls,
}

impl State {
    /// The present moment, which is no other's.
    fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// Something does not hold. The first such thing counts.
    fn violated(&mut self, property: &'static str, seen: impl Display) {
        let seen = seen.to_string();
        self.violation.get_or_insert(Violation { property, seen });
    }

    /// Returns whether an incarnation has ended. A machine that was killed does not notice its end, and a member that has heard of
    /// it may have ended too.
    fn is_over(&self, life: &Life) -> bool {
        self.killed.contains(life)
            || self.settled.contains(life)
            || self.nodes.get(life).is_none_or(|lite| !lite.is_member())
    }

    /// Whether, as node `by` knows, that life is a member's.
    fn sees(&self, by: Life, life: Life) -> bool {
        let members = self.nodes.get(&by).map(Lite::members).unwrap_or_default();
        members.iter().any(|member| (member.node, member.incarnation) == life)
    }
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
        self.lock().violated(property, seen);
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

    // ---- What was done ----

    pub(super) fn count(&self, kind: usize) {
        self.lock().operations[kind] += 1;
    }

    pub(super) fn operations(&self) -> [u64; 3] {
        self.lock().operations
    }

    /// The run has come into a state that it is not always in.
    pub(super) fn sometimes(&self, what: &'static str) {
        *self.lock().states.entry(what).or_default() += 1;
    }

    /// The states that the run and LITE have come into, with how often.
    pub(super) fn states(&self) -> BTreeMap<&'static str, u64> {
        let mut states = self.lock().states.clone();
        #[cfg(debug_assertions)]
        states.append(&mut lite::testing::take_states());
        states
    }

    // ---- Tasks ----

    pub(super) fn begin(&self, node: usize, task: usize, what: impl Display) {
        self.lock().tasks.insert((node, task), what.to_string());
    }

    pub(super) fn finish(&self, node: usize, task: usize) {
        self.lock().tasks.remove(&(node, task));
    }

    pub(super) fn all_done(&self) -> bool {
        self.lock().tasks.is_empty()
    }

    pub(super) fn unfinished(&self) -> String {
        format!("{:?}", self.lock().tasks)
    }

    // ---- Nodes ----

    /// A node has joined.
    pub(super) fn joined(&self, lite: &Lite) {
        self.lock().nodes.insert((lite.node_id(), lite.incarnation()), lite.clone());
    }

    /// Whether some life of a node, or of any, has ended.
    pub(super) fn has_ended(&self, node: Option<NodeId>) -> bool {
        let state = self.lock();
        let mut lives = state.nodes.iter().filter(|((id, _), _)| node.is_none_or(|node| *id == node));
        lives.any(|(life, _)| state.is_over(life))
    }

    /// The machine of a node was killed.
    pub(super) fn died(&self, node: usize, lite: &Lite) {
        let mut state = self.lock();
        state.tasks.retain(|(n, _), _| *n != node);
        state.killed.insert((lite.node_id(), lite.incarnation()));
    }

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

    /// A moment, to say later what happened before it.
    pub(super) fn moment(&self) -> Tick {
        self.lock().tick()
    }

    /// `Lite::settled` of a node, called at `since`, has ended well: what that node did not know the outcome of by then has happened
    /// or never will.
    pub(super) fn settled(&self, life: Life, since: Tick) {
        let mut state = self.lock();
        let now = state.tick();
        state.bytes.settled(life, since, now);
        state.words.settled(life, since, now);
    }
}
