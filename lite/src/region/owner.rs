//! Regions at their owner: the node that keeps their tables.
//!
//! The owner decides which nodes map a region, and with which rights. One change of a region goes on at a
//! time: a move, or a revocation of rights. A region that is freed is fenced once its last change has
//! ended.

use super::errands::Errands;
use super::layout::Layout;
#[cfg(feature = "testing")]
use super::layout::Piece;
use super::lend::Loan;
use super::mapping::Mappings;
use super::memory::Share;
use super::request::{MapRequest, PAGE_PIECES, Plan};
use super::rights::Rights;
use super::table::{Region, RegionState, Table};
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::wait::{Epoch, Gate, Shut, Waiters};
use crate::planted::{Bug, planted};
use crate::region::request::Response;
use crate::rpc::Call;
use crate::rpc::answer;
use crate::sometimes::sometimes;
use crate::transport::conn::peers::Peers;
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

/// The regions whose owner this node is.
#[derive(Default)]
pub(crate) struct RegionTable {
    pub(super) table: Mutex<Table>,
    pub(super) changed: Waiters,
    /// The adoptions in progress: the former owners, and the keys of the regions.
    pub(super) adopting: Mutex<BTreeSet<(MemberId, u64)>>,
}

/// A region's layout, and the gate that keeps it unchanged.
struct RegionView {
    layout: Arc<Layout>,
    gate: Arc<Gate>,
}

/// The locations of a region, which do not change as long as this is held.
pub(crate) struct Reach(RegionView);

impl Reach {
    /// Returns the layout of the region.
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
    /// Returns the number of regions.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.table.lock().regions.len()
    }

    /// Returns the number of mappings, present or awaited, whose incarnations `which` selects.
    #[cfg(feature = "testing")]
    pub(crate) fn places_of(&self, which: &dyn Fn(MemberId) -> bool) -> usize {
        let table = self.table.lock();
        table.mappings.keys().chain(&table.waiting).filter(|(by, _)| which(*by)).count()
    }

    /// Returns the incarnations that map a region with those bytes; `None` if no region has them.
    #[cfg(feature = "testing")]
    pub(crate) fn holders_of(&self, part: &Piece) -> Option<BTreeSet<MemberId>> {
        let table = self.table.lock();
        let has = |r: &&Region| r.layout.pieces().any(|piece| piece.at == part.at && piece.contains(part));
        let region = table.regions.values().find(has)?;
        Some(region.holders.iter().map(|(by, _)| *by).collect())
    }

    /// Returns the names of the regions whose masters have left.
    #[cfg(feature = "testing")]
    pub(crate) fn orphans(&self) -> Vec<String> {
        let table = self.table.lock();
        table.regions.values().filter(|r| r.is_orphan).flat_map(|r| r.names.clone()).collect()
    }

    /// Returns one line for each region.
    #[cfg(feature = "testing")]
    pub(crate) fn describe(&self) -> Vec<String> {
        let table = self.table.lock();
        let line = |(id, r): (&u64, &Region)| {
            let state = match r.state {
                RegionState::Forming => "forming",
                RegionState::Live => "live",
                RegionState::Freeing => "freeing",
            };
            let at_rest = if r.changing { "changing" } else { "at rest" };
            let (master, incarnation) = r.master;
            alloc::format!(
                "region {id} of {} bytes: {state}, {at_rest}, master {master} {incarnation:?}, names {:?}, held by {:?}",
                r.layout.len(),
                r.names,
                r.holders,
            )
        };
        table.regions.iter().map(line).collect()
    }

    /// Adds a new region that the member `by` creates, without memory, and `by`'s mapping of it.
    pub(super) fn begin(
        &self,
        node: &Peers,
        by: MemberId,
        mapping: u64,
        permissions: Permissions,
    ) -> Result<u64, Error> {
        let key = node.random();
        let mut table = node.lock_for(&self.table, by)?;
        table.last += 1;
        let id = table.last;
        let region = Region {
            key,
            secret: Vec::new(),
            rights: Rights::new(permissions),
            master: by,
            outlives: false,
            is_orphan: false,
            naming: 0,
            is_leaving: false,
            names: Vec::new(),
            state: RegionState::Forming,
            changing: false,
            moving: false,
            former: None,
            generation: 1,
            layout: Arc::default(),
            memory: Vec::new(),
            gate: Arc::default(),
            holders: BTreeSet::new(),
        };
        table.regions.insert(id, region);
        table.hold(id, mapping, None, Permissions::all());
        Ok(id)
    }

    /// Sets the memory of a region; returns the memory instead if the region has been freed meanwhile.
    pub(super) fn formed(
        &self,
        region: u64,
        layout: Layout,
        memory: Vec<Share>,
    ) -> Result<Response, Vec<Share>> {
        let mut table = self.table.lock();
        match table.regions.get_mut(&region) {
            Some(r) if r.state == RegionState::Forming => {
                r.layout = Arc::new(layout);
                r.memory = memory;
                r.state = RegionState::Live;
                Ok(Response::Mapped { shape: r.shape(), permissions: Permissions::all() })
            }
            _ => Err(memory),
        }
    }

    /// Grants a mapping. Returns `None` while the region is moved.
    fn map(
        &self,
        node: &Peers,
        by: MemberId,
        mapping: u64,
        ask: &MapRequest,
        first: bool,
    ) -> Option<Result<Response, Error>> {
        let mut table = match node.lock_for(&self.table, by) {
            Ok(table) => table,
            Err(error) => return Some(Err(error)),
        };
        let waited = table.waiting.remove(&(by, mapping));
        if !first && !waited {
            // The mapping was unmapped before it was granted.
            return Some(Err(Error::Freed));
        }
        let found = table.live(ask.region).filter(|r| r.key == ask.key);
        let Some(r) = found else { return Some(Err(Error::Freed)) };
        let is_master = r.master == by;
        let needed = if is_master { ask.wanted } else { ask.wanted | Permissions::SHARE };
        let may = r.granted(by).contains(needed) || planted(Bug::GrantsAll);
        let knows = same(&r.secret, &ask.secret) || planted(Bug::NoSecretCheck);
        if r.names.is_empty() || !may || !knows {
            return Some(Err(Error::Permission));
        }
        if r.moving {
            table.waiting.insert((by, mapping));
            return None;
        }
        let answer = Response::Mapped { shape: r.shape(), permissions: ask.wanted };
        table.hold(ask.region, mapping, None, ask.wanted);
        Some(Ok(answer))
    }

    /// Returns some pieces of a mapping; if its generation is another, its shape.
    pub(crate) fn pieces(
        &self,
        node: &Peers,
        by: MemberId,
        mapping: u64,
        generation: u64,
        from: u32,
    ) -> Result<Response, Error> {
        let mut table = node.lock_for(&self.table, by)?;
        let (_, r) = table.through(mapping, Permissions::empty())?;
        if r.generation != generation {
            return Ok(Response::Shape(r.shape()));
        }
        let page = r.layout.pieces().skip(from as usize).take(PAGE_PIECES);
        Ok(Response::Pieces(page.copied().collect()))
    }

    /// Removes a mapping. Returns the region if no node can reach it any more, for `spawn_fence`.
    pub(crate) fn unmap(&self, by: MemberId, mapping: u64) -> Option<u64> {
        let mut table = self.table.lock();
        table.waiting.remove(&(by, mapping));
        let region = table.mappings.remove(&(by, mapping))?.region;
        table.regions.get_mut(&region)?.holders.remove(&(by, mapping));
        let unreachable = table.mark_if_unreachable(region);
        drop(table);
        self.changed.wake_all();
        unreachable.then_some(region)
    }

    /// Marks a region as being freed, for a holder with `ADMIN`. Returns `None` while the region is handed
    /// over: the new owner must free it then.
    pub(crate) fn begin_free(&self, node: &Peers, by: MemberId, mapping: u64) -> Option<Result<u64, Error>> {
        let mut table = match node.lock_for(&self.table, by) {
            Ok(table) => table,
            Err(error) => return Some(Err(error)),
        };
        let (region, r) = match table.through(mapping, Permissions::ADMIN) {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        if r.is_leaving {
            sometimes!("a region was to be freed while it was handed over");
            return None;
        }
        r.state = RegionState::Freeing;
        Some(Ok(region))
    }

    /// Returns the layout and the gate, if `by` has `right` to `len` bytes from `offset` through `mapping`.
    fn look(
        &self,
        node: &Peers,
        by: MemberId,
        mapping: u64,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(RegionView, Result<Epoch, Shut>), Error> {
        let mut table = node.lock_for(&self.table, by)?;
        let (_, r) = table.through(mapping, right)?;
        if offset.checked_add(len).is_none_or(|end| end > r.layout.len()) {
            return Err(Error::OutOfBounds);
        }
        let way = RegionView { layout: r.layout.clone(), gate: r.gate.clone() };
        Ok((way, r.gate.epoch()))
    }

    /// Lets a region outlive its master, at the master's wish.
    pub(super) fn outlive(&self, node: &Peers, by: MemberId, mapping: u64) -> Result<Response, Error> {
        let mut table = node.lock_for(&self.table, by)?;
        let (_, r) = table.through(mapping, Permissions::empty())?;
        r.outlives |= r.master == by;
        Ok(Response::Done)
    }

    /// Lets all regions outlive their master `by`, at its wish.
    pub(super) fn outlive_all(&self, node: &Peers, by: MemberId) -> Result<Response, Error> {
        let mut table = node.lock_for(&self.table, by)?;
        table.regions.values_mut().filter(|r| r.master == by).for_each(|r| r.outlives = true);
        Ok(Response::Done)
    }

    /// Handles the end of an incarnation. Returns the regions to fence: those whose master it was and that do
    /// not outlive it. Those that it was handing over to this node end as well, when its end is
    /// [settled](Self::settle).
    pub(crate) fn forget(&self, member: MemberId) -> Vec<u64> {
        let mut table = self.table.lock();
        let mut orphans = Vec::new();
        for (id, r) in &mut table.regions {
            r.rights.forget(member.0);
            r.is_orphan |= r.master == member;
            if r.state == RegionState::Freeing {
                continue;
            }
            if r.former == Some(member) {
                // Some nodes do not know this owner. They use the memory until they learn of that end, so the
                // region is fenced when the end is settled.
                r.state = RegionState::Freeing;
            } else if r.master == member && !r.outlives {
                if r.state == RegionState::Live {
                    orphans.push(*id);
                }
                r.state = RegionState::Freeing;
            }
        }
        table.waiting.retain(|(by, _)| *by != member);
        table.loans.forget(member);
        drop(table);
        self.changed.wake_all();
        orphans
    }

    /// Removes the mappings of an ended incarnation, once all nodes have destroyed their queue pairs to it.
    /// Returns the regions to fence: those that no node can reach any more, and those that the incarnation
    /// was handing over to this node.
    pub(crate) fn settle(&self, member: MemberId) -> Vec<u64> {
        let mut table = self.table.lock();
        let keys: Vec<_> =
            table.mappings.range((member, 0)..=(member, u64::MAX)).map(|(key, _)| *key).collect();
        let mut unreachable = Vec::new();
        for key in keys {
            let Some(region) = table.mappings.remove(&key).map(|held| held.region) else { continue };
            if let Some(r) = table.regions.get_mut(&region) {
                r.holders.remove(&key);
            }
            if table.mark_if_unreachable(region) {
                unreachable.push(region);
            }
        }
        for (id, r) in table.regions.iter_mut().filter(|(_, r)| r.former == Some(member)) {
            sometimes!("a region ended with its former owner");
            (r.former, r.changing, r.moving) = (None, false, false);
            unreachable.push(*id);
        }
        drop(table);
        self.changed.wake_all();
        unreachable
    }

    /// Returns the mappings of a region, by node.
    pub(super) fn holders(&self, region: u64) -> BTreeMap<MemberId, Vec<u64>> {
        let table = self.table.lock();
        let mut found: BTreeMap<MemberId, Vec<u64>> = BTreeMap::new();
        let Some(r) = table.regions.get(&region) else { return found };
        for (holder, mapping) in &r.holders {
            found.entry(*holder).or_default().push(*mapping);
        }
        found
    }

    /// Returns true if a member holds the mapping.
    pub(super) fn is_held(&self, by: MemberId, mapping: u64) -> bool {
        self.table.lock().mappings.contains_key(&(by, mapping))
    }

    pub(super) fn gate(&self, region: u64) -> Option<Arc<Gate>> {
        Some(self.table.lock().regions.get(&region)?.gate.clone())
    }

    /// Takes the names of a region that is freed.
    pub(super) fn take_names(&self, region: u64) -> Vec<String> {
        let mut table = self.table.lock();
        table.regions.get_mut(&region).map(|r| core::mem::take(&mut r.names)).unwrap_or_default()
    }

    /// Removes a region with all its mappings, and returns its memory.
    pub(super) fn remove(&self, region: u64) -> Vec<Share> {
        let mut table = self.table.lock();
        let Some(removed) = table.regions.remove(&region) else { return Vec::new() };
        for key in &removed.holders {
            table.mappings.remove(key);
        }
        drop(table);
        self.changed.wake_all();
        removed.memory
    }
}

/// Returns whether two secrets are equal, in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
}

/// Loans: see [`Loans`](super::lend::Loans).
impl RegionTable {
    /// Adds a loan by `by`, which has `mapping`.
    pub(crate) fn lend(&self, node: &Peers, token: u64, loan: Loan) -> Result<Response, Error> {
        let mut table = node.lock_for(&self.table, loan.mapping.0)?;
        table.through(loan.mapping.1, loan.rights)?;
        let Table { mappings, loans, .. } = &mut *table;
        loans.add(node.platform.now(), token, loan, |mapping| mappings.contains_key(mapping))?;
        Ok(Response::Done)
    }

    /// Grants `by` a mapping that was lent to it. Returns `None` while the region is moved.
    fn borrow(
        &self,
        node: &Peers,
        by: MemberId,
        mapping: u64,
        token: u64,
        first: bool,
    ) -> Option<Result<Response, Error>> {
        let mut table = match node.lock_for(&self.table, by) {
            Ok(table) => table,
            Err(error) => return Some(Err(error)),
        };
        let waited = table.waiting.remove(&(by, mapping));
        // The loans of an ended lender have been removed.
        let loan = table.loans.take(node.platform.now(), token, by.0).filter(|_| first || waited);
        let Some(loan) = loan else { return Some(Err(Error::Freed)) };
        let (region, r) = match table.mapped_as(loan.mapping, loan.rights) {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        if r.moving {
            table.waiting.insert((by, mapping));
            table.loans.put_back(token, loan);
            return None;
        }
        let answer = Response::Mapped { shape: r.shape(), permissions: loan.rights };
        table.hold(region, mapping, Some(loan.mapping.0), loan.rights);
        Some(Ok(answer))
    }
}

/// The regions whose owner this node is. It extends [`Mappings`].
pub(crate) struct RegionOwner {
    user: Arc<Mappings>,
    pub(crate) regions: RegionTable,
    /// Memory operations on behalf of other nodes.
    pub(crate) errands: Arc<Errands>,
}

impl Deref for RegionOwner {
    type Target = Arc<Mappings>;

    #[inline]
    fn deref(&self) -> &Arc<Mappings> {
        &self.user
    }
}

impl RegionOwner {
    pub(crate) fn new(user: Arc<Mappings>) -> Self {
        Self { user, regions: RegionTable::default(), errands: Arc::default() }
    }

    /// Makes a region, at its owner, then answers.
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
            Err(error) => return answer::<Response>(call, &Err(error)),
        };
        let node = self.clone();
        let task = async move {
            let asked = plan.shares.iter().fold(0u64, |sum, (_, share)| sum.saturating_add(*share));
            let memory = match node.check_vacating(asked) {
                Ok(()) => node.take_memory(&plan).await,
                Err(error) => Err(error),
            };
            let result = match memory {
                Ok((layout, memory)) => node.regions.formed(region, layout, memory).map_err(|memory| {
                    node.give_memory(memory);
                    Error::Freed
                }),
                Err(error) => Err(error),
            };
            if result.is_err() {
                node.regions.remove(region);
            }
            answer(call, &result);
        };
        self.platform.spawn("lite-alloc", Box::pin(task));
    }

    /// Grants a mapping, at the owner, after a move if need be, then answers.
    pub(crate) fn grant_mapping(self: &Arc<Self>, call: Call, mapping: u64, ask: MapRequest) {
        let by = (call.from(), call.incarnation());
        self.grant_when_at_rest(call, move |node, first| node.regions.map(node, by, mapping, &ask, first));
    }

    /// Grants a borrowed mapping, at the owner, after a move if need be, then answers.
    pub(crate) fn grant_borrowed(self: &Arc<Self>, call: Call, mapping: u64, token: u64) {
        let by = (call.from(), call.incarnation());
        self.grant_when_at_rest(call, move |node, first| {
            node.regions.borrow(node, by, mapping, token, first)
        });
    }

    /// Answers with the result of `grant`: at once, or after a move that it has to wait for.
    fn grant_when_at_rest(
        self: &Arc<Self>,
        call: Call,
        grant: impl Fn(&Self, bool) -> Option<Result<Response, Error>> + Send + Sync + 'static,
    ) {
        if let Some(result) = grant(self, true) {
            return answer(call, &result);
        }
        let node = self.clone();
        let task = async move {
            let result = node.regions.changed.until(|| grant(&node, false)).await;
            answer(call, &result);
        };
        self.platform.spawn("lite-map", Box::pin(task));
    }

    /// Checks that `by` has `right` to `len` bytes from `offset` through `mapping`, and keeps the memory
    /// from being freed or moved meanwhile. Waits while it is moved.
    pub(crate) async fn reach(
        &self,
        by: MemberId,
        mapping: u64,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Reach, Error> {
        loop {
            let (way, epoch) = self.regions.look(self, by, mapping, right, offset, len)?;
            match epoch.and_then(|epoch| way.gate.enter(epoch)) {
                Ok(()) => return Ok(Reach(way)),
                Err(Shut::Closed) => return Err(Error::Freed),
                Err(Shut::Changed) => drop(way.gate.opened().await),
            }
        }
    }
}
