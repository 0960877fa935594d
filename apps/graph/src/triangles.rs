//! The number of triangles of an undirected graph.
//!
//! Each edge is directed from the end with fewer neighbours to the other one; among equals, from the
//! smaller to the larger vertex. So no vertex has many edges out. Each triangle is found once: at its least
//! vertex u, as a common greater neighbour of u and of its second vertex v, whose list all nodes get.

use crate::bytes::Reader;
use crate::edge::{filled, with_room};
use crate::net::{BLOCK, Net, stream, sums};
use crate::part::Part;
use alloc::vec;
use alloc::vec::Vec;
use runtime::JobError;

/// The triangles of a graph, on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Triangles {
    /// The number of triangles of the whole graph.
    pub total: u64,
    /// The number of triangles at each own vertex.
    pub each: Vec<u64>,
}

/// The order of a vertex: its number of neighbours, then its number in the whole graph.
type Key = u64;

/// The neighbours of each own vertex that are greater than the vertex.
struct Greater {
    offsets: Vec<usize>,
    /// The keys in ascending order, each with its slot.
    neighbours: Vec<(Key, u32)>,
}

impl Greater {
    fn of(&self, vertex: usize) -> &[(Key, u32)] {
        match self.offsets.get(vertex..vertex + 2) {
            Some([begin, end]) => self.neighbours.get(*begin..*end).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// Counts the triangles of a graph. The graph must have each edge in both directions, no loops, and no hubs.
/// All nodes call this, with parts that have the outgoing edges.
///
/// # Errors
/// Errors of the exchange, and [`JobError::OutOfMemory`].
pub async fn triangles(net: &mut dyn Net, part: &Part) -> Result<Triangles, JobError> {
    let keys = keys(net, part).await?;
    let greater = greater(part, &keys)?;
    let mut slots: Vec<(Key, u32)> = with_room(keys.len())?;
    slots.extend(keys.iter().copied().zip(0..));
    slots.sort_unstable();
    let mut counts = filled(0u64, keys.len())?;
    let mut next = 0;
    let fill = |blocks: &mut [Vec<u8>]| {
        while next < part.len() {
            let list = greater.of(next);
            let key = keys.get(next).copied().unwrap_or_default();
            next += 1;
            if list.is_empty() {
                continue;
            }
            for block in &mut *blocks {
                block.extend_from_slice(&key.to_le_bytes());
                block.extend_from_slice(&(list.len() as u64).to_le_bytes());
                list.iter().for_each(|(key, _)| block.extend_from_slice(&key.to_le_bytes()));
            }
            if blocks.first().is_some_and(|block| block.len() >= BLOCK) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let take = |rank: usize, bytes: &[u8]| {
        let mut reader = Reader::new(rank, bytes);
        while !reader.bytes.is_empty() {
            let (key, len) = (reader.u64()?, reader.u64()?);
            let len = usize::try_from(len).ok().and_then(|len| len.checked_mul(8));
            let (list, _) = reader.slice(len.ok_or(JobError::Malformed { rank })?)?.as_chunks::<8>();
            let Ok(at) = slots.binary_search_by_key(&key, |(key, _)| *key) else { continue };
            let Some((_, slot)) = slots.get(at) else { continue };
            for own in part.outgoing.of(*slot as usize) {
                if keys.get(*own as usize).is_some_and(|own| *own < key) {
                    common(greater.of(*own as usize), list, |third| {
                        for at in [*own, *slot, third] {
                            if let Some(count) = counts.get_mut(at as usize) {
                                *count += 1;
                            }
                        }
                    });
                }
            }
        }
        Ok(())
    };
    stream(net, fill, take).await?;
    let each = collect(net, part, counts).await?;
    let [corners] = sums(net, [each.iter().sum()]).await?;
    Ok(Triangles { total: corners / 3, each })
}

/// Returns the key of each slot.
async fn keys(net: &mut dyn Net, part: &Part) -> Result<Vec<Key>, JobError> {
    let nodes = net.nodes();
    let own = (part.len() as u64).to_le_bytes().to_vec();
    let mut first = 0u64;
    for (rank, bytes) in net.exchange(vec![own; nodes]).await?.iter().enumerate().take(net.rank()) {
        first += Reader::new(rank, bytes).u64()?;
    }
    let mut keys = with_room(part.slots())?;
    keys.extend(
        part.out_degrees.iter().zip(first..).map(|(degree, number)| u64::from(*degree) << 32 | number),
    );
    let signal = |at: &u32| keys.get(*at as usize).copied().unwrap_or_default().to_le_bytes();
    let to = part.lent.iter().map(|lent| lent.iter().flat_map(signal).collect()).collect();
    for (rank, bytes) in net.exchange(to).await?.iter().enumerate() {
        let mut reader = Reader::new(rank, bytes);
        for _ in part.ghosts.get(rank).cloned().unwrap_or_default() {
            keys.push(reader.u64()?);
        }
    }
    Ok(keys)
}

fn greater(part: &Part, keys: &[Key]) -> Result<Greater, JobError> {
    let key = |slot: usize| keys.get(slot).copied().unwrap_or_default();
    let is_greater = |own: usize, slot: &&u32| key(**slot as usize) > key(own);
    let count =
        (0..part.len()).map(|own| part.incoming.of(own).iter().filter(|s| is_greater(own, s)).count());
    let mut greater = Greater { offsets: with_room(part.len() + 1)?, neighbours: with_room(count.sum())? };
    greater.offsets.push(0);
    for own in 0..part.len() {
        let begin = greater.neighbours.len();
        let slots = part.incoming.of(own).iter().filter(|slot| is_greater(own, slot));
        greater.neighbours.extend(slots.map(|slot| (key(*slot as usize), *slot)));
        greater.neighbours.get_mut(begin..).unwrap_or_default().sort_unstable();
        greater.offsets.push(greater.neighbours.len());
    }
    Ok(greater)
}

/// Calls `each` with the slot of each key that is in both lists.
fn common(own: &[(Key, u32)], list: &[[u8; 8]], mut each: impl FnMut(u32)) {
    let mut own = own.iter().peekable();
    for key in list.iter().map(|key| u64::from_le_bytes(*key)) {
        while own.next_if(|(own, _)| *own < key).is_some() {}
        if let Some((_, slot)) = own.next_if(|(own, _)| *own == key) {
            each(*slot);
        }
    }
}

/// Adds up the counts of each vertex on its owner. `counts` are those of this node, by slot.
async fn collect(net: &mut dyn Net, part: &Part, mut counts: Vec<u64>) -> Result<Vec<u64>, JobError> {
    let of = |ghosts: &core::ops::Range<usize>| {
        let counts = counts.get(ghosts.clone()).unwrap_or_default();
        counts.iter().flat_map(|count| count.to_le_bytes()).collect()
    };
    let to = part.ghosts.iter().map(of).collect();
    for (rank, bytes) in net.exchange(to).await?.iter().enumerate() {
        let mut reader = Reader::new(rank, bytes);
        for at in part.lent.get(rank).into_iter().flatten() {
            let more = reader.u64()?;
            if let Some(count) = counts.get_mut(*at as usize) {
                *count += more;
            }
        }
    }
    counts.truncate(part.len());
    Ok(counts)
}
