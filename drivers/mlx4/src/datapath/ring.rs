//! The two rings of a queue pair, which the poster writes and the poller of completions reads, without a lock
//! between them.
//!
//! ```text
//!   the send ring, with a work request at each index modulo the number of entries
//!
//!               completed                 posted              posted + SPARE
//!                   |                       |                       |
//!   ----------------+-----------------------+-----------------------+------------------
//!    completed: the | in flight: the card   | spare: the card may   | completed requests
//!    card has no    | executes them, and    | prefetch them; they   | of the lap before,
//!    use for them   | writes completions    | are stamped unwritten | not stamped yet
//!   ----------------+-----------------------+-----------------------+------------------
//!    the poller advances `completed` past      the poster stamps the entry at posted + SPARE,
//!    the index that a completion names         writes the one at posted, and advances `posted`
//! ```
//!
//! Both counts are modulo 2^32. At most `send_depth` requests are in flight, so `posted + SPARE` never
//! reaches `completed` of the next lap. The receive ring is the same without stamps and spare entries.

use crate::datapath::cqe::{Cqe, Received, sent};
use crate::datapath::wqe::Wqe;
use crate::datapath::wqe::entry::{Entry, Head, LOG_LEN, LOG_RECEIVE_LEN, RECEIVE_WORDS, stamp};
use crate::hardware::Block;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use verbs::{Completion, QpNum, RemoteKey, Status, VerbsError, WorkKind, WrId};

/// The number of low bits of a queue pair's number that are its slot.
pub(crate) const SLOT_BITS: u32 = 12;
/// The number of slots.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
/// Bytes before the end of the send ring that stay unused, because the card prefetches (rdma-core
/// `mlx4_calc_sq_wqe_size`).
const HEADROOM: u32 = 2048;

/// A ring of work requests in flight, with the numbers of requests posted and completed so far, modulo 2^32.
pub(crate) struct WrRing {
    /// The identifier of the request at each position. Their number is a power of two.
    ids: Box<[AtomicU64]>,
    posted: AtomicU32,
    completed: AtomicU32,
}

impl WrRing {
    fn new(entries: u32) -> Self {
        let ids = (0..entries).map(|_| AtomicU64::new(0)).collect();
        Self { ids, posted: AtomicU32::new(0), completed: AtomicU32::new(0) }
    }

    /// Returns the position of the request with an index.
    #[inline(always)]
    const fn position(&self, index: u32) -> usize {
        index as usize & (self.ids.len() - 1)
    }

    /// Returns true in every second lap of the ring.
    #[inline(always)]
    const fn is_odd(&self, index: u32) -> bool {
        index & self.ids.len() as u32 != 0
    }

    #[inline(always)]
    fn id(&self, index: u32) -> &AtomicU64 {
        &self.ids[self.position(index)]
    }

    /// Returns the index of the next request, and the number of requests that may follow if at most `most`
    /// may be in flight. Completions may raise that number at any time.
    #[inline]
    pub(crate) fn room(&self, most: u32) -> (u32, u32) {
        let posted = self.posted.load(Ordering::Relaxed);
        let in_flight = posted.wrapping_sub(self.completed.load(Ordering::Acquire));
        (posted, most - in_flight)
    }

    /// Returns the index of the next request, if fewer than `most` are in flight.
    #[inline]
    pub(crate) fn next(&self, most: u32) -> Option<u32> {
        let (posted, room) = self.room(most);
        (room > 0).then_some(posted)
    }

    /// Stores the identifier of a request that is being posted.
    #[inline]
    pub(crate) fn note(&self, index: u32, id: WrId) {
        self.id(index).store(id.0, Ordering::Relaxed);
    }

    /// Advances `posted` to `index`: the requests before, whose identifiers have been noted, are in flight.
    /// Must be called before the card can see them.
    #[inline]
    pub(crate) fn advance(&self, index: u32) {
        self.posted.store(index, Ordering::Release);
    }

    /// Posts the request with the next index.
    #[inline]
    pub(crate) fn post(&self, index: u32, id: WrId) {
        self.note(index, id);
        self.advance(index.wrapping_add(1));
    }

    /// Returns the requests in flight, to be completed by the one poller.
    #[inline(always)]
    fn in_flight(&self) -> InFlight<'_> {
        let completed = self.completed.load(Ordering::Relaxed);
        InFlight { ring: self, before: completed, completed, posted: self.posted.load(Ordering::Acquire) }
    }

    /// Completes the next request and returns its identifier; `None` if none is in flight.
    #[inline]
    fn complete_next(&self) -> Option<WrId> {
        let completed = self.completed.load(Ordering::Relaxed);
        if self.posted.load(Ordering::Acquire) == completed {
            return None;
        }
        let id = WrId(self.id(completed).load(Ordering::Relaxed));
        self.completed.store(completed.wrapping_add(1), Ordering::Release);
        Some(id)
    }

    /// Completes all requests in flight, in order.
    fn complete_all(&self) -> impl Iterator<Item = WrId> {
        let (from, to) = (self.completed.load(Ordering::Relaxed), self.posted.load(Ordering::Acquire));
        self.completed.store(to, Ordering::Release);
        (0..to.wrapping_sub(from)).map(move |n| WrId(self.id(from.wrapping_add(n)).load(Ordering::Relaxed)))
    }
}

/// The requests in flight at some time, some of which a poller completes. [`finish`](Self::finish) tells the
/// poster.
pub(crate) struct InFlight<'a> {
    ring: &'a WrRing,
    /// The number of requests completed before.
    before: u32,
    completed: u32,
    posted: u32,
}

impl InFlight<'_> {
    /// Completes requests up to the one whose index has the low bits `low`. Returns its identifier, or `None`
    /// if no such request is in flight.
    #[inline(always)]
    fn complete_through(&mut self, low: u16) -> Option<WrId> {
        let before = u32::from(low.wrapping_sub(self.completed as u16));
        if before >= self.posted.wrapping_sub(self.completed) {
            return None;
        }
        let index = self.completed.wrapping_add(before);
        self.completed = index.wrapping_add(1);
        Some(WrId(self.ring.id(index).load(Ordering::Relaxed)))
    }

    /// Makes room for as many requests as were completed, and returns their number. If there are none, the
    /// ring does not change, because another completion queue may be that of its completions.
    #[inline(always)]
    pub(crate) fn finish(self) -> u32 {
        if self.completed != self.before {
            self.ring.completed.store(self.completed, Ordering::Release);
        }
        self.completed.wrapping_sub(self.before)
    }
}

/// The sizes of the rings. The send ring comes first, since its entries are larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) log_sends: u32,
    pub(crate) log_receives: u32,
    /// The maximum number of send requests in flight.
    pub(crate) send_depth: u32,
    /// The maximum number of receives in flight.
    pub(crate) recv_depth: u32,
}

impl Shape {
    /// The number of unused entries of the send ring.
    pub(crate) const SPARE: u32 = (HEADROOM >> LOG_LEN) + 1;

    /// Computes the sizes of the rings for queues of the given depths. Returns `None` if they exceed `1 <<
    /// log_most` entries.
    pub(crate) fn new(send_depth: u32, recv_depth: u32, log_most: u32) -> Option<Self> {
        let log = |entries: u32| entries.checked_next_power_of_two().map(u32::ilog2);
        let log_sends = log(send_depth.checked_add(Self::SPARE)?)?;
        let log_receives = log(recv_depth)?;
        let fits = log_sends <= log_most && log_receives <= log_most && send_depth > 0 && recv_depth > 0;
        fits.then_some(Self { log_sends, log_receives, send_depth, recv_depth })
    }

    /// Returns the size of the send ring, in bytes.
    pub(crate) const fn send_bytes(self) -> u64 {
        1 << (self.log_sends + LOG_LEN)
    }

    /// Returns the size of both rings, in bytes. The doorbell record of the receive ring follows.
    pub(crate) const fn bytes(self) -> u64 {
        self.send_bytes() + (1 << (self.log_receives + LOG_RECEIVE_LEN))
    }
}

/// A send ring, for the poster.
pub(crate) struct SendRing<'a> {
    /// The entries, and the memory after them.
    entries: &'a [Entry],
    requests: &'a WrRing,
    /// Additional bits of the first words: [`Head::address`], or 0.
    address: u64,
}

impl<'a> SendRing<'a> {
    /// Returns the ring for a request that has additional bits in its first word.
    pub(crate) const fn with_address(self, address: u64) -> Self {
        Self { address, ..self }
    }

    /// Returns the entry for an index.
    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> Option<&'a Entry> {
        self.entries.get(self.requests.position(index))
    }

    /// Returns the place of the next request, which has the index `index` and the identifier `id`.
    #[inline(always)]
    pub(crate) fn place(&'a self, index: u32, id: WrId) -> Result<Place<'a>, VerbsError> {
        let position = self.requests.position(index);
        let Some(entry) = self.entries.get(position) else { return Err(VerbsError::NoResources) };
        let Some(identifier) = self.requests.ids.get(position) else { return Err(VerbsError::NoResources) };
        let Some(ahead) = self.entry(index.wrapping_add(Shape::SPARE)) else {
            return Err(VerbsError::NoResources);
        };
        // From now on the card may prefetch the entry ahead, so the completed request of the
        // previous lap must not look valid.
        stamp(ahead);
        identifier.store(id.0, Ordering::Relaxed);
        Ok(Place { ring: self, entry, index })
    }
}

/// The place of the next request in a send ring.
pub(crate) struct Place<'a> {
    ring: &'a SendRing<'a>,
    entry: &'a Entry,
    index: u32,
}

impl<'a> Place<'a> {
    /// Returns the request, to be written.
    #[inline(always)]
    pub(crate) const fn wqe(&self) -> Wqe<'a> {
        Wqe::of(self.entry)
    }

    /// Posts the request, which has been written: stores its first word, which makes it valid.
    #[inline(always)]
    pub(crate) fn post(self, head: Head) {
        let SendRing { requests, address, .. } = self.ring;
        requests.posted.store(self.index.wrapping_add(1), Ordering::Release);
        let [first, ..] = self.entry;
        first.store((head.word(requests.is_odd(self.index)) | address).to_be(), Ordering::Release);
    }
}

/// A queue pair's rings and the work requests in flight.
pub(crate) struct QpRings<B> {
    number: QpNum,
    /// True for the datagram service, whose completions name the sender.
    datagrams: bool,
    buffer: B,
    pub(crate) shape: Shape,
    pub(crate) sends: WrRing,
    pub(crate) receives: WrRing,
}

impl<B: Block> QpRings<B> {
    /// Makes empty rings in `buffer`.
    pub(crate) fn new(number: QpNum, datagrams: bool, buffer: B, shape: Shape) -> Self {
        const NOT_YET: u64 = 1 << 63;
        let queue = Self {
            number,
            datagrams,
            buffer,
            shape,
            sends: WrRing::new(1 << shape.log_sends),
            receives: WrRing::new(1 << shape.log_receives),
        };
        for entry in queue.send_ring().entries.iter().take(1 << shape.log_sends) {
            let [first, ..] = entry;
            first.store((NOT_YET | Head::LONGEST.word(false)).to_be(), Ordering::Relaxed);
            stamp(entry);
        }
        queue
    }

    /// Returns the queue pair's number.
    pub(crate) const fn number(&self) -> QpNum {
        self.number
    }

    /// Returns the slot of a number.
    #[inline]
    pub(crate) const fn slot_of(number: QpNum) -> usize {
        number.get() as usize & (SLOTS - 1)
    }

    /// Returns the card's address of the rings.
    pub(crate) fn addr(&self) -> platform::IoAddr {
        self.buffer.addr()
    }

    /// Returns the card's address of the doorbell record, which counts receives.
    pub(crate) fn record_addr(&self) -> u64 {
        self.buffer.addr().0 + self.shape.bytes()
    }

    /// Returns the send ring.
    #[inline(always)]
    pub(crate) fn send_ring(&self) -> SendRing<'_> {
        SendRing { entries: self.buffer.as_chunks().0, requests: &self.sends, address: 0 }
    }

    /// Returns the receive entry for an index.
    #[inline]
    pub(crate) fn receive_entry(&self, index: u32) -> &[AtomicU64] {
        let index = (index & ((1 << self.shape.log_receives) - 1)) as usize;
        let first = self.shape.send_bytes() as usize / 8 + index * RECEIVE_WORDS;
        self.buffer.get(first..first + RECEIVE_WORDS).unwrap_or_default()
    }

    /// Updates the doorbell record with the number of receives posted so far.
    pub(crate) fn publish_receives(&self) {
        if let Some(record) = self.buffer.get(self.shape.bytes() as usize / 8) {
            let posted = u64::from(self.receives.posted.load(Ordering::Relaxed) & 0xffff);
            record.store((posted << 32).to_be(), Ordering::Release);
        }
    }

    /// Writes the completion for an entry of a completion queue to `out`, and returns the number of work
    /// requests that it completes. Returns `None` and leaves `out` unchanged if no such work is in flight.
    pub(crate) fn complete(&self, cqe: Cqe, out: &mut Completion) -> Option<u32> {
        if cqe.is_send() { self.complete_send(cqe, out) } else { self.complete_receive(cqe, out) }
    }

    fn complete_send(&self, cqe: Cqe, out: &mut Completion) -> Option<u32> {
        let status = cqe.status();
        let mut sends = self.sends.in_flight();
        if status == Status::Success {
            self.complete_success(&mut sends, cqe, out)?;
        } else {
            let kind = self.posted_kind(cqe.index())?;
            *out = Completion::new(sends.complete_through(cqe.index())?, self.number, status, kind);
        }
        Some(sends.finish())
    }

    /// Returns the send requests in flight.
    #[inline(always)]
    pub(crate) fn sends_in_flight(&self) -> InFlight<'_> {
        self.sends.in_flight()
    }

    /// Writes the completion for an entry of a send that succeeded to `out`. Returns `None` and leaves `out`
    /// unchanged for another entry, or if the send is not in flight.
    #[inline(always)]
    pub(crate) fn complete_success(
        &self,
        sends: &mut InFlight<'_>,
        cqe: Cqe,
        out: &mut Completion,
    ) -> Option<()> {
        let kind = if cqe.is_send() { sent(cqe.opcode()) } else { None }?;
        let id = sends.complete_through(cqe.index())?;
        let byte_len = match kind {
            WorkKind::FetchAdd | WorkKind::CompareSwap => 8,
            _ => cqe.len(),
        };
        *out = Completion { byte_len, ..Completion::new(id, self.number, Status::Success, kind) };
        Some(())
    }

    /// Returns the kind of the work request in the ring, because an error entry does not contain it.
    #[cold]
    fn posted_kind(&self, index: u16) -> Option<WorkKind> {
        let [first, ..] = self.send_ring().entry(index.into())?;
        sent((u64::from_be(first.load(Ordering::Relaxed)) >> 32) as u8 & 0x1f)
    }

    /// Does the work of [`complete`](Self::complete) for an entry of the receive queue.
    #[inline(always)]
    pub(crate) fn complete_receive(&self, cqe: Cqe, out: &mut Completion) -> Option<u32> {
        let status = cqe.status();
        let received = if status == Status::Success { cqe.received()? } else { Received::Send };
        // Receives complete in order, each with an entry of its own (rdma-core does not check the index
        // either).
        let id = self.receives.complete_next()?;
        let kind = if received == Received::WriteImm { WorkKind::RecvWriteImm } else { WorkKind::Recv };
        let mut completion =
            Completion { byte_len: cqe.len(), ..Completion::new(id, self.number, status, kind) };
        completion.src_qp = self.datagrams.then(|| cqe.remote_qp());
        match received {
            Received::WriteImm | Received::SendImm => completion.imm = Some(cqe.immediate()),
            Received::SendInvalidate => completion.invalidated = Some(RemoteKey(cqe.immediate())),
            Received::Send => {}
        }
        *out = completion;
        Some(1)
    }

    /// Completes the requests in flight of the send ring as flushed.
    pub(crate) fn flush_sends(&self, out: &mut VecDeque<Completion>) {
        let completed = self.sends.complete_all().map(|id| self.flushed(id, WorkKind::Send));
        out.extend(completed);
    }

    /// Completes the receives in flight as flushed.
    pub(crate) fn flush_receives(&self, out: &mut VecDeque<Completion>) {
        let completed = self.receives.complete_all().map(|id| self.flushed(id, WorkKind::Recv));
        out.extend(completed);
    }

    const fn flushed(&self, id: WrId, kind: WorkKind) -> Completion {
        Completion::new(id, self.number, Status::WorkRequestFlushed, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn only_requests_in_flight_are_completed() {
        let ring = WrRing::new(8);
        for index in 0..6 {
            assert_eq!(ring.next(6), Some(index));
            ring.post(index, WrId(u64::from(index) + 100));
        }
        assert_eq!(ring.next(6), None);
        let (mut in_flight, unused) = (ring.in_flight(), ring.in_flight());
        assert_eq!(in_flight.complete_through(6), None, "not posted");
        assert_eq!(in_flight.complete_through(2), Some(WrId(102)));
        assert_eq!(in_flight.complete_through(2), None, "already completed");
        assert_eq!(ring.next(6), None, "not finished");
        assert_eq!((in_flight.finish(), unused.finish()), (3, 0));
        assert_eq!(ring.next(6), Some(6));
        assert_eq!(ring.complete_all().collect::<Vec<_>>(), [WrId(103), WrId(104), WrId(105)]);
        // Indices around the limit of the card's 16 bits.
        let ring = WrRing::new(4);
        let laps = if cfg!(miri) { 100 } else { 70_000 };
        for lap in 0..laps {
            ring.post(lap, WrId(lap.into()));
            let mut in_flight = ring.in_flight();
            assert_eq!(in_flight.complete_through(lap as u16), Some(WrId(lap.into())));
            assert_eq!(in_flight.finish(), 1);
        }
    }

    #[test]
    fn rings_leave_room_for_prefetch() {
        assert_eq!(Shape::SPARE, 9);
        let shape = Shape::new(128, 1, 14).unwrap();
        assert_eq!((shape.log_sends, shape.log_receives, shape.bytes()), (8, 0, (256 << 8) + 64));
        assert_eq!(Shape::new(0, 1, 14), None);
        assert_eq!(Shape::new(1 << 14, 1, 14), None);
        assert_eq!(Shape::new(u32::MAX, 1, 14), None);
    }
}
