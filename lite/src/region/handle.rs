//! [`Lmr`]: the handle by which an application uses a region.

use super::handle_shared::{Extent, HandleShared};
use super::handle_table::HandleEntry;
use super::issuer::Issuer;
use super::layout::Location;
use super::mapped::Mapping;
use super::notify::Notification;
use super::watch::Word;
use crate::base::own::{Hold, OwnPiece};
use crate::base::qos::{Class, MemoryCharge, Priority, Share};
use crate::base::scope::Scoped;
use crate::base::ticket::Ticket;
use crate::planted::{Bug, planted};
use crate::region::owner::RegionOwner;
use crate::region::request::Request;
use crate::transport::op::{
    Access, Ended, FastRoute, InFlight, MemberIndex, STAMP_BITS, StampId, TaskWaker, Verb,
};
use crate::transport::transfer::Data;
use crate::{Error, FunctionId, Permissions};
use alloc::sync::Arc;
use core::fmt;
use core::future::poll_fn;
use core::mem::replace;
use core::pin::Pin;
use core::task::{Poll, Waker};
use core::time::Duration;
use platform::{Instant, IoAddr};
use proto::NodeId;

/// Does the operation that `$depart` posts on the fast path, if it applies: returns `$done` if it succeeds,
/// and the error of an operation that must not be repeated. Otherwise evaluates to true if the operation was
/// posted and its outcome was lost with the connection, and to false if nothing has happened.
///
/// A function of its own would copy the operation into its future.
macro_rules! on_fast_path {
    ($lmr:expr, $late:expr, |$waker:ident| $depart:expr, |$flight:ident| $done:expr) => {{
        let $waker = TaskWaker.await;
        let mut lost = false;
        if let Some(mut $flight) = $depart {
            let mut first = true;
            let ended = poll_fn(|cx| {
                // The completion wakes the task, so the first poll need not look.
                if replace(&mut first, false) { Poll::Pending } else { Pin::new(&mut $flight).poll(cx) }
            });
            let ended = ended.await;
            if ended == Ended::Done {
                let done = $done;
                $flight.release();
                return done;
            }
            $lmr.failed(&$flight, ended, $late)?;
            lost = true;
        }
        lost
    }};
}
pub(super) use on_fast_path;

/// The logarithm of the page size in which addresses are kept.
const PAGE_BITS: u32 = 12;
const ADDR_BITS: u32 = u64::BITS - STAMP_BITS;

/// The number and the address of a handle, in 8 bytes. With its shared part, a handle has 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PackedLocation(u64);

impl PackedLocation {
    /// Returns the number only, for a region whose address does not matter.
    fn without_address(stamp: StampId) -> Self {
        Self(u64::from(stamp.number()))
    }

    /// Returns `None` for a region that does not begin at a page, or that begins beyond 2^48.
    fn new(stamp: StampId, addr: IoAddr) -> Option<Self> {
        let page = addr.0.is_multiple_of(1 << PAGE_BITS).then_some(addr.0 >> PAGE_BITS)?;
        (page >> ADDR_BITS == 0).then_some(Self(page << STAMP_BITS | u64::from(stamp.number())))
    }

    /// Returns the address of the byte at `offset`, if the region has it.
    #[inline]
    fn at(self, offset: u64) -> IoAddr {
        // Nothing overflows: a page has fewer bits.
        IoAddr((self.0 >> STAMP_BITS << PAGE_BITS) + offset)
    }

    /// Returns the number of the mapping's stamp.
    #[inline]
    fn stamp(self) -> StampId {
        StampId::from_number(self.0 as u32 & ((1 << STAMP_BITS) - 1))
    }
}

/// A handle of a region of memory that is mapped here. Clones share the mapping; it is unmapped when the
/// last one is dropped.
///
/// Every operation checks rights, bounds and alignment on this node before it is issued, and ends
/// by the deadline of the handle, which it inherits from the [`Lite`](crate::Lite) that made it. A
/// write of more than one chunk is not atomic; its chunks within a piece are written in ascending
/// order unless it had to be repeated on a new connection, its pieces in no order.
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
        write!(f, "region of {}: {} bytes, {:?}", m.owner().0, m.len, m.rights())
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
        let member = known.map(|(at, _)| node.index_of(at));
        let short = known.map_or_else(|| PackedLocation::without_address(stamp), |(_, short)| short);
        let extent = Extent { member, rights: mapping.rights(), len: mapping.len };
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

    /// Returns the node that keeps the region's tables: that of the first share, unless it has
    /// [handed them over](crate::Lite::vacate). The region ends when this node leaves, wherever its bytes
    /// lie.
    #[must_use]
    pub fn owner(&self) -> NodeId {
        self.with(|m| m.owner().0)
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

    pub(crate) fn platform(&self) -> &dyn platform::Platform {
        &*self.here().platform
    }

    /// Returns the deadline of an operation that begins now. Checks the lease as well.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> Instant {
        let by = &*self.terms.by;
        by.transport.deadline(by.timeout_ns)
    }

    /// Returns the node whose memory the handle caches the location of.
    pub(super) fn member(&self) -> Option<MemberIndex> {
        self.terms.extent.member
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

    /// Posts an operation at once if the fast path applies: the handle caches the location, and no limits
    /// delay it. Otherwise returns `None`, and nothing has happened. `admitted`: limits have been applied.
    #[inline(always)]
    pub(crate) fn depart(
        &self,
        offset: u64,
        verb: Verb<'_>,
        deadline: Instant,
        admitted: bool,
        waker: Waker,
    ) -> Option<InFlight<'_>> {
        let by = &*self.terms.by;
        if by.class.app.is_some() && !admitted {
            return None;
        }
        let node = &*by.transport;
        let (right, len) = match verb {
            Verb::Write { head, .. } => (Permissions::WRITE, head.len()),
            Verb::Read { len } => (Permissions::READ, len as usize),
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => (Permissions::ATOMIC, 8),
        };
        let Extent { member, rights, len: room } = self.terms.extent;
        let member = member.filter(|_| rights.contains(right))?;
        if len.wrapping_sub(1) >= node.chunk || len as u64 > room.checked_sub(offset)? {
            return None;
        }
        let route = FastRoute { member, addr: self.short.at(offset), stamp: self.short.stamp() };
        node.post_fast(&route, verb, deadline, (&by.class, admitted), waker)
    }

    /// Does the work of [`depart`](Self::depart) for a read into memory of the application, or a write from
    /// it, without a copy; `right` tells which of the two.
    pub(super) fn depart_own(
        &self,
        offset: u64,
        right: Permissions,
        (piece, hold): (OwnPiece, &Hold),
        deadline: Instant,
        waker: Waker,
    ) -> Option<InFlight<'_>> {
        let by = &*self.terms.by;
        if by.class.app.is_some() {
            return None;
        }
        let Extent { member, rights, len: room } = self.terms.extent;
        let member = member.filter(|_| rights.contains(right))?;
        let fits = (1..=by.transport.chunk as u64).contains(&piece.1);
        if !fits || piece.1 > room.checked_sub(offset)? {
            return None;
        }
        let route = FastRoute { member, addr: self.short.at(offset), stamp: self.short.stamp() };
        by.transport.post_fast_own(&route, right, (piece, hold), deadline, waker)
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

    /// Returns whether an operation may have to wait for the end of earlier ones: the application has as many
    /// in flight as it may, or those of low priority go one at a time.
    pub(crate) fn is_held_back(&self) -> bool {
        let by = &self.terms.by;
        by.class.is_full() || by.class.gives_way(&by.local.qos)
    }

    /// Returns the longest time that a wait for limits adds to the deadline of an operation.
    pub(crate) fn patience(&self) -> Duration {
        self.terms.by.class.patience()
    }

    /// Waits until an operation of `len` bytes, which has been checked, may go, if limits or a scheme
    /// apply. Returns its deadline too, which a wait for patient limits has moved.
    pub(crate) async fn rate(
        &self,
        len: usize,
        deadline: Instant,
    ) -> Result<(Option<Ticket>, Instant), Error> {
        if !self.is_rated() {
            return Ok((None, deadline));
        }
        let (ticket, later) = self.here().admit(&self.terms.by.class, len as u64, deadline, true).await?;
        Ok((Some(ticket), later))
    }

    /// Does the same as [`rate`](Self::rate) for a message of `len` bytes.
    pub(crate) async fn rate_message(
        &self,
        len: usize,
        deadline: Instant,
    ) -> Result<(Option<Ticket>, Instant), Error> {
        if !self.is_rated() {
            return Ok((None, deadline));
        }
        let (ticket, later) = self.here().admit(&self.terms.by.class, len as u64, deadline, false).await?;
        Ok((Some(ticket), later))
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
            let lost = on_fast_path!(
                self,
                Error::Deadline,
                |waker| self.depart(offset, Verb::Read { len }, deadline, false, waker),
                |flight| flight.read(into)
            );
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
                Error::Unknown,
                // A variable would be part of the future.
                |waker| self.depart(
                    offset,
                    Verb::Write { head: data, tail: &[], imm: None },
                    deadline,
                    false,
                    waker
                ),
                |flight| Ok(())
            );
            self.transfer_long(offset, Data::Write(data), deadline, lost).await
        }
    }

    /// Writes `data` at `offset`, and sends `message` to mailbox or function `port` of the node that has the
    /// byte at `offset`. The receiver of the message finds the data in its place, so nobody has to look
    /// for it again and again. This takes one round trip: the message follows the data on one queue pair.
    ///
    /// It takes a [`write`](Self::write) and then a [`send`](crate::Lite::send), one after the other, if the
    /// data is on this node or in several pieces of the region, or if limits apply to the application.
    ///
    /// # Errors
    /// `Ok`: the data is there, and the message is in the queue, once. `Unknown`, `NodeDown`: either may be
    /// there, but not the message without the data. Any other error: the message is not in the queue; the
    /// data may be there.
    ///
    /// ```
    /// # use lite::{Error, Lmr};
    /// # async fn example(inbox: &Lmr) -> Result<(), Error> {
    /// inbox.write_notify(4096, &[7; 1000], 5, b"1000 bytes at 4096").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn write_notify(
        &self,
        offset: u64,
        data: &[u8],
        port: FunctionId,
        message: &[u8],
    ) -> Result<(), Error> {
        Notification { lmr: self, offset, data, port, message }.send().await
    }

    /// Looks at the 8 bytes at `offset` (native endian) again and again until `is_wanted` returns true for
    /// them, and returns them.
    ///
    /// This is the quickest way to notice a peer's write, and a busy wait: the processor does not
    /// halt meanwhile. If the word is in this node's memory, the task looks at that. It lets other
    /// tasks run whenever they are ready. Otherwise each look is a [`read`](Self::read), and there
    /// are pauses. A waiter that has time opens a mailbox, and the writer uses
    /// [`write_notify`](Self::write_notify).
    ///
    /// # Errors
    /// Fails as a read does. Fails with `Misaligned` unless `offset` is a multiple of 8, and with `Deadline`
    /// if `is_wanted` has not returned true until then.
    ///
    /// ```
    /// # use lite::{Error, Lmr};
    /// # async fn example(own: &Lmr) -> Result<(), Error> {
    /// let turn = own.poll_until(0, |turn| turn >= 7).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn poll_until(
        &self,
        offset: u64,
        is_wanted: impl FnMut(u64) -> bool + Send,
    ) -> Result<u64, Error> {
        let deadline = self.deadline();
        Word::new(self, offset)?.poll(is_wanted, deadline).await
    }

    /// Sets `len` bytes from `offset` to `byte`. The region's node does it. It counts as an operation
    /// without bytes against an application's limits, because none of them cross the wire from here.
    pub async fn memset(&self, offset: u64, len: u64, byte: u8) -> Result<(), Error> {
        self.check(Permissions::WRITE, offset, len)?;
        let (node, deadline) = (self.here(), self.deadline());
        let (_ticket, deadline) = self.rate(0, deadline).await?;
        node.counters.memsets.add(1);
        let mapping = self.mapping();
        let ask = Request::Memset { mapping: mapping.id, offset, len, byte };
        node.ask_owner(&mapping, &ask, deadline).await.map(drop)
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
            let lost = on_fast_path!(
                self,
                Error::Unknown,
                |waker| self.depart(offset, verb, deadline, false, waker),
                |flight| {
                    let mut before = [0; 8];
                    flight.read(&mut before)?;
                    Ok(u64::from_ne_bytes(before))
                }
            );
            if lost && !planted(Bug::AtomicTwice) {
                return Err(self.lost());
            }
        }
        self.atomic_long(offset, verb, deadline).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform::IoAddr;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_found(page in 0u64..1 << ADDR_BITS, stamp in 0u32..1 << STAMP_BITS, offset in 0u64..1 << 48) {
            let (stamp, addr) = (StampId::from_number(stamp), page << PAGE_BITS);
            let short = PackedLocation::new(stamp, IoAddr(addr)).unwrap();
            prop_assert_eq!((short.stamp(), short.at(offset)), (stamp, IoAddr(addr + offset)));
            prop_assert_eq!(PackedLocation::without_address(stamp).stamp(), stamp);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let new = |addr| PackedLocation::new(StampId::from_number(1), IoAddr(addr)).is_some();
        assert!(new((1 << 48) - 4096) && !new(1 << 48) && !new(1));
    }
}
