//! [`Lmr`]: a mapped region as applications hold it.

use super::layout::Spot;
use super::mapping::Mapping;
use super::owner::MapAsk;
use super::placement::Placement;
use crate::names::Named;
use crate::node::Node;
use crate::op::{Data, Outcome, Pass, Verb};
use crate::qos::{Class, MemoryCharge, Priority, Share, Ticket};
use crate::rpc::Ask;
use crate::{Error, Lite, Permissions};
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;

/// A region of memory on some node, mapped here. Clones share the mapping; the last one dropped unmaps it.
///
/// Every operation checks right, bounds and alignment here before it is issued, and ends by the deadline of the handle
/// (inherited from the [`Lite`] that made it). A write of more than one chunk is not atomic, and its chunks are written
/// in ascending order unless it had to be repeated on a new connection.
#[derive(Clone)]
pub struct Lmr {
    pub(super) held: Arc<Held>,
    patience: Duration,
    class: Class,
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
        let held = Held { node: self.node.clone(), mapping, freed, _charge: charge };
        Lmr { held: Arc::new(held), patience: self.patience, class: self.class.clone() }
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
        Self { patience, ..self.clone() }
    }

    /// Whether this handle has `right` to `len` bytes at `offset`.
    pub(crate) fn check(&self, right: Permissions, offset: u64, len: u64) -> Result<(), Error> {
        let m = &self.held.mapping;
        m.check(right, offset, len).map_err(|e| self.explain(e))
    }

    /// Why the mapping has ended, if that is what is wrong.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if error == Error::Freed { self.held.node.ended(&self.held.mapping) } else { error }
    }

    /// What it is made of.
    pub(crate) fn inner(&self) -> (&Arc<Node>, &Arc<Mapping>) {
        (&self.held.node, &self.held.mapping)
    }

    pub(crate) fn platform(&self) -> &dyn platform::Platform {
        &*self.held.node.platform
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.held.node.platform.now() + self.patience
    }

    /// Where `len` bytes at `offset` lie, if they are in one piece that is not being changed.
    pub(crate) fn piece(
        &self,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Option<(Spot, Pass<'_>)>, Error> {
        let mapping = &self.held.mapping;
        let found = mapping.locate(right, offset, len).map_err(|e| self.explain(e))?;
        if let Some((spot, _)) = &found {
            self.held.node.check_spot(spot)?;
        }
        let found = found.filter(|(spot, _)| len <= spot.run);
        Ok(found.map(|(spot, epoch)| (spot, Pass { mapping, epoch, share: self.share() })))
    }

    /// A handle whose operations have that priority.
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        Self { class: self.class.with_priority(priority), ..self.clone() }
    }

    /// A handle whose operations are nobody's.
    pub(crate) fn without_class(&self) -> Self {
        Self { class: Class::default(), ..self.clone() }
    }

    /// The queue pairs that operations use now.
    pub(crate) fn share(&self) -> Share {
        self.class.share(&self.held.node)
    }

    /// Waits until an operation of `bytes` may go, if something is between it and the wire.
    async fn admit(
        &self,
        right: Permissions,
        offset: u64,
        len: usize,
        deadline: Instant,
    ) -> Result<Option<Ticket>, Error> {
        if !self.is_rated() {
            return Ok(None);
        }
        self.check(right, offset, len as u64)?;
        self.rate(len, deadline).await
    }

    /// Whether something may be between an operation and the wire.
    pub(crate) fn is_rated(&self) -> bool {
        self.class.is_rated(&self.held.node)
    }

    /// Whether the application has as many operations under way as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.class.is_full()
    }

    /// As [`admit`](Self::admit), for what has been checked.
    pub(crate) async fn rate(&self, len: usize, deadline: Instant) -> Result<Option<Ticket>, Error> {
        if !self.is_rated() {
            return Ok(None);
        }
        self.held.node.admit(&self.class, len as u64, deadline, true).await.map(Some)
    }

    /// Reads `into.len()` bytes from `offset`.
    pub async fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let node = &self.held.node;
        let (len, deadline, mut lost) = (into.len(), self.deadline(), false);
        let _ticket = self.admit(Permissions::READ, offset, len, deadline).await?;
        match self.piece(Permissions::READ, offset, len as u64)? {
            Some((spot, pass)) if spot.at.0 == node.me => {
                let mut done = 0;
                if node.copy_here(spot.addr, Data::Read(into), pass, &mut done).is_ok() {
                    node.counters.reads.add(1);
                    node.counters.bytes_read.add(len as u64);
                    return Ok(());
                }
            }
            Some((spot, pass)) if (1..=node.chunk).contains(&len) => {
                match node.quick(spot, pass, Verb::Read { len: len as u32 }, deadline).await {
                    Outcome::Done(lent) => {
                        let from = lent.addr().ok_or(Error::Unknown)?;
                        return node.platform.memory().read(from, into).map_err(|_| Error::Unknown);
                    }
                    Outcome::Failed(error) => return Err(error),
                    Outcome::Late => return Err(Error::Deadline),
                    Outcome::NotPosted => {}
                    Outcome::Lost => {
                        node.counters.retries.add(1);
                        lost = true;
                    }
                }
            }
            _ => {}
        }
        if !lost {
            node.counters.reads.add(1);
            node.counters.bytes_read.add(len as u64);
        }
        let (issued, harmless) = (AtomicBool::new(false), AtomicBool::new(false));
        let work = node.access(&self.held.mapping, offset, Data::Read(into), self.share(), &issued);
        node.limit(deadline, &harmless, work).await
    }

    /// Writes `data` at `offset`.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let node = &self.held.node;
        let (deadline, mut lost) = (self.deadline(), false);
        let _ticket = self.admit(Permissions::WRITE, offset, data.len(), deadline).await?;
        match self.piece(Permissions::WRITE, offset, data.len() as u64)? {
            Some((spot, pass)) if spot.at.0 == node.me => {
                let mut done = 0;
                if node.copy_here(spot.addr, Data::Write(data), pass, &mut done).is_ok() {
                    node.counters.writes.add(1);
                    node.counters.bytes_written.add(data.len() as u64);
                    return Ok(());
                }
            }
            Some((spot, pass)) if (1..=node.chunk).contains(&data.len()) => {
                match node.quick(spot, pass, Verb::Write { head: data, tail: &[], imm: None }, deadline).await
                {
                    Outcome::Done(_) => return Ok(()),
                    Outcome::Failed(error) => return Err(error),
                    Outcome::Late => return Err(Error::Unknown),
                    Outcome::NotPosted => {}
                    Outcome::Lost => {
                        node.counters.retries.add(1);
                        lost = true;
                    }
                }
            }
            _ => {}
        }
        if !lost {
            node.counters.writes.add(1);
            node.counters.bytes_written.add(data.len() as u64);
        }
        let issued = AtomicBool::new(lost);
        let work = node.access(&self.held.mapping, offset, Data::Write(data), self.share(), &issued);
        node.limit(deadline, &issued, work).await
    }

    /// Sets `len` bytes from `offset` to `byte`; the region's node does it.
    pub async fn memset(&self, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        self.check(Permissions::WRITE, offset, len)?;
        let node = &self.held.node;
        node.counters.memsets.add(1);
        let ask = Ask::Memset { mapping: self.held.mapping.id, offset, len, byte };
        node.ask_node(self.owner(), &ask, self.deadline()).await.map(drop)
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
        let node = &self.held.node;
        let deadline = self.deadline();
        self.check(Permissions::ATOMIC, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned);
        }
        let _ticket = self.admit(Permissions::ATOMIC, offset, 8, deadline).await?;
        let piece = self.piece(Permissions::ATOMIC, offset, 8)?;
        if let Some((spot, pass)) = piece {
            match node.quick(spot, pass, verb, deadline).await {
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
