//! The way from the edges that each node has read to each node's part of the graph.

use crate::bytes::Reader;
use crate::edge::{Edge, Edges, filled, push, reserve};
use crate::net::{BLOCK, Net, stream, sums};
use crate::part::{Numbers, Part};
use crate::plan::Plan;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use runtime::JobError;

/// The part of a graph's description that one node has read or computed.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Edges, which may occur several times and on several nodes.
    pub edges: Edges,
    /// Vertices that need not have edges.
    pub vertices: Vec<u64>,
    /// True if weights matter.
    pub weights: bool,
    /// True if the edges are kept by source too, for searches and triangles: a superstep with few changes
    /// follows the edges from the changed vertices then.
    pub outgoing: bool,
    /// The number of edges to a vertex from which on they stay with the owners of their sources. `None`
    /// selects it by the size of the graph.
    pub hub: Option<u64>,
}

/// Distributes a graph. Each node passes its part of the input and gets its part of the graph.
///
/// # Errors
/// Errors of the exchange, [`JobError::OutOfMemory`], and [`JobError::Refused`] for a graph with too many
/// vertices or edges.
pub async fn load(net: &mut dyn Net, input: Input) -> Result<Part, JobError> {
    let Input { edges, mut vertices, weights, outgoing, hub } = input;
    let plan = Plan::choose(net, &edges, &vertices, hub).await?;
    let me = net.rank();
    let edges = route(net, &plan, edges, weights).await?.into_set()?;
    vertices = announce(net, &plan, vertices).await?;
    let (ghosts, counts) = ghosts(&edges, &plan, me)?;
    let ghosts = Numbers::new(ghosts, &counts, |id| plan.owner(id))?;
    let slots = ghosts.placed(&ghosts.ids)?;
    let requests = request(net, &plan, &slots, &ghosts.placed(&counts)?).await?;
    let away = plan.hubs().iter().copied().filter(|id| plan.owner(*id) != me && holds(&edges, *id));
    let away: Vec<u64> = away.collect();
    let helped = helpers(net, &plan, &away).await?;

    let ids = own_ids(&edges, &plan, me, vertices, &requests)?;
    let index = |rank: usize, id: u64| {
        ids.binary_search(&id).map(|at| at as u32).map_err(|_| JobError::Malformed { rank })
    };
    let mut out_degrees = filled(0u32, ids.len())?;
    let mut add = |at: u32, count: u32| {
        if let Some(degree) = out_degrees.get_mut(at as usize) {
            *degree = degree.saturating_add(count);
        }
    };
    for edge in edges.iter().filter(|edge| plan.owner(edge.from) == me) {
        add(index(me, edge.from)?, 1);
    }
    let mut lent = places(&requests, |(id, _)| *id, index)?;
    for (places, requested) in lent.iter().zip(&requests) {
        places.iter().zip(requested).for_each(|(at, (_, count))| add(*at, *count));
    }
    let mut hubs = places(&helped, |id| *id, index)?;
    let [vertices, all_edges] = sums(net, [ids.len() as u64, edges.len() as u64]).await?;
    if vertices > u64::from(u32::MAX) {
        return Err(JobError::Refused("the graph has more than 4294967295 vertices".into()));
    }
    let own = Numbers::new(ids, &out_degrees, |_| me)?;
    let number = |at: &mut u32| *at = own.numbers.get(*at as usize).copied().unwrap_or(0);
    lent.iter_mut().chain(&mut hubs).flatten().for_each(number);
    let len = own.ids.len();
    let mut part = Part {
        ids: own.placed(&own.ids)?,
        out_degrees: own.placed(&out_degrees)?,
        vertices,
        edges: all_edges,
        ghosts: by_owner(&plan, &slots, net.nodes(), len),
        lent,
        cuts: by_owner(&plan, &away, net.nodes(), len),
        hubs,
        ..Part::default()
    };
    part.connect(&edges, &own, &ghosts, &away, weights)?;
    drop(edges);
    part.order = own.numbers;
    if outgoing {
        part.outgoing = part.incoming.reversed(part.slots())?;
    }
    Ok(part)
}

/// Sorts the edges of all nodes, and drops duplicates. Each node gets a part: those of one node come before
/// those of the next, in the order of their targets.
pub(crate) async fn sorted(net: &mut dyn Net, edges: Edges, weights: bool) -> Result<Vec<Edge>, JobError> {
    // There are no hubs, so that all edges to a vertex come to one node.
    let plan = Plan::choose(net, &edges, &[], Some(u64::MAX)).await?;
    route(net, &plan, edges, weights).await?.into_set()
}

/// Returns the position of each identifier of the lists, which are by rank.
fn places<T>(
    lists: &[Vec<T>],
    id: impl Fn(&T) -> u64,
    index: impl Fn(usize, u64) -> Result<u32, JobError>,
) -> Result<Vec<Vec<u32>>, JobError> {
    let list = |(rank, list): (usize, &Vec<T>)| list.iter().map(|entry| index(rank, id(entry))).collect();
    lists.iter().enumerate().map(list).collect()
}

/// Sends each edge to the node that holds it: the owner of its target, or of its source if the target is a
/// hub.
async fn route(net: &mut dyn Net, plan: &Plan, edges: Edges, weights: bool) -> Result<Edges, JobError> {
    let mut own = Edges::default();
    let (mut left, mut chunk) = (edges, Vec::new());
    let fill = |blocks: &mut [Vec<u8>]| {
        loop {
            let Some(edge) = chunk.pop() else {
                match left.pop() {
                    Some(next) => chunk = next,
                    None => return Ok(false),
                }
                continue;
            };
            let Edge { to, from, weight } = edge;
            let rank = plan.owner(if plan.is_hub(to) { from } else { to });
            let Some(block) = blocks.get_mut(rank) else { continue };
            block.extend_from_slice(&to.to_le_bytes());
            block.extend_from_slice(&from.to_le_bytes());
            if weights {
                block.extend_from_slice(&weight.to_le_bytes());
            }
            if block.len() >= BLOCK {
                return Ok(true);
            }
        }
    };
    let take = |rank: usize, bytes: &[u8]| {
        let mut reader = Reader::new(rank, bytes);
        while !reader.bytes.is_empty() {
            let (to, from) = (reader.u64()?, reader.u64()?);
            let weight = if weights { reader.u32()? } else { 1 };
            own.push(Edge { to, from, weight })?;
        }
        Ok(())
    };
    stream(net, fill, take).await?;
    Ok(own)
}

/// Sends each of `ids` with its number to the owner. Returns what this node has got, by rank, in the order
/// in which it was sent.
async fn to_owners(
    net: &mut dyn Net,
    plan: &Plan,
    records: impl IntoIterator<Item = (u64, u32), IntoIter: Send>,
) -> Result<Vec<Vec<(u64, u32)>>, JobError> {
    let mut got = vec![Vec::new(); net.nodes()];
    let mut records = records.into_iter();
    let fill = |blocks: &mut [Vec<u8>]| {
        for (id, count) in records.by_ref() {
            let Some(block) = blocks.get_mut(plan.owner(id)) else { continue };
            block.extend_from_slice(&id.to_le_bytes());
            block.extend_from_slice(&count.to_le_bytes());
            if block.len() >= BLOCK {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let take = |rank: usize, bytes: &[u8]| {
        let mut reader = Reader::new(rank, bytes);
        let into = got.get_mut(rank).ok_or(JobError::Malformed { rank })?;
        while !reader.bytes.is_empty() {
            push(into, (reader.u64()?, reader.u32()?))?;
        }
        Ok(())
    };
    stream(net, fill, take).await?;
    Ok(got)
}

/// Tells the owners of vertices that they exist. Returns the vertices of this node that others know.
async fn announce(net: &mut dyn Net, plan: &Plan, vertices: Vec<u64>) -> Result<Vec<u64>, JobError> {
    let got = to_owners(net, plan, vertices.into_iter().map(|id| (id, 0))).await?;
    Ok(got.into_iter().flatten().map(|(id, _)| id).collect())
}

/// Asks the owners of ghosts for their signals. Returns the requests of each node, by rank.
async fn request(
    net: &mut dyn Net,
    plan: &Plan,
    ghosts: &[u64],
    counts: &[u32],
) -> Result<Vec<Vec<(u64, u32)>>, JobError> {
    to_owners(net, plan, ghosts.iter().copied().zip(counts.iter().copied())).await
}

/// Tells the owners of hubs that this node holds edges to them. Returns the hubs of this node to which each
/// other node holds edges, by rank.
async fn helpers(net: &mut dyn Net, plan: &Plan, hubs: &[u64]) -> Result<Vec<Vec<u64>>, JobError> {
    let got = to_owners(net, plan, hubs.iter().copied().map(|id| (id, 0))).await?;
    Ok(got.into_iter().map(|ids| ids.into_iter().map(|(id, _)| id).collect()).collect())
}

/// Returns true if there is an edge to `id`.
fn holds(edges: &[Edge], id: u64) -> bool {
    edges.binary_search_by_key(&id, |edge| edge.to).is_ok()
}

/// Returns the sources of edges that other nodes own, ascending, and the number of edges from each.
fn ghosts(edges: &[Edge], plan: &Plan, me: usize) -> Result<(Vec<u64>, Vec<u32>), JobError> {
    let count = edges.iter().filter(|edge| plan.owner(edge.from) != me).count();
    let mut ids = crate::edge::with_room(count)?;
    ids.extend(edges.iter().map(|edge| edge.from).filter(|id| plan.owner(*id) != me));
    ids.sort_unstable();
    let mut counts = Vec::new();
    for equal in ids.chunk_by(|a: &u64, b| a == b) {
        counts.push(u32::try_from(equal.len()).unwrap_or(u32::MAX));
    }
    ids.dedup();
    Ok((ids, counts))
}

/// Returns the identifiers of the vertices that this node owns, ascending.
fn own_ids(
    edges: &[Edge],
    plan: &Plan,
    me: usize,
    mut ids: Vec<u64>,
    requests: &[Vec<(u64, u32)>],
) -> Result<Vec<u64>, JobError> {
    let known = requests.iter().flatten().map(|(id, _)| *id).chain(plan.hubs().iter().copied());
    for id in known.filter(|id| plan.owner(*id) == me) {
        push(&mut ids, id)?;
    }
    for same in edges.chunk_by(|a, b| a.to == b.to) {
        same.first().map_or(Ok(()), |edge| push(&mut ids, edge.to))?;
    }
    ids.sort_unstable();
    ids.dedup();
    // Many edges have the same source. The list stays short, because it leaves out sources that are in `ids`,
    // and a source that the edge before has too.
    let mut sources = Vec::new();
    for edge in edges {
        if ids.binary_search(&edge.from).is_err() && sources.last() != Some(&edge.from) {
            push(&mut sources, edge.from)?;
        }
    }
    sources.sort_unstable();
    sources.dedup();
    reserve(&mut ids, sources.len())?;
    ids.append(&mut sources);
    ids.retain(|id| plan.owner(*id) == me);
    ids.sort_unstable();
    ids.dedup();
    ids.shrink_to_fit();
    Ok(ids)
}

/// Returns the range of each owner in a list that is sorted by owner, counted from `first`.
fn by_owner(plan: &Plan, ids: &[u64], nodes: usize, first: usize) -> Vec<Range<usize>> {
    let begin = |rank: usize| first + ids.partition_point(|id| plan.owner(*id) < rank);
    (0..nodes).map(|rank| begin(rank)..begin(rank + 1)).collect()
}
