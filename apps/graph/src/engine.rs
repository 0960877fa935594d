//! Supersteps: the execution of a vertex program.

use crate::edge::{filled, with_room};
use crate::net::Net;
use crate::part::Part;
use crate::program::{Global, Program, Vertex};
use crate::signals;
use crate::sparse::Sparse;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use runtime::{BoxFuture, JobError};

/// A superstep follows only the edges from changed vertices if at most one in this number of slots has
/// changed. Otherwise it follows the edges to all vertices.
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

/// Adds up the signals that lead to a target.
fn fold<P: Program>(part: &Part, program: &P, slots: &[u64], target: usize) -> u64 {
    let signal = |slot: u32| slots.get(slot as usize).copied().unwrap_or(P::IDENTITY);
    if part.incoming.weights.is_empty() {
        let sources = part.incoming.of(target).iter();
        sources.fold(P::IDENTITY, |sum, slot| program.combine(sum, program.gather(signal(*slot), 1)))
    } else {
        let sources = part.incoming.weighted(target);
        sources.fold(P::IDENTITY, |sum, (slot, weight)| {
            program.combine(sum, program.gather(signal(slot), weight))
        })
    }
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
        for (at, value) in self.values.iter().enumerate() {
            let Some(vertex) = vertex(&self.part, at) else { continue };
            own.mass = own.mass.wrapping_add(self.program.mass(&vertex, *value));
            // A vertex whose signal has no effect counts as unchanged, so its signal is not sent.
            if !P::MONOTONE || self.program.scatter(&vertex, *value) != P::IDENTITY {
                self.changed.push(at as u32);
            }
        }
        own.changed = self.changed.len() as u64;
        own
    }

    /// Sets the signals of changed vertices. Returns the partial sums for hubs of other nodes, by target.
    fn scatter(&mut self) -> Result<Vec<u64>, JobError> {
        let slots = Arc::make_mut(&mut self.slots);
        for at in &self.changed {
            let at = *at as usize;
            let (Some(vertex), Some(value)) = (vertex(&self.part, at), self.values.get(at)) else { continue };
            if let Some(slot) = slots.get_mut(at) {
                *slot = self.program.scatter(&vertex, *value);
            }
        }
        let cuts = self.part.len()..self.part.incoming.len();
        if !self.is_sparse(self.changed.len()) {
            return Ok(cuts.map(|target| fold(&self.part, &*self.program, &self.slots, target)).collect());
        }
        let sparse = match &mut self.sparse {
            Some(sparse) => sparse,
            none => none.insert(Sparse::new::<P>(&self.part)?),
        };
        let mut partial = vec![P::IDENTITY; cuts.len()];
        for slot in &self.changed {
            sparse.push_cuts(&*self.program, &self.slots, *slot, (cuts.start, &mut partial));
        }
        Ok(partial)
    }

    /// Returns true if a superstep with `changed` changed slots follows only the edges from these.
    fn is_sparse(&self, changed: usize) -> bool {
        P::MONOTONE && changed * SPARSE_PART <= self.part.slots()
    }

    /// Returns the messages to all nodes, by rank.
    fn messages(&self, own: &Global, partial: &[u64], me: usize) -> Vec<Vec<u8>> {
        let part = &*self.part;
        let mut is_changed = Vec::new();
        if P::MONOTONE {
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
        let sum = |target: usize| {
            let sum = partial.get(target - part.len()).copied();
            sum.filter(|sum| !P::MONOTONE || *sum != P::IDENTITY)
        };
        let mut messages = Vec::new();
        for (rank, (lent, cuts)) in part.lent.iter().zip(&part.cuts).enumerate() {
            if rank == me {
                messages.push(Vec::new());
                continue;
            }
            let words = Words { lent, cuts: cuts.clone(), at: 0, signal: &signal, sum: &sum };
            messages.push(signals::emit(own, P::IDENTITY, words));
        }
        messages
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
        for (rank, message) in received.iter().enumerate().filter(|(rank, _)| *rank != me) {
            let malformed = JobError::Malformed { rank };
            let ghosts = self.part.ghosts.get(rank).cloned().ok_or(malformed.clone())?;
            let hubs = self.part.hubs.get(rank).ok_or(malformed)?;
            let active = &mut self.active;
            let parsed = signals::parse(rank, message, ghosts.len() + hubs.len(), |number, word| {
                if P::MONOTONE && word == P::IDENTITY {
                    return;
                }
                if let Some(hub) = number.checked_sub(ghosts.len()) {
                    sums.extend(hubs.get(hub).map(|hub| (*hub, word)));
                } else if let Some(slot) = slots.get_mut(ghosts.start + number) {
                    *slot = word;
                    if P::MONOTONE {
                        active.push((ghosts.start + number) as u32);
                    }
                }
            });
            global.add(parsed?);
        }
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
        if self.is_sparse(self.active.len()) {
            return self.compute_sparse(&global, &sums);
        }
        let sums = Arc::new(sums);
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
                    global,
                };
                net.start(Box::pin(work.compute(range)) as BoxFuture<'static, Vec<u64>>)
            })
            .collect();
        let mut new = with_room(self.part.len())?;
        for worker in workers {
            new.append(&mut worker.await?);
        }
        if new.len() != self.part.len() {
            return Err(JobError::OutOfMemory { wanted: 8 * self.part.len() as u64, has: 0 });
        }
        Ok(self.replace(new))
    }

    /// Replaces all values. Returns this node's part of the sums for the next superstep.
    fn replace(&mut self, new: Vec<u64>) -> Global {
        let mut own = Global::default();
        self.changed.clear();
        for (at, (old, new)) in self.values.iter().zip(&new).enumerate() {
            let Some(vertex) = vertex(&self.part, at) else { continue };
            own.mass = own.mass.wrapping_add(self.program.mass(&vertex, *new));
            if old != new {
                own.delta = own.delta.wrapping_add(self.program.delta(*old, *new));
                self.changed.push(at as u32);
            }
        }
        own.changed = self.changed.len() as u64;
        self.values = Arc::new(new);
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
            sparse.push(program, &self.slots, *slot, self.part.len());
        }
        for (hub, sum) in sums {
            sparse.add(program, *hub, *sum);
        }
        let values = Arc::make_mut(&mut self.values);
        let (mut own, changed) = (Global::default(), &mut self.changed);
        changed.clear();
        sparse.take::<P>(|at, sum| {
            let (Some(vertex), Some(value)) = (vertex(&self.part, at as usize), values.get_mut(at as usize))
            else {
                return;
            };
            let new = program.apply(&vertex, *value, sum, global);
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

/// The words of a message: signals of lent vertices, then partial sums.
struct Words<'a, S, T> {
    lent: &'a [u32],
    cuts: Range<usize>,
    at: usize,
    signal: &'a S,
    sum: &'a T,
}

impl<S, T> Clone for Words<'_, S, T> {
    fn clone(&self) -> Self {
        Self { lent: self.lent, cuts: self.cuts.clone(), at: self.at, signal: self.signal, sum: self.sum }
    }
}

impl<S: Fn(u32) -> Option<u64>, T: Fn(usize) -> Option<u64>> Iterator for Words<'_, S, T> {
    type Item = Option<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        self.at += 1;
        match self.lent.get(at) {
            Some(vertex) => Some((self.signal)(*vertex)),
            None => {
                let target = self.cuts.start + at - self.lent.len();
                (target < self.cuts.end).then(|| (self.sum)(target))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.lent.len() + self.cuts.len()).saturating_sub(self.at);
        (left, Some(left))
    }
}

impl<S: Fn(u32) -> Option<u64>, T: Fn(usize) -> Option<u64>> ExactSizeIterator for Words<'_, S, T> {}

/// A worker's view of a superstep.
struct Work<P> {
    part: Arc<Part>,
    program: Arc<P>,
    values: Arc<Vec<u64>>,
    slots: Arc<Vec<u64>>,
    sums: Arc<Vec<(u32, u64)>>,
    global: Global,
}

impl<P: Program> Work<P> {
    /// Returns the new values of a range of own vertices; no values if memory is short.
    async fn compute(self, range: Range<usize>) -> Vec<u64> {
        let Ok(mut new) = with_room(range.len()) else { return Vec::new() };
        let mut sums = self.sums.get(self.sums.partition_point(|(hub, _)| (*hub as usize) < range.start)..);
        let mut edges = 0;
        for at in range {
            let mut sum = fold(&self.part, &*self.program, &self.slots, at);
            while let Some(((hub, partial), rest)) = sums.and_then(<[_]>::split_first)
                && *hub as usize == at
            {
                sum = self.program.combine(sum, *partial);
                sums = Some(rest);
            }
            let (Some(vertex), Some(value)) = (vertex(&self.part, at), self.values.get(at)) else { break };
            new.push(self.program.apply(&vertex, *value, sum, &self.global));
            edges += self.part.incoming.of(at).len() + 1;
            if edges >= TURN {
                edges = 0;
                platform::yield_now().await;
            }
        }
        new
    }
}

/// Returns the own vertex of index `at`, as a program sees it.
fn vertex(part: &Part, at: usize) -> Option<Vertex> {
    let (id, out_degree) = (*part.ids.get(at)?, *part.out_degrees.get(at)?);
    Some(Vertex { id, out_degree, vertices: part.vertices })
}

/// Returns one range of own vertices for each of `count` workers, with about as many edges each.
fn shares(part: &Part, count: usize) -> Vec<Range<usize>> {
    let own = part.len();
    let edges = part.incoming.offsets.get(own).copied().unwrap_or(0);
    let cost = |at: usize| part.incoming.offsets.get(at).copied().unwrap_or(edges) as usize + 2 * at;
    let all = cost(own);
    let mut begin = 0;
    let mut shares = Vec::new();
    for number in 1..=count.max(1) {
        // A binary search for the end of this worker's range: the first vertex before which the cost is at
        // least the share of this worker and of those before it.
        let (mut low, mut high) = (begin, own);
        while low < high {
            let middle = low.midpoint(high);
            if cost(middle) < all * number / count.max(1) { low = middle + 1 } else { high = middle }
        }
        let end = if number == count.max(1) { own } else { low };
        shares.push(begin..end);
        begin = end;
    }
    shares
}
