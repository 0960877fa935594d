//! The RPC state of one connection: both rings, the calls in flight, and messages that wait for room.

use super::area::RpcArea;
use super::area::RpcMemory;
use super::lent::Lent;
use super::outbox::Outbox;
use super::ring::{RingRx, RingTx};
use super::wire::{LONGEST, ReplyHeader, ReplyStatus};
use crate::base::config::OWN_SLOTS;
use crate::base::lock::Mutex;
use crate::base::wait::{FairQueue, Waiters, Woken, take_in_turn};
use crate::base::writers::{AtomicU32, AtomicUsize, Ordering};
use crate::planted::{Bug, planted};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
use platform::{Instant, IoAddr};

/// The bytes that a waiting request counts for in addition to its length.
const OVERHEAD: usize = 256;

/// The state of RPC of one shard on one connection, in both directions.
// Two cache lines: the channels of a connection belong to several cores.
#[repr(align(128))]
pub(crate) struct Channel {
    /// The number of the shard whose queue pair of RPC carries the messages.
    pub(crate) shard: usize,
    /// The memory in which this node receives messages.
    pub(crate) local: RpcArea,
    pub(crate) memory: RpcMemory,
    /// The memory in which the peer receives messages.
    pub(crate) remote: RpcArea,
    pub(crate) tx: Mutex<RingTx>,
    /// Read only by the poller of the shard.
    pub(crate) rx: RingRx,
    calls: Mutex<Calls>,
    /// Calls that have a slot and wait for room in the peer's ring.
    pub(crate) room: Waiters,
    /// The receives that were consumed and not posted again.
    pub(crate) taken: AtomicU32,
    /// The bytes of all requests of the peer that were charged, and of those that tasks have received. Both
    /// wrap, and their difference is the backlog. Only the poller of the shard changes the first.
    charged: AtomicUsize,
    discharged: AtomicUsize,
    /// Replies and credits that found no room on the queue pair.
    pub(crate) outbox: Outbox,
}

/// Memory that the peer may access for a call: a long request, and the buffer for a long reply.
pub(crate) type Buffers = Box<(Lent, Lent)>;

#[derive(Clone, Copy)]
enum SlotState {
    Free,
    Waiting { abandoned: bool },
    Done(ReplyHeader),
    Lost,
}

struct ReplySlot {
    generation: u32,
    state: SlotState,
    waker: Option<Waker>,
    /// The time until which the task waits; [`Instant::MAX`] if the task keeps its own deadline.
    until: Instant,
    /// True once the deadline has passed.
    late: bool,
    /// Kept until the reply has arrived or the connection is destroyed, also after the task has stopped
    /// waiting.
    buffers: Option<Buffers>,
}

struct Calls {
    slots: Vec<ReplySlot>,
    free: Vec<u32>,
    /// The queues for a slot: calls of applications, and LITE's internal calls.
    queue: FairQueue,
    internal_queue: FairQueue,
    lost: bool,
}

/// The work that remains when a slot has become free; it must be done without the lock.
#[must_use = "tasks that wait for a slot are not woken yet"]
struct Released {
    /// Memory that the peer does not use any more.
    buffers: Option<Buffers>,
    /// A waker that is not needed any more. It may be the last reference to a task that uses this channel.
    former: Option<Waker>,
    /// Tasks that have waited for a slot.
    woken: [Woken; 2],
}

impl Calls {
    /// Returns the queue for a slot; `own` is that of LITE's internal calls.
    fn queue(&mut self, own: bool) -> &mut FairQueue {
        if own { &mut self.internal_queue } else { &mut self.queue }
    }

    /// Takes a free slot for a call and returns its index. `own`: the call is an internal one, and some slots
    /// are kept for those.
    #[inline(always)]
    fn claim(&mut self, own: bool) -> Option<(u32, &mut ReplySlot)> {
        let kept = if own { 0 } else { OWN_SLOTS as usize };
        (self.free.len() > kept).then_some(())?;
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(index as usize)?;
        slot.state = SlotState::Waiting { abandoned: false };
        Some((index, slot))
    }

    /// Frees a slot. Returns what remains to be done, if anything.
    #[inline(always)]
    fn release(&mut self, index: u32) -> Option<Released> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.state = SlotState::Free;
        slot.generation = slot.generation.wrapping_add(u32::from(!planted(Bug::SlotReusedEarly)));
        (slot.until, slot.late) = (Instant::MAX, false);
        let is_done = slot.buffers.is_none() && slot.waker.is_none();
        self.free.push(index);
        if is_done && self.internal_queue.is_empty() && self.queue.is_empty() {
            return None;
        }
        self.released(index)
    }

    /// Returns what remains to be done for a slot that is free again. A function of its own, because most
    /// slots leave nothing to do, and the result is long.
    #[inline(never)]
    fn released(&mut self, index: u32) -> Option<Released> {
        let slot = self.slots.get_mut(index as usize)?;
        let (buffers, former) = (slot.buffers.take(), slot.waker.take());
        Some(Released { buffers, former, woken: [self.internal_queue.wake(), self.queue.wake()] })
    }
}

impl Released {
    /// Wakes the tasks and returns the memory.
    #[inline(always)]
    fn finish(self) -> Option<Buffers> {
        drop(self.former);
        let [internal, other] = self.woken;
        internal.wake();
        other.wake();
        self.buffers
    }
}

/// The end of the wait for a reply.
pub(crate) enum CallEnd<T> {
    /// The reply has arrived. The value is made of it by the caller's function, and the buffers are the
    /// caller's again.
    Replied(T, Option<Buffers>),
    /// The connection has failed.
    Lost,
    /// The deadline has passed.
    Late,
}

impl Channel {
    /// Returns `None` if RPC cannot work with the peer's memory.
    pub(crate) fn new(shard: usize, (local, memory): (RpcArea, RpcMemory), remote: RpcArea) -> Option<Self> {
        let sane = remote.ring_len.is_power_of_two()
            && (16 << 10..=1 << 24).contains(&remote.ring_len)
            && (256..=LONGEST).contains(&remote.slot_len)
            && (1..=4096).contains(&remote.slot_count);
        sane.then_some(())?;
        let slot = |_| ReplySlot {
            generation: 0,
            state: SlotState::Free,
            waker: None,
            until: Instant::MAX,
            late: false,
            buffers: None,
        };
        let count = local.slot_count;
        Some(Self {
            shard,
            local,
            memory,
            remote,
            tx: Mutex::new(RingTx::new(remote.ring_len)),
            rx: RingRx::new(local.ring_len),
            calls: Mutex::new(Calls {
                slots: (0..count).map(slot).collect(),
                free: (0..count).rev().collect(),
                queue: FairQueue::default(),
                internal_queue: FairQueue::default(),
                lost: false,
            }),
            room: Waiters::default(),
            taken: AtomicU32::new(0),
            charged: AtomicUsize::new(0),
            discharged: AtomicUsize::new(0),
            outbox: Outbox::default(),
        })
    }

    /// Returns the length of the longest record for the peer's ring, in bytes.
    pub(crate) fn longest_record(&self) -> usize {
        (self.remote.ring_len / 4).min(LONGEST) as usize
    }

    /// Counts `bytes` and a request's overhead against the backlog of `limit` bytes. Returns the count for
    /// [`discharge`](Self::discharge), or `None` if it exceeds the limit. Only the poller of the shard calls
    /// this.
    pub(crate) fn charge(&self, bytes: usize, limit: usize) -> Option<usize> {
        let charge = bytes + OVERHEAD;
        let before = self.charged.load(Ordering::Relaxed);
        let backlog = before.wrapping_sub(self.discharged.load(Ordering::Acquire));
        // The first request always has room.
        if backlog > 0 && backlog + charge > limit {
            return None;
        }
        self.charged.store(before.wrapping_add(charge), Ordering::Relaxed);
        Some(charge)
    }

    /// Reverts a [`charge`](Self::charge).
    pub(crate) fn discharge(&self, charge: usize) {
        self.discharged.fetch_add(charge, Ordering::AcqRel);
    }

    /// Returns the length of the longest reply that fits a slot, in bytes.
    pub(crate) fn longest_in_slot(area: &RpcArea) -> usize {
        area.slot_len as usize - ReplyHeader::LEN
    }

    /// Returns the offset of slot `index` from the first one.
    pub(crate) fn slot_offset(area: &RpcArea, index: u32) -> Option<u64> {
        (index < area.slot_count).then(|| u64::from(index) * u64::from(area.slot_len))
    }

    /// Returns the address of slot `index`.
    pub(crate) fn slot_addr(area: &RpcArea, index: u32) -> Option<IoAddr> {
        Self::slot_offset(area, index).and_then(|offset| area.slots.checked_add(offset))
    }

    /// Waits for a slot for a call; `own` for an internal one. Returns `None` if the connection has failed.
    pub(crate) async fn claim(&self, own: bool) -> Option<CallSlot<'_>> {
        let claim = |calls: &mut Calls| {
            if calls.lost {
                return Some(None);
            }
            calls.claim(own).map(|(index, slot)| Some(CallSlot::new(self, index, slot)))
        };
        take_in_turn(&self.calls, |calls| calls.queue(own), claim).await
    }

    /// Returns a slot for a call of the task of `waker`, which waits until `deadline`, if one is free and
    /// no other call waits for it. Passes the deadline to `note`.
    #[inline(always)]
    pub(crate) fn claim_now(
        &self,
        own: bool,
        waker: &Waker,
        deadline: Instant,
        note: impl FnOnce(Instant),
    ) -> Option<CallSlot<'_>> {
        let mut calls = self.calls.lock();
        if calls.lost || !calls.queue(own).is_empty() {
            return None;
        }
        let (index, slot) = calls.claim(own)?;
        (slot.waker, slot.until) = (Some(waker.clone()), deadline);
        // Under the lock: the poller forgets all deadlines before it looks for late calls here.
        note(deadline);
        Some(CallSlot::new(self, index, slot))
    }

    /// Wakes the tasks whose calls have passed their deadlines, and returns the earliest deadline of the
    /// other calls.
    pub(crate) fn expire(&self, now: Instant) -> Instant {
        let mut from = 0;
        loop {
            let mut calls = self.calls.lock();
            let late =
                |slot: &ReplySlot| matches!(slot.state, SlotState::Waiting { .. }) && slot.until <= now;
            let Some(at) = calls.slots.iter().skip(from).position(late) else {
                let waiting = calls.slots.iter().filter(|s| matches!(s.state, SlotState::Waiting { .. }));
                return waiting.map(|s| s.until).min().unwrap_or(Instant::MAX);
            };
            from += at + 1;
            let waker = calls.slots.get_mut(from - 1).and_then(|slot| {
                (slot.until, slot.late) = (Instant::MAX, true);
                slot.waker.take()
            });
            drop(calls);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Handles a reply that has been written to slot `index`. Returns `Err` if no call waits for it.
    #[inline(always)]
    pub(crate) fn replied(&self, index: u32, header: ReplyHeader) -> Result<(), super::ring::Violation> {
        let mut calls = self.calls.lock();
        let slot = calls.slots.get_mut(index as usize).ok_or(super::ring::Violation)?;
        let SlotState::Waiting { abandoned } = slot.state else { return Err(super::ring::Violation) };
        if header.call != call_number(index, slot.generation) {
            return Err(super::ring::Violation);
        }
        if abandoned {
            drop(calls);
            self.free_abandoned(index);
            return Ok(());
        }
        slot.state = SlotState::Done(header);
        let waker = slot.waker.take();
        drop(calls);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Frees a slot whose task has stopped waiting, and whose reply has arrived.
    #[cold]
    fn free_abandoned(&self, index: u32) {
        let released = self.calls.lock().release(index);
        drop(released.map(Released::finish));
    }

    /// Returns true if no call is in flight, and nothing waits to be sent.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_use() == 0 && self.outbox.lock().is_empty()
    }

    /// Returns the number of calls in flight, including those without a waiter.
    pub(crate) fn in_use(&self) -> usize {
        let calls = self.calls.lock();
        calls.slots.len() - calls.free.len()
    }

    /// Returns true if a sealed connection may be closed. `for_room`: calls without a waiter and replies
    /// that have arrived do not keep it open.
    pub(crate) fn is_closable(&self, for_room: bool) -> bool {
        let needed = |slot: &ReplySlot| match slot.state {
            SlotState::Free => false,
            SlotState::Waiting { abandoned: true } | SlotState::Done(_) => !for_room,
            SlotState::Waiting { abandoned: false } | SlotState::Lost => true,
        };
        let needed = self.calls.lock().slots.iter().any(needed);
        !needed && self.outbox.lock().is_empty()
    }

    /// Ends all calls after the queue pairs have been destroyed: no reply arrives any more, and the peer
    /// uses no buffer.
    pub(crate) fn lose_all(&self) {
        let mut wakers = Vec::new();
        let mut buffers = Vec::new();
        let mut calls = self.calls.lock();
        calls.lost = true;
        for slot in &mut calls.slots {
            if let SlotState::Waiting { .. } = slot.state {
                slot.state = SlotState::Lost;
                wakers.extend(slot.waker.take());
                buffers.extend(slot.buffers.take());
            }
        }
        wakers.extend(calls.internal_queue.wake_all());
        wakers.extend(calls.queue.wake_all());
        drop(calls);
        self.outbox.lock().clear();
        wakers.into_iter().for_each(Waker::wake);
        drop(buffers);
        self.room.wake_all();
    }
}

fn call_number(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

/// A call in flight, from the caller's view.
pub(crate) struct CallSlot<'a> {
    rpc: &'a Channel,
    pub(crate) index: u32,
    generation: u32,
    /// True if the peer may know of the call.
    pub(crate) posted: bool,
    /// True if the slot is free again.
    ended: bool,
}

impl<'a> CallSlot<'a> {
    #[inline(always)]
    fn new(rpc: &'a Channel, index: u32, slot: &ReplySlot) -> Self {
        Self { rpc, index, generation: slot.generation, posted: false, ended: false }
    }

    /// Returns the channel of the call.
    #[inline(always)]
    pub(crate) fn channel(&self) -> &'a Channel {
        self.rpc
    }

    /// Returns the call's number on its connection.
    pub(crate) fn number(&self) -> u64 {
        call_number(self.index, self.generation)
    }

    /// Lends memory to the peer until the reply or the end of the connection.
    pub(crate) fn lend(&self, buffers: Buffers) {
        if let Some(slot) = self.rpc.calls.lock().slots.get_mut(self.index as usize) {
            slot.buffers = Some(buffers);
        }
    }

    /// Polls for the reply. Passes it to `take` while the slot's memory is still the call's, and frees the
    /// slot then. `take` runs under the lock of the channel's calls, which only tasks and the poller of one
    /// core use.
    #[inline(always)]
    pub(crate) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        take: impl FnOnce(&ReplyHeader) -> T,
    ) -> Poll<CallEnd<T>> {
        let mut calls = self.rpc.calls.lock();
        let Some(slot) = calls.slots.get_mut(self.index as usize) else { return Poll::Ready(CallEnd::Lost) };
        match slot.state {
            SlotState::Done(header) => {
                let taken = take(&header);
                let released = calls.release(self.index);
                drop(calls);
                self.ended = true;
                Poll::Ready(CallEnd::Replied(taken, released.and_then(Released::finish)))
            }
            SlotState::Waiting { .. } if slot.late => Poll::Ready(CallEnd::Late),
            SlotState::Waiting { .. } => {
                let mut former = None;
                if !slot.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                    former = slot.waker.replace(cx.waker().clone());
                }
                drop(calls);
                drop(former);
                Poll::Pending
            }
            SlotState::Free | SlotState::Lost => Poll::Ready(CallEnd::Lost),
        }
    }
}

impl Drop for CallSlot<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.ended {
            self.abandon();
        }
    }
}

impl CallSlot<'_> {
    /// Ends the interest in a reply that the task has not taken.
    #[cold]
    fn abandon(&self) {
        let mut calls = self.rpc.calls.lock();
        let Some(slot) = calls.slots.get_mut(self.index as usize) else { return };
        let released = match slot.state {
            SlotState::Waiting { .. } if self.posted && !planted(Bug::SlotReusedEarly) => {
                slot.state = SlotState::Waiting { abandoned: true };
                slot.until = Instant::MAX;
                let former = slot.waker.take();
                drop(calls);
                drop(former);
                return;
            }
            SlotState::Free => return,
            _ => calls.release(self.index),
        };
        drop(calls);
        drop(released.map(Released::finish));
    }
}

/// Returns the caller's error if the handler sent no reply.
pub(crate) fn verdict(header: &ReplyHeader) -> Option<crate::Error> {
    use crate::Error;
    match header.status {
        ReplyStatus::InSlot | ReplyStatus::InBuffer | ReplyStatus::Busy | ReplyStatus::Accepted => None,
        ReplyStatus::NoSuchFunction => Some(Error::NoSuchFunction),
        ReplyStatus::Dropped => Some(Error::Refused("the handler sent no reply".into())),
        ReplyStatus::RequestTooLarge | ReplyStatus::ReplyTooLarge => {
            Some(Error::TooLarge { max: header.len })
        }
        ReplyStatus::NoMemory => Some(Error::NoMemory { asked: header.len, free: 0 }),
    }
}
