//! The queue pairs of one connection, from creation to destruction.

use super::lanes::{Lanes, QueuePair};
use super::permits::PeerPermit;
use crate::base::lock::Mutex;
use crate::base::per_shard::PerShard;
use crate::base::writers::Ordering;
use crate::channel::RpcMemory;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::Platform;
use verbs::{Psn, QpConnect, QpNum, QpOptions, RecvWr, Rnic, VerbsError, WrId};

/// The number of receives of a connection that are posted at once.
pub(crate) const REPOSTED: u32 = 16;

/// The result of an attempt to destroy queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// The queue pairs are destroyed.
    Now,
    /// The queue pairs were destroyed before.
    Before,
    /// The RNIC may still serve some of them: their memory must not be used for anything else, because
    /// packets may still change it. `first`: it was the first attempt.
    NotYet { first: bool },
}

/// The queue pairs of a connection and the memory that the peer writes through them. Dropping this destroys
/// the queue pairs, then frees the memory.
pub(crate) struct QpGroup {
    rnic: Arc<dyn Rnic>,
    pub(crate) lanes: Lanes,
    /// True if all queue pairs are destroyed. Held while they are being destroyed, so that a concurrent
    /// call returns after that.
    gone: Mutex<bool>,
    /// The ring for the peer's requests, and the slots for its replies, by shard; none on loop-back.
    memory: Option<PerShard<RpcMemory>>,
    /// The permit, until the queue pairs are destroyed; `None` on loop-back.
    permit: Mutex<Option<PeerPermit>>,
    /// The identifier of every receive of this group, which no other group of the node has: an RNIC may use
    /// the number of a destroyed queue pair again while completions of that queue pair wait to be taken.
    /// Zero on loop-back, which receives nothing.
    pub(crate) receive_id: WrId,
}

/// The resources of a connection to a peer, which a loop-back connection does not have.
pub(crate) struct PeerResources {
    /// The ring for the peer's requests, and the slots for its replies, by shard.
    pub(crate) memory: PerShard<RpcMemory>,
    pub(crate) permit: PeerPermit,
    /// See [`QpGroup::receive_id`].
    pub(crate) receive_id: WrId,
}

impl QpGroup {
    /// Creates `each` queue pairs for each shard, of which `options` has the options, and posts receives on
    /// the first of each shard.
    pub(crate) fn create(
        rnic: &Arc<dyn Rnic>,
        platform: &dyn Platform,
        options: &[QpOptions],
        each: usize,
        peer: Option<PeerResources>,
    ) -> Result<Self, VerbsError> {
        let receive_id = peer.as_ref().map_or(WrId(0), |peer| peer.receive_id);
        let (memory, permit) = peer.map(|peer| (peer.memory, peer.permit)).unzip();
        let (rnic, permit, memory) = (rnic.clone(), Mutex::new(permit), memory);
        let (lanes, gone) = (Lanes::with_capacity(options.len(), each), Mutex::new(false));
        let mut made = Self { rnic, lanes, gone, memory, permit, receive_id };
        for (shard, options) in options.iter().enumerate() {
            for nth in 0..each {
                let recv_depth = if nth == 0 { options.recv_depth } else { 1 };
                let number = made.rnic.create_qp(QpOptions { recv_depth, ..*options })?;
                let mut psn = [0; 4];
                platform.fill_random(&mut psn);
                let psn = Psn::new(u32::from_le_bytes(psn));
                made.lanes.queue_pairs.push(QueuePair::new(number, psn));
                if nth == 0 && made.memory.is_some() {
                    made.post_receives(shard, options.recv_depth)?;
                }
            }
        }
        Ok(made)
    }

    /// Returns the memory for RPC, by shard; none on loop-back.
    pub(crate) fn memories(&self) -> impl Iterator<Item = &RpcMemory> {
        self.memory.iter().flat_map(PerShard::iter)
    }

    /// Destroys the queue pairs and the memory of all but the first `shards` shards, because the peer has
    /// fewer. Must be called before the queue pairs are connected.
    pub(crate) fn truncate(&mut self, shards: usize) -> Result<(), VerbsError> {
        while self.lanes.queue_pairs.len() > shards * self.lanes.each() {
            let Some(last) = self.lanes.queue_pairs.last() else { return Ok(()) };
            match self.rnic.destroy_qp(last.number) {
                // The whole group ends then.
                Err(VerbsError::StillServed) => return Err(VerbsError::StillServed),
                Err(error) => log::warn!("lite: cannot destroy {:?}: {error}", last.number),
                Ok(()) => {}
            }
            self.lanes.queue_pairs.pop();
        }
        if let Some(memory) = &mut self.memory {
            memory.truncate(shards);
        }
        Ok(())
    }

    /// Posts `count` receives for immediates on the queue pair of RPC of a shard.
    pub(crate) fn post_receives(&self, shard: usize, count: u32) -> Result<(), VerbsError> {
        let empty = [RecvWr { id: self.receive_id, scatter: &[] }; REPOSTED as usize];
        let Some(qp_index) = self.lanes.queue_pairs.get(self.lanes.rpc(shard)) else {
            return Err(VerbsError::NotFound);
        };
        let mut left = count as usize;
        while left > 0 {
            let n = left.min(empty.len());
            self.rnic.post_recv(qp_index.number, empty.get(..n).unwrap_or_default()).map_err(|(_, e)| e)?;
            left -= n;
        }
        Ok(())
    }

    /// Returns the number of queue pairs.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.lanes.queue_pairs.len()
    }

    /// Returns the numbers and first PSNs, which the peer must know.
    pub(crate) fn ends(&self) -> Vec<(QpNum, Psn)> {
        self.lanes.queue_pairs.iter().map(|l| (l.number, l.psn)).collect()
    }

    /// Connects each queue pair to the peer's queue pair with the same index: those of low priority, the last
    /// ones of the shards, as `common` says, the others at service level `level`. The peer may have more of
    /// them.
    pub(crate) fn connect(
        &self,
        to: &[(QpNum, Psn)],
        common: QpConnect,
        level: u8,
    ) -> Result<(), VerbsError> {
        if to.len() < self.lanes.queue_pairs.len() {
            return Err(VerbsError::InvalidArgument);
        }
        for (index, (qp_index, &(remote_qp, recv_psn))) in self.lanes.queue_pairs.iter().zip(to).enumerate() {
            let low = (index + 1) % self.lanes.each() == 0;
            let address = if low { common.address } else { common.address.with_level(level) };
            let connect = QpConnect { address, remote_qp, send_psn: qp_index.psn, recv_psn, ..common };
            self.rnic.connect_qp(qp_index.number, &connect)?;
        }
        Ok(())
    }

    /// Destroys the queue pairs. Nothing of the peer reaches memory through them afterwards, unless the
    /// result is [`Gone::NotYet`]: in that case call this again.
    pub(crate) fn destroy(&self) -> Gone {
        let first = self.lanes.end();
        let mut gone = self.gone.lock();
        if *gone {
            return Gone::Before;
        }
        let mut served = false;
        for qp_index in self.lanes.queue_pairs.iter().filter(|qp_index| !qp_index.gone.load(Ordering::SeqCst))
        {
            match self.rnic.destroy_qp(qp_index.number) {
                Err(VerbsError::StillServed) => {
                    served = true;
                    continue;
                }
                Err(error) => log::warn!("lite: cannot destroy {:?}: {error}", qp_index.number),
                Ok(()) => {}
            }
            qp_index.gone.store(true, Ordering::SeqCst);
        }
        if served {
            return Gone::NotYet { first };
        }
        *gone = true;
        drop(self.permit.lock().take());
        Gone::Now
    }

    /// Returns true if the queue pairs are destroyed; waits while they are being destroyed.
    pub(crate) fn is_gone(&self) -> bool {
        *self.gone.lock()
    }
}

impl Drop for QpGroup {
    fn drop(&mut self) {
        if let Gone::NotYet { .. } = self.destroy() {
            log::error!("lite: the RNIC cannot destroy queue pairs: their memory is lost");
            core::mem::forget(self.memory.take());
        }
    }
}
