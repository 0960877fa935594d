//! The tables of operations in flight, with all that an operation needs: a slot, a buffer, an entry of the
//! send queue. One lock covers them. A buffer is a bounce buffer, or memory of the application.
//!
//! Each core that uses LITE has a shard: a completion queue, a table and bounce buffers of its own. A core
//! posts to its own shard, takes the completions of its own shard, and wakes its own tasks, so that cores
//! whose tasks have nothing in common write no line of memory that another one writes. A core with a higher
//! number than there are shards uses the shard of its number modulo the number of shards.
//!
//! A slot is taken before the work request is posted. It is released when the completion has arrived *and*
//! the issuing task has seen it or has dropped the operation. Until then the buffer is in quarantine.
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
//! A success without a buffer leads from OnWire to Free at once.

use super::links::{Links, MemberIndex};
use super::status::{OpId, OpStage, OpStatuses};
use super::unfinished::Unfinished;
use super::validity::ValidStamps;
use super::work::{Effect, NotPosted, Verb};
use crate::base::bounce::{Bounce, BouncePool, BufferOffset, Buffers};
use crate::base::lock::Mutex;
use crate::base::own::Hold;
use crate::base::per_shard::PerShard;
use crate::base::qos::Share;
use crate::base::standing::Standing;
use crate::base::wait::Waiters;
use crate::transport::conn::{Conn, Link, QueuePair};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;
use core::task::Waker;
use platform::{Instant, Platform};
use verbs::{CqId, QpNum, RemoteKey, Status};

/// The waiter of an operation.
pub(crate) enum WaitMode {
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
pub(super) enum SlotState {
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

impl SlotState {
    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self, Self::Posting | Self::OnWire | Self::Abandoned)
    }
}

/// The index of no slot.
const NO_SLOT: u32 = u32::MAX;

pub(super) struct Slot {
    /// The present use, or the next one.
    pub(super) id: OpId,
    /// The index of the next free slot, if this one is free; [`NO_SLOT`] for the last.
    next_free: u32,
    pub(super) state: SlotState,
    /// The status of the present use, once the state is [`SlotState::Ended`].
    pub(super) status: Status,
    pub(super) waker: Option<Waker>,
    /// The time until which the task waits; [`Instant::MAX`] if the task keeps its own deadline, and once
    /// the task has been woken.
    pub(super) until: Instant,
    /// The connection, and the queue pair within it.
    pub(super) link: Link,
    pub(super) qp_index: u8,
    /// The number of work requests of the queue pair that complete with this one, itself included.
    pub(super) retires: u32,
    pub(super) touch: Effect,
    pub(super) buffer: Option<Buffer>,
}

/// The memory that the RNIC reads or writes for an operation.
pub(super) enum Buffer {
    Bounce(Bounce),
    /// Memory of the application.
    Own(Hold),
}

/// An operation that has all its resources, and its queue pair.
pub(crate) struct Taken {
    pub(crate) id: OpId,
    /// The offset of its bounce buffer.
    pub(crate) offset: Option<BufferOffset>,
    pub(crate) qp: QpNum,
    /// The key of the peer's memory.
    pub(crate) key: RemoteKey,
}

/// The tasks to wake after a change of the table, outside of its lock.
#[must_use]
pub(crate) struct Wakes {
    /// The waker of the operation's task.
    pub(crate) task: Option<Waker>,
    /// True if a task may wait for a resource, or for the end of operations.
    pub(crate) others: bool,
    /// The memory of an application that an operation without a waiter has used. Tasks may wait for its drop,
    /// whatever `others` says.
    pub(crate) unused: Option<Hold>,
}

/// The effect of a release, outside of the table's lock.
#[must_use]
pub(crate) struct Released {
    /// True if a task may wait for what has become free.
    pub(crate) wanted: bool,
    /// The memory of an application that is no longer used. Tasks may wait for its drop, whatever `wanted`
    /// says.
    pub(super) own: Option<Hold>,
}

impl Slot {
    /// Returns the offset of the bounce buffer, if the slot has one.
    #[inline(always)]
    fn offset(&self) -> Option<BufferOffset> {
        match &self.buffer {
            Some(Buffer::Bounce(bounce)) => Some(bounce.offset),
            _ => None,
        }
    }

    #[inline(always)]
    fn begin(&mut self, (link, qp_index): (Link, usize), touch: Effect, waits: WaitMode) {
        self.state = match waits {
            WaitMode::Nobody if self.buffer.is_some() => SlotState::Posting,
            WaitMode::Nobody => SlotState::Abandoned,
            WaitMode::Task | WaitMode::Until(..) => SlotState::OnWire,
        };
        (self.link, self.qp_index, self.touch, self.retires) = (link, qp_index as u8, touch, 1);
        let waker;
        (waker, self.until) = match waits {
            WaitMode::Nobody | WaitMode::Task => (None, Instant::MAX),
            WaitMode::Until(waker, until) => (Some(waker), until),
        };
        // A free slot has no waker that could be dropped here.
        core::mem::forget(core::mem::replace(&mut self.waker, waker));
    }
}

/// Takes a free slot, a bounce buffer of `bytes` if one is wanted, and an entry of a send queue that has
/// `depth` of them.
#[inline(always)]
fn reserve<'a>(
    slots: &'a mut [Slot],
    free: &mut u32,
    ends: &OpStatuses,
    pool: &mut BouncePool,
    queue_pair: &QueuePair,
    bytes: Option<usize>,
    depth: u32,
) -> Result<&'a mut Slot, NotPosted> {
    if queue_pair.is_full(depth) {
        return Err(NotPosted::Busy);
    }
    let slot = slots.get_mut(*free as usize).ok_or(NotPosted::Busy)?;
    if let Some(bytes) = bytes {
        let bounce = pool.take(bytes).ok_or(NotPosted::Busy)?;
        ends.set_offset(slot.id, bounce.offset);
        // A free slot has no buffer that could be dropped here.
        core::mem::forget(slot.buffer.replace(Buffer::Bounce(bounce)));
    }
    *free = slot.next_free;
    queue_pair.begin();
    Ok(slot)
}

/// Releases the slot and the buffer of an operation that has ended. Returns memory of an application, which
/// must be dropped outside of the table's lock.
#[inline(always)]
#[must_use]
pub(super) fn release(
    slot: &mut Slot,
    ends: &OpStatuses,
    free: &mut u32,
    pool: &mut BouncePool,
) -> Option<Hold> {
    let own = give_back(slot, pool);
    free_slot(slot, ends, free);
    own
}

/// Takes the buffer from a slot. Returns it if it is memory of an application.
#[inline(always)]
pub(super) fn give_back(slot: &mut Slot, pool: &mut BouncePool) -> Option<Hold> {
    match slot.buffer.take() {
        Some(Buffer::Bounce(bounce)) => {
            pool.give(bounce);
            None
        }
        Some(Buffer::Own(hold)) => Some(hold),
        None => None,
    }
}

/// Releases the slot of an operation that has ended and has no buffer.
#[inline(always)]
fn free_slot(slot: &mut Slot, ends: &OpStatuses, free: &mut u32) {
    slot.state = SlotState::Free;
    slot.next_free = core::mem::replace(free, slot.id.index() as u32);
    slot.id = slot.id.next();
    ends.set(slot.id, OpStage::OnWire);
}

/// The counts of operations that were posted on the fast path, and of calls that found their connection; the
/// slow path counts the others.
#[derive(Clone, Copy, Default)]
pub(crate) struct FastPathCounts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) atomics: u64,
    pub(crate) calls: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    /// The bytes of writes from bounce buffers.
    bytes_bounced: u64,
    /// The bytes of reads into memory of the application.
    bytes_in_place: u64,
}

impl FastPathCounts {
    /// Counts one operation, with a bounce buffer of `bytes` if it has one.
    #[inline]
    pub(crate) fn count(&mut self, verb: Verb<'_>, bytes: Option<usize>) {
        match verb {
            Verb::Write { head, .. } => {
                if let Some(bytes) = bytes {
                    self.bytes_bounced += bytes as u64;
                }
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

    /// Counts one operation on memory of the application, without a copy.
    pub(crate) fn count_own(&mut self, writes: bool, bytes: u64) {
        if writes {
            self.writes += 1;
            self.bytes_written += bytes;
        } else {
            self.reads += 1;
            self.bytes_read += bytes;
            self.bytes_in_place += bytes;
        }
    }

    /// Returns the part of the node's count with that name.
    pub(crate) fn of(&self, name: &str) -> u64 {
        match name {
            "reads" => self.reads,
            "writes" => self.writes,
            "atomics" => self.atomics,
            "calls" => self.calls,
            "bytes_read" => self.bytes_read,
            "bytes_written" => self.bytes_written,
            // All other reads pass through bounce buffers.
            "bytes_copied" => self.bytes_bounced + self.bytes_read - self.bytes_in_place,
            _ => 0,
        }
    }
}

/// All slots of a shard, and the bounce buffers.
pub(crate) struct OpTable {
    /// The number of the shard.
    pub(super) shard: usize,
    pub(super) slots: Vec<Slot>,
    pub(super) ends: OpStatuses,
    /// The index of the first free slot; [`NO_SLOT`] without one.
    pub(super) free: u32,
    pub(crate) bounce: BouncePool,
    pub(crate) links: Links,
    pub(super) valid: ValidStamps,
    pub(crate) fast_path: FastPathCounts,
    /// The node's unfinished operations. Their lock may be taken under that of a table.
    pub(super) unfinished: Arc<Mutex<Unfinished>>,
    /// A time that is not later than the earliest deadline of a waiting operation.
    pub(super) earliest: Instant,
    /// True if this table has refused a task something that an operation's end may change. The next end
    /// tells that, and the task is woken then.
    pub(super) wanted: bool,
}

impl OpTable {
    /// Makes the table of a shard with `count` slots.
    pub(super) fn new(
        shard: usize,
        count: u32,
        bounce: BouncePool,
        unfinished: &Arc<Mutex<Unfinished>>,
    ) -> Self {
        let slot = |index| Slot {
            id: OpId::first(shard, index),
            next_free: if index + 1 < count { index + 1 } else { NO_SLOT },
            state: SlotState::Free,
            status: Status::Success,
            waker: None,
            until: Instant::MAX,
            link: Link::NONE,
            qp_index: 0,
            retires: 1,
            touch: Effect::NOTHING,
            buffer: None,
        };
        Self {
            shard,
            slots: (0..count).map(slot).collect(),
            ends: OpStatuses::new(shard, count),
            free: if count > 0 { 0 } else { NO_SLOT },
            bounce,
            links: Links::new(shard),
            valid: ValidStamps::default(),
            fast_path: FastPathCounts::default(),
            unfinished: unfinished.clone(),
            earliest: Instant::MAX,
            wanted: false,
        }
    }

    /// Takes a slot for an operation that is about to be posted, and a bounce buffer of `bytes` if it needs
    /// one. Returns the operation and the address of the buffer. There may be `depth` operations on its
    /// queue pair.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        (conn, qp_index): (&Arc<Conn>, usize),
        touch: Effect,
        bytes: Option<usize>,
        depth: u32,
        waits: WaitMode,
    ) -> Result<(OpId, Option<BufferOffset>), NotPosted> {
        let link = self.links.link(conn);
        if conn.is_shut() {
            return Err(NotPosted::ConnectionLost);
        }
        let queue_pair = conn.queue_pair(qp_index).ok_or(NotPosted::Invalid)?;
        let (slots, free, ends) = (&mut self.slots, &mut self.free, &self.ends);
        let slot = match reserve(slots, free, ends, &mut self.bounce, queue_pair, bytes, depth) {
            Ok(slot) => slot,
            Err(reason) => {
                self.wanted = true;
                return Err(reason);
            }
        };
        let is_message = matches!(waits, WaitMode::Nobody);
        slot.begin((link, qp_index), touch, waits);
        if is_message {
            slot.retires = queue_pair.take_unsignaled();
        }
        Ok((slot.id, slot.offset()))
    }

    /// Does the work of [`take`](Self::take) for an operation on the memory of `member`, over a queue pair
    /// that `share` allows, if the mapping of `touch` is valid.
    #[inline(always)]
    pub(crate) fn take_fast(
        &mut self,
        member: MemberIndex,
        share: Share,
        touch: Effect,
        bytes: Option<usize>,
        depth: u32,
        (waker, deadline): (Waker, Instant),
    ) -> Option<Taken> {
        let stamp = touch.stamp.0;
        if self.valid.words.get((stamp / u64::BITS) as usize)? >> (stamp % u64::BITS) & 1 == 0 {
            return None;
        }
        let route = self.links.routes.get(member.0 as usize)?.as_ref()?;
        let lanes = &route.conn.group.lanes;
        if lanes.is_ending() {
            return None;
        }
        let qp_index = match (share, route.usual) {
            (Share::All | Share::Low, Some(usual)) => usual as usize,
            _ => route.pick(share)?,
        };
        let queue_pair = lanes.get(qp_index)?;
        let (slots, free, ends) = (&mut self.slots, &mut self.free, &self.ends);
        let slot = reserve(slots, free, ends, &mut self.bounce, queue_pair, bytes, depth).ok()?;
        slot.begin((route.link, qp_index), touch, WaitMode::Until(waker, deadline));
        let offset = slot.offset();
        let (qp, key) = (queue_pair.number, route.conn.remote_key.rkey);
        Some(Taken { id: slot.id, offset, qp, key })
    }

    /// Counts a message on a queue pair without a slot, so that it is posted unsignalled. Returns false if it
    /// needs a slot, because it must be signalled.
    #[inline(always)]
    pub(crate) fn take_unsignaled(
        &mut self,
        conn: &Conn,
        queue_pair: &QueuePair,
        depth: u32,
    ) -> Result<bool, NotPosted> {
        if conn.is_shut() {
            return Err(NotPosted::ConnectionLost);
        }
        if queue_pair.is_full(depth) {
            self.wanted = true;
            return Err(NotPosted::Busy);
        }
        Ok(queue_pair.begin_unsignaled(depth))
    }

    /// Notes the deadline of an operation, which must be in its slot already.
    #[inline(always)]
    pub(crate) fn note_deadline(&mut self, deadline: Instant, standing: &Standing) {
        if deadline < self.earliest {
            self.earliest = deadline;
            standing.due_by(deadline);
        }
    }

    /// Ends operation `id`, which has succeeded. Returns the waker of its task, and true if other tasks may
    /// wait for what becomes free by that. Returns `None`, and does nothing, if no task waits for `id` and
    /// it has a buffer or changes a mapping.
    #[inline(always)]
    pub(crate) fn succeed(&mut self, id: OpId) -> Option<(Option<Waker>, bool)> {
        let slot = self.slots.get_mut(id.index()).filter(|s| s.id == id)?;
        let is_message =
            || slot.state == SlotState::Abandoned && slot.buffer.is_none() && !slot.touch.changes;
        if slot.state != SlotState::OnWire && !is_message() {
            return None;
        }
        let conn = self.links.conns.get(slot.link.index()).and_then(Option::as_ref);
        if let Some(queue_pair) = conn.and_then(|c| c.group.lanes.get(usize::from(slot.qp_index))) {
            queue_pair.end(slot.retires);
        }
        let task = slot.waker.take();
        if slot.buffer.is_none() {
            free_slot(slot, &self.ends, &mut self.free);
        } else {
            (slot.state, slot.status) = (SlotState::Ended, Status::Success);
            self.ends.set(id, OpStage::Done);
        }
        Some((task, core::mem::take(&mut self.wanted)))
    }

    /// Releases an operation that has succeeded and that has a buffer.
    #[inline(always)]
    pub(crate) fn release_done(&mut self, id: OpId) -> Released {
        let ended = |s: &&mut Slot| s.id == id && s.state == SlotState::Ended;
        let own = match self.slots.get_mut(id.index()).filter(ended) {
            Some(slot) => release(slot, &self.ends, &mut self.free, &mut self.bounce),
            None => None,
        };
        Released { wanted: core::mem::take(&mut self.wanted), own }
    }

    /// Takes a slot as [`take`](Self::take) does, for an operation of a task on memory of the application,
    /// which `hold` keeps lent until the operation ends.
    pub(crate) fn take_own(
        &mut self,
        lane: (&Arc<Conn>, usize),
        touch: Effect,
        hold: &Hold,
        depth: u32,
    ) -> Result<OpId, NotPosted> {
        let (id, _) = self.take(lane, touch, None, depth, WaitMode::Task)?;
        self.hold(id, hold);
        Ok(id)
    }

    /// Keeps memory of the application lent until the end of an operation, which has not been posted yet.
    pub(super) fn hold(&mut self, id: OpId, hold: &Hold) {
        if let Some(slot) = self.slots.get_mut(id.index()) {
            slot.buffer = Some(Buffer::Own(hold.clone()));
        }
    }

    /// Removes all buffers for ever, because the RNIC may still access them.
    #[cold]
    pub(crate) fn lose_buffers(&mut self) {
        self.bounce.lose();
        for slot in &mut self.slots {
            core::mem::forget(slot.buffer.take());
        }
    }
}

/// The operations of one core.
// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
pub(crate) struct Shard {
    /// The number of the shard.
    pub(crate) index: usize,
    /// The completion queue of this shard's queue pairs.
    pub(crate) cq: CqId,
    /// The memory of the operations' bounce buffers.
    pub(crate) buffers: Buffers,
    pub(crate) ops: Mutex<OpTable>,
    /// The published state of the operations.
    pub(crate) ends: OpStatuses,
    /// The tasks of all cores that wait for the end of operations, and for a resource.
    pub(super) waiters: [Arc<Waiters>; 2],
}

/// The shards of a node.
pub(crate) struct Shards(PerShard<Shard>);

impl Deref for Shards {
    type Target = PerShard<Shard>;

    #[inline(always)]
    fn deref(&self) -> &PerShard<Shard> {
        &self.0
    }
}

impl Shards {
    pub(super) fn new(shards: PerShard<Shard>) -> Self {
        Self(shards)
    }

    /// Returns the shard with that number, which must exist.
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> &Shard {
        self.0.get(index).unwrap_or(&self.0.first)
    }

    /// Returns the shard of the present core.
    #[inline(always)]
    pub(crate) fn here(&self, platform: &dyn Platform) -> &Shard {
        if self.0.others.is_empty() { &self.0.first } else { self.0.here(platform) }
    }

    /// Returns the shard of an operation.
    #[inline(always)]
    pub(crate) fn of(&self, id: OpId) -> &Shard {
        self.at(id.shard())
    }
}
