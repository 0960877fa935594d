//! The two rings of a queue pair: what the poster writes and whoever polls completions reads, without a lock between them.

use crate::cqe::{Cqe, Received, sent};
use crate::hardware::Block;
use crate::wqe::{Entry, Head, LOG_LEN, LOG_RECEIVE_LEN, RECEIVE_WORDS, stamp};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use verbs::{Completion, QpNum, RemoteKey, Status, WorkKind, WrId};

/// Bits of a queue pair's number that are its slot.
pub(crate) const SLOT_BITS: u32 = 12;
/// Queue pairs that numbers can tell apart.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
/// Bytes before the end of the send ring that stay unused: the card fetches ahead (rdma-core `mlx4_calc_sq_wqe_size`).
const HEADROOM: u32 = 2048;

/// Work requests that are under way, by their indices: how many were posted and have ended, ever.
pub(crate) struct Line {
    ids: Box<[AtomicU64]>,
    posted: AtomicU32,
    ended: AtomicU32,
}

impl Line {
    fn new(entries: u32) -> Self {
        let ids = (0..entries).map(|_| AtomicU64::new(0)).collect();
        Self { ids, posted: AtomicU32::new(0), ended: AtomicU32::new(0) }
    }

    fn id(&self, index: u32) -> &AtomicU64 {
        &self.ids[index as usize & (self.ids.len() - 1)]
    }

    /// The index of the next request, if fewer than `most` are under way.
    #[inline]
    pub(crate) fn next(&self, most: u32) -> Option<u32> {
        let posted = self.posted.load(Ordering::Relaxed);
        (posted.wrapping_sub(self.ended.load(Ordering::Acquire)) < most).then_some(posted)
    }

    /// The next request has this name. To be called before the card can see it.
    #[inline]
    pub(crate) fn post(&self, index: u32, id: WrId) {
        self.id(index).store(id.0, Ordering::Relaxed);
        self.posted.store(index.wrapping_add(1), Ordering::Release);
    }

    /// The request with the low bits of an index has ended, and all before it: its name, and how many that were. `None`: no
    /// such request is under way.
    #[inline]
    fn end_through(&self, low: u16) -> Option<(WrId, u32)> {
        let ended = self.ended.load(Ordering::Relaxed);
        let under_way = self.posted.load(Ordering::Acquire).wrapping_sub(ended);
        let retired = u32::from(low.wrapping_sub(ended as u16)) + 1;
        if retired > under_way {
            return None;
        }
        let after = ended.wrapping_add(retired);
        let id = WrId(self.id(after.wrapping_sub(1)).load(Ordering::Relaxed));
        self.ended.store(after, Ordering::Release);
        Some((id, retired))
    }

    /// The next request has ended: its name. `None`: none is under way.
    #[inline]
    fn end_next(&self) -> Option<WrId> {
        let ended = self.ended.load(Ordering::Relaxed);
        if self.posted.load(Ordering::Acquire) == ended {
            return None;
        }
        let id = WrId(self.id(ended).load(Ordering::Relaxed));
        self.ended.store(ended.wrapping_add(1), Ordering::Release);
        Some(id)
    }

    /// Ends all that is under way, in order.
    fn end_all(&self) -> impl Iterator<Item = WrId> {
        let (from, to) = (self.ended.load(Ordering::Relaxed), self.posted.load(Ordering::Acquire));
        self.ended.store(to, Ordering::Release);
        (0..to.wrapping_sub(from)).map(move |n| WrId(self.id(from.wrapping_add(n)).load(Ordering::Relaxed)))
    }
}

/// How large the rings are. The send ring comes first: its entries are larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) log_sends: u32,
    pub(crate) log_receives: u32,
    /// Send requests that may be under way.
    pub(crate) send_depth: u32,
    /// Receives that may be.
    pub(crate) recv_depth: u32,
}

impl Shape {
    /// Entries of the send ring that stay unused.
    pub(crate) const SPARE: u32 = (HEADROOM >> LOG_LEN) + 1;

    /// Rings for so much work, if the card has such with `1 << log_most` entries.
    pub(crate) fn new(send_depth: u32, recv_depth: u32, log_most: u32) -> Option<Self> {
        let log = |entries: u32| entries.checked_next_power_of_two().map(u32::ilog2);
        let log_sends = log(send_depth.checked_add(Self::SPARE)?)?;
        let log_receives = log(recv_depth)?;
        let fits = log_sends <= log_most && log_receives <= log_most && send_depth > 0 && recv_depth > 0;
        fits.then_some(Self { log_sends, log_receives, send_depth, recv_depth })
    }

    /// Bytes of the send ring.
    pub(crate) const fn send_bytes(self) -> u64 {
        1 << (self.log_sends + LOG_LEN)
    }

    /// Bytes of both rings. The receive ring's doorbell record is behind them.
    pub(crate) const fn bytes(self) -> u64 {
        self.send_bytes() + (1 << (self.log_receives + LOG_RECEIVE_LEN))
    }
}

/// A queue pair's rings, and what is under way in them.
pub(crate) struct QueuePair<B> {
    number: QpNum,
    /// It takes datagrams, of which it says who has sent them.
    datagrams: bool,
    buffer: B,
    pub(crate) shape: Shape,
    /// Bits of an index that say where in the send ring a request is.
    pub(crate) send_mask: u32,
    pub(crate) sends: Line,
    pub(crate) receives: Line,
}

impl<B: Block> QueuePair<B> {
    /// Rings in `buffer`, in which the card finds nothing yet.
    pub(crate) fn new(number: QpNum, datagrams: bool, buffer: B, shape: Shape) -> Self {
        const NOT_YET: u64 = 1 << 63;
        let queue = Self {
            number,
            datagrams,
            buffer,
            shape,
            send_mask: (1 << shape.log_sends) - 1,
            sends: Line::new(1 << shape.log_sends),
            receives: Line::new(1 << shape.log_receives),
        };
        for entry in queue.send_ring().iter().take(1 << shape.log_sends) {
            let [first, ..] = entry;
            first.store((NOT_YET | Head::LONGEST.word(false)).to_be(), Ordering::Relaxed);
            stamp(entry);
        }
        queue
    }

    /// The number.
    pub(crate) const fn number(&self) -> QpNum {
        self.number
    }

    /// The slot of a number.
    #[inline]
    pub(crate) const fn slot_of(number: QpNum) -> usize {
        number.get() as usize & (SLOTS - 1)
    }

    /// Where the card finds the rings.
    pub(crate) fn addr(&self) -> platform::IoAddr {
        self.buffer.addr()
    }

    /// The card's address of the record that counts receives.
    pub(crate) fn record_addr(&self) -> u64 {
        self.buffer.addr().0 + self.shape.bytes()
    }

    /// The send ring, and behind it what is not of it: a request has its place by its index and `send_mask`.
    #[inline]
    pub(crate) fn send_ring(&self) -> &[Entry] {
        self.buffer.as_chunks().0
    }

    /// The receive with an index.
    #[inline]
    pub(crate) fn receive_entry(&self, index: u32) -> &[AtomicU64] {
        let index = (index & ((1 << self.shape.log_receives) - 1)) as usize;
        let place = self.shape.send_bytes() as usize / 8 + index * RECEIVE_WORDS;
        self.buffer.get(place..place + RECEIVE_WORDS).unwrap_or_default()
    }

    /// Tells the card how many receives were posted, ever.
    pub(crate) fn tell_receives(&self) {
        if let Some(record) = self.buffer.get(self.shape.bytes() as usize / 8) {
            let posted = u64::from(self.receives.posted.load(Ordering::Relaxed) & 0xffff);
            record.store((posted << 32).to_be(), Ordering::Release);
        }
    }

    /// What an entry of a completion queue says of this queue pair goes to `place`. Gives how many work requests have ended with
    /// it. `None`: no such work is under way, and `place` is as it was.
    #[inline(always)]
    pub(crate) fn complete(&self, cqe: Cqe, place: &mut Completion) -> Option<u32> {
        if cqe.is_send() { self.complete_send(cqe, place) } else { self.complete_receive(cqe, place) }
    }

    #[inline(always)]
    fn complete_send(&self, cqe: Cqe, place: &mut Completion) -> Option<u32> {
        let status = cqe.status();
        let kind =
            if status == Status::Success { sent(cqe.opcode()) } else { self.posted_kind(cqe.index()) }?;
        let (id, retired) = self.sends.end_through(cqe.index())?;
        let byte_len = match kind {
            WorkKind::FetchAdd | WorkKind::CompareSwap => 8,
            _ => cqe.len(),
        };
        *place = Completion { byte_len, ..Completion::new(id, self.number, status, kind) };
        Some(retired)
    }

    /// What kind of work lies in the ring: an entry that tells of an error does not say.
    #[cold]
    fn posted_kind(&self, index: u16) -> Option<WorkKind> {
        let [first, ..] = self.send_ring().get((u32::from(index) & self.send_mask) as usize)?;
        sent((u64::from_be(first.load(Ordering::Relaxed)) >> 32) as u8 & 0x1f)
    }

    #[inline(never)]
    fn complete_receive(&self, cqe: Cqe, place: &mut Completion) -> Option<u32> {
        let status = cqe.status();
        let received = if status == Status::Success { cqe.received()? } else { Received::Send };
        // Receives end in order, each with an entry of its own (rdma-core does not look at the index either).
        let id = self.receives.end_next()?;
        let kind = if received == Received::WriteImm { WorkKind::RecvWriteImm } else { WorkKind::Recv };
        let mut completion =
            Completion { byte_len: cqe.len(), ..Completion::new(id, self.number, status, kind) };
        completion.src_qp = self.datagrams.then(|| cqe.remote_qp());
        match received {
            Received::WriteImm | Received::SendImm => completion.imm = Some(cqe.immediate()),
            Received::SendInvalidate => completion.invalidated = Some(RemoteKey(cqe.immediate())),
            Received::Send => {}
        }
        *place = completion;
        Some(1)
    }

    /// Ends what is under way in the send ring as flushed.
    pub(crate) fn flush_sends(&self, out: &mut VecDeque<Completion>) {
        let ended = self.sends.end_all().map(|id| self.flushed(id, WorkKind::Send));
        out.extend(ended);
    }

    /// The same of the receive ring.
    pub(crate) fn flush_receives(&self, out: &mut VecDeque<Completion>) {
        let ended = self.receives.end_all().map(|id| self.flushed(id, WorkKind::Recv));
        out.extend(ended);
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
    fn a_line_ends_what_is_under_way_and_nothing_else() {
        let line = Line::new(8);
        for index in 0..6 {
            assert_eq!(line.next(6), Some(index));
            line.post(index, WrId(u64::from(index) + 100));
        }
        assert_eq!(line.next(6), None);
        assert_eq!(line.end_through(6), None, "not posted");
        assert_eq!(line.end_through(2), Some((WrId(102), 3)));
        assert_eq!(line.end_through(2), None, "already ended");
        assert_eq!(line.end_all().collect::<Vec<_>>(), [WrId(103), WrId(104), WrId(105)]);
        // Around the end of the card's 16 bits.
        let line = Line::new(4);
        let laps = if cfg!(miri) { 100 } else { 70_000 };
        for lap in 0..laps {
            line.post(lap, WrId(lap.into()));
            assert_eq!(line.end_through(lap as u16), Some((WrId(lap.into()), 1)));
        }
    }

    #[test]
    fn rings_leave_what_the_card_fetches_ahead() {
        assert_eq!(Shape::SPARE, 9);
        let shape = Shape::new(128, 1, 14).unwrap();
        assert_eq!((shape.log_sends, shape.log_receives, shape.bytes()), (8, 0, (256 << 8) + 64));
        assert_eq!(Shape::new(0, 1, 14), None);
        assert_eq!(Shape::new(1 << 14, 1, 14), None);
        assert_eq!(Shape::new(u32::MAX, 1, 14), None);
    }
}
