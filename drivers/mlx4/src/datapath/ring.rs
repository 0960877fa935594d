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
use crate::datapath::wqe::entry::{Entry, Head, LOG_LEN, LOG_RECEIVE_LEN, RECEIVE_WORDS, stamp};
use crate::hardware::Block;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use verbs::{Completion, QpNum, RemoteKey, Status, WorkKind, WrId};

/// The number of low bits of a queue pair's number that are its slot.
pub(crate) const SLOT_BITS: u32 = 12;
/// The number of slots.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
/// Bytes before the end of the send ring that stay unused, because the card prefetches (rdma-core
/// `mlx4_calc_sq_wqe_size`).
const HEADROOM: u32 = 2048;

/// A ring of work requests in flight, with the numbers of requests posted and completed so far, modulo 2^32.
pub(crate) struct WrRing {
    ids: Box<[AtomicU64]>,
    posted: AtomicU32,
    completed: AtomicU32,
}

impl WrRing {
    fn new(entries: u32) -> Self {
        let ids = (0..entries).map(|_| AtomicU64::new(0)).collect();
        Self { ids, posted: AtomicU32::new(0), completed: AtomicU32::new(0) }
    }

    fn id(&self, index: u32) -> &AtomicU64 {
        &self.ids[index as usize & (self.ids.len() - 1)]
    }

    /// Returns the index of the next request, if fewer than `most` are in flight.
    #[inline]
    pub(crate) fn next(&self, most: u32) -> Option<u32> {
        let posted = self.posted.load(Ordering::Relaxed);
        (posted.wrapping_sub(self.completed.load(Ordering::Acquire)) < most).then_some(posted)
    }

    /// Stores the identifier of the request with the next index. Must be called before the card can see the
    /// request.
    #[inline]
    pub(crate) fn post(&self, index: u32, id: WrId) {
        self.id(index).store(id.0, Ordering::Relaxed);
        self.posted.store(index.wrapping_add(1), Ordering::Release);
    }

    /// Completes requests up to the one whose index has the low bits `low`. Returns its identifier and the
    /// number of requests completed; `None` if no such request is in flight.
    #[inline]
    fn complete_through(&self, low: u16) -> Option<(WrId, u32)> {
        let completed = self.completed.load(Ordering::Relaxed);
        let in_flight = self.posted.load(Ordering::Acquire).wrapping_sub(completed);
        let retired = u32::from(low.wrapping_sub(completed as u16)) + 1;
        if retired > in_flight {
            return None;
        }
        let after = completed.wrapping_add(retired);
        let id = WrId(self.id(after.wrapping_sub(1)).load(Ordering::Relaxed));
        self.completed.store(after, Ordering::Release);
        Some((id, retired))
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

/// A queue pair's rings and the work requests in flight.
pub(crate) struct QpRings<B> {
    number: QpNum,
    /// True for the datagram service, whose completions name the sender.
    datagrams: bool,
    buffer: B,
    pub(crate) shape: Shape,
    /// Mask of the bits of an index that are the position in the send ring.
    pub(crate) send_mask: u32,
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
            send_mask: (1 << shape.log_sends) - 1,
            sends: WrRing::new(1 << shape.log_sends),
            receives: WrRing::new(1 << shape.log_receives),
        };
        for entry in queue.send_ring().iter().take(1 << shape.log_sends) {
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

    /// Returns the send ring and the memory after it. The position of a request is its index and `send_mask`.
    #[inline]
    pub(crate) fn send_ring(&self) -> &[Entry] {
        self.buffer.as_chunks().0
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
    #[inline(always)]
    pub(crate) fn complete(&self, cqe: Cqe, out: &mut Completion) -> Option<u32> {
        if cqe.is_send() { self.complete_send(cqe, out) } else { self.complete_receive(cqe, out) }
    }

    #[inline(always)]
    fn complete_send(&self, cqe: Cqe, out: &mut Completion) -> Option<u32> {
        let status = cqe.status();
        let kind =
            if status == Status::Success { sent(cqe.opcode()) } else { self.posted_kind(cqe.index()) }?;
        let (id, retired) = self.sends.complete_through(cqe.index())?;
        let byte_len = match kind {
            WorkKind::FetchAdd | WorkKind::CompareSwap => 8,
            _ => cqe.len(),
        };
        *out = Completion { byte_len, ..Completion::new(id, self.number, status, kind) };
        Some(retired)
    }

    /// Returns the kind of the work request in the ring, because an error entry does not contain it.
    #[cold]
    fn posted_kind(&self, index: u16) -> Option<WorkKind> {
        let [first, ..] = self.send_ring().get((u32::from(index) & self.send_mask) as usize)?;
        sent((u64::from_be(first.load(Ordering::Relaxed)) >> 32) as u8 & 0x1f)
    }

    #[inline(never)]
    fn complete_receive(&self, cqe: Cqe, out: &mut Completion) -> Option<u32> {
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
        assert_eq!(ring.complete_through(6), None, "not posted");
        assert_eq!(ring.complete_through(2), Some((WrId(102), 3)));
        assert_eq!(ring.complete_through(2), None, "already completed");
        assert_eq!(ring.complete_all().collect::<Vec<_>>(), [WrId(103), WrId(104), WrId(105)]);
        // Indices around the limit of the card's 16 bits.
        let ring = WrRing::new(4);
        let laps = if cfg!(miri) { 100 } else { 70_000 };
        for lap in 0..laps {
            ring.post(lap, WrId(lap.into()));
            assert_eq!(ring.complete_through(lap as u16), Some((WrId(lap.into()), 1)));
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
