//! Memory operations of this node on behalf of other nodes: memsets and copies that take some time.
//!
//! A lock that a dead node held is granted again once all members have reported that nothing of that
//! incarnation reaches memory any more ([`LeftSeen`](proto::ToManager::LeftSeen)). The queue pairs to it
//! are not the only way: the region's node itself does a memset for it. So an errand begins only for a live
//! incarnation, and a node reports `LeftSeen` after its last errand for the ended one.

use crate::Error;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::wait::Waiters;
use crate::planted::{Bug, planted};
use crate::transport::conn::peers::Peers;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::pin::pin;
use core::task::Poll;

/// The number of errands in progress, by requester.
#[derive(Default)]
pub(crate) struct Errands {
    counts: Mutex<BTreeMap<MemberId, usize>>,
    change: Waiters,
}

/// An errand in progress. It ends when this is dropped; no part of it may be on the wire then.
pub(crate) struct Errand {
    errands: Arc<Errands>,
    peers: Arc<Peers>,
    by: MemberId,
}

impl Errand {
    /// Fails with `NodeDown` once the requester's incarnation has ended: the rest of the errand must not be
    /// done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.peers.is_live(self.by) || planted(Bug::MemsetOfTheDead) {
            Ok(())
        } else {
            Err(Error::NodeDown(self.by.0))
        }
    }

    /// Returns the result of `work`, or `NodeDown` once the requester's incarnation has ended; `work` is
    /// dropped then.
    pub(crate) async fn while_it_lives<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut work = pin!(work);
        core::future::poll_fn(|cx| match self.peers.peer_change.poll_until(cx, || self.check().err()) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => work.as_mut().poll(cx),
        })
        .await
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let errands = &self.errands;
        let mut counts = errands.counts.lock();
        if let Some(count) = counts.get_mut(&self.by) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.by);
            }
        }
        drop(counts);
        errands.change.wake_all();
    }
}

impl Errands {
    /// Begins an errand for the member `by`. Fails with `NodeDown` if that incarnation has ended.
    pub(crate) fn begin(self: &Arc<Self>, peers: &Arc<Peers>, by: MemberId) -> Result<Errand, Error> {
        let mut counts = peers.lock_for(&self.counts, by)?;
        *counts.entry(by).or_default() += 1;
        Ok(Errand { errands: self.clone(), peers: peers.clone(), by })
    }

    /// Returns true if no errand for that incarnation is in progress. For an ended incarnation the result
    /// stays true.
    pub(crate) fn are_done(&self, by: MemberId) -> bool {
        planted(Bug::MemsetOfTheDead) || !self.counts.lock().contains_key(&by)
    }

    /// Returns the incarnations for which errands are in progress.
    #[cfg(feature = "testing")]
    pub(crate) fn requesters(&self) -> alloc::vec::Vec<MemberId> {
        self.counts.lock().keys().copied().collect()
    }

    /// Waits for the end of all errands for the member `by`.
    pub(crate) async fn done(&self, by: MemberId) {
        self.change.until(|| self.are_done(by).then_some(())).await;
    }
}
