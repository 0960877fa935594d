//! [`Lmr`]: the handle by which an application uses a region.

use super::handle_shared::{Extent, HandleShared};
use super::handle_table::HandleEntry;
use super::issuer::Issuer;
use super::layout::Location;
use super::mapped::Mapping;
use super::packed_location::PackedLocation;
use crate::base::qos::{Class, MemoryCharge, Priority, Share};
use crate::base::scope::Scoped;
use crate::base::ticket::Ticket;
use crate::planted::{Bug, planted};
use crate::region::owner::RegionOwner;
use crate::region::request::Request;
use crate::transport::op::Access;
use crate::transport::op::Ended;
use crate::transport::op::FastRoute;
use crate::transport::op::InFlight;
use crate::transport::op::OpId;
use crate::transport::op::Verb;
use crate::transport::op::{Rest, TaskWaker, Transport};
use crate::transport::transfer::AttemptError;
use crate::transport::transfer::Data;
use crate::transport::transfer::TransferError;
use crate::transport::transfer::judge;
use crate::{Error, Permissions};
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::AtomicBool;
use core::task::Waker;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;

/// Does an operation on the fast path, if it applies: returns `$done` if it succeeds, and the error
/// of an operation that must not be repeated. Otherwise evaluates to true if the operation was
/// posted and its outcome was lost with the connection, and to false if nothing has happened.
///
/// A function of its own would copy the operation into its future.
macro_rules! on_fast_path {
    ($lmr:expr, $offset:expr, $verb:expr, $deadline:expr, $late:expr, |$flight:ident| $done:expr) => {{
        let mut lost = false;
        if $lmr.is_short() {
            let waker = TaskWaker.await;
            let verb = $verb;
            if let Some(id) = $lmr.depart($offset, verb, $deadline, waker) {
                let mut $flight = InFlight::new($lmr.transport(), id);
                Rest::default().await;
                let ended = (&mut $flight).await;
                if ended == Ended::Done {
                    return $done;
                }
                $lmr.failed(&$flight, ended, $late)?;
                lost = true;
            }
        }
        lost
    }};
}

/// A handle of a region of memory that is mapped here. Clones share the mapping; it is unmapped when the
/// last one is dropped.
///
/// Every operation checks rights, bounds and alignment on this node before it is issued, and ends
/// by the deadline of the handle, which it inherits from the [`Lite`](crate::Lite) that made it. A
/// write of more than one chunk is not atomic; its chunks are written in ascending order unless it
/// had to be repeated on a new connection.
///
/// The handle caches where the region lay when it was mapped. While that is valid, an operation looks at
/// nothing else of the region, so that its cost does not grow with the number of regions.
// A quarter of a cache line, and never across two.
#[repr(align(16))]
pub struct Lmr {
    terms: Arc<HandleShared>,
    short: PackedLocation,
}

const _: () = assert!(size_of::<Lmr>() == 16);

impl Clone for Lmr {
    fn clone(&self) -> Self {
        self.here().holds.more(self.short.stamp());
        Self { terms: self.terms.clone(), short: self.short }
    }
}

impl Drop for Lmr {
    fn drop(&mut self) {
        let Some(hold) = self.here().holds.fewer(self.short.stamp()) else { return };
        if !hold.freed && !hold.mapping.gate.is_closed() {
            self.here().release(hold.mapping);
        }
    }
}

impl fmt::Debug for Lmr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = self.mapping();
        write!(f, "region of {}: {} bytes, {:?}", m.owner.0, m.len, m.rights())
    }
}

impl Lmr {
    /// Returns the first handle of a mapping. `charge` is the memory that counts against the application's
    /// limit.
    pub(crate) fn new(by: &Arc<Issuer>, mapping: Arc<Mapping>, charge: MemoryCharge) -> Self {
        let (node, stamp) = (&by.node, mapping.stamp.id());
        // A copy on this node must wait while the mapping changes, so a local piece has no packed address.
        let sole = mapping.sole().filter(|piece| piece.at.0 != node.me);
        let known = sole.and_then(|piece| Some((piece.at, PackedLocation::new(stamp, piece.addr)?)));
        let place = known.map(|(at, _)| node.ops.lock().links.place(at));
        let short = known.map_or_else(|| PackedLocation::without_address(stamp), |(_, short)| short);
        let extent = Extent { place, rights: mapping.rights(), len: mapping.len };
        node.holds.open(HandleEntry { mapping, freed: false, _charge: charge });
        Self { terms: HandleShared::of(by, extent), short }
    }

    /// Returns the length of the region, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.terms.extent.len
    }

    /// Returns whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the node that keeps the region's tables: that of the first share. The region ends when this
    /// node leaves, wherever its bytes lie.
    #[must_use]
    pub fn owner(&self) -> NodeId {
        self.with(|m| m.owner.0)
    }

    /// Returns the node of the first byte; see [`shares`](Self::shares) for all nodes.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.with(Mapping::first_node)
    }

    /// Returns the rights of this handle.
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        self.with(Mapping::rights)
    }

    /// Returns a handle whose operations end within `timeout` of their call.
    #[must_use]
    pub fn with_deadline(&self, timeout: Duration) -> Self {
        self.by(&self.terms.by.with_timeout(timeout))
    }

    /// Fails unless this handle has `right` to `len` bytes at `offset`.
    pub(crate) fn check(&self, right: Permissions, offset: u64, len: u64) -> Result<(), Error> {
        self.with(|m| m.check(right, offset, len)).map_err(|e| self.explain(e))
    }

    /// Returns the reason for which the mapping has ended if `error` is `Freed`, else `error`.
    pub(crate) fn explain(&self, error: Error) -> Error {
        if error == Error::Freed { self.here().ended(&self.mapping()) } else { error }
    }

    /// Returns the node that this handle belongs to.
    #[inline]
    pub(crate) fn here(&self) -> &Arc<RegionOwner> {
        &self.terms.by.node
    }

    /// Returns the scope of this handle, whose end frees the region if the handle allocated it.
    pub(super) fn scope(&self) -> &Scoped {
        &self.terms.by.scope
    }

    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.here().holds.with(self.short.stamp(), |hold| hold.mapping.clone())
    }

    /// Calls `look` with the mapping.
    fn with<R>(&self, look: impl FnOnce(&Mapping) -> R) -> R {
        self.here().holds.with(self.short.stamp(), |hold| look(&hold.mapping))
    }

    /// Marks the region as freed, so that nothing is unmapped when the handle is dropped.
    pub(super) fn forget(&self) {
        self.here().holds.with(self.short.stamp(), |hold| hold.freed = true);
    }

    /// Returns a handle of the same mapping whose operations belong to `issuer`.
    fn by(&self, issuer: &Arc<Issuer>) -> Self {
        self.here().holds.more(self.short.stamp());
        Self { terms: HandleShared::of(issuer, self.terms.extent), short: self.short }
    }

    /// Returns the operations of this node.
    #[inline]
    pub(crate) fn transport(&self) -> &Transport {
        &self.terms.by.transport
    }

    pub(crate) fn platform(&self) -> &dyn platform::Platform {
        &*self.here().platform
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.terms.by.deadline()
    }

    /// Returns the place of `len` bytes at `offset` of `mapping`, if they are in one piece that is not
    /// being changed.
    pub(crate) fn piece<'a>(
        &self,
        mapping: &'a Mapping,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Option<(Location, Access<'a>)>, Error> {
        let found = mapping.locate(right, offset, len).map_err(|e| self.explain(e))?;
        if let Some((spot, _)) = &found {
            self.here().check_location(spot)?;
        }
        let found = found.filter(|(spot, _)| len <= spot.run);
        let pass =
            |epoch| Access { seen: (&mapping.gate, epoch), stamp: mapping.stamp.id(), share: self.share() };
        Ok(found.map(|(spot, epoch)| (spot, pass(epoch))))
    }

    /// Posts an operation at once if the fast path applies. Returns `None` if it does not; nothing has
    /// happened then. Must not be called for a handle with limits.
    #[inline(always)]
    pub(crate) fn depart(
        &self,
        offset: u64,
        verb: Verb<'_>,
        deadline: Instant,
        waker: Waker,
    ) -> Option<OpId> {
        let node = &*self.terms.by.transport;
        let (right, len) = match verb {
            Verb::Write { head, .. } => (Permissions::WRITE, head.len()),
            Verb::Read { len } => (Permissions::READ, len as usize),
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => (Permissions::ATOMIC, 8),
        };
        let Extent { place, rights, len: room } = self.terms.extent;
        let place = place.filter(|_| rights.contains(right))?;
        if len == 0 || len > node.chunk || len as u64 > room.checked_sub(offset)? {
            return None;
        }
        let (addr, stamp, share) = (self.short.at(offset), self.short.stamp(), self.share());
        node.post_fast(&FastRoute { place, addr, stamp, share }, verb, deadline, waker)
    }

    /// Returns a handle whose operations have that priority.
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        let by = &self.terms.by;
        self.by(&by.classed(by.class.with_priority(priority)))
    }

    /// Returns a handle whose operations have no priority and no application.
    pub(crate) fn without_class(&self) -> Self {
        self.by(&self.terms.by.classed(Class::default()))
    }

    /// Returns the queue pairs that operations use now.
    #[inline]
    pub(crate) fn share(&self) -> Share {
        self.terms.by.class.share(&self.terms.by.local.qos)
    }

    /// Returns whether limits or a scheme may delay an operation.
    #[inline]
    pub(crate) fn is_rated(&self) -> bool {
        self.terms.by.class.is_rated(&self.terms.by.local.qos)
    }

    /// Returns whether the application has as many operations in flight as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.terms.by.class.is_full()
    }

    /// Waits until an operation of `len` bytes, which has been checked, may go, if limits or a scheme
    /// apply.
    pub(crate) async fn rate(&self, len: usize, deadline: Instant) -> Result<Option<Ticket>, Error> {
        if !self.is_rated() {
            return Ok(None);
        }
        self.here().admit(&self.terms.by.class, len as u64, deadline, true).await.map(Some)
    }

    /// Returns whether an operation may use the location that the handle caches.
    #[inline]
    fn is_short(&self) -> bool {
        self.terms.extent.place.is_some() && !self.is_rated()
    }

    /// Returns the error of a failed fast-path operation that must not be repeated: `late` if its deadline
    /// has passed. Returns `Ok` if the slow path should repeat it.
    #[cold]
    pub(crate) fn failed(&self, flight: &InFlight<'_>, ended: Ended, late: Error) -> Result<(), Error> {
        if ended == Ended::Late {
            self.here().missed();
            return Err(late);
        }
        match judge(flight.status()) {
            Err(AttemptError::TransferError(TransferError::For(error))) => Err(error),
            Ok(()) | Err(AttemptError::Connection | AttemptError::TransferError(TransferError::Changed)) => {
                Ok(())
            }
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
            let len = into.len() as u32;
            let lost =
                on_fast_path!(self, offset, Verb::Read { len }, deadline, Error::Deadline, |flight| flight
                    .read(into));
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
            let lost = on_fast_path!(
                self,
                offset,
                Verb::Write { head: data, tail: &[], imm: None },
                deadline,
                Error::Unknown,
                |flight| Ok(())
            );
            self.transfer_long(offset, Data::Write(data), deadline, lost).await
        }
    }

    /// Copies a transfer whose bytes lie on this node, unless they are being moved; returns `false` if
    /// nothing has been copied.
    fn copy_here(&self, offset: u64, data: &mut Data<'_>) -> Result<bool, Error> {
        let node = self.here();
        let mapping = self.mapping();
        let piece = self.piece(&mapping, data.right(), offset, data.len() as u64)?;
        let Some((spot, pass)) = piece.filter(|(spot, _)| spot.at.0 == node.me) else { return Ok(false) };
        let copied = node.copy_here(spot.addr, data, (&mapping, pass.seen.1)).is_ok();
        if copied {
            node.counters.transfer(data.right() == Permissions::READ, data.len() as u64);
        }
        Ok(copied)
    }

    /// Does a transfer on the slow path. `lost`: the fast path has issued it and lost its outcome.
    async fn transfer_long(
        &self,
        offset: u64,
        mut data: Data<'_>,
        deadline: Instant,
        lost: bool,
    ) -> Result<(), Error> {
        let node = self.here();
        let mut _ticket = None;
        if !lost && !self.is_rated() && self.copy_here(offset, &mut data)? {
            return Ok(());
        }
        if !lost {
            self.check(data.right(), offset, data.len() as u64)?;
            _ticket = self.rate(data.len(), deadline).await?;
            node.counters.transfer(data.right() == Permissions::READ, data.len() as u64);
        } else {
            node.counters.retries.add(1);
        }
        // A lost write may have been done. A lost read has no effect that can be seen.
        let (issued, harmless) = (AtomicBool::new(lost), AtomicBool::new(false));
        let unknown = if data.right() == Permissions::READ { &harmless } else { &issued };
        let mapping = self.mapping();
        let work = node.access(&mapping, offset, data, self.share(), &issued);
        node.limit(deadline, unknown, work).await
    }

    /// Sets `len` bytes from `offset` to `byte`. The region's node does it. It counts as an operation
    /// without bytes against an application's limits, because none of them cross the wire from here.
    pub async fn memset(&self, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        self.check(Permissions::WRITE, offset, len)?;
        let (node, deadline) = (self.here(), self.deadline());
        let _ticket = self.rate(0, deadline).await?;
        node.counters.memsets.add(1);
        let (owner, mapping) = self.with(|m| (m.owner, m.id));
        let ask = Request::Memset { mapping, offset, len, byte };
        node.request(owner, &ask, deadline).await.map(drop)
    }

    /// Adds `add` to the 8 bytes at `offset` (native endian, wrapping) in one step and returns the value
    /// before.
    pub async fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Error> {
        self.atomic(offset, Verb::FetchAdd { add }).await
    }

    /// Stores `swap` in the 8 bytes at `offset` if they hold `compare`, in one step, and returns the value
    /// before.
    pub async fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, Error> {
        self.atomic(offset, Verb::CompareSwap { compare, swap }).await
    }

    async fn atomic(&self, offset: u64, verb: Verb<'_>) -> Result<u64, Error> {
        let deadline = self.deadline();
        if offset.is_multiple_of(8) {
            let lost = on_fast_path!(self, offset, verb, deadline, Error::Unknown, |flight| {
                let mut before = [0; 8];
                flight.read(&mut before)?;
                Ok(u64::from_ne_bytes(before))
            });
            if lost && !planted(Bug::AtomicTwice) {
                return Err(self.lost());
            }
        }
        self.atomic_long(offset, verb, deadline).await
    }

    /// Returns the error for an operation that was lost on the wire: the departure of its node, or
    /// `Unknown`.
    #[cold]
    fn lost(&self) -> Error {
        let place = self.terms.extent.place;
        let at = place.and_then(|place| self.here().ops.lock().links.life(place));
        at.and_then(|(node, incarnation)| self.here().gone(node, incarnation)).unwrap_or(Error::Unknown)
    }

    /// Does an atomic on the slow path.
    #[cold]
    async fn atomic_long(&self, offset: u64, verb: Verb<'_>, deadline: Instant) -> Result<u64, Error> {
        let node = self.here();
        self.check(Permissions::ATOMIC, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned);
        }
        let _ticket = self.rate(8, deadline).await?;
        node.counters.atomics.add(1);
        let issued = AtomicBool::new(false);
        let mapping = self.mapping();
        let work = node.atomic(&mapping, offset, verb, self.share(), &issued);
        node.limit(deadline, &issued, work).await
    }
}
