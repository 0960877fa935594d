//! The queue pairs of one connection, from creation to destruction.

use super::permits::PeerPermit;
use crate::base::bounce::Run;
use crate::base::lock::Mutex;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use platform::Platform;
use verbs::{Psn, QpConnect, QpNum, QpOptions, RecvWr, Rnic, VerbsError, WrId};

/// The result of an attempt to destroy queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    /// This attempt has destroyed the queue pairs.
    Now,
    /// The queue pairs were destroyed before.
    Before,
    /// The RNIC may still serve some of them: their memory must not be used for anything else, because
    /// packets may still change it. `first`: it was the first attempt.
    NotYet { first: bool },
}

/// One queue pair.
pub(crate) struct QueuePair {
    pub(crate) number: QpNum,
    /// The first PSN that this side sends.
    pub(crate) psn: Psn,
    pub(crate) load: Load,
    /// True once it is destroyed.
    gone: AtomicBool,
}

/// The send work requests of a queue pair: those outstanding, and the total. Changed only under the lock of
/// the operation table.
#[derive(Default)]
pub(crate) struct Load(AtomicU64);

/// Low 32 bits: work requests outstanding, or `u32::MAX` while the queue pair is sealed. High 32 bits: work
/// requests posted so far, modulo 2^32.
const UNDER_WAY: u64 = u32::MAX as u64;
const BEGUN: u64 = 1 << 32;

impl Load {
    /// Returns true if `depth` are outstanding, or the queue pair is sealed.
    pub(crate) fn is_full(&self, depth: u32) -> bool {
        self.0.load(Ordering::Relaxed) as u32 >= depth
    }

    /// Counts one more work request as outstanding.
    pub(crate) fn begin(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(BEGUN + 1), Ordering::Relaxed);
    }

    /// Counts one work request less as outstanding.
    pub(crate) fn end(&self) {
        let load = self.0.load(Ordering::Relaxed);
        if !matches!(load & UNDER_WAY, 0 | UNDER_WAY) {
            self.0.store(load - 1, Ordering::Relaxed);
        }
    }

    /// Returns the number of work requests posted so far, modulo 2^32.
    fn begun(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Returns true if no work request is outstanding.
    fn is_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) & UNDER_WAY == 0
    }

    fn set_sealed(&self, sealed: bool) {
        let load = self.0.load(Ordering::Relaxed) & !UNDER_WAY;
        self.0.store(if sealed { load | UNDER_WAY } else { load }, Ordering::Relaxed);
    }
}

/// The queue pairs of a connection and the memory that the peer writes through them. Dropping this destroys
/// the queue pairs, then frees the memory.
pub(crate) struct QpGroup {
    rnic: Arc<dyn Rnic>,
    pub(crate) queue_pairs: Vec<QueuePair>,
    /// True once nothing may be posted any more.
    ending: AtomicBool,
    /// True if all queue pairs are destroyed. Held while they are being destroyed, so that a concurrent
    /// call returns after that.
    gone: Mutex<bool>,
    /// The ring for the peer's requests, and the slots for its replies; `None` on loop-back.
    pub(crate) memory: Option<(Run, Run)>,
    /// The permit, until the queue pairs are destroyed; `None` on loop-back.
    permit: Mutex<Option<PeerPermit>>,
}

impl QpGroup {
    /// Creates `count` queue pairs and posts receives on the first.
    pub(crate) fn create(
        rnic: &Arc<dyn Rnic>,
        platform: &dyn Platform,
        options: QpOptions,
        count: usize,
        peer: Option<((Run, Run), PeerPermit)>,
    ) -> Result<Self, VerbsError> {
        let queue_pairs = Vec::with_capacity(count);
        let (memory, permit) = peer.unzip();
        let (rnic, permit) = (rnic.clone(), Mutex::new(permit));
        let (ending, gone) = (AtomicBool::new(false), Mutex::new(false));
        let mut made = Self { rnic, queue_pairs, ending, gone, memory, permit };
        for qp_index in 0..count {
            let recv_depth = if qp_index == super::RPC_QP { options.recv_depth } else { 1 };
            let number = made.rnic.create_qp(QpOptions { recv_depth, ..options })?;
            let mut psn = [0; 4];
            platform.fill_random(&mut psn);
            let psn = Psn::new(u32::from_le_bytes(psn));
            made.queue_pairs.push(QueuePair {
                number,
                psn,
                load: Load::default(),
                gone: AtomicBool::new(false),
            });
            if qp_index == super::RPC_QP && made.memory.is_some() {
                made.post_receives(options.recv_depth)?;
            }
        }
        Ok(made)
    }

    /// Posts `count` receives for immediates.
    pub(crate) fn post_receives(&self, count: u32) -> Result<(), VerbsError> {
        const BATCH: usize = 32;
        const EMPTY: &[RecvWr<'static>] = &[RecvWr { id: WrId(0), scatter: &[] }; BATCH];
        let Some(qp_index) = self.queue_pairs.get(super::RPC_QP) else { return Err(VerbsError::NotFound) };
        let mut left = count as usize;
        while left > 0 {
            let n = left.min(BATCH);
            self.rnic.post_recv(qp_index.number, EMPTY.get(..n).unwrap_or_default()).map_err(|(_, e)| e)?;
            left -= n;
        }
        Ok(())
    }

    /// Returns the number of queue pairs.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.queue_pairs.len()
    }

    /// Returns the numbers and first PSNs, which the peer must know.
    pub(crate) fn ends(&self) -> Vec<(QpNum, Psn)> {
        self.queue_pairs.iter().map(|l| (l.number, l.psn)).collect()
    }

    /// Connects each queue pair to the peer's queue pair with the same index.
    pub(crate) fn connect(&self, to: &[(QpNum, Psn)], common: QpConnect) -> Result<(), VerbsError> {
        if to.len() != self.queue_pairs.len() {
            return Err(VerbsError::InvalidArgument);
        }
        for (qp_index, &(remote_qp, recv_psn)) in self.queue_pairs.iter().zip(to) {
            let connect = QpConnect { remote_qp, send_psn: qp_index.psn, recv_psn, ..common };
            self.rnic.connect_qp(qp_index.number, &connect)?;
        }
        Ok(())
    }

    /// Destroys the queue pairs. Nothing of the peer reaches memory through them afterwards, unless the
    /// result is [`Gone::NotYet`]: in that case call this again.
    pub(crate) fn destroy(&self) -> Gone {
        let first = !self.ending.swap(true, Ordering::SeqCst);
        let mut gone = self.gone.lock();
        if *gone {
            return Gone::Before;
        }
        let mut served = false;
        for qp_index in self.queue_pairs.iter().filter(|qp_index| !qp_index.gone.load(Ordering::SeqCst)) {
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

    /// Seals the queue pairs if nothing is outstanding; returns true if that is the case. Must be called
    /// under the lock of the operation table, as must [`unseal`](Self::unseal).
    pub(crate) fn seal(&self) -> bool {
        let idle = self.queue_pairs.iter().all(|qp_index| qp_index.load.is_idle());
        if idle {
            self.queue_pairs.iter().for_each(|qp_index| qp_index.load.set_sealed(true));
        }
        idle
    }

    /// Reverts [`seal`](Self::seal).
    pub(crate) fn unseal(&self) {
        self.queue_pairs.iter().for_each(|qp_index| qp_index.load.set_sealed(false));
    }

    /// Returns the number of send work requests posted so far, modulo 2^32.
    pub(crate) fn begun(&self) -> u32 {
        self.queue_pairs.iter().fold(0, |sum, qp_index| sum.wrapping_add(qp_index.load.begun()))
    }

    /// Returns true if the queue pairs are destroyed, or are about to be.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
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
