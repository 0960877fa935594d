//! The queue pairs of one connection, from creation to destruction.

use crate::bounce::Run;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use platform::Platform;
use verbs::{Psn, QpConnect, QpNum, QpOptions, RecvWr, Rnic, VerbsError, WrId};

/// One queue pair.
pub(crate) struct Lane {
    pub(crate) number: QpNum,
    /// The first PSN that this side sends.
    pub(crate) psn: Psn,
    /// Send work requests that have not completed.
    pub(crate) in_flight: AtomicU32,
}

/// Queue pairs and the memory that the peer writes through them. Destroys the queue pairs, then frees the memory, when
/// dropped.
pub(crate) struct Lanes {
    rnic: Arc<dyn Rnic>,
    pub(crate) lanes: Vec<Lane>,
    destroyed: AtomicBool,
    /// The ring for the peer's requests, and the slots for its replies; none on loop-back.
    pub(crate) memory: Option<(Run, Run)>,
}

impl Lanes {
    /// Creates `count` queue pairs and posts receives on the first.
    pub(crate) fn create(
        rnic: &Arc<dyn Rnic>,
        platform: &dyn Platform,
        options: QpOptions,
        count: usize,
        memory: Option<(Run, Run)>,
    ) -> Result<Self, VerbsError> {
        let lanes = Vec::with_capacity(count);
        let mut made = Self { rnic: rnic.clone(), lanes, destroyed: AtomicBool::new(false), memory };
        for lane in 0..count {
            let recv_depth = if lane == super::RPC_LANE { options.recv_depth } else { 1 };
            let number = rnic.create_qp(QpOptions { recv_depth, ..options })?;
            let mut psn = [0; 4];
            platform.fill_random(&mut psn);
            let psn = Psn::new(u32::from_le_bytes(psn));
            made.lanes.push(Lane { number, psn, in_flight: AtomicU32::new(0) });
            if lane == super::RPC_LANE && made.memory.is_some() {
                made.post_receives(options.recv_depth)?;
            }
        }
        Ok(made)
    }

    /// Posts `count` receives that take immediates.
    pub(crate) fn post_receives(&self, count: u32) -> Result<(), VerbsError> {
        const BATCH: usize = 32;
        const EMPTY: &[RecvWr<'static>] = &[RecvWr { id: WrId(0), scatter: &[] }; BATCH];
        let Some(lane) = self.lanes.get(super::RPC_LANE) else { return Err(VerbsError::NotFound) };
        let mut left = count as usize;
        while left > 0 {
            let n = left.min(BATCH);
            self.rnic.post_recv(lane.number, EMPTY.get(..n).unwrap_or_default()).map_err(|(_, e)| e)?;
            left -= n;
        }
        Ok(())
    }

    /// Numbers and first PSNs, as the peer must know them.
    pub(crate) fn ends(&self) -> Vec<(QpNum, Psn)> {
        self.lanes.iter().map(|l| (l.number, l.psn)).collect()
    }

    /// Connects each queue pair to the peer's of the same position.
    pub(crate) fn connect(&self, to: &[(QpNum, Psn)], common: QpConnect) -> Result<(), VerbsError> {
        if to.len() != self.lanes.len() {
            return Err(VerbsError::InvalidArgument);
        }
        for (lane, &(remote_qp, recv_psn)) in self.lanes.iter().zip(to) {
            let connect = QpConnect { remote_qp, send_psn: lane.psn, recv_psn, ..common };
            self.rnic.connect_qp(lane.number, &connect)?;
        }
        Ok(())
    }

    /// Destroys the queue pairs: nothing of the peer reaches memory through them any more. Gives whether they were alive.
    pub(crate) fn destroy(&self) -> bool {
        if self.destroyed.swap(true, Ordering::SeqCst) {
            return false;
        }
        for lane in &self.lanes {
            if let Err(error) = self.rnic.destroy_qp(lane.number) {
                log::warn!("lite: cannot destroy {:?}: {error}", lane.number);
            }
        }
        true
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::SeqCst)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.destroy();
    }
}
