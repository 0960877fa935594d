//! The mappings of a node, at the node that uses them.

use super::layout::{Layout, Piece, Spot};
use super::owner::Shape;
use super::pages::{MOST_PIECES, Pages};
use super::stamp::Stamp;
use crate::lock::Mutex;
use crate::membership::Life;
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::rpc::{Answer, Ask, Undo};
use crate::sometimes::sometimes;
use crate::wait::{Epoch, Gate, Shut, Waiters};
use crate::{Error, Permissions};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;
use proto::NodeId;

/// The time that a request for new pieces may take.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);
/// The number of moves that may interrupt one request for pieces. A move waits for such requests, so one
/// would be much.
const MOST_CHANGES: u32 = 16;

/// One mapping of a region: the right to operate on its memory until it is revoked.
///
/// All that may change in it changes while its gate is shut. So an operation that enters with the epoch of
/// its [lookup](Self::locate) goes to the right address with a right that it has.
pub(crate) struct Mapping {
    pub(crate) owner: Life,
    /// This node's number of the mapping, which the owner uses too.
    pub(crate) id: u64,
    pub(crate) len: u64,
    rights: AtomicU32,
    /// The generation of `layout`.
    generation: AtomicU64,
    /// The generation that operations must wait for.
    awaited: AtomicU64,
    layout: Mutex<Layout>,
    /// Copies within this node are inside the gate while they go on. Operations on the wire see it open
    /// under the lock of the operation table, which finds them by the stamp until they complete.
    pub(crate) gate: Gate,
    /// Invalidated before the gate is shut for the first time.
    pub(crate) stamp: Stamp,
}

impl Mapping {
    pub(crate) fn new(
        owner: Life,
        id: u64,
        rights: Permissions,
        generation: u64,
        layout: Layout,
        stamp: Stamp,
    ) -> Arc<Self> {
        Arc::new(Self {
            owner,
            id,
            len: layout.len(),
            rights: AtomicU32::new(rights.bits()),
            generation: AtomicU64::new(generation),
            awaited: AtomicU64::new(generation),
            layout: Mutex::new(layout),
            gate: Gate::default(),
            stamp,
        })
    }

    pub(crate) fn rights(&self) -> Permissions {
        Permissions::from_bits_truncate(self.rights.load(Ordering::SeqCst))
    }

    /// Fails unless this mapping has `right` to `len` bytes at `offset`.
    pub(crate) fn check(&self, right: Permissions, offset: u64, len: u64) -> Result<(), Error> {
        if !self.rights().contains(right) && !planted(Bug::NoRightsCheck) {
            return Err(Error::Permission);
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len) && !planted(Bug::NoBoundsCheck) {
            return Err(Error::OutOfBounds);
        }
        if self.gate.is_closed() { Err(Error::Freed) } else { Ok(()) }
    }

    /// Returns the location of the byte at `offset` if this mapping has `right` to the `len` bytes from
    /// there, and the epoch with which to enter the gate. Returns `None` while the mapping changes: wait
    /// until the gate has [opened](Gate::opened).
    pub(crate) fn locate(
        &self,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Option<(Spot, Epoch)>, Error> {
        // The epoch comes first: what is read after it is void if the gate is shut meanwhile.
        let epoch = match self.gate.epoch() {
            Ok(epoch) => epoch,
            Err(Shut::Closed) => return Err(Error::Freed),
            Err(Shut::Changed) => return Ok(None),
        };
        self.check(right, offset, len)?;
        let spot = self.layout.lock().find(offset).ok_or(Error::OutOfBounds)?;
        Ok(Some((spot, epoch)))
    }
}

impl Mapping {
    /// Ends the mapping: no operation goes through it again.
    pub(crate) fn close(&self) {
        self.stamp.invalidate();
        self.gate.close();
    }

    /// Returns the whole region, if it is in one piece.
    pub(super) fn sole(&self) -> Option<Piece> {
        let layout = self.layout.lock();
        let mut pieces = layout.pieces();
        pieces.next().filter(|piece| piece.len == self.len).copied()
    }

    /// Returns the node of the first byte.
    pub(crate) fn first_node(&self) -> NodeId {
        self.layout.lock().pieces().next().map_or(self.owner.0, |piece| piece.at.0)
    }

    /// Returns nodes and bytes, column after column; adjacent pieces of a node are joined.
    pub(crate) fn shares(&self) -> Vec<(NodeId, u64)> {
        let mut shares: Vec<(NodeId, u64)> = Vec::new();
        for piece in self.layout.lock().pieces() {
            match shares.last_mut() {
                Some((node, len)) if *node == piece.at.0 => *len += piece.len,
                _ => shares.push((piece.at.0, piece.len)),
            }
        }
        shares
    }

    /// Holds operations back until the mapping has that generation.
    fn pause(&self, generation: u64) {
        // The lock keeps this apart from an installation.
        let _layout = self.layout.lock();
        if self.generation.load(Ordering::SeqCst) < generation {
            self.awaited.fetch_max(generation, Ordering::SeqCst);
            self.stamp.invalidate();
            self.gate.pause();
        }
    }

    /// Replaces the pieces by newer ones and lets operations go on.
    fn install(&self, generation: u64, layout: Layout) {
        {
            let mut present = self.layout.lock();
            if layout.len() == self.len && self.generation.load(Ordering::SeqCst) < generation {
                self.generation.store(generation, Ordering::SeqCst);
                if !planted(Bug::StaleMap) {
                    *present = layout;
                }
            }
        }
        self.reopen();
    }

    /// Lets operations go on, unless newer pieces are awaited.
    fn reopen(&self) {
        let _layout = self.layout.lock();
        if self.awaited.load(Ordering::SeqCst) <= self.generation.load(Ordering::SeqCst) {
            self.gate.reopen();
        }
    }

    fn take(&self, rights: Permissions) {
        self.stamp.invalidate();
        self.rights.fetch_and(!rights.bits(), Ordering::SeqCst);
    }
}

/// The messages about a mapping that came before the answer that grants it.
#[derive(Clone, Copy, Default)]
struct Fate {
    revoked: bool,
    /// The generation until which the mapping must be paused.
    paused: u64,
    taken: Option<Permissions>,
}

#[derive(Default)]
struct Table {
    /// By owner and number.
    live: BTreeMap<(Life, u64), Arc<Mapping>>,
    /// The mappings that have been asked for, by owner and number.
    expected: BTreeMap<(Life, u64), Fate>,
}

/// The mappings that this node uses.
#[derive(Default)]
pub(crate) struct MappingTable {
    table: Mutex<Table>,
    /// Woken when a mapping that was asked for has come, or will not come.
    arrival: Waiters,
}

/// A mapping that has been asked for.
pub(crate) struct Expected<'a> {
    table: &'a MappingTable,
    owner: Life,
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
    pub(crate) fn places_of(&self, which: &dyn Fn(Life) -> bool) -> usize {
        let table = self.table.lock();
        table.live.keys().chain(table.expected.keys()).filter(|(owner, _)| which(*owner)).count()
    }

    pub(crate) fn expect(&self, owner: Life, id: u64) -> Expected<'_> {
        self.table.lock().expected.insert((owner, id), Fate::default());
        Expected { table: self, owner, id }
    }

    fn remove(&self, mapping: &Mapping) {
        let removed = self.table.lock().live.remove(&(mapping.owner, mapping.id));
        drop(removed);
    }

    /// Removes and returns all mappings of an owner that has departed: some operations may still be in
    /// flight. Mappings that were asked for are refused when they [arrive](Expected::arrived).
    pub(crate) fn forget(&self, owner: Life) -> Vec<Arc<Mapping>> {
        let mut table = self.table.lock();
        let keys: Vec<_> = table.live.range((owner, 0)..=(owner, u64::MAX)).map(|(k, _)| *k).collect();
        let gone: Vec<_> = keys.iter().filter_map(|k| table.live.remove(k)).collect();
        drop(table);
        for mapping in &gone {
            mapping.close();
        }
        gone
    }

    /// Returns the live mappings among those.
    fn find(&self, owner: Life, ids: &[u64]) -> Vec<Arc<Mapping>> {
        let table = self.table.lock();
        ids.iter().filter_map(|id| table.live.get(&(owner, *id)).cloned()).collect()
    }

    /// Calls one function on the live mappings among those, which it returns, and another on the expected
    /// ones.
    fn act(
        &self,
        owner: Life,
        ids: &[u64],
        now: impl Fn(&Mapping),
        later: impl Fn(&mut Fate),
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
    pub(crate) fn arrived(self, node: &Node, mapping: &Arc<Mapping>) -> Result<(), Error> {
        let own = (node.me, node.incarnation);
        let life = if planted(Bug::MappingOfTheDead) { own } else { self.owner };
        let mut table = node.lock_for(&self.table.table, life)?;
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

impl Node {
    /// Returns true if nothing is in flight through a mapping. The result stays true only while the gate is
    /// shut.
    pub(crate) fn is_drained(&self, mapping: &Mapping) -> bool {
        mapping.gate.is_empty() && !self.ops.lock().passes(mapping.stamp.id())
    }

    /// Waits until nothing is in flight through a mapping.
    pub(crate) async fn drained(&self, mapping: &Mapping) {
        mapping.gate.drained().await;
        let stamp = mapping.stamp.id();
        self.drains.until(|| (!self.ops.lock().passes(stamp)).then_some(())).await;
    }

    /// Returns the reason for which a mapping's gate is closed.
    pub(crate) fn ended(&self, mapping: &Mapping) -> Error {
        self.gone(mapping.owner.0, mapping.owner.1).unwrap_or(Error::Freed)
    }

    /// Refuses a location in memory of an earlier incarnation of this node: its addresses mean something
    /// else now.
    pub(crate) fn check_spot(&self, spot: &Spot) -> Result<(), Error> {
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
    ) -> Result<(Spot, Epoch), Error> {
        loop {
            match mapping.locate(right, offset, len) {
                Ok(Some(found)) => {
                    self.check_spot(&found.0)?;
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
        ask: &Ask,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        let life = self.life_of(owner)?;
        let expected = self.mappings.expect(life, id);
        let undo = Undo::new(self, life, Ask::Unmap { mapping: id });
        let answer = match self.ask_node(life, ask, deadline).await {
            Ok(answer) => answer,
            Err(error) => {
                if !matches!(error, Error::Unknown) {
                    undo.disarm();
                }
                return Err(error);
            }
        };
        let mapping = self.mapped(life, id, answer, expected, deadline).await?;
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
        ask: impl Fn(u64) -> Ask,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        loop {
            let (whom, id) = (self.life_of(owner)?, self.random());
            let obtained = self.obtain(owner, id, &ask(id), deadline).await;
            if !matches!(obtained, Err(Error::Unknown)) || self.platform.now() >= deadline {
                return obtained;
            }
            match self.ask_until(whom, &Ask::Unmap { mapping: id }, deadline).await {
                Ok(_) => {}
                Err(Error::Deadline) => return Err(Error::Unknown),
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds a mapping that was granted.
    pub(crate) async fn mapped(
        self: &Arc<Self>,
        owner: Life,
        id: u64,
        answer: Answer,
        expected: Expected<'_>,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        let Answer::Mapped { shape, permissions } = answer else {
            return Err(Error::Refused("unexpected answer".into()));
        };
        let (generation, layout) = self.lay_out(owner, id, shape, deadline).await?;
        let mapping = Mapping::new(owner, id, permissions, generation, layout, self.stamps.stamp()?);
        expected.arrived(self, &mapping)?;
        Ok(mapping)
    }

    /// Asks for the pieces that a shape does not contain, and returns the layout with its generation.
    async fn lay_out(
        self: &Arc<Self>,
        owner: Life,
        id: u64,
        mut shape: Shape,
        deadline: Instant,
    ) -> Result<(u64, Layout), Error> {
        let nonsense = || Error::Refused("the owner's pieces do not form a region".into());
        let first_page = |shape: &mut Shape| {
            let first = core::mem::take(&mut shape.first);
            Pages::new(first, shape.count, MOST_PIECES)
        };
        let mut pages = first_page(&mut shape)?;
        let mut changes = 0;
        while let Some(from) = pages.missing() {
            let ask = Ask::Pieces { mapping: id, generation: shape.generation, from };
            match self.ask_node_long(owner, &ask, deadline).await? {
                Answer::Pieces(more) => pages.add(more)?,
                Answer::Shape(anew) if changes < MOST_CHANGES => {
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
    pub(crate) async fn revoke_here(&self, owner: Life, ids: &[u64]) {
        let closed = self.mappings.act(owner, ids, Mapping::close, |fate| fate.revoked = true);
        for mapping in closed {
            if !planted(Bug::FreeWaitsForNobody) {
                self.drained(&mapping).await;
            }
            // They are removed only now: until then the end of the owner also waits for their operations.
            self.mappings.remove(&mapping);
        }
    }

    /// Holds the operations on mappings back until the mappings have `generation`, and waits until none is
    /// in flight.
    pub(crate) async fn pause_here(&self, owner: Life, ids: &[u64], generation: u64) {
        let pause = |m: &Mapping| m.pause(generation);
        let later = |fate: &mut Fate| fate.paused = fate.paused.max(generation);
        for mapping in self.mappings.act(owner, ids, pause, later) {
            if mapping.generation.load(Ordering::SeqCst) < generation {
                self.drained(&mapping).await;
            }
        }
    }

    /// Loads the pieces of mappings again and lets operations go on.
    pub(crate) async fn resume_here(
        self: &Arc<Self>,
        owner: Life,
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
            let ask = Ask::Pieces { mapping: mapping.id, generation: 0, from: 0 };
            let shape = match self.ask_node_long(mapping.owner, &ask, deadline).await {
                Ok(Answer::Shape(shape)) => shape,
                // The region is being freed, or the owner no longer knows this mapping.
                Err(Error::Freed) => {
                    mapping.close();
                    continue;
                }
                Ok(_) => return Err(Error::Refused("unexpected answer".into())),
                Err(error) => return Err(error),
            };
            let (generation, layout) = self.lay_out(mapping.owner, mapping.id, shape, deadline).await?;
            mapping.install(generation, layout);
        }
        Ok(())
    }

    /// Takes rights from mappings, and waits until nothing that relies on them is in flight.
    pub(crate) async fn restrict_here(&self, owner: Life, ids: &[u64], rights: Permissions) {
        let restrict = |m: &Mapping| {
            // Invalidated so that tasks which have looked already look again.
            m.stamp.invalidate();
            m.gate.pause();
            m.take(rights);
        };
        let later = |fate: &mut Fate| fate.taken = Some(fate.taken.unwrap_or(rights) | rights);
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
            node.mappings.remove(&mapping);
            node.insist(mapping.owner, &Ask::Unmap { mapping: mapping.id }).await;
        };
        self.platform.spawn("lite-unmap", Box::pin(task));
    }
}
