//! The invariants of a run: models of memory, words, locks, barriers, calls and names, which compare the
//! results that tasks see.
//!
//! The simulation has one thread, so all results have an order, the [`Tick`]s. An operation of unknown
//! outcome may happen from its begin until a promise of LITE ends that: [`Lite::settled`] of its node, a
//! grant of the lock under which it happened, or the knowledge of all members that its node's incarnation has
//! ended. Until then each model permits both outcomes, and after that only the one that was seen.

mod barriers;
mod bytes;
mod calls;
mod history;
mod locks;
mod look;
mod tallies;
mod words;

pub(super) use bytes::WriteEnd;
pub(super) use calls::CallEnd;
pub(super) use history::Act;
pub(super) use locks::{Hold, Mode};
pub(super) use words::{Cell, End};

use super::Failure;
use lite::{Incarnation, Lite, NodeId};
use platform::Instant;
use proto::Attempt;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard};

/// One incarnation of a node.
type MemberId = (NodeId, Incarnation);
/// A moment of the run: the number of begins and results of operations before it.
type Tick = u64;

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property.
    pub property: &'static str,
    /// The observation.
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
    /// The operations of tasks that have not ended.
    tasks: BTreeMap<(usize, usize), String>,
    /// The times when nodes were paused, or were cut off from the things that they need to notice the
    /// passage of time.
    pauses: BTreeMap<usize, Vec<(Instant, Option<Instant>)>>,
    /// All nodes that have joined, by incarnation.
    nodes: BTreeMap<MemberId, Lite>,
    /// The incarnations whose machines were killed.
    killed: BTreeSet<MemberId>,
    /// The incarnations whose end all members know.
    settled: BTreeSet<MemberId>,
    /// The attempts to set up a connection that each node has accepted.
    attempts: BTreeSet<(MemberId, Attempt)>,
    /// The incarnations whose membership has ended though their machines run.
    lost: BTreeSet<MemberId>,
    /// The time of the last look.
    looked: Instant,
    /// The nodes that may lose their membership at any time.
    excused: BTreeSet<usize>,
    bytes: bytes::Parts,
    words: words::Words,
    locks: locks::Locks,
    barriers: barriers::Barriers,
    calls: calls::Calls,
    tallies: tallies::Tallies,
}

impl State {
    /// Returns a new moment, different from all others.
    fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// Records a violation. Only the first one counts.
    fn violated(&mut self, property: &'static str, seen: impl Display) {
        let seen = seen.to_string();
        self.violation.get_or_insert(Violation { property, seen });
    }

    /// Returns whether an incarnation has ended. A machine that was killed does not notice its end, and a
    /// member that knows of it may have ended too.
    fn is_over(&self, member: &MemberId) -> bool {
        self.killed.contains(member)
            || self.settled.contains(member)
            || self.nodes.get(member).is_none_or(|lite| !lite.is_member())
    }

    fn was_paused(&self, node: usize, from: Instant, to: Instant) -> bool {
        let mut pauses = self.pauses.get(&node).into_iter().flatten();
        pauses.any(|(a, b)| *a <= to && b.is_none_or(|b| b >= from))
    }

    /// Returns true if node `by` regards the incarnation `member` as a member.
    fn sees(&self, by: MemberId, member: MemberId) -> bool {
        let members = self.nodes.get(&by).map(Lite::members).unwrap_or_default();
        members.iter().any(|known| (known.node, known.incarnation) == member)
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

    /// Records a violation. Only the first one counts.
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

    /// Records that the run has reached a state that it does not always reach.
    pub(super) fn sometimes(&self, what: &'static str) {
        *self.lock().states.entry(what).or_default() += 1;
    }

    /// Returns the states that the run and LITE have reached, with the number of times.
    pub(super) fn states(&self) -> BTreeMap<&'static str, u64> {
        let states = self.lock().states.clone().into_iter();
        #[cfg(debug_assertions)]
        let states = states.chain(lite::testing::take_states());
        states.collect()
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

    /// Records that a node has joined.
    pub(super) fn joined(&self, lite: &Lite) {
        self.lock().nodes.insert((lite.node_id(), lite.incarnation()), lite.clone());
    }

    /// Returns whether an incarnation of `node` has ended, or of any node if `node` is `None`.
    pub(super) fn has_ended(&self, node: Option<NodeId>) -> bool {
        let state = self.lock();
        let mut members = state.nodes.iter().filter(|((id, _), _)| node.is_none_or(|node| *id == node));
        members.any(|(member, _)| state.is_over(member))
    }

    /// Returns whether an incarnation has ended.
    pub(super) fn has_departed(&self, member: (NodeId, Incarnation)) -> bool {
        self.lock().is_over(&member)
    }

    /// Records that the machine of a node was killed.
    pub(super) fn died(&self, node: usize, lite: &Lite) {
        let mut state = self.lock();
        state.tasks.retain(|(n, _), _| *n != node);
        state.killed.insert((lite.node_id(), lite.incarnation()));
    }

    /// Records that a node may lose its membership from now on.
    pub(super) fn excuse(&self, node: usize) {
        self.lock().excused.insert(node);
    }

    /// Records that a node is paused from `now` on, or resumed.
    pub(super) fn paused(&self, node: usize, now: Instant, starts: bool) {
        let mut state = self.lock();
        let pauses = state.pauses.entry(node).or_default();
        match pauses.last_mut() {
            Some((_, to @ None)) if !starts => *to = Some(now),
            _ if starts => pauses.push((now, None)),
            _ => {}
        }
    }

    /// Returns true if a node was paused at some time between `from` and `to`.
    pub(super) fn was_paused(&self, node: usize, from: Instant, to: Instant) -> bool {
        self.lock().was_paused(node, from, to)
    }

    /// Returns a token for the present moment, by which a later check can tell which operations had begun
    /// before it.
    pub(super) fn moment(&self) -> Tick {
        self.lock().tick()
    }

    /// Records that `Lite::settled` of a node, called at `since`, has succeeded: operations of that node
    /// whose outcome was unknown by then have happened or never will.
    pub(super) fn settled(&self, member: MemberId, since: Tick) {
        let mut state = self.lock();
        let now = state.tick();
        state.bytes.settled(member, since, now);
        state.words.settled(member, since, now);
    }
}
