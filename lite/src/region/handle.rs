//! [`Lmr`]: a mapped region as applications hold it.

use super::layout::Spot;
use super::mapping::Mapping;
use super::memory::Plan;
use crate::names::Named;
use crate::node::Node;
use crate::op::{Data, Outcome, Pass, Verb};
use crate::qos::{Class, MemoryCharge, Priority, Share, Ticket};
use crate::rpc::{Answer, Ask, Undo};
use crate::{Error, Lite, Permissions};
use alloc::sync::Arc;
use alloc::vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
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
    held: Arc<Held>,
    patience: Duration,
    class: Class,
}

struct Held {
    node: Arc<Node>,
    mapping: Arc<Mapping>,
    /// The region has been freed through this mapping: there is nothing to unmap.
    freed: AtomicBool,
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
    /// Allocates `len` zeroed bytes on `node`, which may be this one. This node becomes the region's master and has all
    /// rights; `permissions` is what those who map it by name may get, and must contain `SHARE` if it is to be published.
    /// The region lives until it is freed, its home or its master leaves, or nobody maps it and it is not published.
    ///
    /// The memory need not be contiguous: a region may take all that is free.
    pub async fn alloc(&self, node: NodeId, len: u64, permissions: Permissions) -> Result<Lmr, Error> {
        let charge = self.class.hold(len)?;
        let mapping = self.node.random();
        let plan = Plan { stripe: 0, shares: vec![(node, len)] };
        let ask = Ask::Alloc { mapping, plan, permissions };
        let mapping = self.node.obtain(node, mapping, &ask, self.deadline()).await?;
        Ok(self.lmr_charged(mapping, charge))
    }

    /// Maps the region that is published as `name`, with the rights `wanted`.
    pub async fn map(&self, name: &str, wanted: Permissions) -> Result<Lmr, Error> {
        self.map_by(name, wanted, self.deadline()).await
    }

    /// As [`map`](Self::map), and waits until the name is published.
    pub async fn map_wait(&self, name: &str, wanted: Permissions) -> Result<Lmr, Error> {
        const FIRST_PAUSE: Duration = Duration::from_micros(500);
        const LONGEST_PAUSE: Duration = Duration::from_millis(20);
        let deadline = self.deadline();
        let mut pause = FIRST_PAUSE;
        loop {
            match self.map_by(name, wanted, deadline).await {
                Err(Error::NoSuchName) if self.node.platform.now() + pause < deadline => {
                    self.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                other => return other,
            }
        }
    }

    async fn map_by(&self, name: &str, wanted: Permissions, deadline: Instant) -> Result<Lmr, Error> {
        let (owner, region, key) = match self.node.find_named(name, deadline).await? {
            Named::Region { owner, region, key } => (owner, region, key),
            other => {
                return Err(Error::Refused(alloc::format!("`{name}` is {}, not a region", other.what())));
            }
        };
        let mapping = self.node.random();
        let ask = Ask::Map { mapping, region, key, wanted };
        self.node.obtain(owner, mapping, &ask, deadline).await.map(|m| self.lmr(m))
    }

    pub(crate) fn lmr(&self, mapping: Arc<Mapping>) -> Lmr {
        self.lmr_charged(mapping, MemoryCharge::default())
    }

    fn lmr_charged(&self, mapping: Arc<Mapping>, charge: MemoryCharge) -> Lmr {
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

    /// The node that keeps the region's directory: where it was allocated, or the first of several nodes.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.held.mapping.owner.0
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
        node.ask_node(self.node(), &ask, self.deadline()).await.map(drop)
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

    /// Publishes the region as `name`. For the master only, and if the region has `SHARE`.
    pub async fn publish(&self, name: &str) -> Result<(), Error> {
        self.check(Permissions::ADMIN, 0, 0)?;
        let m = &self.held.mapping;
        let deadline = self.deadline();
        let share = Ask::Share { mapping: m.id, shared: true };
        let Answer::Shared { region, key } = self.held.node.ask_node(m.owner.0, &share, deadline).await?
        else {
            return Err(Error::Refused("unexpected answer".into()));
        };
        self.held.node.bind_named(name, &Named::Region { owner: m.owner.0, region, key }, deadline).await
    }

    /// Frees the region: for the master only. On `Ok` nobody can reach the memory any more and it is free; other handles
    /// fail with [`Error::Freed`]. On [`Error::Unknown`] and [`Error::Deadline`] it is being freed, which goes on.
    ///
    /// Names that the region was published under stay bound, to nothing, until this node unbinds them or leaves.
    pub async fn free(self) -> Result<(), Error> {
        self.check(Permissions::ADMIN, 0, 0)?;
        let m = &self.held.mapping;
        let node = &self.held.node;
        self.held.freed.store(true, Ordering::SeqCst);
        m.gate.close();
        let free = Ask::Free { mapping: m.id };
        let undo = Undo::new(node, m.owner, free.clone());
        let result = node.ask_node(m.owner.0, &free, self.deadline()).await;
        if !matches!(result, Err(Error::Unknown | Error::Deadline)) {
            undo.disarm();
        }
        result.map(drop)
    }
}
