//! The distribution of the vertices over the nodes: ranges of identifiers, and hubs.

use crate::bytes::Reader;
use crate::edge::Edges;
use crate::net::Net;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use runtime::JobError;

/// The most vertices in the sample of a node, by which the ranges are chosen.
const SAMPLE: usize = 8192;
/// The number of vertices that a node reports as possible hubs.
const SUSPECTS: usize = 256;
/// The least number of edges to a hub, unless another number is given.
const LEAST_HUB: u64 = 1024;
/// A vertex is a hub if the edges to it are at least this part (1/64) of a node's share of all edges.
const HUB_PART: u64 = 64;
/// The cost of a vertex and of an edge, in bytes.
const COST: (u64, u64) = (8, 4);

/// The owner of each vertex.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The first identifier of each node but the first, in ascending order; `None` for a node without
    /// vertices, behind all others.
    firsts: Vec<Option<u64>>,
    /// The vertices whose edges stay with the owners of their sources, ascending.
    hubs: Vec<u64>,
}

impl Plan {
    /// Returns the rank of the node that owns a vertex.
    #[must_use]
    pub fn owner(&self, id: u64) -> usize {
        self.firsts.partition_point(|first| first.is_some_and(|first| first <= id))
    }

    /// Returns true if edges to `id` stay with the owners of their sources.
    #[must_use]
    pub fn is_hub(&self, id: u64) -> bool {
        self.hubs.binary_search(&id).is_ok()
    }

    /// Returns the hubs, ascending.
    #[must_use]
    pub fn hubs(&self) -> &[u64] {
        &self.hubs
    }

    /// Chooses ranges for which each node gets about as much of `8 V + 4 E` bytes. `hub` is the number of
    /// edges from which on a vertex is a hub; `None` selects it by the size of the graph.
    pub(crate) async fn choose(
        net: &mut dyn Net,
        edges: &Edges,
        vertices: &[u64],
        hub: Option<u64>,
    ) -> Result<Self, JobError> {
        if net.nodes() == 1 {
            return Ok(Self::default());
        }
        let hubs = hubs(net, edges, hub).await?;
        let plan = Self { firsts: Vec::new(), hubs };
        let mut sample = Sample::default();
        for edge in edges.iter() {
            let at_source = plan.is_hub(edge.to);
            sample.add(edge.from, at_source.into());
            sample.add(edge.to, (!at_source).into());
        }
        vertices.iter().for_each(|id| sample.add(*id, 0));
        let mut all = Sample::default();
        for (rank, bytes) in gather(net, sample.emit()).await?.iter().enumerate() {
            all.merge(Reader::new(rank, bytes))?;
        }
        Ok(Self { firsts: all.split(net.nodes()), ..plan })
    }
}

async fn gather(net: &mut dyn Net, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, JobError> {
    let nodes = net.nodes();
    net.exchange(vec![bytes; nodes]).await
}

/// Returns the vertices to which very many edges lead, ascending.
async fn hubs(net: &mut dyn Net, edges: &Edges, hub: Option<u64>) -> Result<Vec<u64>, JobError> {
    let [total] = crate::net::sums(net, [edges.len() as u64]).await?;
    let limit = hub.unwrap_or_else(|| (total / (HUB_PART * net.nodes() as u64)).max(LEAST_HUB));
    let mut suspects = Suspects::default();
    edges.iter().for_each(|edge| suspects.add(edge.to));
    let own: Vec<u8> = suspects.0.keys().flat_map(|id| id.to_le_bytes()).collect();
    let mut ids = Vec::new();
    for (rank, bytes) in gather(net, own).await?.iter().enumerate() {
        let mut reader = Reader::new(rank, bytes);
        while !reader.bytes.is_empty() {
            ids.push(reader.u64()?);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    let mut counts = vec![0u64; ids.len()];
    for edge in edges.iter() {
        if let Ok(at) = ids.binary_search(&edge.to)
            && let Some(count) = counts.get_mut(at)
        {
            *count += 1;
        }
    }
    let own: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    counts.fill(0);
    for (rank, bytes) in gather(net, own).await?.iter().enumerate() {
        let mut reader = Reader::new(rank, bytes);
        for count in &mut counts {
            *count = count.saturating_add(reader.u64()?);
        }
    }
    Ok(ids.into_iter().zip(counts).filter(|(_, count)| *count >= limit).map(|(id, _)| id).collect())
}

/// The identifiers that occur most often in a stream: each that makes up more than one part in [`SUSPECTS`]
/// is among them (Misra and Gries 1982).
#[derive(Debug, Default)]
struct Suspects(BTreeMap<u64, u64>);

impl Suspects {
    fn add(&mut self, id: u64) {
        if let Some(count) = self.0.get_mut(&id) {
            *count += 1;
        } else if self.0.len() < SUSPECTS {
            self.0.insert(id, 1);
        } else {
            self.0.retain(|_, count| {
                *count -= 1;
                *count > 0
            });
        }
    }
}

/// A random part of the vertices, the same on all nodes, with the number of edges at each.
#[derive(Debug, Default)]
struct Sample {
    /// Only identifiers whose hash ends in this number of zeros are kept.
    zeros: u32,
    edges: BTreeMap<u64, u64>,
}

impl Sample {
    fn keeps(zeros: u32, id: u64) -> bool {
        crate::generate::mix(id).trailing_zeros() >= zeros
    }

    fn add(&mut self, id: u64, edges: u64) {
        if Self::keeps(self.zeros, id) {
            *self.edges.entry(id).or_default() += edges;
            self.thin();
        }
    }

    fn thin(&mut self) {
        while self.edges.len() > SAMPLE {
            self.zeros += 1;
            let zeros = self.zeros;
            self.edges.retain(|id, _| Self::keeps(zeros, *id));
        }
    }

    fn emit(&self) -> Vec<u8> {
        let entries = self.edges.iter().flat_map(|(id, edges)| [*id, *edges]);
        core::iter::once(u64::from(self.zeros)).chain(entries).flat_map(u64::to_le_bytes).collect()
    }

    fn merge(&mut self, mut other: Reader<'_>) -> Result<(), JobError> {
        let zeros = u32::try_from(other.u64()?).map_err(|_| other.malformed())?;
        self.zeros = self.zeros.max(zeros);
        let zeros = self.zeros;
        self.edges.retain(|id, _| Self::keeps(zeros, *id));
        while !other.bytes.is_empty() {
            let (id, edges) = (other.u64()?, other.u64()?);
            if Self::keeps(zeros, id) {
                let entry = self.edges.entry(id).or_default();
                *entry = entry.saturating_add(edges);
            }
        }
        Ok(())
    }

    /// Returns the first identifier of each part but the first, for parts of equal cost.
    fn split(&self, parts: usize) -> Vec<Option<u64>> {
        let cost = |edges: u64| u128::from(COST.0) + u128::from(edges) * u128::from(COST.1);
        let total: u128 = self.edges.values().map(|edges| cost(*edges)).sum();
        let mut firsts = Vec::new();
        let mut before = 0;
        for (id, edges) in &self.edges {
            // The costs of the vertices follow one another. A vertex belongs to the part that contains the
            // middle of its own cost.
            let middle = before + cost(*edges) / 2;
            while firsts.len() + 1 < parts && middle * parts as u128 >= total * (firsts.len() as u128 + 1) {
                firsts.push(Some(*id));
            }
            before += cost(*edges);
        }
        firsts.resize(parts.saturating_sub(1), None);
        firsts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_nearly_the_same_cost() {
        let mut sample = Sample::default();
        (0..1000).for_each(|id| sample.add(id, id % 7));
        let firsts = sample.split(4);
        let plan = Plan { firsts, hubs: vec![3] };
        let mut costs = [0; 4];
        (0..1000).for_each(|id| costs[plan.owner(id)] += 8 + 4 * (id % 7));
        let (least, most) = (costs.iter().min().unwrap(), costs.iter().max().unwrap());
        assert!(most - least < 100, "{costs:?}");
        assert!(plan.is_hub(3) && !plan.is_hub(4));
    }

    #[test]
    fn fewer_vertices_than_nodes() {
        let mut sample = Sample::default();
        assert_eq!(sample.split(3), [None, None]);
        sample.add(u64::MAX, 0);
        let plan = Plan { firsts: sample.split(3), hubs: vec![] };
        assert!(plan.owner(u64::MAX) < 3);
        assert!(plan.owner(0) <= plan.owner(u64::MAX));
    }

    #[test]
    fn a_large_sample_is_thinned_alike_on_all_nodes() {
        let (mut a, mut b, mut all) = (Sample::default(), Sample::default(), Sample::default());
        (0..100_000).for_each(|id| a.add(id, 1));
        (0..10).for_each(|id| b.add(id, 1));
        for sample in [&b, &a] {
            all.merge(Reader::new(0, &sample.emit())).unwrap();
        }
        assert!(all.edges.len() > SAMPLE / 4 && all.edges.len() <= SAMPLE);
        assert!(all.edges.iter().all(|(id, edges)| *edges == if *id < 10 { 2 } else { 1 }));
    }

    #[test]
    fn the_frequent_are_suspected() {
        let mut suspects = Suspects::default();
        (0..100_000u64).for_each(|n| suspects.add(if n % 100 == 0 { 7 } else { n + 1000 }));
        assert!(suspects.0.contains_key(&7));
    }
}
