//! Regions as their home sees them: the node in whose memory they lie.
//!
//! The home decides who maps a region, and fences it when it is freed: its memory is reused only after every node that
//! mapped it has acknowledged the revocation, or has left and its queue pairs here are destroyed.

use crate::bounce::Run;
use crate::membership::Life;
use crate::node::Node;
use crate::rpc::{Answer, Ask};
use crate::wait::{Gate, Waiters};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use platform::IoAddr;
use proto::NodeId;
use spin::Mutex;

/// How long a node may take to acknowledge a revocation before it is asked again.
const REVOKE_DEADLINE: Duration = Duration::from_secs(2);
/// Between two attempts to reach a node that has not acknowledged.
const REVOKE_PAUSE: Duration = Duration::from_millis(10);
/// Bytes that memset sets before it lets other tasks run.
const FILL_STEP: u64 = 1 << 20;

struct Region {
    secret: u64,
    run: Run,
    len: u64,
    permissions: Permissions,
    master: Life,
    shared: bool,
    freeing: bool,
    /// Operations that this node itself does on the memory for others.
    gate: Arc<Gate>,
}

struct Held {
    region: u64,
    by: Life,
    permissions: Permissions,
}

#[derive(Default)]
struct Table {
    last: u64,
    regions: BTreeMap<u64, Region>,
    mappings: BTreeMap<u64, Held>,
}

impl Table {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn hold(
        &mut self,
        node: &Node,
        region: u64,
        by: Life,
        permissions: Permissions,
    ) -> Result<Answer, Error> {
        let mapping = self.number();
        let r = self.regions.get(&region).ok_or(Error::Freed)?;
        let (addr, len) = (r.run.addr(), r.len);
        self.mappings.insert(mapping, Held { region, by, permissions });
        Ok(Answer::Mapped { mapping, region, home_life: node.incarnation, addr, len, permissions })
    }
}

/// The regions whose home this node is.
#[derive(Default)]
pub(crate) struct RegionTable {
    table: Mutex<Table>,
    changed: Waiters,
}

/// A place in a region, for as long as this is held.
pub(crate) struct Reach {
    addr: IoAddr,
    gate: Arc<Gate>,
}

impl Drop for Reach {
    fn drop(&mut self) {
        self.gate.exit();
    }
}

impl RegionTable {
    pub(crate) fn alloc(
        &self,
        node: &Node,
        by: Life,
        secret: u64,
        len: u64,
        permissions: Permissions,
    ) -> Result<Answer, Error> {
        let no_memory = || Error::NoMemory { asked: len, free: node.platform.memory().stats().largest_free };
        let run = Run::take(&node.platform, len.max(1)).ok_or_else(no_memory)?;
        let mut table = self.table.lock();
        let id = table.number();
        let region = Region {
            secret,
            run,
            len,
            permissions,
            master: by,
            shared: false,
            freeing: false,
            gate: Arc::default(),
        };
        table.regions.insert(id, region);
        table.hold(node, id, by, Permissions::all())
    }

    pub(crate) fn map(
        &self,
        node: &Node,
        by: Life,
        region: u64,
        secret: u64,
        wanted: Permissions,
    ) -> Result<Answer, Error> {
        let mut table = self.table.lock();
        let r =
            table.regions.get(&region).filter(|r| r.secret == secret && !r.freeing).ok_or(Error::Freed)?;
        let granted = if r.master == by { Permissions::all() } else { r.permissions - Permissions::ADMIN };
        if !r.shared || !granted.contains(wanted) {
            return Err(Error::Permission);
        }
        table.hold(node, region, by, wanted)
    }

    /// Gives a region that nobody can reach any more, for [`Node::spawn_fence`].
    pub(crate) fn unmap(&self, by: NodeId, mapping: u64) -> Option<u64> {
        let mut table = self.table.lock();
        let held = table.mappings.get(&mapping).filter(|h| h.by.0 == by)?;
        let region = held.region;
        table.mappings.remove(&mapping);
        let reachable = table.mappings.values().any(|h| h.region == region);
        let r = table.regions.get_mut(&region)?;
        let unreachable = !reachable && !r.shared && !r.freeing;
        r.freeing |= unreachable;
        drop(table);
        self.changed.wake_all();
        unreachable.then_some(region)
    }

    pub(crate) fn share(&self, by: NodeId, region: u64, secret: u64, shared: bool) -> Result<Answer, Error> {
        let mut table = self.table.lock();
        let r = table.regions.get_mut(&region).filter(|r| r.secret == secret && !r.freeing);
        let r = r.ok_or(Error::Freed)?;
        if r.master.0 != by || !r.permissions.contains(Permissions::SHARE) {
            return Err(Error::Permission);
        }
        r.shared = shared;
        Ok(Answer::Done)
    }

    /// The region that `by` allocated under `secret`, now to be fenced.
    pub(crate) fn abandoned(&self, by: NodeId, secret: u64) -> Option<u64> {
        let mut table = self.table.lock();
        let found = |r: &&mut Region| r.secret == secret && r.master.0 == by && !r.freeing;
        let (id, r) = table.regions.iter_mut().map(|(id, r)| (*id, r)).find(|(_, r)| found(r))?;
        r.freeing = true;
        Some(id)
    }

    /// Marks a region for its master: nobody maps it any more. `Ok` also if that has been done before.
    pub(crate) fn begin_free(&self, by: NodeId, region: u64, secret: u64) -> Result<(), Error> {
        let mut table = self.table.lock();
        let r = table.regions.get_mut(&region).filter(|r| r.secret == secret).ok_or(Error::Freed)?;
        if r.master.0 != by {
            return Err(Error::Permission);
        }
        r.freeing = true;
        Ok(())
    }

    /// Checks that `by` may do something to `len` bytes from `offset` through `mapping`, and keeps the memory from being
    /// freed meanwhile.
    pub(crate) fn reach(
        &self,
        by: NodeId,
        mapping: u64,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Reach, Error> {
        let table = self.table.lock();
        let held = table.mappings.get(&mapping).filter(|h| h.by.0 == by).ok_or(Error::Freed)?;
        let r = table.regions.get(&held.region).filter(|r| !r.freeing).ok_or(Error::Freed)?;
        if !held.permissions.contains(right) {
            return Err(Error::Permission);
        }
        if offset.checked_add(len).is_none_or(|end| end > r.len) {
            return Err(Error::OutOfBounds);
        }
        let addr = r.run.addr().checked_add(offset).ok_or(Error::OutOfBounds)?;
        if !r.gate.enter() {
            return Err(Error::Freed);
        }
        Ok(Reach { addr, gate: r.gate.clone() })
    }

    /// A life has ended and its queue pairs here are destroyed: its mappings are void. Gives the regions to fence: those
    /// whose master it was.
    pub(crate) fn forget(&self, life: Life) -> Vec<u64> {
        let mut table = self.table.lock();
        table.mappings.retain(|_, h| h.by != life);
        let orphan = |r: &Region| r.master == life && !r.freeing;
        let mut orphans = Vec::new();
        for (id, r) in table.regions.iter_mut().filter(|(_, r)| orphan(r)) {
            r.freeing = true;
            orphans.push(*id);
        }
        drop(table);
        self.changed.wake_all();
        orphans
    }

    /// Some node that still maps `region`, and its mappings.
    fn holder(&self, region: u64) -> Option<(Life, Vec<u64>)> {
        let table = self.table.lock();
        let holds = |h: &&Held| h.region == region;
        let by = table.mappings.values().find(holds)?.by;
        let all = table.mappings.iter().filter(|(_, h)| holds(h) && h.by == by).map(|(id, _)| *id);
        Some((by, all.take(256).collect()))
    }

    fn drop_mappings(&self, ids: &[u64]) {
        let mut table = self.table.lock();
        for id in ids {
            table.mappings.remove(id);
        }
    }

    fn gate(&self, region: u64) -> Option<Arc<Gate>> {
        Some(self.table.lock().regions.get(&region)?.gate.clone())
    }

    fn remove(&self, region: u64) {
        let removed = self.table.lock().regions.remove(&region);
        drop(removed);
        self.changed.wake_all();
    }
}

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
                self.regions.drop_mappings(&mappings);
                continue;
            }
            let deadline = self.platform.now() + REVOKE_DEADLINE;
            let ask = Ask::Revoke { mappings: mappings.clone() };
            let acknowledged = self.peer_life(by.0) == Some(by.1)
                && self.ask_node(by.0, &ask, deadline).await.is_ok()
                // A later life cannot speak for this one.
                && self.peer_life(by.0) == Some(by.1);
            if acknowledged {
                self.regions.drop_mappings(&mappings);
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
        self.regions.remove(region);
    }

    /// Sets bytes of a region that lies here.
    pub(crate) async fn fill(&self, reach: &Reach, len: u64, byte: u8) -> Result<(), Error> {
        let mut done = 0;
        while done < len {
            if done > 0 {
                platform::yield_now().await;
            }
            let step = (len - done).min(FILL_STEP);
            let addr = reach.addr.checked_add(done).ok_or(Error::OutOfBounds)?;
            self.platform.memory().fill(addr, step, byte).map_err(|_| Error::OutOfBounds)?;
            done += step;
        }
        Ok(())
    }
}
