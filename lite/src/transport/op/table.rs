//! The table of operations in flight, with all that an operation needs: a slot, a bounce buffer, an entry
//! of the send queue. One lock covers them.
//!
//! A slot is taken before the work request is posted. It is released when the completion has arrived *and*
//! the issuing task has seen it or has dropped the operation. Until then the bounce buffer is in
//! quarantine.
//!
//! ```text
//!          take               complete          seen or dropped
//!    Free ------> OnWire -----------------> Ended ------------> Free
//!      |            | dropped                 ^                  ^
//!      |            v             complete    |                  |
//!      |         Abandoned -------------------|------------------+
//!      |                                      |                  |
//!      |                    before the buffer |                  |
//!      |                    is filled         |                  |
//!      +-------> Posting ---------------------+                  |
//!  take, no waiter  |               complete, buffer filled      |
//!                   +--------------------------------------------+
//! ```
//!
//! A success without a bounce buffer leads from OnWire to Free at once.

use super::links::{Links, MemberIndex};
use super::status::OpId;
use super::status::{OpStatuses, Stage};
use super::unfinished::Unfinished;
use super::validity::StampId;
use super::work::{Effect, NotPosted, Verb};
use crate::base::bounce::{Bounce, BouncePool, BufferOffset};
use crate::base::qos::Share;
use crate::planted::{Bug, planted};
use crate::transport::conn::Conn;
use crate::transport::conn::Link;
use crate::transport::conn::QueuePair;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Waker};
use platform::Instant;
use proto::NodeId;
use verbs::{QpNum, RemoteKey, Status};

/// The waiter of an operation.
pub(crate) enum Waits {
    /// No task: the completion releases all that the operation has.
    Nobody,
    /// The task that polls it, which keeps its own deadline.
    Task,
    /// The task of this waker, until that time.
    Until(Waker, Instant),
}

/// The state of a slot. It is one byte, without the status, because the completion of each operation
/// compares it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Being posted or on the wire, without a waiter. Until [`OpStatuses::is_filled`] the poster
    /// owns the bounce buffer and copies into it without a lock: a completion before that releases
    /// nothing, and the poster finds it.
    Posting,
    /// On the wire; its task waits for it.
    OnWire,
    /// On the wire, without a waiter.
    Abandoned,
    /// Ended with [`Slot::status`], which its task has not seen yet.
    Ended,
}

impl State {
    const fn is_under_way(&self) -> bool {
        matches!(self, Self::Posting | Self::OnWire | Self::Abandoned)
    }
}

struct Slot {
    /// The present use, or the next one.
    id: OpId,
    state: State,
    /// The status of the present use, once the state is [`State::Ended`].
    status: Status,
    waker: Option<Waker>,
    /// The time until which the task waits; [`Instant::MAX`] if the task keeps its own deadline, and once
    /// the task has been woken.
    until: Instant,
    /// The connection, and the queue pair within it.
    link: Link,
    qp_index: u8,
    touch: Effect,
    bounce: Option<Bounce>,
}

/// An operation that has all its resources, and its queue pair.
pub(crate) struct Taken {
    pub(crate) id: OpId,
    /// The address of its bounce buffer.
    pub(crate) place: Option<BufferOffset>,
    pub(crate) qp: QpNum,
    /// The key of the peer's memory.
    pub(crate) key: RemoteKey,
    pub(crate) peer: NodeId,
    pub(crate) qp_index: usize,
}

impl Slot {
    #[inline(always)]
    fn begin(&mut self, (link, qp_index): (Link, usize), touch: Effect, waits: Waits) {
        self.state = match waits {
            Waits::Nobody if self.bounce.is_some() => State::Posting,
            Waits::Nobody => State::Abandoned,
            Waits::Task | Waits::Until(..) => State::OnWire,
        };
        (self.link, self.qp_index, self.touch) = (link, qp_index as u8, touch);
        (self.waker, self.until) = match waits {
            Waits::Nobody | Waits::Task => (None, Instant::MAX),
            Waits::Until(waker, until) => (Some(waker), until),
        };
    }
}

/// Takes a free slot, a bounce buffer of `bytes` if one is wanted, and an entry of a send queue that has
/// `depth` of them.
#[inline(always)]
fn reserve<'a>(
    slots: &'a mut [Slot],
    free: &mut Vec<u32>,
    ends: &OpStatuses,
    pool: &mut BouncePool,
    queue_pair: &QueuePair,
    bytes: Option<usize>,
    depth: u32,
) -> Result<&'a mut Slot, NotPosted> {
    if queue_pair.load.is_full(depth) {
        return Err(NotPosted::Busy);
    }
    let &index = free.last().ok_or(NotPosted::Busy)?;
    let slot = slots.get_mut(index as usize).ok_or(NotPosted::Invalid)?;
    if let Some(bytes) = bytes {
        let bounce = pool.take(bytes).ok_or(NotPosted::Busy)?;
        ends.set_place(slot.id, bounce.place);
        slot.bounce = Some(bounce);
    }
    queue_pair.load.begin();
    free.pop();
    Ok(slot)
}

/// Releases the slot and the bounce buffer of an operation that has ended.
#[inline(always)]
fn release(slot: &mut Slot, ends: &OpStatuses, free: &mut Vec<u32>, pool: &mut BouncePool) {
    let index = slot.id.index();
    slot.state = State::Free;
    slot.id = slot.id.next();
    ends.set(slot.id, Stage::OnWire);
    if let Some(bounce) = slot.bounce.take() {
        pool.give(bounce);
    }
    free.push(index as u32);
}

/// The counts of operations that were posted on the fast path; the slow path counts the others.
#[derive(Clone, Copy, Default)]
pub(crate) struct FastPathCounts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) atomics: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

impl FastPathCounts {
    /// Counts one operation.
    #[inline]
    pub(crate) fn count(&mut self, verb: Verb<'_>) {
        match verb {
            Verb::Write { head, .. } => {
                self.writes += 1;
                self.bytes_written += head.len() as u64;
            }
            Verb::Read { len } => {
                self.reads += 1;
                self.bytes_read += u64::from(len);
            }
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => self.atomics += 1,
        }
    }

    /// Returns the part of the node's count with that name.
    pub(crate) fn of(&self, name: &str) -> u64 {
        match name {
            "reads" => self.reads,
            "writes" => self.writes,
            "atomics" => self.atomics,
            "bytes_read" => self.bytes_read,
            "bytes_written" => self.bytes_written,
            _ => 0,
        }
    }
}

/// All slots of a node, and the bounce buffers.
pub(crate) struct OpTable {
    slots: Vec<Slot>,
    ends: OpStatuses,
    free: Vec<u32>,
    pub(crate) bounce: BouncePool,
    pub(crate) links: Links,
    pub(crate) fast_path: FastPathCounts,
    pub(crate) unfinished: Unfinished,
}

impl OpTable {
    pub(crate) fn new(count: u32, bounce: BouncePool) -> Self {
        let slot = |index| Slot {
            id: OpId::first(index),
            state: State::Free,
            status: Status::Success,
            waker: None,
            until: Instant::MAX,
            link: Link::NONE,
            qp_index: 0,
            touch: Effect::NOTHING,
            bounce: None,
        };
        let free = (0..count).rev().collect();
        let slots = (0..count).map(slot).collect();
        let (ends, links, fast_path) = (OpStatuses::new(count), Links::default(), FastPathCounts::default());
        Self { slots, ends, free, bounce, links, fast_path, unfinished: Unfinished::default() }
    }

    /// Returns the published state of the operations.
    pub(crate) fn ends(&self) -> OpStatuses {
        self.ends.clone()
    }

    /// Returns the number of slots in use.
    #[cfg(feature = "testing")]
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot for an operation that is about to be posted, and a bounce buffer of `bytes` if it needs
    /// one. Returns the operation and the address of the buffer. There may be `depth` operations on its
    /// queue pair.
    #[inline]
    pub(crate) fn take(
        &mut self,
        (conn, qp_index): (&Arc<Conn>, usize),
        touch: Effect,
        bytes: Option<usize>,
        depth: u32,
        waits: Waits,
    ) -> Result<(OpId, Option<BufferOffset>), NotPosted> {
        let link = self.links.link(conn);
        if conn.is_shut() {
            return Err(NotPosted::ConnectionLost);
        }
        let queue_pair = conn.queue_pair(qp_index).ok_or(NotPosted::Invalid)?;
        let (slots, free, ends) = (&mut self.slots, &mut self.free, &self.ends);
        let slot = reserve(slots, free, ends, &mut self.bounce, queue_pair, bytes, depth)?;
        slot.begin((link, qp_index), touch, waits);
        Ok((slot.id, slot.bounce.as_ref().map(|b| b.place)))
    }

    /// Does the work of [`take`](Self::take) for an operation on the memory of `place`, over a queue pair
    /// that `share` allows.
    #[inline(always)]
    pub(crate) fn take_fast(
        &mut self,
        place: MemberIndex,
        share: Share,
        touch: Effect,
        bytes: Option<usize>,
        depth: u32,
        (waker, deadline): (Waker, Instant),
    ) -> Option<Taken> {
        let (link, conn) = self.links.conn_to(place)?;
        let qp_index = conn.pick(share);
        let queue_pair = conn.queue_pair(qp_index)?;
        let (slots, free, ends) = (&mut self.slots, &mut self.free, &self.ends);
        let slot = reserve(slots, free, ends, &mut self.bounce, queue_pair, bytes, depth).ok()?;
        slot.begin((link, qp_index), touch, Waits::Until(waker, deadline));
        let place = slot.bounce.as_ref().map(|b| b.place);
        let (qp, key) = (queue_pair.number, conn.remote_key.rkey);
        Some(Taken { id: slot.id, place, qp, key, peer: conn.peer, qp_index })
    }

    /// Ends operation `id` and returns the waker of its task. Does nothing if the slot is in another use: a
    /// completion that came twice.
    ///
    /// An operation that has succeeded and has no bounce buffer frees its slot here. Its task reads the
    /// success from the slot's next use.
    pub(crate) fn complete(&mut self, id: OpId, status: Status) -> Option<Waker> {
        let slot = self.slots.get_mut(id.index()).filter(|s| s.id == id)?;
        let abandoned = match slot.state {
            State::OnWire => false,
            State::Abandoned => true,
            State::Posting => self.ends.is_filled(id),
            State::Free | State::Ended => return None,
        };
        let conn = self.links.get(slot.link);
        if let Some(queue_pair) = conn.and_then(|c| c.queue_pair(usize::from(slot.qp_index))) {
            queue_pair.load.end();
        }
        let waker = slot.waker.take();
        let is_plain = status == Status::Success && !abandoned;
        if !is_plain && slot.touch.changes {
            self.unfinished.ended(id, slot.touch.stamp, conn.filter(|_| status != Status::Success));
        }
        if abandoned || (is_plain && slot.bounce.is_none()) {
            release(slot, &self.ends, &mut self.free, &mut self.bounce);
        } else {
            (slot.state, slot.status) = (State::Ended, status);
            self.ends.set(id, if is_plain { Stage::Done } else { Stage::Failed });
        }
        waker
    }

    /// Returns the connection of an operation on the wire, unless the connection is shut.
    #[cold]
    pub(crate) fn conn_of(&self, id: OpId) -> Option<Arc<Conn>> {
        let slot = self.slots.get(id.index()).filter(|s| s.id == id)?;
        self.links.open(slot.link).filter(|_| slot.state.is_under_way()).cloned()
    }

    /// Returns true if an operation through that mapping is on the wire, or may still change its memory.
    pub(crate) fn passes(&self, stamp: StampId) -> bool {
        self.slots.iter().any(|s| s.touch.stamp == stamp && s.state.is_under_way())
            || self.unfinished.passes(stamp)
    }

    /// Releases the slot of an operation that was not posted.
    #[cold]
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Waker> {
        if let Some(slot) = self.slots.get_mut(id.index()).filter(|s| s.id == id) {
            slot.touch.changes = false;
        }
        let waker = self.complete(id, Status::LocalQpOperationError);
        self.let_go(id);
        waker
    }

    /// Registers `cx`'s task to be woken at the operation's end or deadline. Returns `false` if one of the
    /// two has passed.
    pub(crate) fn wait(&mut self, id: OpId, cx: &Context<'_>) -> bool {
        if self.ends.look(id) != Some(Stage::OnWire) {
            return false;
        }
        if let Some(slot) = self.slots.get_mut(id.index())
            && !slot.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker()))
        {
            slot.waker = Some(cx.waker().clone());
        }
        true
    }

    /// Returns the status of an operation that has ended.
    pub(crate) fn status(&self, id: OpId) -> Status {
        let slot = self.slots.get(id.index()).filter(|s| s.id == id && s.state == State::Ended);
        slot.map_or(Status::LocalQpOperationError, |s| s.status)
    }

    /// Ends the interest in an operation: no task waits for it or needs its result any more.
    #[inline]
    pub(crate) fn let_go(&mut self, id: OpId) {
        let Some(slot) = self.slots.get_mut(id.index()).filter(|s| s.id == id) else { return };
        match slot.state {
            State::Free | State::Posting | State::Abandoned => {}
            State::OnWire if planted(Bug::FlightLeaks) => {}
            State::OnWire => {
                if slot.touch.changes {
                    self.unfinished.abandoned(id, slot.touch.stamp);
                }
                slot.state = State::Abandoned;
                slot.waker = None;
                slot.until = Instant::MAX;
                if planted(Bug::BounceReused)
                    && let Some(bounce) = slot.bounce.take()
                {
                    self.bounce.give(bounce);
                }
            }
            State::Ended => release(slot, &self.ends, &mut self.free, &mut self.bounce),
        }
    }

    /// Marks the next operation from slot `from` on whose deadline is not after `now`, and returns the
    /// waker of its task.
    pub(crate) fn next_late(&mut self, now: Instant, from: &mut usize) -> Option<Waker> {
        while let Some(slot) = self.slots.get_mut(*from) {
            *from += 1;
            if slot.state.is_under_way() && slot.until <= now {
                self.ends.set(slot.id, Stage::Late);
                slot.until = Instant::MAX;
                if let Some(waker) = slot.waker.take() {
                    return Some(waker);
                }
            }
        }
        None
    }

    /// Returns the earliest deadline of an operation on the wire.
    pub(crate) fn earliest(&self) -> Instant {
        let on_wire = self.slots.iter().filter(|s| s.state.is_under_way());
        on_wire.map(|s| s.until).min().unwrap_or(Instant::MAX)
    }

    /// Stops posting on `conn` if nothing of it is on the wire; returns true if that is the case.
    pub(crate) fn seal(&mut self, conn: &Conn) -> bool {
        conn.group().seal()
    }

    /// Reverts [`seal`](Self::seal).
    pub(crate) fn unseal(&mut self, conn: &Conn) {
        conn.group().unseal();
    }

    /// Returns true if nothing is on the wire.
    pub(crate) fn is_idle(&self) -> bool {
        !self.slots.iter().any(|s| s.state.is_under_way())
    }

    /// Returns an operation of `conn` that is on the wire. For a connection that has been reset and whose
    /// completions have all been taken.
    pub(crate) fn stranded(&self, conn: &Conn) -> Option<OpId> {
        let link = conn.link();
        let strands = |s: &Slot| s.link == link && s.state.is_under_way();
        self.slots.iter().find(|s| link != Link::NONE && strands(s)).map(|s| s.id)
    }
}
