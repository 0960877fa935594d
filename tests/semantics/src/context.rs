//! What a case knows on one node.

use crate::failure::{Failure, Outcome};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::Future;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use lite::{FunctionId, Lite, Lmr, NodeId, Permissions, Placement};

/// How long an operation may take unless a case says otherwise: far longer than any does.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// For operations that are meant to run into their deadline.
pub const BRIEF: Duration = Duration::from_millis(50);

/// To read and write.
pub const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
/// To do any operation on the bytes.
pub const USE: Permissions = RW.union(Permissions::ATOMIC);
/// The same, and to map it by name.
pub const SHARED: Permissions = USE.union(Permissions::SHARE);

/// Functions that each case has for itself.
const FUNCTIONS: u32 = 16;
/// The first function of the first case.
const FIRST_FUNCTION: FunctionId = 0x7e57_0000;

/// One node's part of a case. The nodes of a case have ranks from 0 on; there are three at least.
pub struct Context {
    /// LITE on this node.
    pub lite: Lite,
    rank: usize,
    nodes: Vec<NodeId>,
    name: String,
    index: u32,
    meetings: AtomicUsize,
}

impl Context {
    /// That of the node of `lite` among `nodes`, for the case with that number and name. `None` if it is not among them, or if there
    /// are fewer than three.
    #[must_use]
    pub fn new(lite: &Lite, nodes: &[NodeId], name: String, index: u32) -> Option<Self> {
        let rank = nodes.iter().position(|node| *node == lite.node_id()).filter(|_| nodes.len() >= 3)?;
        let lite = lite.with_deadline(PATIENCE);
        Some(Self { lite, rank, nodes: nodes.to_vec(), name, index, meetings: AtomicUsize::new(0) })
    }

    /// This node's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes by rank.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The node of that rank, counted round.
    pub fn node(&self, rank: usize) -> NodeId {
        self.nodes.get(rank % self.nodes.len()).copied().unwrap_or(NodeId(0))
    }

    /// This node.
    pub fn me(&self) -> NodeId {
        self.node(self.rank)
    }

    /// The node of the next rank.
    pub fn next(&self) -> NodeId {
        self.node(self.rank + 1)
    }

    /// The node after that: three nodes are three different ones.
    pub fn after_next(&self) -> NodeId {
        self.node(self.rank + 2)
    }

    /// A name that this case has on all nodes.
    pub fn name(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    /// A name that this case has for the node of that rank.
    pub fn name_of(&self, what: &str, rank: usize) -> String {
        format!("{}/{what}/{rank}", self.name)
    }

    /// A function or port that this case has on all nodes; there are 16.
    pub fn function(&self, number: u32) -> FunctionId {
        FIRST_FUNCTION + self.index * FUNCTIONS + number % FUNCTIONS
    }

    /// Waits until all nodes have come here. Each node of a case goes through the same meetings.
    #[track_caller]
    pub fn meet(&self) -> impl Future<Output = Outcome> + Send {
        let number = self.meetings.fetch_add(1, Ordering::Relaxed);
        let place = core::panic::Location::caller();
        async move {
            let met = self.lite.barrier(&self.name_of("meeting", number), &self.nodes).await;
            met.map_err(|e| Failure::at(place, format!("the nodes do not meet: {e}")))
        }
    }

    /// Regions of `len` bytes, one of each kind of placement there is, with what it is.
    pub async fn everywhere(&self, len: u64) -> Result<Vec<(&'static str, Lmr)>, Failure> {
        let mut all = Vec::new();
        for (what, placement) in self.placements(len) {
            all.push((what, self.lite.alloc(placement, len, SHARED).await?));
        }
        Ok(all)
    }

    /// The placements of `len` bytes, 64 at least.
    pub fn placements(&self, len: u64) -> Vec<(&'static str, Placement)> {
        let nodes = || self.nodes.clone();
        let part = len / 3 / 8 * 8;
        let shares = [(self.next(), part), (self.me(), 8), (self.after_next(), len - part - 8)];
        alloc::vec![
            ("on this node", self.me().into()),
            ("on another node", self.next().into()),
            ("in large stripes", Placement::Striped { nodes: nodes(), stripe: 4096 }),
            (
                "in small stripes",
                Placement::Striped { nodes: nodes(), stripe: len.div_ceil(50).next_multiple_of(8) }
            ),
            ("in shares", Placement::Shares(shares.to_vec())),
            ("anywhere", Placement::Anywhere),
        ]
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) + seed.wrapping_mul(7) + i / 251) as u8).collect()
}

/// All bytes of a region.
pub async fn all_of(lmr: &Lmr) -> Result<Vec<u8>, Failure> {
    let mut bytes = alloc::vec![0; usize::try_from(lmr.len()).unwrap_or(0)];
    lmr.read(0, &mut bytes).await?;
    Ok(bytes)
}
