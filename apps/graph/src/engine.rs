//! Supersteps: the execution of a vertex program.

use crate::edge::{filled, reserve, with_room};
use crate::net::Net;
use crate::part::Part;
use crate::program::{Global, Program, Vertex};
use crate::signals::{self, Heard};
use crate::sparse::{Sparse, push_cuts};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use runtime::JobError;

/// A superstep follows only the edges from changed vertices if at most one in this number of slots has
/// changed, and at most one in this number of edges begins there. Otherwise it follows the edges to all
/// vertices.
const SPARSE_PART: usize = 20;
/// The number of edges after which a worker lets other tasks run.
const TURN: usize = 1 << 16;

/// The result of a program on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The value of each own vertex.
    pub values: Vec<u64>,
    /// The number of supersteps in which values were computed.
    pub rounds: u32,
    /// The number of exchanges: one more than `rounds` if the last one only showed that nothing changed.
    pub exchanges: u32,
}

/// The state of a program on one node between supersteps.
struct State<P> {
    part: Arc<Part>,
    program: Arc<P>,
    values: Arc<Vec<u64>>,
    /// The signal of each slot.
    slots: Arc<Vec<u64>>,
    /// The own vertices whose values have changed, ascending.
    changed: Vec<u32>,
    /// The slots whose signals have changed in this superstep, if the program is monotone.
    active: Vec<u32>,
    sparse: Option<Sparse>,
}

/// Runs a program on a graph until it is done. All nodes call this with equal programs.
///
/// # Errors
/// Errors of the exchange and of the program, and [`JobError::OutOfMemory`].
pub async fn run<P: Program>(net: &mut dyn Net, part: Arc<Part>, program: P) -> Result<Outcome, JobError> {
    let mut state = State::new(part, program)?;
    let mut own = state.first();
    let (mut rounds, mut exchanges) = (0, 0);
    while !state.program.is_last(rounds) {
        let partial = state.scatter()?;
        let messages = state.messages(&own, &partial, net.rank());
        let received = net.exchange(messages).await?;
        exchanges += 1;
        let (global, sums) = state.receive(own, &received, net.rank())?;
        drop(received);
        if state.program.is_done(rounds, &global)? {
            break;
        }
        own = state.compute(net, global, sums).await?;
        rounds += 1;
    }
    let values = Arc::try_unwrap(state.values).unwrap_or_else(|shared| (*shared).clone());
    Ok(Outcome { values, rounds, exchanges })
}

/// The number of signals that are added up independently of each other.
const LANES: usize = 4;

/// Adds up the signals that lead to a target, whose sources are `sources`.
#[inline(always)]
fn fold<P: Program>(part: &Part, program: &P, slots: &[u64], target: usize, sources: &[u32]) -> u64 {
    if !part.incoming.weights.is_empty() {
        let signal = |slot: u32| slots.get(slot as usize).copied().unwrap_or(P::IDENTITY);
        let sources = part.incoming.weighted(target);
        return sources.fold(P::IDENTITY, |sum, (slot, weight)| {
            program.combine(sum, program.gather(signal(slot), weight))
        });
    }
    let (blocks, rest) = sources.as_chunks::<LANES>();
    let mut lanes = [P::IDENTITY; LANES];
    for block in blocks {
        let signals = block.map(|slot| slots.get(slot as usize));
        for (sum, signal) in lanes.iter_mut().zip(signals) {
            // Every edge comes from a slot. A branch costs less here than a value that stands in.
            let Some(signal) = signal else { return P::IDENTITY };
            *sum = program.combine(*sum, program.gather(*signal, 1));
        }
        if lanes.iter().any(|sum| program.is_enough(*sum)) {
            break;
        }
    }
    let mut sum = lanes.into_iter().fold(P::IDENTITY, |sum, part| program.combine(sum, part));
    for slot in rest {
        let Some(signal) = slots.get(*slot as usize) else { return P::IDENTITY };
        sum = program.combine(sum, program.gather(*signal, 1));
    }
    sum
}

impl<P: Program> State<P> {
    fn new(part: Arc<Part>, program: P) -> Result<Self, JobError> {
        let mut values = with_room(part.len())?;
        let vertices = (0..part.len()).filter_map(|at| vertex(&part, at));
        values.extend(vertices.map(|vertex| program.init(&vertex)));
        let slots = filled(P::IDENTITY, part.slots())?;
        let (changed, active) = (Vec::new(), Vec::new());
        let (values, slots, program) = (Arc::new(values), Arc::new(slots), Arc::new(program));
        Ok(Self { part, program, values, slots, changed, active, sparse: None })
    }

    /// Returns this node's part of the sums that all nodes add up before the first superstep.
    fn first(&mut self) -> Global {
        let mut own = Global::default();
        for ((at, vertex), value) in (0..).zip(vertices(&self.part, 0)).zip(&*self.values) {
            own.mass = own.mass.wrapping_add(self.program.mass(&vertex, *value));
            // A vertex whose signal has no effect counts as unchanged, so its signal is not sent.
            if P::MONOTONE && self.program.scatter(&vertex, *value) != P::IDENTITY {
                self.changed.push(at);
            }
        }
        own.changed = if P::MONOTONE { self.changed.len() } else { self.values.len() } as u64;
        own
    }

    /// Sets the signals of changed vertices. Returns the partial sums for hubs of other nodes, by target.
    fn scatter(&mut self) -> Result<Vec<u64>, JobError> {
        let slots = Arc::make_mut(&mut self.slots);
        if P::MONOTONE {
            for at in &self.changed {
                let at = *at as usize;
                let (Some(vertex), Some(value)) = (vertex(&self.part, at), self.values.get(at)) else {
                    continue;
                };
                if let Some(slot) = slots.get_mut(at) {
                    *slot = self.program.scatter(&vertex, *value);
                }
            }
        } else {
            // Vertices with as many edges follow each other.
            let (mut slots, mut values, mut at) = (&mut **slots, &self.values[..], 0);
            for alike in self.part.out_degrees.chunk_by(|a, b| a == b) {
                let Some(first) = vertex(&self.part, at) else { break };
                let (now, rest) = values.split_at(alike.len().min(values.len()));
                let (into, more) = core::mem::take(&mut slots).split_at_mut(now.len());
                if !self.program.scatter_alike(&first, now, into) {
                    let vertices = vertices(&self.part, at);
                    for ((slot, vertex), value) in into.iter_mut().zip(vertices).zip(now) {
                        *slot = self.program.scatter(&vertex, *value);
                    }
                }
                (slots, values, at) = (more, rest, at + alike.len());
            }
        }
        let cuts = self.part.len()..self.part.incoming.len();
        if !self.is_sparse(&self.changed) {
            let (part, program) = (&*self.part, &*self.program);
            let sum = |target| fold(part, program, &self.slots, target, part.incoming.of(target));
            return Ok(cuts.map(sum).collect());
        }
        let mut partial = vec![P::IDENTITY; cuts.len()];
        for slot in &self.changed {
            push_cuts(&*self.program, &self.part, &self.slots, *slot, &mut partial);
        }
        Ok(partial)
    }

    /// Returns true if a superstep in which these slots have changed follows their edges.
    fn is_sparse(&self, changed: &[u32]) -> bool {
        let part = &self.part;
        P::MONOTONE
            && part.outgoing.len() == part.slots()
            && changed.len() * SPARSE_PART <= part.slots()
            && part.outgoing.edges_of(changed) * SPARSE_PART <= part.held_edges()
    }

    /// Returns the messages to all nodes, by rank.
    fn messages(&self, own: &Global, partial: &[u64], me: usize) -> Vec<Vec<u8>> {
        let part = &*self.part;
        let mut is_changed = Vec::new();
        if P::MONOTONE && part.lent.len() > 1 {
            is_changed.resize(part.len(), false);
            for at in &self.changed {
                if let Some(flag) = is_changed.get_mut(*at as usize) {
                    *flag = true;
                }
            }
        }
        let signal = |at: u32| {
            let unchanged = P::MONOTONE && !is_changed.get(at as usize).copied().unwrap_or(false);
            if unchanged { None } else { self.slots.get(at as usize).copied() }
        };
        let sum = |cut: usize| partial.get(cut).copied().filter(|sum| !P::MONOTONE || *sum != P::IDENTITY);
        signals::to_all(part, me, own, P::IDENTITY, !P::MONOTONE, signal, sum)
    }

    /// Stores what the other nodes have sent. Returns the sums over all nodes, and the partial sums for own
    /// hubs, ascending.
    fn receive(
        &mut self,
        own: Global,
        received: &[Vec<u8>],
        me: usize,
    ) -> Result<(Global, Vec<(u32, u64)>), JobError> {
        let slots = Arc::make_mut(&mut self.slots);
        let (mut global, mut sums) = (own, Vec::new());
        self.active.clear();
        if P::MONOTONE {
            self.active.extend_from_slice(&self.changed);
        }
        let active = &mut self.active;
        let others = signals::from_all(&self.part, me, received, |to, word| {
            if P::MONOTONE && word == P::IDENTITY {
                return;
            }
            match to {
                Heard::Hub(hub) => sums.push((hub, word)),
                Heard::Slot(slot) => {
                    if let Some(into) = slots.get_mut(slot as usize) {
                        *into = word;
                    }
                    if P::MONOTONE {
                        active.push(slot);
                    }
                }
            }
        });
        global.add(others?);
        sums.sort_unstable();
        Ok((global, sums))
    }

    /// Computes the new values. Returns this node's part of the sums for the next superstep.
    async fn compute(
        &mut self,
        net: &mut dyn Net,
        global: Global,
        sums: Vec<(u32, u64)>,
    ) -> Result<Global, JobError> {
        if self.is_sparse(&self.active) {
            return self.compute_sparse(&global, &sums);
        }
        let (sums, common) = (Arc::new(sums), self.program.common(self.part.vertices, &global));
        let ranges = shares(&self.part, net.cpus());
        let workers: Vec<_> = ranges
            .into_iter()
            .map(|range| {
                let work = Work {
                    part: self.part.clone(),
                    program: self.program.clone(),
                    values: self.values.clone(),
                    slots: self.slots.clone(),
                    sums: sums.clone(),
                    common,
                };
                net.start(Box::pin(work.compute(range)))
            })
            .collect();
        let mut new = Vec::new();
        for worker in workers {
            let mut more = worker.await?;
            if new.is_empty() {
                new = more;
            } else {
                reserve(&mut new, more.len())?;
                new.append(&mut more);
            }
        }
        Ok(if P::MONOTONE { self.change(&new) } else { self.replace(new) })
    }

    /// Replaces all values. Returns this node's part of the sums for the next superstep.
    fn replace(&mut self, new: Vec<u64>) -> Global {
        let mut own = Global::default();
        for ((vertex, old), new) in vertices(&self.part, 0).zip(&*self.values).zip(&new) {
            own.mass = own.mass.wrapping_add(self.program.mass(&vertex, *new));
            own.changed += u64::from(old != new);
            own.delta = own.delta.wrapping_add(self.program.delta(*old, *new));
        }
        self.values = Arc::new(new);
        own
    }

    /// Replaces the values of some vertices. Each is followed by its new value in `new`. Returns this node's
    /// part of the sums for the next superstep.
    fn change(&mut self, new: &[u64]) -> Global {
        let (pairs, _) = new.as_chunks::<2>();
        let mut own = Global { changed: pairs.len() as u64, ..Global::default() };
        let values = Arc::make_mut(&mut self.values);
        self.changed.clear();
        for [at, new] in pairs {
            if let Some(value) = values.get_mut(*at as usize) {
                own.delta = own.delta.wrapping_add(self.program.delta(*value, *new));
                *value = *new;
                self.changed.push(*at as u32);
            }
        }
        own
    }

    /// Computes the new values of the vertices that changed signals reach.
    fn compute_sparse(&mut self, global: &Global, sums: &[(u32, u64)]) -> Result<Global, JobError> {
        let program = &*self.program;
        let sparse = match &mut self.sparse {
            Some(sparse) => sparse,
            none => none.insert(Sparse::new::<P>(&self.part)?),
        };
        for slot in &self.active {
            sparse.push(program, &self.part, &self.slots, *slot);
        }
        for (hub, sum) in sums {
            sparse.add(program, *hub, *sum);
        }
        let values = Arc::make_mut(&mut self.values);
        let common = program.common(self.part.vertices, global);
        let (mut own, changed) = (Global::default(), &mut self.changed);
        changed.clear();
        sparse.take::<P>(|at, sum| {
            let (Some(vertex), Some(value)) = (vertex(&self.part, at as usize), values.get_mut(at as usize))
            else {
                return;
            };
            let new = program.apply(&vertex, *value, sum, common);
            if new != *value {
                own.delta = own.delta.wrapping_add(program.delta(*value, new));
                *value = new;
                changed.push(at);
            }
        });
        changed.sort_unstable();
        own.changed = changed.len() as u64;
        Ok(own)
    }
}

/// A worker's view of a superstep.
struct Work<P> {
    part: Arc<Part>,
    program: Arc<P>,
    values: Arc<Vec<u64>>,
    slots: Arc<Vec<u64>>,
    sums: Arc<Vec<(u32, u64)>>,
    /// The result of [`Program::common`].
    common: u64,
}

impl<P: Program> Work<P> {
    /// Returns the new values of a range of own vertices. If the program is monotone, only the vertices whose
    /// values change are in the result, each before its value.
    async fn compute(self, range: Range<usize>) -> Result<Vec<u64>, JobError> {
        let mut new = with_room(if P::MONOTONE { 0 } else { range.len() })?;
        let first = self.sums.partition_point(|(hub, _)| (*hub as usize) < range.start);
        let mut sums = self.sums.get(first..).unwrap_or_default();
        let mut rest = range;
        while !rest.is_empty() {
            let end = split(&self.part, rest.clone(), TURN);
            self.turn(rest.start..end, &mut sums, &mut new)?;
            rest.start = end;
            if !rest.is_empty() {
                platform::yield_now().await;
            }
        }
        Ok(new)
    }

    /// Appends the new values of some vertices. `sums` begins with the partial sums for the hubs among them.
    fn turn(
        &self,
        range: Range<usize>,
        sums: &mut &[(u32, u64)],
        new: &mut Vec<u64>,
    ) -> Result<(), JobError> {
        let (part, program, slots, incoming) =
            (&*self.part, &*self.program, &**self.slots, &self.part.incoming);
        let begin = range.start;
        let mut done = incoming.range(begin).start;
        let mut rest = incoming.neighbours.get(done..).unwrap_or_default();
        let ends = incoming.offsets.get(begin + 1..).unwrap_or_default();
        let values = self.values.get(begin..).unwrap_or_default();
        for (((at, vertex), value), end) in range.zip(vertices(part, begin)).zip(values).zip(ends) {
            let Some((sources, more)) = rest.split_at_checked(*end as usize - done) else { break };
            (rest, done) = (more, *end as usize);
            if program.is_final(*value) {
                if !P::MONOTONE {
                    new.push(*value);
                }
                continue;
            }
            let mut sum = fold(part, program, slots, at, sources);
            while let Some(((hub, partial), others)) = sums.split_first()
                && *hub as usize <= at
            {
                if *hub as usize == at {
                    sum = program.combine(sum, *partial);
                }
                *sums = others;
            }
            let now = program.apply(&vertex, *value, sum, self.common);
            if !P::MONOTONE {
                new.push(now);
            } else if now != *value {
                reserve(new, 2)?;
                new.extend([at as u64, now]);
            }
        }
        Ok(())
    }
}

/// Returns the own vertices from index `begin` on.
fn vertices(part: &Part, begin: usize) -> impl Iterator<Item = Vertex> {
    let vertices = part.vertices;
    let ids = part.ids.get(begin..).unwrap_or_default();
    let out_degrees = part.out_degrees.get(begin..).unwrap_or_default();
    ids.iter().zip(out_degrees).map(move |(id, degree)| Vertex { id: *id, out_degree: *degree, vertices })
}

/// Returns the own vertex of index `at`, as a program sees it.
fn vertex(part: &Part, at: usize) -> Option<Vertex> {
    let (id, out_degree) = (*part.ids.get(at)?, *part.out_degrees.get(at)?);
    Some(Vertex { id, out_degree, vertices: part.vertices })
}

/// Returns one range of own vertices for each of `count` workers, with about as many edges each.
fn shares(part: &Part, count: usize) -> Vec<Range<usize>> {
    let (own, count) = (part.len(), count.max(1));
    let all = cost(part, own);
    let mut rest = 0..own;
    let mut shares = Vec::new();
    for number in 1..=count {
        let most = (all * number / count).saturating_sub(cost(part, rest.start));
        let end = if number == count { own } else { split(part, rest.clone(), most) };
        shares.push(rest.start..end);
        rest.start = end;
    }
    shares
}

/// Returns the cost of a superstep for the own vertices before index `at`, in edges.
fn cost(part: &Part, at: usize) -> usize {
    let offsets = &part.incoming.offsets;
    offsets.get(at).or(offsets.last()).copied().unwrap_or(0) as usize + 2 * at
}

/// Returns the end of the first part of a range of own vertices: the first index at which the part costs
/// `most` edges or more, so the part has at least one vertex if `most` is not 0.
fn split(part: &Part, range: Range<usize>, most: usize) -> usize {
    let wanted = cost(part, range.start) + most;
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low.midpoint(high);
        if cost(part, middle) < wanted { low = middle + 1 } else { high = middle }
    }
    low
}
