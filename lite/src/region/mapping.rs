//! The mappings of a node, on the node that uses them.

use super::handle_table::HandleTable;
use super::layout::{Layout, Location};
use super::mapped::Mapping;
use super::memory::RegionMemory;
use super::pages::{MOST_PIECES, PiecePages};
use super::request::Shape;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::wait::{Epoch, Waiters};
use crate::planted::{Bug, planted};
use crate::region::request::{Request, Response};
use crate::rpc::Rollback;
use crate::sometimes::sometimes;
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;

/// The time that a request for new pieces may take.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);
/// The number of moves that may interrupt one request for pieces. A move waits for such requests, so one
/// would be much.
const MOST_CHANGES: u32 = 16;

/// The messages about a mapping that came before the answer that grants it.
#[derive(Clone, Copy, Default)]
struct PendingChanges {
    revoked: bool,
    /// The generation until which the mapping must be paused.
    paused: u64,
    taken: Option<Permissions>,
}

#[derive(Default)]
struct Table {
    /// By owner and number.
    live: BTreeMap<(MemberId, u64), Arc<Mapping>>,
    /// The mappings that have been asked for, by owner and number.
    expected: BTreeMap<(MemberId, u64), PendingChanges>,
}

/// The mappings that this node uses.
#[derive(Default)]
pub(crate) struct MappingTable {
    table: Mutex<Table>,
    /// Woken when the answer to a request for a mapping has come, or will not come.
    arrival: Waiters,
}

/// A mapping that has been asked for.
pub(crate) struct Expected<'a> {
    table: &'a MappingTable,
    owner: MemberId,
    id: u64,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.table.table.lock().expected.remove(&(self.owner, self.id));
        self.table.arrival.wake_all();
    }
}

impl MappingTable {
    /// Returns the number of mappings.
    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.table.lock().live.len()
    }

    /// Returns the number of mappings, present or expected, whose owners `which` selects.
    #[cfg(feature = "testing")]
    pub(crate) fn places_of(&self, which: &dyn Fn(MemberId) -> bool) -> usize {
        let table = self.table.lock();
        table.live.keys().chain(table.expected.keys()).filter(|(owner, _)| which(*owner)).count()
    }

    pub(crate) fn expect(&self, owner: MemberId, id: u64) -> Expected<'_> {
        self.table.lock().expected.insert((owner, id), PendingChanges::default());
        Expected { table: self, owner, id }
    }

    fn remove(&self, mapping: &Mapping) {
        let removed = self.table.lock().live.remove(&(mapping.owner(), mapping.id));
        drop(removed);
    }

    /// Removes and returns all mappings of an owner that has departed: some operations may still be in
    /// flight. Mappings that were asked for are refused when they [arrive](Expected::arrived).
    pub(crate) fn forget(&self, owner: MemberId) -> Vec<Arc<Mapping>> {
        let mut table = self.table.lock();
        let keys: Vec<_> = table.live.range((owner, 0)..=(owner, u64::MAX)).map(|(k, _)| *k).collect();
        let gone: Vec<_> = keys.iter().filter_map(|k| table.live.remove(k)).collect();
        drop(table);
        for mapping in &gone {
            mapping.close();
        }
        gone
    }

    /// Returns the live mappings of regions of `owner` with the numbers `ids`.
    fn find(&self, owner: MemberId, ids: &[u64]) -> Vec<Arc<Mapping>> {
        let table = self.table.lock();
        ids.iter().filter_map(|id| table.live.get(&(owner, *id)).cloned()).collect()
    }

    /// Calls one function on the live mappings among those, which it returns, and another on the expected
    /// ones.
    fn act(
        &self,
        owner: MemberId,
        ids: &[u64],
        now: impl Fn(&Mapping),
        later: impl Fn(&mut PendingChanges),
    ) -> Vec<Arc<Mapping>> {
        let mut table = self.table.lock();
        let mut found = Vec::new();
        for id in ids {
            if let Some(mapping) = table.live.get(&(owner, *id)) {
                now(mapping);
                found.push(mapping.clone());
            } else if let Some(fate) = table.expected.get_mut(&(owner, *id)) {
                later(fate);
            }
        }
        found
    }
}

impl Expected<'_> {
    /// Adds the mapping to the table and applies the messages that came before it. Fails with `NodeDown` if
    /// its owner has departed: the memory may be in use for something else by now.
    pub(crate) fn arrived(self, node: &Mappings, mapping: &Arc<Mapping>) -> Result<(), Error> {
        let own = (node.me, node.incarnation);
        let member = if planted(Bug::MappingOfTheDead) { own } else { self.owner };
        let mut table = node.lock_for(&self.table.table, member)?;
        let fate = table.expected.get(&(self.owner, self.id)).copied().unwrap_or_default();
        if let Some(rights) = fate.taken {
            mapping.take(rights);
        }
        if fate.paused > 0 {
            sometimes!("a mapping arrived during a move");
        }
        mapping.pause(fate.paused);
        if fate.revoked {
            sometimes!("a mapping arrived after it was revoked");
            mapping.close();
        } else {
            table.live.insert((self.owner, self.id), mapping.clone());
        }
        Ok(())
    }
}

/// The mappings of a node and of its handles. It extends [`RegionMemory`].
pub(crate) struct Mappings {
    memory: Arc<RegionMemory>,
    pub(crate) mappings: MappingTable,
    /// The mappings of the applications' handles.
    pub(crate) holds: HandleTable,
}

impl Deref for Mappings {
    type Target = Arc<RegionMemory>;

    #[inline]
    fn deref(&self) -> &Arc<RegionMemory> {
        &self.memory
    }
}

/// A request to free a region. If this is dropped while armed, a task goes on asking.
struct FreeAgain<'a> {
    node: &'a Arc<Mappings>,
    mapping: Option<Arc<Mapping>>,
}

impl FreeAgain<'_> {
    fn disarm(mut self) {
        self.mapping = None;
    }
}

impl Drop for FreeAgain<'_> {
    fn drop(&mut self) {
        let Some(mapping) = self.mapping.take().filter(|_| !planted(Bug::UndoForgotten)) else { return };
        let node = self.node.clone();
        let task = async move { node.tell_owners(&mapping, &Request::Free { mapping: mapping.id }).await };
        self.node.platform.spawn("lite-free", Box::pin(task));
    }
}

impl Mappings {
    pub(crate) fn new(memory: Arc<RegionMemory>) -> Self {
        Self { memory, mappings: MappingTable::default(), holds: HandleTable::default() }
    }

    /// Returns true if nothing is in flight through a mapping. The result stays true only while the gate is
    /// shut.
    pub(crate) fn is_drained(&self, mapping: &Mapping) -> bool {
        mapping.gate.is_empty() && !self.passes(mapping.stamp.id())
    }

    /// Waits until nothing is in flight through a mapping.
    pub(crate) async fn drained(&self, mapping: &Mapping) {
        mapping.gate.drained().await;
        let stamp = mapping.stamp.id();
        self.drains.until(|| (!self.passes(stamp)).then_some(())).await;
    }

    /// Returns the reason for which a mapping's gate is closed.
    pub(crate) fn ended(&self, mapping: &Mapping) -> Error {
        let owner = mapping.owner();
        self.gone(owner.0, owner.1).unwrap_or(Error::Freed)
    }

    /// Refuses a location in memory of an earlier incarnation of this node: its addresses mean something
    /// else now.
    pub(crate) fn check_location(&self, spot: &Location) -> Result<(), Error> {
        let former = spot.at.0 == self.me && spot.at.1 != self.incarnation;
        if former && !planted(Bug::FormerLifesMemory) { Err(Error::NodeDown(self.me)) } else { Ok(()) }
    }

    /// Returns the location of the byte at `offset` of a mapping, as [`Mapping::locate`] does; waits while
    /// the mapping changes.
    pub(crate) async fn locate(
        &self,
        mapping: &Mapping,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<(Location, Epoch), Error> {
        loop {
            match mapping.locate(right, offset, len) {
                Ok(Some(found)) => {
                    self.check_location(&found.0)?;
                    return Ok(found);
                }
                Ok(None) => drop(mapping.gate.opened().await),
                Err(Error::Freed) => return Err(self.ended(mapping)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks `owner` for the mapping `id`. If the mapping is not used in the end, for whatever reason, the
    /// owner is told.
    pub(crate) async fn obtain(
        self: &Arc<Self>,
        owner: NodeId,
        id: u64,
        ask: &Request,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        let member = self.member_now(owner)?;
        let expected = self.mappings.expect(member, id);
        let undo = Rollback::new(self, member, Request::Unmap { mapping: id });
        let answer = match self.request(member, ask, deadline).await {
            Ok(answer) => answer,
            Err(error) => {
                if !matches!(error, Error::Unknown) {
                    undo.disarm();
                }
                return Err(error);
            }
        };
        let mapping = self.mapped(member, id, answer, expected, deadline).await?;
        undo.disarm();
        Ok(mapping)
    }

    /// Obtains a mapping as [`obtain`](Self::obtain) does, by a request that may be repeated: `ask` makes
    /// it for the mapping's number. A connection that breaks during a request does not tell whether the
    /// owner has granted the mapping. In that case the owner undoes it and is asked for another one, until
    /// `deadline`.
    pub(crate) async fn obtain_again(
        self: &Arc<Self>,
        owner: NodeId,
        ask: impl Fn(u64) -> Request,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        loop {
            let (whom, id) = (self.member_now(owner)?, self.random());
            let obtained = self.obtain(owner, id, &ask(id), deadline).await;
            if !matches!(obtained, Err(Error::Unknown)) || self.platform.now() >= deadline {
                return obtained;
            }
            match self.request_until(whom, &Request::Unmap { mapping: id }, deadline).await {
                Ok(_) => {}
                Err(Error::Deadline) => return Err(Error::Unknown),
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds a mapping that was granted.
    pub(crate) async fn mapped(
        self: &Arc<Self>,
        owner: MemberId,
        id: u64,
        answer: Response,
        expected: Expected<'_>,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        let Response::Mapped { shape, permissions } = answer else {
            return Err(Error::Refused("unexpected answer".into()));
        };
        let (generation, layout) = self.lay_out(owner, id, shape, deadline).await?;
        let mapping = Mapping::new(owner, id, permissions, generation, layout, self.stamp()?);
        expected.arrived(self, &mapping)?;
        Ok(mapping)
    }

    /// Asks for the pieces that a shape does not contain, and returns the layout with its generation.
    async fn lay_out(
        self: &Arc<Self>,
        owner: MemberId,
        id: u64,
        mut shape: Shape,
        deadline: Instant,
    ) -> Result<(u64, Layout), Error> {
        let nonsense = || Error::Refused("the owner's pieces do not form a region".into());
        let first_page = |shape: &mut Shape| {
            let first = core::mem::take(&mut shape.first);
            PiecePages::new(first, shape.count, MOST_PIECES)
        };
        let mut pages = first_page(&mut shape)?;
        let mut changes = 0;
        while let Some(from) = pages.missing() {
            let ask = Request::Pieces { mapping: id, generation: shape.generation, from };
            match self.request_long(owner, &ask, deadline).await? {
                Response::Pieces(more) => pages.add(more)?,
                Response::Shape(anew) if changes < MOST_CHANGES => {
                    changes += 1;
                    shape = anew;
                    pages = first_page(&mut shape)?;
                }
                _ => return Err(nonsense()),
            }
        }
        let layout = Layout::new(shape.len, shape.stripe, shape.columns as usize, pages.all());
        let layout = layout.filter(|layout| self.are_published(layout.pieces()));
        Ok((shape.generation, layout.ok_or_else(nonsense)?))
    }

    /// Closes mappings and waits until nothing is in flight through them.
    pub(crate) async fn revoke_here(&self, owner: MemberId, ids: &[u64]) {
        let closed = self.mappings.act(owner, ids, Mapping::close, |fate| fate.revoked = true);
        for mapping in closed {
            if !planted(Bug::FreeWaitsForNobody) {
                self.drained(&mapping).await;
            }
            // They are removed only now: until then the end of the owner also waits for their operations.
            self.mappings.remove(&mapping);
        }
    }

    /// Holds the operations on mappings back until the mappings have `generation`, and waits
    /// until none is in flight.
    pub(crate) async fn pause_here(&self, owner: MemberId, ids: &[u64], generation: u64) {
        let pause = |m: &Mapping| m.pause(generation);
        let later = |fate: &mut PendingChanges| fate.paused = fate.paused.max(generation);
        for mapping in self.mappings.act(owner, ids, pause, later) {
            if mapping.generation.load(Ordering::SeqCst) < generation {
                self.drained(&mapping).await;
            }
        }
    }

    /// Loads the pieces of mappings again and lets operations go on.
    pub(crate) async fn resume_here(
        self: &Arc<Self>,
        owner: MemberId,
        ids: &[u64],
        generation: u64,
    ) -> Result<(), Error> {
        let is_expected = |id: &u64| self.mappings.table.lock().expected.contains_key(&(owner, *id));
        self.mappings.arrival.until(|| (!ids.iter().any(is_expected)).then_some(())).await;
        for mapping in self.mappings.find(owner, ids) {
            if mapping.generation.load(Ordering::SeqCst) >= generation {
                continue;
            }
            let deadline = self.platform.now() + LOOK_DEADLINE;
            let ask = Request::Pieces { mapping: mapping.id, generation: 0, from: 0 };
            let shape = match self.request_long(owner, &ask, deadline).await {
                Ok(Response::Shape(shape)) => shape,
                // The region is being freed, or the owner no longer knows this mapping.
                Err(Error::Freed) => {
                    mapping.close();
                    continue;
                }
                Ok(_) => return Err(Error::Refused("unexpected answer".into())),
                Err(error) => return Err(error),
            };
            let (generation, layout) = self.lay_out(owner, mapping.id, shape, deadline).await?;
            mapping.install(generation, layout);
        }
        Ok(())
    }

    /// Records that `owner`'s regions of these mappings have another owner now. Ends the mappings if that one
    /// has departed.
    ///
    /// # Errors
    /// `NoSuchNode` if this node does not know the new owner yet: ask again.
    pub(crate) async fn rehome_here(
        self: &Arc<Self>,
        owner: MemberId,
        ids: &[u64],
        to: MemberId,
    ) -> Result<(), Error> {
        let is_expected = |id: &u64| self.mappings.table.lock().expected.contains_key(&(owner, *id));
        self.mappings.arrival.until(|| (!ids.iter().any(is_expected)).then_some(())).await;
        if !self.is_live(to) && !self.has_ended(to) {
            return Err(Error::NoSuchNode);
        }
        let mut table = self.mappings.table.lock();
        // Under the lock, the end of the new owner is either seen here or finds the mappings later.
        let lives = self.is_live(to);
        for &id in ids {
            let Some(mapping) = table.live.remove(&(owner, id)) else {
                // An earlier request may have done it already.
                if !table.live.keys().any(|(_, live)| *live == id) {
                    // It was never used or is not used any more, and the former owner may not know that yet.
                    sometimes!("a mapping that had ended got another owner");
                    self.spawn_retry(to, Request::Unmap { mapping: id });
                }
                continue;
            };
            mapping.set_owner(to);
            if lives {
                table.live.insert((to, id), mapping);
            } else {
                mapping.close();
            }
        }
        Ok(())
    }

    /// Asks the owner of a mapping's region, by `deadline`. An owner that has handed the region over does
    /// nothing: the new owner is asked then.
    pub(crate) async fn ask_owner(
        self: &Arc<Self>,
        mapping: &Mapping,
        ask: &Request,
        deadline: Instant,
    ) -> Result<Response, Error> {
        loop {
            let owner = mapping.owner();
            match self.request(owner, ask, deadline).await {
                Err(Error::Freed | Error::NodeDown(_)) if mapping.owner() != owner => {}
                result => return result,
            }
        }
    }

    /// Asks the owner to free a mapping's region, by `deadline`. Without a final answer, and also if this
    /// future is dropped, a task goes on asking until there is one or the owner has ended.
    pub(crate) async fn free_at_owner(
        self: &Arc<Self>,
        mapping: &Arc<Mapping>,
        deadline: Instant,
    ) -> Result<(), Error> {
        let again = FreeAgain { node: self, mapping: Some(mapping.clone()) };
        loop {
            let owner = mapping.owner();
            let ask = Request::Free { mapping: mapping.id };
            let (result, is_final) = self.request_once(owner, &ask, deadline).await;
            match result {
                Err(Error::Freed | Error::NodeDown(_)) if mapping.owner() != owner => continue,
                _ if is_final => again.disarm(),
                _ => {}
            }
            return result.map(drop);
        }
    }

    /// Asks the owner of a mapping's region until it has answered, and each later owner.
    async fn tell_owners(self: &Arc<Self>, mapping: &Mapping, word: &Request) {
        let mut told = None;
        while told != Some(mapping.owner()) {
            let owner = mapping.owner();
            told = Some(owner);
            self.retry_until_done(owner, word).await;
        }
    }

    /// Takes rights from mappings, and waits until nothing that relies on them is in flight.
    pub(crate) async fn restrict_here(&self, owner: MemberId, ids: &[u64], rights: Permissions) {
        let restrict = |m: &Mapping| {
            // Invalidated so that tasks which have looked already look again.
            m.stamp.invalidate();
            m.gate.pause();
            m.take(rights);
        };
        let later = |fate: &mut PendingChanges| fate.taken = Some(fate.taken.unwrap_or(rights) | rights);
        for mapping in self.mappings.act(owner, ids, restrict, later) {
            self.drained(&mapping).await;
            mapping.reopen();
        }
    }

    /// Waits for a mapping's operations to end, then tells its owner that it is no longer used.
    pub(crate) fn release(self: &Arc<Self>, mapping: Arc<Mapping>) {
        let node = self.clone();
        let task = async move {
            mapping.close();
            node.drained(&mapping).await;
            // An owner that hands the region over meanwhile changes the entry of the mapping first.
            node.tell_owners(&mapping, &Request::Unmap { mapping: mapping.id }).await;
            node.mappings.remove(&mapping);
        };
        self.platform.spawn("lite-unmap", Box::pin(task));
    }
}
