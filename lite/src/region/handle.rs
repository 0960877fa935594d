//! [`Lmr`]: a mapped region as applications hold it.

use super::mapping::Mapping;
use crate::names::Named;
use crate::node::Node;
use crate::op::{Data, Outcome, Route, Verb};
use crate::rpc::{Ask, Undo};
use crate::{Error, Lite, Permissions};
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use platform::{Instant, IoAddr};
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
}

struct Held {
    node: Arc<Node>,
    mapping: Arc<Mapping>,
    /// The region has been freed through this mapping: there is nothing to unmap.
    freed: AtomicBool,
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
    pub async fn alloc(&self, node: NodeId, len: u64, permissions: Permissions) -> Result<Lmr, Error> {
        let secret = self.node.random();
        let undo = Undo::new(&self.node, self.node.life_of(node)?, Ask::Abandon { secret });
        let ask = Ask::Alloc { secret, len, permissions };
        let result = self.node.obtain(node, &ask, secret, self.deadline()).await;
        if !matches!(result, Err(Error::Unknown)) {
            undo.disarm();
        }
        Ok(self.lmr(result?))
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
        let (home, region, secret) = match self.node.find_named(name, deadline).await? {
            Named::Region { home, region, secret } => (home, region, secret),
            other => {
                return Err(Error::Refused(alloc::format!("`{name}` is {}, not a region", other.what())));
            }
        };
        let ask = Ask::Map { region, secret, wanted };
        self.node.obtain(home, &ask, secret, deadline).await.map(|m| self.lmr(m))
    }

    fn lmr(&self, mapping: Arc<Mapping>) -> Lmr {
        let held = Held { node: self.node.clone(), mapping, freed: AtomicBool::new(false) };
        Lmr { held: Arc::new(held), patience: self.patience }
    }
}

impl fmt::Debug for Lmr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.held.mapping;
        write!(f, "region {} of {}: {} bytes, {:?}", m.region, m.home, m.len, m.permissions)
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

    /// Where the memory is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.held.mapping.home
    }

    /// The rights of this handle.
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        self.held.mapping.permissions
    }

    /// A handle whose operations have so long.
    #[must_use]
    pub fn with_deadline(&self, patience: Duration) -> Self {
        Self { held: self.held.clone(), patience }
    }

    /// The place of `len` bytes at `offset`, if this handle has `right` to them.
    fn place(&self, right: Permissions, offset: u64, len: u64) -> Result<IoAddr, Error> {
        let m = &self.held.mapping;
        if !m.permissions.contains(right) {
            return Err(Error::Permission);
        }
        if offset.checked_add(len).is_none_or(|end| end > m.len) {
            return Err(Error::OutOfBounds);
        }
        if m.gate.is_closed() {
            return Err(Error::Freed);
        }
        m.addr.checked_add(offset).ok_or(Error::OutOfBounds)
    }

    fn deadline(&self) -> Instant {
        self.held.node.platform.now() + self.patience
    }

    /// Tries the short way.
    async fn quick(&self, addr: IoAddr, verb: Verb<'_>, deadline: Instant) -> Outcome<'_> {
        let m = &self.held.mapping;
        self.held.node.quick((m.home, m.home_life), addr, verb, m, deadline).await
    }

    fn route(&self) -> Route<'_> {
        Route::Node(self.held.mapping.home, self.held.mapping.home_life)
    }

    /// Runs `copy` on local memory while the mapping cannot be revoked.
    fn here(
        &self,
        copy: impl FnOnce(&dyn platform::Memory) -> Result<(), platform::MemoryError>,
    ) -> Result<(), Error> {
        let gate = &self.held.mapping.gate;
        if self.held.node.is_fenced() {
            return Err(Error::LinkDown);
        }
        if !gate.enter() {
            return Err(Error::Freed);
        }
        let result = copy(self.held.node.platform.memory());
        gate.exit();
        result.map_err(|_| Error::OutOfBounds)
    }

    /// Reads `into.len()` bytes from `offset`.
    pub async fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let addr = self.place(Permissions::READ, offset, into.len() as u64)?;
        let node = &self.held.node;
        let (len, deadline, mut lost) = (into.len(), self.deadline(), false);
        if self.node() != node.me && (1..=node.chunk).contains(&len) {
            match self.quick(addr, Verb::Read { len: len as u32 }, deadline).await {
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
        if !lost {
            node.counters.reads.add(1);
            node.counters.bytes_read.add(len as u64);
        }
        if self.node() == node.me {
            return self.here(|memory| memory.read(addr, into));
        }
        let (issued, harmless) = (AtomicBool::new(false), AtomicBool::new(false));
        let work = node.transfer(self.route(), addr, Data::Read(into), Some(&self.held.mapping), &issued);
        node.limit(deadline, &harmless, work).await
    }

    /// Writes `data` at `offset`.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let addr = self.place(Permissions::WRITE, offset, data.len() as u64)?;
        let node = &self.held.node;
        let (deadline, mut lost) = (self.deadline(), false);
        if self.node() != node.me && (1..=node.chunk).contains(&data.len()) {
            match self.quick(addr, Verb::Write { head: data, tail: &[], imm: None }, deadline).await {
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
        if !lost {
            node.counters.writes.add(1);
            node.counters.bytes_written.add(data.len() as u64);
        }
        if self.node() == node.me {
            return self.here(|memory| memory.write(addr, data));
        }
        let issued = AtomicBool::new(lost);
        let work = node.transfer(self.route(), addr, Data::Write(data), Some(&self.held.mapping), &issued);
        node.limit(deadline, &issued, work).await
    }

    /// Sets `len` bytes from `offset` to `byte`; the region's node does it.
    pub async fn memset(&self, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        self.place(Permissions::WRITE, offset, len)?;
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
        let addr = self.place(Permissions::ATOMIC, offset, 8)?;
        if !addr.0.is_multiple_of(8) {
            return Err(Error::Misaligned);
        }
        let node = &self.held.node;
        let deadline = self.deadline();
        match self.quick(addr, verb, deadline).await {
            Outcome::Done(lent) => {
                let (mut before, from) = ([0; 8], lent.addr().ok_or(Error::Unknown)?);
                node.platform.memory().read(from, &mut before).map_err(|_| Error::Unknown)?;
                return Ok(u64::from_ne_bytes(before));
            }
            Outcome::Failed(error) => return Err(error),
            Outcome::Late => return Err(Error::Unknown),
            Outcome::Lost => {
                let m = &self.held.mapping;
                return Err(node.gone(m.home, m.home_life).unwrap_or(Error::Unknown));
            }
            Outcome::NotPosted => {}
        }
        node.counters.atomics.add(1);
        let issued = AtomicBool::new(false);
        // The node's own memory as well: an RNIC is atomic only against itself.
        let work = node.atomic(self.route(), addr, verb, &self.held.mapping, &issued);
        node.limit(deadline, &issued, work).await
    }

    /// Publishes the region as `name`. For the master only, and if the region has `SHARE`.
    pub async fn publish(&self, name: &str) -> Result<(), Error> {
        self.place(Permissions::ADMIN, 0, 0)?;
        let m = &self.held.mapping;
        let deadline = self.deadline();
        let share = |shared| Ask::Share { region: m.region, secret: m.secret, shared };
        self.held.node.ask_node(m.home, &share(true), deadline).await?;
        let named = Named::Region { home: m.home, region: m.region, secret: m.secret };
        self.held.node.bind_named(name, &named, deadline).await
    }

    /// Frees the region: for the master only. On `Ok` nobody can reach the memory any more and it is free; other handles
    /// fail with [`Error::Freed`]. On [`Error::Unknown`] and [`Error::Deadline`] it is being freed, which goes on.
    ///
    /// Names that the region was published under stay bound, to nothing, until this node unbinds them or leaves.
    pub async fn free(self) -> Result<(), Error> {
        self.place(Permissions::ADMIN, 0, 0)?;
        let m = &self.held.mapping;
        let node = &self.held.node;
        self.held.freed.store(true, Ordering::SeqCst);
        m.gate.close();
        let undo = Undo::new(node, (m.home, m.home_life), Ask::Abandon { secret: m.secret });
        let free = Ask::Free { region: m.region, secret: m.secret };
        let result = node.ask_node(m.home, &free, self.deadline()).await;
        if !matches!(result, Err(Error::Unknown | Error::Deadline)) {
            undo.disarm();
        }
        result.map(drop)
    }
}
