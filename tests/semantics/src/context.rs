//! The context of a case on one node.

use crate::failure::{Failure, Outcome};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::future::Future;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use lite::{FunctionId, Lite, Lmr, NodeId, Permissions, Placement};

/// The time limit of an operation unless a case has another: far longer than any operation takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit of operations that are expected to reach their deadline.
pub(crate) const BRIEF: Duration = Duration::from_millis(50);

/// The rights to read and write.
pub(crate) const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
/// The rights to all operations on the bytes.
pub(crate) const USE: Permissions = RW.union(Permissions::ATOMIC);
/// The rights to all operations on the bytes, and to map the region by name.
pub(crate) const SHARED: Permissions = USE.union(Permissions::SHARE);

/// The number of function ids that are reserved for each case.
const FUNCTIONS: u32 = 16;
/// The first function of the first case.
const FIRST_FUNCTION: FunctionId = 0x7e57_0000;

/// One node's part of a case. The nodes of a case have ranks from 0; there are at least three.
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
    /// Creates the context of the node of `lite` among `nodes`, for the case with this number and name.
    /// Returns `None` if the node is not among them, or if there are fewer than three.
    #[must_use]
    pub fn new(lite: &Lite, nodes: &[NodeId], name: String, index: u32) -> Option<Self> {
        let rank = nodes.iter().position(|node| *node == lite.node_id()).filter(|_| nodes.len() >= 3)?;
        let lite = lite.with_deadline(TIMEOUT);
        Some(Self { lite, rank, nodes: nodes.to_vec(), name, index, meetings: AtomicUsize::new(0) })
    }

    /// Returns this node's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the nodes by rank.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Returns the node of a rank, modulo the number of nodes.
    pub fn node(&self, rank: usize) -> NodeId {
        self.nodes.get(rank % self.nodes.len()).copied().unwrap_or(NodeId(0))
    }

    /// Returns this node.
    pub fn me(&self) -> NodeId {
        self.node(self.rank)
    }

    /// Returns the node of the next rank.
    pub fn next(&self) -> NodeId {
        self.node(self.rank + 1)
    }

    /// Returns the node two ranks further: of three nodes, the third.
    pub fn after_next(&self) -> NodeId {
        self.node(self.rank + 2)
    }

    /// Returns a name that this case has on all nodes.
    pub fn name(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    /// Returns a name that this case has for the node of a rank.
    pub fn name_of(&self, what: &str, rank: usize) -> String {
        format!("{}/{what}/{rank}", self.name)
    }

    /// Returns a function or port that this case has on all nodes; there are 16.
    pub fn function(&self, number: u32) -> FunctionId {
        FIRST_FUNCTION + self.index * FUNCTIONS + number % FUNCTIONS
    }

    /// Waits until all nodes have reached this point. Each node of a case has the same meetings.
    #[track_caller]
    pub fn meet(&self) -> impl Future<Output = Outcome> + Send {
        let number = self.meetings.fetch_add(1, Ordering::Relaxed);
        let place = core::panic::Location::caller();
        async move {
            let met = self.lite.barrier(&self.name_of("meeting", number), &self.nodes).await;
            met.map_err(|e| Failure::at(place, format!("the nodes do not meet: {e}")))
        }
    }

    /// Allocates regions of `len` bytes, one of each kind of placement, each with a description.
    pub async fn everywhere(&self, len: u64) -> Result<Vec<(&'static str, Lmr)>, Failure> {
        let mut all = Vec::new();
        for (what, placement) in self.placements(len) {
            all.push((what, self.lite.alloc(placement, len, SHARED).await?));
        }
        Ok(all)
    }

    /// Returns the placements of `len` bytes, at least 64, each with a description.
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

/// Returns bytes that depend on their position and the seed.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) + seed.wrapping_mul(7) + i / 251) as u8).collect()
}

/// Returns all bytes of a region.
pub(crate) async fn all_of(lmr: &Lmr) -> Result<Vec<u8>, Failure> {
    let mut bytes = alloc::vec![0; usize::try_from(lmr.len()).unwrap_or(0)];
    lmr.read(0, &mut bytes).await?;
    Ok(bytes)
}
