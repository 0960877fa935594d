//! What this node does to memory in the name of other nodes: memsets and copies that take some time.
//!
//! A lock that a dead node held passes on once all members have said that nothing of that life reaches memory any more
//! ([`LeftSeen`](proto::ToManager::LeftSeen)). Its queue pairs are not all that could: a memset that it has asked for is done
//! by the region's node itself. So an errand is begun only for a life that goes on, and a node says `LeftSeen` after its last
//! errand for the ended life.

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

/// How many errands are under way for whom.
#[derive(Default)]
pub(crate) struct Errands {
    counts: Mutex<BTreeMap<Life, usize>>,
    change: Waiters,
}

/// An errand under way, until this is dropped. Nothing of it may be on the wire then.
pub(crate) struct Errand {
    node: Arc<Node>,
    by: Life,
}

impl Errand {
    /// Fails with `NodeDown` once the life that asked for it has ended: what is left of it is not to be done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.node.is_live(self.by) || planted(Bug::MemsetOfTheDead) {
            Ok(())
        } else {
            Err(Error::NodeDown(self.by.0))
        }
    }

    /// Gives what `work` gives, or `NodeDown` once the life that asked for it has ended; `work` is dropped then.
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
    /// Begins an errand for `by`. Fails with `NodeDown` if that life has ended.
    pub(crate) fn begin_errand(self: &Arc<Self>, by: Life) -> Result<Errand, Error> {
        let mut counts = self.lock_for(&self.errands.counts, by)?;
        *counts.entry(by).or_default() += 1;
        Ok(Errand { node: self.clone(), by })
    }

    /// Whether no errand for that life is under way. Once that life has ended, it stays so.
    pub(crate) fn has_no_errand(&self, by: Life) -> bool {
        planted(Bug::MemsetOfTheDead) || !self.errands.counts.lock().contains_key(&by)
    }

    /// Waits for the end of the errands for that life.
    pub(crate) async fn errands_done(&self, by: Life) {
        self.errands.change.until(|| self.has_no_errand(by).then_some(())).await;
    }
}
