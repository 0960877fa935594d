//! [`Lmr`]: a mapped region as applications hold it.

use super::layout::Spot;
use super::mapping::Mapping;
use super::owner::MapAsk;
use super::placement::Placement;
use super::stamp::StampId;
use crate::names::Named;
use crate::node::Node;
use crate::op::{Data, Flight, NotPosted, Outcome, Pass, Verb};
use crate::qos::{App, Class, MemoryCharge, Priority, Share, Ticket};
use crate::rpc::Ask;
use crate::{Error, Lite, Permissions};
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::AtomicBool;
use core::task::Poll;
use core::time::Duration;
use platform::{Instant, IoAddr};
use proto::{Incarnation, NodeId};

/// A region of memory on some node, mapped here. Clones share the mapping; the last one dropped unmaps it.
///
/// Every operation checks right, bounds and alignment here before it is issued, and ends by the deadline of the handle
/// (inherited from the [`Lite`] that made it). A write of more than one chunk is not atomic, and its chunks are written
/// in ascending order unless it had to be repeated on a new connection.
///
/// It keeps where the region lay when it was mapped: as long as that holds, an operation looks at nothing else of the region,
/// so that what it costs does not grow with their number.
#[derive(Clone)]
// One line of the processor's cache.
#[repr(align(64))]
pub struct Lmr {
    pub(super) held: Arc<Held>,
    node: Arc<Node>,
    app: Option<App>,
    /// How long an operation may take, in nanoseconds.
    patience: u64,
    /// The region's bytes, if they were in one piece of `stamp`'s mapping.
    addr: IoAddr,
    len: u64,
    life: Incarnation,
    on: NodeId,
    rights: u8,
    priority: Priority,
    /// Of the mapping, or none's.
    stamp: StampId,
}

const _: () = assert!(size_of::<Lmr>() == 64 && Permissions::all().bits() <= u8::MAX as u32);

fn nanoseconds(patience: Duration) -> u64 {
    u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX)
}

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
        let charge = self.class.hold(len)?;
        let deadline = self.deadline();
        let mut last = Error::NoMemory { asked: len, free: 0 };
        for plan in self.node.plans(placement.into(), len, deadline).await? {
            let Some(owner) = plan.shares.first().map(|(node, _)| *node) else { continue };
            let mapping = self.node.random();
            let ask = Ask::Alloc { mapping, plan, permissions };
            match self.node.obtain(owner, mapping, &ask, deadline).await {
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

    /// As [`map`](Self::map), and waits until the name is published.
    pub async fn map_wait(&self, name: &str, wanted: Permissions) -> Result<Lmr, Error> {
        const FIRST_PAUSE: Duration = Duration::from_micros(500);
        const LONGEST_PAUSE: Duration = Duration::from_millis(20);
        let deadline = self.deadline();
        let mut pause = FIRST_PAUSE;
        loop {
            match self.map_by(name, wanted, &[], deadline).await {
                Err(Error::NoSuchName) if self.node.platform.now() + pause < deadline => {
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
        let (owner, region, key) = match self.node.find_named(name, deadline).await? {
            Named::Region { owner, region, key } => (owner, region, key),
            other => {
                return Err(Error::Refused(alloc::format!("`{name}` is {}, not a region", other.what())));
            }
        };
        let mapping = self.node.random();
        let ask = MapAsk { region, key, secret: secret.into(), wanted };
        let ask = Ask::Map { mapping, ask };
        self.node.obtain(owner, mapping, &ask, deadline).await.map(|m| self.lmr(m))
    }

    pub(crate) fn lmr(&self, mapping: Arc<Mapping>) -> Lmr {
        self.lmr_charged(mapping, MemoryCharge::default())
    }

    pub(super) fn lmr_charged(&self, mapping: Arc<Mapping>, charge: MemoryCharge) -> Lmr {
        let freed = AtomicBool::new(false);
        let (len, rights, sole) = (mapping.len, mapping.rights(), mapping.sole());
        // What lies here is copied, and that waits while the mapping changes.
        let sole = sole.filter(|piece| piece.at.0 != self.node.me);
        let stamp = if sole.is_some() { mapping.stamp.id() } else { StampId::NONE };
        let (on, life) = sole.map_or(mapping.owner, |piece| piece.at);
        let held = Held { node: self.node.clone(), mapping, freed, _charge: charge };
        let (priority, app) = self.class.parts();
        Lmr {
            held: Arc::new(held),
            node: self.node.clone(),
            app,
            patience: nanoseconds(self.patience),
            addr: sole.map_or(IoAddr(0), |piece| piece.addr),
            len,
            life,
            on,
            rights: rights.bits() as u8,
            priority,
            stamp,
        }
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
        self.len
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
        Self { patience: nanoseconds(patience), ..self.clone() }
    }

    /// Whether this handle has `right` to `len` bytes at `offset`.
    pub(crate) fn check(&self, right: Permissions, offset: u64, len: u64) -> Result<(), Error> {
        let m = &self.held.mapping;
        m.check(right, offset, len).map_err(|e| self.explain(e))
    }

    /// Why the mapping has ended, if that is what is wrong.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if error == Error::Freed { self.node.ended(&self.held.mapping) } else { error }
    }

    /// What it is made of.
    pub(crate) fn inner(&self) -> (&Arc<Node>, &Arc<Mapping>) {
        (&self.node, &self.held.mapping)
    }

    pub(crate) fn platform(&self) -> &dyn platform::Platform {
        &*self.node.platform
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::from_nanos(self.node.platform.now().as_nanos().saturating_add(self.patience))
    }

    /// Where `len` bytes at `offset` lie, if they are in one piece that is not being changed.
    #[inline]
    pub(crate) fn piece(
        &self,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Option<(Spot, Pass<'_>)>, Error> {
        let share = self.share();
        let rights = Permissions::from_bits_truncate(u32::from(self.rights));
        if self.node.stamps.is_fresh(self.stamp)
            && rights.contains(right)
            && let Some(run) = self.len.checked_sub(offset)
            && len <= run
            && let Some(addr) = self.addr.checked_add(offset)
        {
            let spot = Spot { at: (self.on, self.life), addr, run };
            return Ok(Some((spot, Pass { stamp: self.stamp, seen: None, share })));
        }
        let mapping = &*self.held.mapping;
        let found = mapping.locate(right, offset, len).map_err(|e| self.explain(e))?;
        if let Some((spot, _)) = &found {
            self.node.check_spot(spot)?;
        }
        let found = found.filter(|(spot, _)| len <= spot.run);
        let pass = |epoch| Pass { stamp: mapping.stamp.id(), seen: Some((mapping, epoch)), share };
        Ok(found.map(|(spot, epoch)| (spot, pass(epoch))))
    }

    /// A handle whose operations have that priority.
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        Self { priority, ..self.clone() }
    }

    /// A handle whose operations are nobody's.
    pub(crate) fn without_class(&self) -> Self {
        Self { app: None, priority: Priority::default(), ..self.clone() }
    }

    /// The queue pairs that operations use now.
    #[inline]
    pub(crate) fn share(&self) -> Share {
        self.node.qos.share(self.priority)
    }

    /// Whether something may be between an operation and the wire.
    #[inline]
    pub(crate) fn is_rated(&self) -> bool {
        self.node.qos.rates(self.app.as_ref())
    }

    /// Whether the application has as many operations under way as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.app.as_ref().is_some_and(App::is_full)
    }

    /// Waits until an operation of `len` bytes, which has been checked, may go, if something is between it and the wire.
    pub(crate) async fn rate(&self, len: usize, deadline: Instant) -> Result<Option<Ticket>, Error> {
        if !self.is_rated() {
            return Ok(None);
        }
        let class = Class::of(self.priority, self.app.clone());
        self.node.admit(&class, len as u64, deadline, true).await.map(Some)
    }

    /// One attempt at an operation that fits one work request.
    #[inline]
    fn quick<'a>(
        &'a self,
        (spot, pass): (Spot, Pass<'a>),
        verb: Verb<'_>,
        deadline: Instant,
    ) -> impl Future<Output = Outcome<'a>> + Send {
        let node = &*self.node;
        let mut flight = Flight::grounded(node);
        core::future::poll_fn(move |cx| {
            if flight.is_posted() {
                return flight.poll_outcome(cx);
            }
            match node.post_quick(spot, pass, verb, deadline, cx.waker()) {
                Ok(id) => {
                    flight.depart(id);
                    Poll::Pending
                }
                Err(NotPosted::Revoked) => Poll::Ready(Outcome::Failed(self.explain(Error::Freed))),
                Err(_) => Poll::Ready(Outcome::NotPosted),
            }
        })
    }

    /// Reads `into.len()` bytes from `offset`.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> impl Future<Output = Result<(), Error>> + Send {
        self.transfer(offset, Data::Read(into))
    }

    /// Writes `data` at `offset`.
    pub fn write(&self, offset: u64, data: &[u8]) -> impl Future<Output = Result<(), Error>> + Send {
        self.transfer(offset, Data::Write(data))
    }

    /// In one work request at the first attempt if it can be, and else however it takes.
    #[inline]
    async fn transfer(&self, offset: u64, mut data: Data<'_>) -> Result<(), Error> {
        let node = &self.node;
        let (right, len, deadline) = (data.right(), data.len(), self.deadline());
        let mut _ticket = None;
        if self.is_rated() {
            self.check(right, offset, len as u64)?;
            _ticket = self.rate(len, deadline).await?;
        }
        let mut lost = false;
        if let Some((spot, pass)) = self.piece(right, offset, len as u64)? {
            if spot.at.0 == node.me {
                if let Some(seen) = pass.seen
                    && node.copy_here(spot.addr, &mut data, seen).is_ok()
                {
                    node.counters.transfer(&data);
                    return Ok(());
                }
            } else if (1..=node.chunk).contains(&len) {
                let outcome = self.quick((spot, pass), data.verb(), deadline).await;
                match outcome {
                    Outcome::Done(lent) => return data.fetch(&*node.platform, &lent),
                    Outcome::Failed(error) => return Err(error),
                    Outcome::Late => return Err(data.late()),
                    Outcome::NotPosted => {}
                    Outcome::Lost => lost = true,
                }
            }
        }
        self.transfer_long(offset, data, deadline, lost).await
    }

    /// However it takes, also if it was `lost` once.
    #[cold]
    async fn transfer_long(
        &self,
        offset: u64,
        data: Data<'_>,
        deadline: Instant,
        lost: bool,
    ) -> Result<(), Error> {
        let node = &self.node;
        if lost {
            node.counters.retries.add(1);
        } else {
            node.counters.transfer(&data);
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
        let (node, deadline) = (&self.node, self.deadline());
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
        let (node, deadline) = (&self.node, self.deadline());
        let piece = self.piece(Permissions::ATOMIC, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned);
        }
        let mut _ticket = None;
        if self.is_rated() {
            _ticket = self.rate(8, deadline).await?;
        }
        if let Some((spot, pass)) = piece {
            let outcome = self.quick((spot, pass), verb, deadline).await;
            match outcome {
                Outcome::Done(lent) => {
                    let (mut before, from) = ([0; 8], lent.addr().ok_or(Error::Unknown)?);
                    node.platform.memory().read(from, &mut before).map_err(|_| Error::Unknown)?;
                    return Ok(u64::from_ne_bytes(before));
                }
                Outcome::Failed(error) => return Err(error),
                Outcome::Late => return Err(Error::Unknown),
                Outcome::Lost => return Err(node.gone(spot.at.0, spot.at.1).unwrap_or(Error::Unknown)),
                Outcome::NotPosted => {}
            }
        }
        node.counters.atomics.add(1);
        let issued = AtomicBool::new(false);
        let work = node.atomic(&self.held.mapping, offset, verb, self.share(), &issued);
        node.limit(deadline, &issued, work).await
    }
}
