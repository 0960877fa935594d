//! Memory operations of this node on behalf of other nodes: memsets and copies that take some time.
//!
//! A lock that a dead node held is granted again once all members have reported that nothing of that
//! incarnation reaches memory any more ([`LeftSeen`](proto::ToManager::LeftSeen)). The queue pairs to it
//! are not the only way: the region's node itself does a memset for it. So an errand begins only for a live
//! incarnation, and a node reports `LeftSeen` after its last errand for the ended one.

use crate::Error;
use crate::lock::Mutex;
use crate::membership::Life;
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::wait::Waiters;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::pin::pin;
use core::task::Poll;

/// The number of errands in progress, by requester.
#[derive(Default)]
pub(crate) struct Errands {
    counts: Mutex<BTreeMap<Life, usize>>,
    change: Waiters,
}

/// An errand in progress, until this is dropped. Nothing of it may be on the wire then.
pub(crate) struct Errand {
    node: Arc<Node>,
    by: Life,
}

impl Errand {
    /// Fails with `NodeDown` once the requester's incarnation has ended: the rest of the errand must not be
    /// done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.node.is_live(self.by) || planted(Bug::MemsetOfTheDead) {
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
        core::future::poll_fn(|cx| match self.node.peer_change.poll_until(cx, || self.check().err()) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending => work.as_mut().poll(cx),
        })
        .await
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let errands = &self.node.errands;
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

impl Node {
    /// Begins an errand for `by`. Fails with `NodeDown` if that incarnation has ended.
    pub(crate) fn begin_errand(self: &Arc<Self>, by: Life) -> Result<Errand, Error> {
        let mut counts = self.lock_for(&self.errands.counts, by)?;
        *counts.entry(by).or_default() += 1;
        Ok(Errand { node: self.clone(), by })
    }

    /// Returns true if no errand for that incarnation is in progress. For an ended incarnation the result
    /// stays true.
    pub(crate) fn has_no_errand(&self, by: Life) -> bool {
        planted(Bug::MemsetOfTheDead) || !self.errands.counts.lock().contains_key(&by)
    }

    /// Waits for the end of the errands for that incarnation.
    pub(crate) async fn errands_done(&self, by: Life) {
        self.errands.change.until(|| self.has_no_errand(by).then_some(())).await;
    }
}
