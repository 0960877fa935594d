//! Connected components: each node joins what its own edges connect, then the nodes exchange labels.
//!
//! The edges of a node are joined as in Afforest (Sutton, Ben-Nun, Barak 2018): first two edges of each
//! vertex, then the others, but not those of the largest component so far, because each of them is there in
//! the other direction too.

use crate::edge::{filled, with_room};
use crate::engine::Outcome;
use crate::net::Net;
use crate::part::Part;
use crate::program::Global;
use crate::signals::{self, Heard};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use runtime::JobError;

/// The number of edges of each vertex that are joined first.
const FIRST: usize = 2;
/// The number of vertices by which the largest component is guessed.
const SAMPLE: usize = 1024;
/// The number of edges after which other tasks run.
const TURN: usize = 1 << 16;
/// The label of a component without own vertices.
const NONE: u64 = u64::MAX;

/// The components of a node's own edges: each slot, and each hub of other nodes behind them, refers to one of
/// the same component with a smaller number, or to itself.
struct Forest(Vec<u32>);

impl Forest {
    fn get(&self, at: u32) -> u32 {
        self.0.get(at as usize).copied().unwrap_or(at)
    }

    fn root(&self, mut at: u32) -> u32 {
        while self.get(at) != at {
            at = self.get(at);
        }
        at
    }

    fn join(&mut self, a: u32, b: u32) {
        let (mut a, mut b) = (self.get(a), self.get(b));
        while a != b {
            let (low, high) = (a.min(b), a.max(b));
            let above = self.get(high);
            if above == high {
                if let Some(root) = self.0.get_mut(high as usize) {
                    *root = low;
                }
                return;
            }
            (a, b) = (self.get(above), self.get(low));
        }
    }

    /// Lets everything refer to the root of its component.
    fn compress(&mut self) {
        for at in 0..self.0.len() as u32 {
            // Each vertex refers to itself or to a lower one, and the lower ones refer to their
            // roots already.
            let root = self.get(self.get(at));
            if let Some(into) = self.0.get_mut(at as usize) {
                *into = root;
            }
        }
    }

    /// Returns the root that a part of the first `len` vertices has most often.
    fn largest(&self, len: usize) -> Option<u32> {
        let mut counts = BTreeMap::new();
        for root in self.0.get(..len)?.iter().step_by(len / SAMPLE + 1) {
            *counts.entry(*root).or_insert(0u32) += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(root, _)| root)
    }
}

/// Returns the least identifier in the component of each own vertex. The graph has each edge in both
/// directions. All nodes call this.
///
/// # Errors
/// Errors of the exchange, and [`JobError::OutOfMemory`].
pub async fn components(net: &mut dyn Net, part: &Part) -> Result<Outcome, JobError> {
    let forest = joined(part).await?;
    // Labels are at the roots.
    let mut labels = filled(NONE, forest.0.len())?;
    for (id, root) in part.ids.iter().zip(&forest.0) {
        if let Some(label) = labels.get_mut(*root as usize) {
            *label = (*label).min(*id);
        }
    }
    let mut is_changed = filled(true, labels.len())?;
    let mut own = Global { changed: 1, ..Global::default() };
    let (mut exchanges, me) = (0, net.rank());
    loop {
        let label = |at: u32| {
            let root = forest.get(at) as usize;
            let changed = is_changed.get(root).copied().unwrap_or(false);
            labels.get(root).copied().filter(|label| changed && *label != NONE)
        };
        let hub = |number: usize| label((part.slots() + number) as u32);
        let received = net.exchange(signals::to_all(part, me, &own, NONE, false, label, hub)).await?;
        exchanges += 1;
        is_changed.fill(false);
        let mut changed = 0;
        let others = signals::from_all(part, me, &received, |heard, word| {
            let (Heard::Slot(at) | Heard::Hub(at)) = heard;
            let root = forest.get(at) as usize;
            if let (Some(label), Some(flag)) = (labels.get_mut(root), is_changed.get_mut(root))
                && word < *label
            {
                *label = word;
                *flag = true;
                changed += 1;
            }
        });
        if net.nodes() == 1 || own.changed + others?.changed == 0 {
            break;
        }
        own.changed = changed;
    }
    let mut values = with_room(part.len())?;
    let roots = forest.0.iter().take(part.len());
    values.extend(roots.map(|root| labels.get(*root as usize).copied().unwrap_or(NONE)));
    Ok(Outcome { values, rounds: exchanges, exchanges })
}

/// Joins the ends of all edges of this node.
async fn joined(part: &Part) -> Result<Forest, JobError> {
    let (own, slots) = (part.len(), part.slots());
    let mut forest = Forest(with_room(slots + part.incoming.len() - own)?);
    forest.0.extend(0..(slots + part.incoming.len() - own) as u32);
    // A hub of another node may be a ghost too; its owner joins the two.
    let end = |target: usize| if target < own { target as u32 } else { (slots + target - own) as u32 };
    for target in 0..part.incoming.len() {
        part.incoming.of(target).iter().take(FIRST).for_each(|slot| forest.join(end(target), *slot));
    }
    forest.compress();
    let largest = forest.largest(own);
    let mut edges = 0;
    for target in 0..part.incoming.len() {
        let mut rest = part.incoming.of(target).get(FIRST..).unwrap_or_default();
        if target < own && Some(forest.root(target as u32)) == largest {
            // Edges from ghosts are not there in the other direction. Ghosts come last.
            rest = rest.get(rest.partition_point(|slot| (*slot as usize) < own)..).unwrap_or_default();
        }
        rest.iter().for_each(|slot| forest.join(end(target), *slot));
        edges += rest.len() + 1;
        if edges >= TURN {
            edges = 0;
            platform::yield_now().await;
        }
    }
    forest.compress();
    Ok(forest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_vertices_have_one_root() {
        let mut forest = Forest((0..10).collect());
        for (a, b) in [(9, 8), (8, 7), (3, 5), (7, 3), (1, 0)] {
            forest.join(a, b);
        }
        forest.compress();
        assert_eq!(forest.0, [0, 0, 2, 3, 4, 3, 6, 3, 3, 3]);
        assert_eq!(forest.largest(10), Some(3));
    }
}
