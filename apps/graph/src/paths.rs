//! Shortest paths: each node finds the shortest paths over its own edges, then the nodes exchange what has
//! become shorter.
//!
//! A node takes vertices in the order of their distances, in buckets of a width that depends on the weights
//! (delta-stepping, Meyer and Sanders 2003).

use crate::edge::{filled, push};
use crate::engine::Outcome;
use crate::net::Net;
use crate::part::Part;
use crate::program::Global;
use crate::signals::{self, Heard};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use runtime::JobError;

/// The length of a path that there is not.
const NONE: u64 = u64::MAX;
/// The part of the mean weight that is about the width of a bucket.
const BUCKETS: u64 = 4;
/// The number of edges after which other tasks run.
const TURN: usize = 1 << 16;

/// The lengths of a node's paths, and the slots from which paths may go on.
struct Search<'a> {
    part: &'a Part,
    /// The length by slot, then by hub of another node.
    lengths: Vec<u64>,
    /// The slots by bucket, each with its length when it was added.
    buckets: BTreeMap<u64, Vec<(u64, u32)>>,
    /// The binary logarithm of the width of a bucket.
    bits: u32,
    /// The vertices and hubs whose lengths have changed since the last exchange.
    changed: Vec<bool>,
}

/// Returns the length of the shortest path from a vertex to each own vertex, `u64::MAX` where there is none.
/// All nodes call this, with parts that have the outgoing edges.
///
/// # Errors
/// Errors of the exchange, and [`JobError::OutOfMemory`].
pub async fn shortest_paths(net: &mut dyn Net, part: &Part, source: u64) -> Result<Outcome, JobError> {
    let mut search = Search::new(part)?;
    if let Some(at) = part.find(source) {
        search.shorten(at as u32, 0)?;
    }
    let (mut exchanges, me) = (0, net.rank());
    loop {
        let changed = search.run().await?;
        let own = Global { changed, ..Global::default() };
        let changed = |at: usize| {
            let length = search.lengths.get(at).copied();
            length.filter(|_| search.changed.get(at).copied().unwrap_or(false))
        };
        let hub = |number: usize| changed(part.slots() + number);
        let messages = signals::to_all(part, me, &own, NONE, false, |at| changed(at as usize), hub);
        let received = net.exchange(messages).await?;
        exchanges += 1;
        search.changed.fill(false);
        let mut full = Ok(());
        let others = signals::from_all(part, me, &received, |heard, length| {
            let (Heard::Slot(at) | Heard::Hub(at)) = heard;
            if full.is_ok() {
                full = search.shorten(at, length);
            }
        });
        full?;
        if net.nodes() == 1 || own.changed + others?.changed == 0 {
            break;
        }
    }
    search.lengths.truncate(part.len());
    Ok(Outcome { values: search.lengths, rounds: exchanges, exchanges })
}

impl<'a> Search<'a> {
    fn new(part: &'a Part) -> Result<Self, JobError> {
        let hubs = part.incoming.len() - part.len();
        let weights = &part.incoming.weights;
        let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mean = sum.checked_div(weights.len() as u64).unwrap_or(1);
        Ok(Self {
            part,
            lengths: filled(NONE, part.slots() + hubs)?,
            buckets: BTreeMap::new(),
            bits: (mean / BUCKETS).max(1).ilog2(),
            changed: filled(false, part.slots() + hubs)?,
        })
    }

    /// Notes a path to a slot if it is shorter than those before.
    fn shorten(&mut self, slot: u32, length: u64) -> Result<(), JobError> {
        let (Some(known), Some(changed)) =
            (self.lengths.get_mut(slot as usize), self.changed.get_mut(slot as usize))
        else {
            return Ok(());
        };
        if length >= *known {
            return Ok(());
        }
        *known = length;
        *changed = true;
        push(self.buckets.entry(length >> self.bits).or_default(), (length, slot))
    }

    /// Follows paths until none becomes shorter. Returns the number of paths that have been followed.
    async fn run(&mut self) -> Result<u64, JobError> {
        let (own, slots) = (self.part.len(), self.part.slots());
        let (mut followed, mut edges) = (0, 0);
        while let Some((_, bucket)) = self.buckets.pop_first() {
            for (length, slot) in bucket {
                if self.lengths.get(slot as usize) != Some(&length) {
                    continue;
                }
                followed += 1;
                let part = self.part;
                for (target, weight) in part.outgoing.weighted(slot as usize) {
                    let there = length.saturating_add(u64::from(weight));
                    if (target as usize) < own {
                        self.shorten(target, there)?;
                        continue;
                    }
                    let hub = slots + target as usize - own;
                    if let (Some(known), Some(changed)) =
                        (self.lengths.get_mut(hub), self.changed.get_mut(hub))
                        && there < *known
                    {
                        *known = there;
                        *changed = true;
                    }
                }
                edges += part.outgoing.range(slot as usize).len() + 1;
            }
            if edges >= TURN {
                edges = 0;
                platform::yield_now().await;
            }
        }
        Ok(followed)
    }
}
