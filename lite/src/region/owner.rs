//! Regions as their owner sees them: the node that keeps their directory.
//!
//! The owner decides who maps a region, and fences it when it is freed: its memory is reused only after every node that
//! mapped it has acknowledged the revocation, or has left and its queue pairs are destroyed.

use super::layout::Layout;
use super::lend::{Loan, Loans};
use super::memory::{Plan, Share};
use crate::membership::Life;
use crate::node::Node;
use crate::rpc::{Answer, Call, answer};
use crate::wait::{Epoch, Gate, Shut, Waiters};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use proto::NodeId;
use serde::{Deserialize, Serialize};
use spin::Mutex;

/// Pieces that travel with the answer to a question for a mapping; the others are asked for.
const FIRST_PIECES: usize = 3;
/// Pieces in one answer after that.
const PAGE_PIECES: usize = 100;

/// What a user must know to [lay out](super::layout) a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) generation: u64,
    pub(crate) len: u64,
    pub(crate) stripe: u64,
    pub(crate) columns: u32,
    /// How many pieces there are.
    pub(crate) count: u32,
    /// The first of them.
    pub(crate) first: Vec<super::layout::Piece>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its memory is being taken.
    Forming,
    Live,
    /// Nobody maps it any more, and who does loses it.
    Freeing,
}

pub(super) struct Region {
    /// Without which nobody maps it: known to whoever finds its name.
    key: u64,
    permissions: Permissions,
    master: Life,
    shared: bool,
    stage: Stage,
    generation: u64,
    layout: Arc<Layout>,
    /// Keeps the pieces.
    memory: Vec<Share>,
    /// Operations that nodes do on the memory for others because this node has them do it.
    gate: Arc<Gate>,
}

impl Region {
    fn shape(&self) -> Shape {
        Shape {
            generation: self.generation,
            len: self.layout.len(),
            stripe: self.layout.stripe(),
            columns: self.layout.columns() as u32,
            count: self.layout.pieces().count() as u32,
            first: self.layout.pieces().take(FIRST_PIECES).copied().collect(),
        }
    }
}

struct Held {
    region: u64,
    life: Life,
    permissions: Permissions,
}

#[derive(Default)]
struct Table {
    last: u64,
    regions: BTreeMap<u64, Region>,
    /// By holder and its own number of the mapping.
    mappings: BTreeMap<(NodeId, u64), Held>,
    /// By token, what is lent and not taken yet.
    loans: Loans,
}

impl Table {
    /// The region of a mapping that gives `right`.
    fn through(&mut self, by: NodeId, mapping: u64, right: Permissions) -> Result<(u64, &mut Region), Error> {
        let held = self.mappings.get(&(by, mapping)).ok_or(Error::Freed)?;
        if !held.permissions.contains(right) {
            return Err(Error::Permission);
        }
        let region = self.regions.get_mut(&held.region).filter(|r| r.stage == Stage::Live);
        Ok((held.region, region.ok_or(Error::Freed)?))
    }

    fn is_held(&self, region: u64) -> bool {
        self.mappings.values().any(|h| h.region == region)
    }
}

/// The regions whose owner this node is.
#[derive(Default)]
pub(crate) struct RegionTable {
    table: Mutex<Table>,
    pub(super) changed: Waiters,
}

/// A region's layout, and the gate that keeps it so.
struct Way {
    layout: Arc<Layout>,
    gate: Arc<Gate>,
}

/// All places of a region, which stay what they are for as long as this is held.
pub(crate) struct Reach(Way);

impl Reach {
    /// Where the bytes lie.
    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }
}

impl Drop for Reach {
    fn drop(&mut self) {
        self.0.gate.exit();
    }
}

impl RegionTable {
    /// A new region of `by`, without memory, and `by`'s mapping of it.
    fn begin(&self, node: &Node, by: Life, mapping: u64, permissions: Permissions) -> Result<u64, Error> {
        let key = node.random();
        let mut table = self.table.lock();
        // Under the lock, so that its end is seen here or ends the region.
        if !node.is_live(by) {
            return Err(Error::NodeDown(by.0));
        }
        table.last += 1;
        let id = table.last;
        let region = Region {
            key,
            permissions,
            master: by,
            shared: false,
            stage: Stage::Forming,
            generation: 1,
            layout: Arc::default(),
            memory: Vec::new(),
            gate: Arc::default(),
        };
        table.regions.insert(id, region);
        let held = Held { region: id, life: by, permissions: Permissions::all() };
        table.mappings.insert((by.0, mapping), held);
        Ok(id)
    }

    /// The region has its memory. If it is to be freed by now: gives the memory back.
    fn formed(&self, region: u64, layout: Layout, memory: Vec<Share>) -> Result<Answer, Vec<Share>> {
        let mut table = self.table.lock();
        match table.regions.get_mut(&region) {
            Some(r) if r.stage == Stage::Forming => {
                r.layout = Arc::new(layout);
                r.memory = memory;
                r.stage = Stage::Live;
                Ok(Answer::Mapped { shape: r.shape(), permissions: Permissions::all() })
            }
            _ => Err(memory),
        }
    }

    pub(crate) fn map(
        &self,
        node: &Node,
        by: Life,
        mapping: u64,
        (region, key): (u64, u64),
        wanted: Permissions,
    ) -> Result<Answer, Error> {
        let mut table = self.table.lock();
        if !node.is_live(by) {
            return Err(Error::NodeDown(by.0));
        }
        let live = |r: &&Region| r.key == key && r.stage == Stage::Live;
        let r = table.regions.get(&region).filter(live).ok_or(Error::Freed)?;
        let granted = if r.master == by { Permissions::all() } else { r.permissions - Permissions::ADMIN };
        if !r.shared || !granted.contains(wanted) {
            return Err(Error::Permission);
        }
        let answer = Answer::Mapped { shape: r.shape(), permissions: wanted };
        table.mappings.insert((by.0, mapping), Held { region, life: by, permissions: wanted });
        Ok(answer)
    }

    /// Some pieces of a mapping; if its generation is another, its shape.
    pub(crate) fn pieces(
        &self,
        by: NodeId,
        mapping: u64,
        generation: u64,
        from: u32,
    ) -> Result<Answer, Error> {
        let mut table = self.table.lock();
        let (_, r) = table.through(by, mapping, Permissions::empty())?;
        if r.generation != generation {
            return Ok(Answer::Shape(r.shape()));
        }
        let page = r.layout.pieces().skip(from as usize).take(PAGE_PIECES);
        Ok(Answer::Pieces(page.copied().collect()))
    }

    /// Gives a region that nobody can reach any more, for [`Node::spawn_fence`].
    pub(crate) fn unmap(&self, by: NodeId, mapping: u64) -> Option<u64> {
        let mut table = self.table.lock();
        let region = table.mappings.remove(&(by, mapping))?.region;
        let reachable = table.is_held(region);
        let r = table.regions.get_mut(&region)?;
        let unreachable = !reachable && !r.shared && r.stage != Stage::Freeing;
        if unreachable {
            r.stage = Stage::Freeing;
        }
        drop(table);
        self.changed.wake_all();
        unreachable.then_some(region)
    }

    pub(crate) fn share(&self, by: NodeId, mapping: u64, shared: bool) -> Result<Answer, Error> {
        let mut table = self.table.lock();
        let (region, r) = table.through(by, mapping, Permissions::ADMIN)?;
        if !r.permissions.contains(Permissions::SHARE) {
            return Err(Error::Permission);
        }
        r.shared = shared;
        Ok(Answer::Shared { region, key: r.key })
    }

    /// Marks a region for a holder with `ADMIN`: nobody maps it any more.
    pub(crate) fn begin_free(&self, by: NodeId, mapping: u64) -> Result<u64, Error> {
        let mut table = self.table.lock();
        let (region, r) = table.through(by, mapping, Permissions::ADMIN)?;
        r.stage = Stage::Freeing;
        Ok(region)
    }

    /// Checks that `by` may do something to `len` bytes from `offset` through `mapping`, and gives the way there.
    fn look(
        &self,
        by: NodeId,
        mapping: u64,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(Way, Result<Epoch, Shut>), Error> {
        let mut table = self.table.lock();
        let (_, r) = table.through(by, mapping, right)?;
        if offset.checked_add(len).is_none_or(|end| end > r.layout.len()) {
            return Err(Error::OutOfBounds);
        }
        let way = Way { layout: r.layout.clone(), gate: r.gate.clone() };
        Ok((way, r.gate.epoch()))
    }

    /// A life has ended and its queue pairs here are destroyed: its mappings are void. Gives the regions to fence: those
    /// whose master it was.
    pub(crate) fn forget(&self, life: Life) -> Vec<u64> {
        let mut table = self.table.lock();
        table.mappings.retain(|_, h| h.life != life);
        let mut orphans = Vec::new();
        for (id, r) in &mut table.regions {
            if r.master == life && r.stage != Stage::Freeing {
                r.stage = Stage::Freeing;
                orphans.push(*id);
            }
        }
        drop(table);
        self.changed.wake_all();
        orphans
    }

    /// Some node that still maps `region`, and its mappings.
    pub(super) fn holder(&self, region: u64) -> Option<(Life, Vec<u64>)> {
        let table = self.table.lock();
        let holds = |h: &&Held| h.region == region;
        let by = table.mappings.values().find(holds)?.life;
        let all = table.mappings.iter().filter(|(_, h)| holds(h) && h.life == by).map(|((_, id), _)| *id);
        Some((by, all.take(256).collect()))
    }

    pub(super) fn drop_mappings(&self, by: NodeId, ids: &[u64]) {
        let mut table = self.table.lock();
        for id in ids {
            table.mappings.remove(&(by, *id));
        }
    }

    pub(super) fn gate(&self, region: u64) -> Option<Arc<Gate>> {
        Some(self.table.lock().regions.get(&region)?.gate.clone())
    }

    /// Takes a region out of the table, and gives its memory.
    pub(super) fn remove(&self, region: u64) -> Vec<Share> {
        let removed = self.table.lock().regions.remove(&region);
        self.changed.wake_all();
        removed.map(|r| r.memory).unwrap_or_default()
    }
}

/// Loans: see [`Loans`].
impl RegionTable {
    /// `by`, who has `mapping`, lends it.
    pub(crate) fn lend(&self, node: &Node, by: NodeId, token: u64, loan: Loan) -> Result<Answer, Error> {
        let mut table = self.table.lock();
        table.through(by, loan.mapping.1, loan.rights)?;
        let Table { mappings, loans, .. } = &mut *table;
        loans.add(node.platform.now(), token, loan, |mapping| mappings.contains_key(mapping))?;
        Ok(Answer::Done)
    }

    /// `by` maps what was lent to it.
    pub(crate) fn borrow(&self, node: &Node, by: Life, mapping: u64, token: u64) -> Result<Answer, Error> {
        let mut table = self.table.lock();
        if !node.is_live(by) {
            return Err(Error::NodeDown(by.0));
        }
        let loan = table.loans.take(node.platform.now(), token, by.0).ok_or(Error::Freed)?;
        let (lender, lent) = loan.mapping;
        let (region, r) = table.through(lender, lent, loan.rights)?;
        let answer = Answer::Mapped { shape: r.shape(), permissions: loan.rights };
        table.mappings.insert((by.0, mapping), Held { region, life: by, permissions: loan.rights });
        Ok(answer)
    }
}

impl Node {
    /// Whether that life of a node is a member, as far as this node knows. This node's own is.
    pub(crate) fn is_live(&self, life: Life) -> bool {
        life == (self.me, self.incarnation) || self.peer_life(life.0) == Some(life.1)
    }

    /// As an owner: makes a region, then answers.
    pub(crate) fn create_region(
        self: &Arc<Self>,
        call: Call,
        mapping: u64,
        plan: Plan,
        permissions: Permissions,
    ) {
        let by = (call.from(), call.incarnation());
        let region = match self.regions.begin(self, by, mapping, permissions) {
            Ok(region) => region,
            Err(error) => return answer(call, Err(error)),
        };
        let node = self.clone();
        let task = async move {
            let result = node.form_region(region, &plan).await;
            if result.is_err() {
                node.regions.unmap(by.0, mapping);
                node.regions.remove(region);
            }
            answer(call, result);
        };
        self.platform.spawn("lite-alloc", Box::pin(task));
    }

    async fn form_region(self: &Arc<Self>, region: u64, plan: &Plan) -> Result<Answer, Error> {
        let (layout, memory) = self.take_memory(plan).await?;
        self.regions.formed(region, layout, memory).map_err(|memory| {
            drop(memory);
            Error::Freed
        })
    }

    /// Checks that `by` may do something to `len` bytes from `offset` through `mapping`, and keeps the memory from being
    /// freed or moved meanwhile. Waits while it is moved.
    pub(crate) async fn reach(
        &self,
        by: NodeId,
        mapping: u64,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Reach, Error> {
        loop {
            let (way, epoch) = self.regions.look(by, mapping, right, offset, len)?;
            match epoch.and_then(|epoch| way.gate.enter(epoch)) {
                Ok(()) => return Ok(Reach(way)),
                Err(Shut::Closed) => return Err(Error::Freed),
                Err(Shut::Changed) => drop(way.gate.opened().await),
            }
        }
    }
}
