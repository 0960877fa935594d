//! [`Lmr`]: a mapped region as applications hold it.

use super::layout::Spot;
use super::mapping::Mapping;
use super::owner::MapAsk;
use super::placement::Placement;
use super::shortcut::Shortcut;
use crate::issuer::Issuer;
use crate::names::Named;
use crate::node::Node;
use crate::op::{Data, Ended, Flight, Lost, OpId, Pass, Rest, Stop, TaskWaker, Verb, Way, judge};
use crate::qos::{Class, MemoryCharge, Priority, Share, Ticket};
use crate::rpc::Ask;
use crate::{Error, Lite, Permissions};
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::AtomicBool;
use core::task::Waker;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;

/// A region of memory on some node, mapped here. Clones share the mapping; the last one dropped unmaps it.
///
/// Every operation checks right, bounds and alignment here before it is issued, and ends by the deadline of the handle
/// (inherited from the [`Lite`] that made it). A write of more than one chunk is not atomic, and its chunks are written
/// in ascending order unless it had to be repeated on a new connection.
///
/// It keeps where the region lay when it was mapped: as long as that holds, an operation looks at nothing else of the region,
/// so that what it costs does not grow with their number.
#[derive(Clone)]
// Half a line of the processor's cache, and never in two.
#[repr(align(32))]
pub struct Lmr {
    by: Arc<Issuer>,
    pub(super) held: Arc<Held>,
    short: Shortcut,
}

const _: () = assert!(size_of::<Lmr>() == 32);

pub(super) struct Held {
    pub(super) node: Arc<Node>,
    pub(super) mapping: Arc<Mapping>,
    /// The region has been freed through this mapping: there is nothing to unmap.
    pub(super) freed: AtomicBool,
    /// What an application is charged for it.
    _charge: MemoryCharge,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !*self.freed.get_mut() && !self.mapping.gate.is_closed() {
            self.node.release(self.mapping.clone());
        }
    }
}

impl Lite {
    /// Allocates `len` zeroed bytes where `placement` says: a [`NodeId`], which may be this one, or a [`Placement`]. This node
    /// becomes the region's master and has all rights; `permissions` is what it grants to all others, and must contain `SHARE`
    /// for those who are to map it by name. More can be [granted](Lmr::grant), and taken back.
    ///
    /// The region lives until it is freed, its [owner](Lmr::owner) or its master leaves, or nobody maps it and it is not
    /// published. If another node of it leaves, operations on that part fail with `NodeDown`. The memory need not be contiguous:
    /// a region may take all that is free. Fails with `NoMemory`.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId, Permissions, Placement};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// let rights = Permissions::READ | Permissions::WRITE;
    /// let near = lite.alloc(lite.node_id(), 1 << 20, rights).await?;
    /// let wide = Placement::Striped { nodes: vec![NodeId(1), NodeId(2)], stripe: 65536 };
    /// let wide = lite.alloc(wide, 1 << 30, rights).await?;
    /// let parts = Placement::Shares(vec![(NodeId(1), 4096), (NodeId(3), 100)]);
    /// let parts = lite.alloc(parts, 4196, rights).await?;
    /// let somewhere = lite.alloc(Placement::Anywhere, 1 << 20, rights).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn alloc(
        &self,
        placement: impl Into<Placement>,
        len: u64,
        permissions: Permissions,
    ) -> Result<Lmr, Error> {
        let charge = self.by.class.hold(len)?;
        let deadline = self.deadline();
        let mut last = Error::NoMemory { asked: len, free: 0 };
        for plan in self.by.node.plans(placement.into(), len, deadline).await? {
            let Some(owner) = plan.shares.first().map(|(node, _)| *node) else { continue };
            let mapping = self.by.node.random();
            let ask = Ask::Alloc { mapping, plan, permissions };
            match self.by.node.obtain(owner, mapping, &ask, deadline).await {
                Ok(mapping) => return Ok(self.lmr_charged(mapping, charge)),
                Err(error @ Error::NoMemory { .. }) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Maps the region that is published as `name`, with the rights `wanted`. Fails with `Permission` if the region does not grant
    /// this node all of them and `SHARE`, or has a secret.
    pub async fn map(&self, name: &str, wanted: Permissions) -> Result<Lmr, Error> {
        self.map_by(name, wanted, &[], self.deadline()).await
    }

    /// As [`map`](Self::map), for a region with a [secret](Lmr::set_secret). Fails with `Permission` if it is another.
    pub async fn map_secret(&self, name: &str, wanted: Permissions, secret: &[u8]) -> Result<Lmr, Error> {
        self.map_by(name, wanted, secret, self.deadline()).await
    }

    /// As [`map`](Self::map), and waits until the name is published. Fails with `NoSuchName` if it was not when it was last heard of,
    /// however the last question ended.
    pub async fn map_wait(&self, name: &str, wanted: Permissions) -> Result<Lmr, Error> {
        const FIRST_PAUSE: Duration = Duration::from_micros(500);
        const LONGEST_PAUSE: Duration = Duration::from_millis(20);
        let deadline = self.deadline();
        let mut pause = FIRST_PAUSE;
        let mut missing = false;
        loop {
            let mapped = match self.find_region(name, deadline).await {
                Ok(found) => self.map_found(found, wanted, &[], deadline).await,
                Err(Error::Deadline) if missing => Err(Error::NoSuchName),
                Err(error) => Err(error),
            };
            match mapped {
                Err(Error::NoSuchName) if self.by.node.platform.now() + pause < deadline => {
                    missing = true;
                    self.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                other => return other,
            }
        }
    }

    async fn map_by(
        &self,
        name: &str,
        wanted: Permissions,
        secret: &[u8],
        deadline: Instant,
    ) -> Result<Lmr, Error> {
        let found = self.find_region(name, deadline).await?;
        self.map_found(found, wanted, secret, deadline).await
    }

    /// Owner, number and key of the region of that name.
    async fn find_region(&self, name: &str, deadline: Instant) -> Result<(NodeId, u64, u64), Error> {
        match self.by.node.find_named(name, deadline).await? {
            Named::Region { owner, region, key } => Ok((owner, region, key)),
            other => Err(Error::Refused(alloc::format!("`{name}` is {}, not a region", other.what()))),
        }
    }

    async fn map_found(
        &self,
        (owner, region, key): (NodeId, u64, u64),
        wanted: Permissions,
        secret: &[u8],
        deadline: Instant,
    ) -> Result<Lmr, Error> {
        let mapping = self.by.node.random();
        let ask = MapAsk { region, key, secret: secret.into(), wanted };
        let ask = Ask::Map { mapping, ask };
        self.by.node.obtain(owner, mapping, &ask, deadline).await.map(|m| self.lmr(m))
    }

    pub(crate) fn lmr(&self, mapping: Arc<Mapping>) -> Lmr {
        self.lmr_charged(mapping, MemoryCharge::default())
    }

    pub(super) fn lmr_charged(&self, mapping: Arc<Mapping>, charge: MemoryCharge) -> Lmr {
        let (freed, node) = (AtomicBool::new(false), &self.by.node);
        // What lies here is copied, and that waits while the mapping changes.
        let sole = mapping.sole().filter(|piece| piece.at.0 != node.me);
        let short = sole.and_then(|piece| {
            let place = node.ops.lock().links.place(piece.at);
            Shortcut::new(place, piece.addr, mapping.len, mapping.rights(), mapping.stamp.id())
        });
        let held = Held { node: node.clone(), mapping, freed, _charge: charge };
        Lmr { by: self.by.clone(), held: Arc::new(held), short: short.unwrap_or(Shortcut::NONE) }
    }
}

impl fmt::Debug for Lmr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.held.mapping;
        write!(f, "region of {}: {} bytes, {:?}", m.owner.0, m.len, m.rights())
    }
}

impl Lmr {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.held.mapping.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node that keeps the region's directory: where it was allocated, or the first of several nodes. The region ends with
    /// its life, wherever the bytes lie.
    #[must_use]
    pub fn owner(&self) -> NodeId {
        self.held.mapping.owner.0
    }

    /// The node of the first byte; see [`shares`](Self::shares) for all.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.held.mapping.first_node()
    }

    /// The rights of this handle.
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        self.held.mapping.rights()
    }

    /// A handle whose operations have so long.
    #[must_use]
    pub fn with_deadline(&self, patience: Duration) -> Self {
        Self { by: self.by.patient(patience), ..self.clone() }
    }

    /// Whether this handle has `right` to `len` bytes at `offset`.
    pub(crate) fn check(&self, right: Permissions, offset: u64, len: u64) -> Result<(), Error> {
        let m = &self.held.mapping;
        m.check(right, offset, len).map_err(|e| self.explain(e))
    }

    /// Why the mapping has ended, if that is what is wrong.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if error == Error::Freed { self.by.node.ended(&self.held.mapping) } else { error }
    }

    /// What it is made of.
    pub(crate) fn inner(&self) -> (&Arc<Node>, &Arc<Mapping>) {
        (&self.by.node, &self.held.mapping)
    }

    pub(crate) fn platform(&self) -> &dyn platform::Platform {
        &*self.by.node.platform
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.by.deadline()
    }

    /// Where `len` bytes at `offset` lie, if they are in one piece that is not being changed.
    pub(crate) fn piece(
        &self,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Option<(Spot, Pass<'_>)>, Error> {
        let mapping = &*self.held.mapping;
        let found = mapping.locate(right, offset, len).map_err(|e| self.explain(e))?;
        if let Some((spot, _)) = &found {
            self.by.node.check_spot(spot)?;
        }
        let found = found.filter(|(spot, _)| len <= spot.run);
        let pass = |epoch| Pass { seen: (mapping, epoch), share: self.share() };
        Ok(found.map(|(spot, epoch)| (spot, pass(epoch))))
    }

    /// Posts at once what takes the short way; `None` if it cannot, and then nothing has happened. Not for a handle with limits.
    #[inline(always)]
    pub(crate) fn depart(
        &self,
        offset: u64,
        verb: Verb<'_>,
        deadline: Instant,
        waker: Waker,
    ) -> Option<OpId> {
        let node = &*self.by.node;
        let (right, len) = match verb {
            Verb::Write { head, .. } => (Permissions::WRITE, head.len()),
            Verb::Read { len } => (Permissions::READ, len as usize),
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => (Permissions::ATOMIC, 8),
        };
        let addr = self.short.find(right, offset, len as u64)?;
        if len == 0 || len > node.chunk {
            return None;
        }
        let (place, stamp, share) = (self.short.place(), self.short.stamp(), self.share());
        node.depart(&Way { place, addr, stamp, share }, verb, deadline, waker)
    }

    /// A handle whose operations have that priority.
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        Self { by: self.by.classed(self.by.class.with_priority(priority)), ..self.clone() }
    }

    /// A handle whose operations are nobody's.
    pub(crate) fn without_class(&self) -> Self {
        Self { by: self.by.classed(Class::default()), ..self.clone() }
    }

    /// The queue pairs that operations use now.
    #[inline]
    pub(crate) fn share(&self) -> Share {
        self.by.class.share(&self.by.node)
    }

    /// Whether something may be between an operation and the wire.
    #[inline]
    pub(crate) fn is_rated(&self) -> bool {
        self.by.class.is_rated(&self.by.node)
    }

    /// Whether the application has as many operations under way as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.by.class.is_full()
    }

    /// Waits until an operation of `len` bytes, which has been checked, may go, if something is between it and the wire.
    pub(crate) async fn rate(&self, len: usize, deadline: Instant) -> Result<Option<Ticket>, Error> {
        if !self.is_rated() {
            return Ok(None);
        }
        self.by.node.admit(&self.by.class, len as u64, deadline, true).await.map(Some)
    }

    /// Whether an operation may find its way by what the handle keeps.
    #[inline]
    fn is_short(&self) -> bool {
        self.short != Shortcut::NONE && !self.is_rated()
    }

    /// How an operation on the short way has failed, if that is for good; `late`: what it ends with when its time is over.
    #[cold]
    pub(crate) fn failed(&self, flight: &Flight<'_>, ended: Ended, late: Error) -> Result<(), Error> {
        if ended == Ended::Late {
            self.by.node.missed();
            return Err(late);
        }
        match judge(flight.status()) {
            Err(Lost::Stop(Stop::For(error))) => Err(error),
            Ok(()) | Err(Lost::Connection | Lost::Stop(Stop::Changed)) => Ok(()),
        }
    }

    /// Reads `into.len()` bytes from `offset`.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn moves its arguments before it begins, a block uses them where they lie"
    )]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            let deadline = self.deadline();
            let mut lost = false;
            if self.is_short() {
                let waker = TaskWaker.await;
                let verb = Verb::Read { len: into.len() as u32 };
                if let Some(id) = self.depart(offset, verb, deadline, waker) {
                    let mut flight = Flight::new(&self.by.node, id);
                    Rest::default().await;
                    let ended = (&mut flight).await;
                    if ended == Ended::Done {
                        let from = flight.place().ok_or(Error::Unknown)?;
                        return self.platform().memory().read(from, into).map_err(|_| Error::Unknown);
                    }
                    self.failed(&flight, ended, Error::Deadline)?;
                    lost = true;
                }
            }
            self.transfer_long(offset, Data::Read(into), deadline, lost).await
        }
    }

    /// Writes `data` at `offset`.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn moves its arguments before it begins, a block uses them where they lie"
    )]
    pub fn write(&self, offset: u64, data: &[u8]) -> impl Future<Output = Result<(), Error>> + Send {
        async move {
            let deadline = self.deadline();
            let mut lost = false;
            if self.is_short() {
                let waker = TaskWaker.await;
                let verb = Verb::Write { head: data, tail: &[], imm: None };
                if let Some(id) = self.depart(offset, verb, deadline, waker) {
                    let mut flight = Flight::new(&self.by.node, id);
                    Rest::default().await;
                    let ended = (&mut flight).await;
                    if ended == Ended::Done {
                        return Ok(());
                    }
                    self.failed(&flight, ended, Error::Unknown)?;
                    lost = true;
                }
            }
            self.transfer_long(offset, Data::Write(data), deadline, lost).await
        }
    }

    /// Copies what lies on this node, unless its place is being changed; `false` if nothing has been copied.
    fn copy_here(&self, offset: u64, data: &mut Data<'_>) -> Result<bool, Error> {
        let node = &self.by.node;
        let piece = self.piece(data.right(), offset, data.len() as u64)?;
        let Some((spot, pass)) = piece.filter(|(spot, _)| spot.at.0 == node.me) else { return Ok(false) };
        let copied = node.copy_here(spot.addr, data, pass.seen).is_ok();
        if copied {
            node.counters.transfer(data);
        }
        Ok(copied)
    }

    /// However it takes, also if it was `lost` once.
    async fn transfer_long(
        &self,
        offset: u64,
        mut data: Data<'_>,
        deadline: Instant,
        lost: bool,
    ) -> Result<(), Error> {
        let node = &self.by.node;
        let mut _ticket = None;
        if !lost && !self.is_rated() && self.copy_here(offset, &mut data)? {
            return Ok(());
        }
        if !lost {
            self.check(data.right(), offset, data.len() as u64)?;
            _ticket = self.rate(data.len(), deadline).await?;
            node.counters.transfer(&data);
        } else {
            node.counters.retries.add(1);
        }
        // What is lost may have been done; of a read nobody sees it.
        let (issued, harmless) = (AtomicBool::new(lost), AtomicBool::new(false));
        let unknown = if data.right() == Permissions::READ { &harmless } else { &issued };
        let work = node.access(&self.held.mapping, offset, data, self.share(), &issued);
        node.limit(deadline, unknown, work).await
    }

    /// Sets `len` bytes from `offset` to `byte`; the region's node does it. For an application's limits it is an operation
    /// without bytes: none of them cross the wire from here.
    pub async fn memset(&self, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        self.check(Permissions::WRITE, offset, len)?;
        let (node, deadline) = (&self.by.node, self.deadline());
        let _ticket = self.rate(0, deadline).await?;
        node.counters.memsets.add(1);
        let ask = Ask::Memset { mapping: self.held.mapping.id, offset, len, byte };
        node.ask_node(self.held.mapping.owner, &ask, deadline).await.map(drop)
    }

    /// Adds `add` to the 8 bytes at `offset` (native endian, wrapping) in one step; gives the value before.
    pub async fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Error> {
        self.atomic(offset, Verb::FetchAdd { add }).await
    }

    /// Stores `swap` in the 8 bytes at `offset` if they hold `compare`, in one step; gives the value before.
    pub async fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Error> {
        self.atomic(offset, Verb::CompareSwap { compare, swap }).await
    }

    async fn atomic(&self, offset: u64, verb: Verb<'_>) -> Result<u64, Error> {
        let deadline = self.deadline();
        if self.is_short() && offset.is_multiple_of(8) {
            let waker = TaskWaker.await;
            if let Some(id) = self.depart(offset, verb, deadline, waker) {
                let mut flight = Flight::new(&self.by.node, id);
                Rest::default().await;
                let ended = (&mut flight).await;
                if ended == Ended::Done {
                    let (mut before, from) = ([0; 8], flight.place().ok_or(Error::Unknown)?);
                    self.platform().memory().read(from, &mut before).map_err(|_| Error::Unknown)?;
                    return Ok(u64::from_ne_bytes(before));
                }
                self.failed(&flight, ended, Error::Unknown)?;
                return Err(self.lost());
            }
        }
        self.atomic_long(offset, verb, deadline).await
    }

    /// Why what was on the wire was lost.
    #[cold]
    fn lost(&self) -> Error {
        let at = self.by.node.ops.lock().links.life(self.short.place());
        at.and_then(|(node, life)| self.by.node.gone(node, life)).unwrap_or(Error::Unknown)
    }

    /// However it takes.
    #[cold]
    async fn atomic_long(&self, offset: u64, verb: Verb<'_>, deadline: Instant) -> Result<u64, Error> {
        let node = &self.by.node;
        self.check(Permissions::ATOMIC, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned);
        }
        let _ticket = self.rate(8, deadline).await?;
        node.counters.atomics.add(1);
        let issued = AtomicBool::new(false);
        let work = node.atomic(&self.held.mapping, offset, verb, self.share(), &issued);
        node.limit(deadline, &issued, work).await
    }
}
