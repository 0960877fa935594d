//! The memory of regions: taken in as many runs as it takes.

use super::layout::{Layout, Piece};
use crate::Error;
use crate::bounce::Run;
use crate::node::Node;
use alloc::sync::Arc;
use alloc::vec::Vec;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// Taken at once: memory is zeroed as it is taken, and other tasks want their turn.
const STEP: u64 = 16 << 20;
/// Most runs that a node's share of a region may be made of.
const MOST_RUNS: usize = 4096;

/// How much memory on which nodes a region is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Bytes of a stripe if each share is a column; 0: the shares follow each other in one column.
    pub(crate) stripe: u64,
    /// Node and bytes.
    pub(crate) shares: Vec<(NodeId, u64)>,
}

/// Keeps one share of a region's memory.
pub(super) enum Share {
    /// Here, until dropped.
    Here {
        /// What it lies in.
        _runs: Vec<Run>,
    },
}

impl Node {
    /// Takes `len` bytes of this node's memory, zeroed, in one run if it can be.
    pub(super) async fn take_runs(&self, len: u64) -> Result<Vec<Run>, Error> {
        let memory = self.platform.memory();
        let no_memory = || Error::NoMemory { asked: len, free: memory.stats().free };
        if len > memory.stats().free {
            return Err(no_memory());
        }
        if len <= STEP
            && let Some(run) = Run::take(&self.platform, len.max(1))
        {
            return Ok(alloc::vec![run]);
        }
        let mut runs = Vec::new();
        let mut left = len;
        while left > 0 {
            let step = left.min(STEP);
            let run = Run::take(&self.platform, step).map(|run| (run, step)).or_else(|| {
                let largest = memory.stats().largest_free.min(step);
                (largest > 0).then(|| Some((Run::take(&self.platform, largest)?, largest)))?
            });
            let (run, taken) = run.filter(|_| runs.len() < MOST_RUNS).ok_or_else(no_memory)?;
            runs.push(run);
            left -= taken;
            platform::yield_now().await;
        }
        Ok(runs)
    }

    /// Takes all the memory of a plan.
    pub(super) async fn take_memory(self: &Arc<Self>, plan: &Plan) -> Result<(Layout, Vec<Share>), Error> {
        let (mut pieces, mut memory, mut len) = (Vec::new(), Vec::new(), 0u64);
        let nonsense = || Error::Refused("that is no plan for a region".into());
        for (node, share) in &plan.shares {
            if *node != self.me {
                return Err(nonsense());
            }
            len = len.checked_add(*share).ok_or_else(nonsense)?;
            let runs = self.take_runs(*share).await?;
            pieces.extend(pieces_of(self, &runs, *share));
            memory.push(Share::Here { _runs: runs });
        }
        let columns = if plan.stripe == 0 { 1 } else { plan.shares.len() };
        let layout = Layout::new(len, plan.stripe, columns, pieces).ok_or_else(nonsense)?;
        Ok((layout, memory))
    }
}

/// The pieces that `len` bytes in `runs` make: runs that touch are one.
fn pieces_of(node: &Node, runs: &[Run], len: u64) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut left = len;
    for run in runs {
        let len = run.len().min(left);
        left -= len;
        match pieces.last_mut() {
            Some(last) if last.addr.checked_add(last.len) == Some(run.addr()) => last.len += len,
            _ => pieces.push(Piece { at: (node.me, node.incarnation), addr: run.addr(), len }),
        }
    }
    pieces
}
