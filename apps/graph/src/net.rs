//! The means by which the nodes of a graph job work together.

use alloc::boxed::Box;
use alloc::vec::Vec;
use runtime::{BoxFuture, Collective, JobError};

/// Work that runs on some processor of a node, and resolves to its result.
pub type Task = BoxFuture<'static, Result<Vec<u64>, JobError>>;

/// The group of nodes that compute together, seen from one of them.
pub trait Net: Send {
    /// Returns this node's index among the nodes.
    fn rank(&self) -> usize;

    /// Returns the number of nodes.
    fn nodes(&self) -> usize;

    /// Returns the number of processors of this node.
    fn cpus(&self) -> usize;

    /// Sends `to[r]` to the node of rank r, and returns the data of all nodes for this one, by rank. All
    /// nodes must call this equally often.
    fn exchange(&mut self, to: Vec<Vec<u8>>) -> BoxFuture<'_, Result<Vec<Vec<u8>>, JobError>>;

    /// Starts a task on some processor of this node. The returned future resolves to its result.
    fn start(&self, task: Task) -> Task;
}

impl Net for Collective {
    fn rank(&self) -> usize {
        self.job().rank()
    }

    fn nodes(&self) -> usize {
        self.job().nodes().len()
    }

    fn cpus(&self) -> usize {
        self.job().cpus()
    }

    fn exchange(&mut self, to: Vec<Vec<u8>>) -> BoxFuture<'_, Result<Vec<Vec<u8>>, JobError>> {
        Collective::exchange(self, to)
    }

    fn start(&self, task: Task) -> Task {
        let started = self.job().spawn("graph", task);
        Box::pin(async move { started.await? })
    }
}

/// Returns the sums of each of `values` over all nodes, modulo 2^64.
pub(crate) async fn sums<const N: usize>(net: &mut dyn Net, values: [u64; N]) -> Result<[u64; N], JobError> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let nodes = net.nodes();
    let mut sums = [0u64; N];
    for (rank, other) in net.exchange(alloc::vec![bytes; nodes]).await?.into_iter().enumerate() {
        let (words, rest) = other.as_chunks::<8>();
        if words.len() != N || !rest.is_empty() {
            return Err(JobError::Malformed { rank });
        }
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    Ok(sums)
}

/// The number of bytes for one node after which a block is sent.
pub(crate) const BLOCK: usize = 60 << 10;

/// Exchanges any amount of data in blocks. `fill` appends records to the lists, which are by rank, until
/// one is longer than [`BLOCK`], and returns true if there is more. `take` receives whole records.
pub(crate) async fn stream(
    net: &mut dyn Net,
    mut fill: impl FnMut(&mut [Vec<u8>]) -> Result<bool, JobError> + Send,
    mut take: impl FnMut(usize, &[u8]) -> Result<(), JobError> + Send,
) -> Result<(), JobError> {
    loop {
        // The first byte tells whether more follows.
        let mut blocks = alloc::vec![alloc::vec![0u8]; net.nodes()];
        let mut more = fill(&mut blocks)?;
        for first in blocks.iter_mut().filter_map(|block| block.first_mut()) {
            *first = more.into();
        }
        for (rank, block) in net.exchange(blocks).await?.into_iter().enumerate() {
            let (first, records) = block.split_first().ok_or(JobError::Malformed { rank })?;
            more |= *first != 0;
            take(rank, records)?;
        }
        if !more {
            return Ok(());
        }
        platform::yield_now().await;
    }
}
