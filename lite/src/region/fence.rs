//! What an owner does to a region as a whole: it fences it, frees it, and sets its bytes.

use super::owner::Reach;
use crate::Error;
use crate::node::Node;
use crate::rpc::Ask;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;

/// How long a node may take to acknowledge a revocation before it is asked again.
const REVOKE_DEADLINE: Duration = Duration::from_secs(2);
/// Between two attempts to reach a node that has not acknowledged.
const REVOKE_PAUSE: Duration = Duration::from_millis(10);
/// Bytes that memset sets before it lets other tasks run.
const FILL_STEP: u64 = 1 << 20;

impl Node {
    /// Fences and frees a region that is marked for it.
    pub(crate) fn spawn_fence(self: &Arc<Self>, region: u64) {
        let node = self.clone();
        self.platform.spawn("lite-fence", Box::pin(async move { node.fence_region(region).await }));
    }

    /// Waits until nobody reaches the region's memory, then frees it. Takes as long as it takes: a node that does not
    /// acknowledge holds it up until it leaves or is declared dead.
    pub(crate) async fn fence_region(self: &Arc<Self>, region: u64) {
        let Some(gate) = self.regions.gate(region) else { return };
        gate.close();
        while let Some((by, mappings)) = self.regions.holder(region) {
            if self.is_fenced() {
                // Without a membership there is nobody to ask, and the memory stays taken.
                return;
            }
            if by.0 == self.me {
                self.revoke_here(self.me, &mappings).await;
                self.regions.drop_mappings(self.me, &mappings);
                continue;
            }
            let deadline = self.platform.now() + REVOKE_DEADLINE;
            let ask = Ask::Revoke { mappings: mappings.clone() };
            let acknowledged = self.peer_life(by.0) == Some(by.1)
                && self.ask_node(by.0, &ask, deadline).await.is_ok()
                // A later life cannot speak for this one.
                && self.peer_life(by.0) == Some(by.1);
            if acknowledged {
                self.regions.drop_mappings(by.0, &mappings);
            } else {
                let again = self.platform.now() + REVOKE_PAUSE;
                let gone = self
                    .regions
                    .changed
                    .until(|| self.regions.holder(region).is_none_or(|(h, _)| h != by).then_some(()));
                self.timers.before(again, gone).await;
            }
        }
        gate.drained().await;
        drop(self.regions.remove(region));
    }

    /// Sets `len` bytes from `offset` of a region that this node owns.
    pub(crate) async fn fill(&self, reach: &Reach, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        let mut done = 0;
        while done < len {
            if done > 0 {
                platform::yield_now().await;
            }
            let spot = reach.layout().find(offset + done).ok_or(Error::OutOfBounds)?;
            let step = spot.run.min(len - done).min(FILL_STEP);
            self.platform.memory().fill(spot.addr, step, byte).map_err(|_| Error::OutOfBounds)?;
            done += step;
        }
        Ok(())
    }
}
