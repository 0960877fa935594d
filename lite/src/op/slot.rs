//! The table of operations under way, with all that an operation takes: its slot, its bounce buffer, its place in the send
//! queue. One lock covers them.
//!
//! A slot is taken before the work request is posted and given back when its completion has come *and* the task that
//! issued it has seen it or is gone. Until then its bounce buffer is in quarantine.

use super::{NotPosted, Verb};
use crate::bounce::{Bounce, BouncePool};
use crate::conn::Conn;
use crate::region::Mapping;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
use platform::{Instant, IoAddr};
use proto::NodeId;
use verbs::{Status, WrId};

/// Names a slot in one use of it; travels in the work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpId {
    index: u32,
    generation: u32,
}

impl OpId {
    pub(crate) fn wr_id(self) -> WrId {
        WrId(u64::from(self.generation) << 32 | u64::from(self.index))
    }

    pub(crate) fn from_wr_id(id: WrId) -> Self {
        Self { index: id.0 as u32, generation: (id.0 >> 32) as u32 }
    }
}

/// What an operation holds while it is on the wire.
pub(crate) struct Holds {
    /// Its connection, and which queue pair of it.
    pub(crate) conn: Arc<Conn>,
    pub(crate) lane: usize,
    /// The mapping that it goes through, whose gate it has entered.
    pub(crate) mapping: Option<Arc<Mapping>>,
}

/// Who waits for an operation.
pub(crate) enum Waits {
    /// Nobody.
    Nobody,
    /// Whoever polls it. It sees to its deadline by itself.
    Task,
    /// The task of this waker, until then.
    Until(Waker, Instant),
}

/// What a completion sets free. Dropped outside of the table's lock.
pub(crate) struct Finished {
    pub(crate) waker: Option<Waker>,
    pub(crate) holds: Option<Holds>,
}

enum State {
    Free,
    OnWire { abandoned: bool },
    Done(Status),
}

struct Slot {
    generation: u32,
    state: State,
    waker: Option<Waker>,
    /// Until when the task waits; [`Instant::MAX`] if it sees to that by itself, and once it has been told.
    until: Instant,
    late: bool,
    holds: Option<Holds>,
    bounce: Option<Bounce>,
}

/// How an operation stands for the task that waits for it.
pub(crate) enum Stands {
    /// It has ended: the slot is free again, and the bounce buffer the caller's.
    Ended(Status, Option<Bounce>),
    /// Its deadline has passed.
    Late,
}

/// Counts of operations that were posted at the first attempt; the others are counted where they begin.
#[derive(Clone, Copy, Default)]
pub(crate) struct Quick {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) atomics: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

impl Quick {
    /// One more.
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

    /// The count that is part of the node's count of that name.
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
    free: Vec<u32>,
    pub(crate) bounce: BouncePool,
    /// By node id, connections that were there when last used.
    conns: Vec<Option<Arc<Conn>>>,
    pub(crate) quick: Quick,
}

impl OpTable {
    pub(crate) fn new(count: u32, bounce: BouncePool) -> Self {
        let slot = |_| Slot {
            generation: 0,
            state: State::Free,
            waker: None,
            until: Instant::MAX,
            late: false,
            holds: None,
            bounce: None,
        };
        let free = (0..count).rev().collect();
        let slots = (0..count).map(slot).collect();
        Self { slots, free, bounce, conns: Vec::new(), quick: Quick::default() }
    }

    /// Slots that are taken.
    #[cfg(feature = "testing")]
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot for an operation that is about to be posted, and a bounce buffer of `bytes` if it needs one; gives where
    /// that lies. There may be `depth` operations on its queue pair.
    pub(crate) fn take(
        &mut self,
        holds: Holds,
        bytes: Option<usize>,
        depth: u32,
        waits: Waits,
    ) -> Result<(OpId, Option<IoAddr>), (NotPosted, Holds)> {
        let Some(lane) = holds.conn.lane(holds.lane) else { return Err((NotPosted::Invalid, holds)) };
        if lane.load.is_full(depth) {
            return Err((NotPosted::Busy, holds));
        }
        let Some(&index) = self.free.last() else { return Err((NotPosted::Busy, holds)) };
        let bounce = match bytes.map(|bytes| self.bounce.take(bytes)) {
            None => None,
            Some(Some(bounce)) => Some(bounce),
            Some(None) => return Err((NotPosted::Busy, holds)),
        };
        let Some(slot) = self.slots.get_mut(index as usize) else { return Err((NotPosted::Invalid, holds)) };
        lane.load.begin();
        self.free.pop();
        slot.state = State::OnWire { abandoned: matches!(waits, Waits::Nobody) };
        slot.holds = Some(holds);
        let place = bounce.as_ref().map(|b| b.addr);
        slot.bounce = bounce;
        slot.late = false;
        (slot.waker, slot.until) = match waits {
            Waits::Nobody | Waits::Task => (None, Instant::MAX),
            Waits::Until(waker, until) => (Some(waker), until),
        };
        Ok((OpId { index, generation: slot.generation }, place))
    }

    /// The operation has ended. `None` if that slot is in another use: a completion that came twice.
    pub(crate) fn complete(&mut self, id: OpId, status: Status) -> Option<Finished> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let State::OnWire { abandoned } = slot.state else { return None };
        let finished = Finished { waker: slot.waker.take(), holds: slot.holds.take() };
        if let Some(lane) = finished.holds.as_ref().and_then(|h| h.conn.lane(h.lane)) {
            lane.load.end();
        }
        if abandoned {
            let bounce = self.release(id.index);
            self.give(bounce);
        } else {
            slot.state = State::Done(status);
        }
        Some(finished)
    }

    /// The operation was not posted after all.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Finished> {
        let finished = self.complete(id, Status::LocalQpOperationError);
        if self.slots.get(id.index as usize).is_some_and(|s| s.generation == id.generation) {
            self.abandon(id);
        }
        finished
    }

    /// Ready once the operation has ended, or its time.
    pub(crate) fn poll(&mut self, id: OpId, cx: &Context<'_>) -> Poll<Stands> {
        let Some(slot) = self.slots.get_mut(id.index as usize) else {
            return Poll::Ready(Stands::Ended(Status::LocalQpOperationError, None));
        };
        if let State::Done(status) = slot.state {
            return Poll::Ready(Stands::Ended(status, self.release(id.index)));
        }
        if slot.late {
            return Poll::Ready(Stands::Late);
        }
        if !slot.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            slot.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Whether the operation has ended, or its time has; if not, the task is woken when it does.
    pub(crate) fn has_ended(&mut self, id: OpId, cx: &Context<'_>) -> bool {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return true };
        if slot.generation != id.generation || !matches!(slot.state, State::OnWire { .. }) || slot.late {
            return true;
        }
        slot.waker = Some(cx.waker().clone());
        false
    }

    /// The task does not wait any more.
    pub(crate) fn abandon(&mut self, id: OpId) {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return };
        match &mut slot.state {
            State::Free => {}
            State::OnWire { abandoned } => {
                *abandoned = true;
                slot.waker = None;
                slot.until = Instant::MAX;
            }
            State::Done(_) => {
                let bounce = self.release(id.index);
                self.give(bounce);
            }
        }
    }

    /// Takes a bounce buffer back.
    pub(crate) fn give(&mut self, bounce: Option<Bounce>) {
        if let Some(bounce) = bounce {
            self.bounce.give(bounce);
        }
    }

    /// Tells the next operation from slot `from` on whose task waits no longer than `now`; gives whom to wake.
    pub(crate) fn next_late(&mut self, now: Instant, from: &mut usize) -> Option<Waker> {
        while let Some(slot) = self.slots.get_mut(*from) {
            *from += 1;
            if matches!(slot.state, State::OnWire { .. }) && slot.until <= now {
                slot.late = true;
                slot.until = Instant::MAX;
                if let Some(waker) = slot.waker.take() {
                    return Some(waker);
                }
            }
        }
        None
    }

    /// Until when the first task waits.
    pub(crate) fn earliest(&self) -> Instant {
        let on_wire = self.slots.iter().filter(|s| matches!(s.state, State::OnWire { .. }));
        on_wire.map(|s| s.until).min().unwrap_or(Instant::MAX)
    }

    /// Lets nothing be posted on `conn` any more if nothing of it is on the wire; gives whether that is so.
    pub(crate) fn seal(&mut self, conn: &Conn) -> bool {
        conn.lanes().seal()
    }

    /// Ends what [`seal`](Self::seal) began.
    pub(crate) fn unseal(&mut self, conn: &Conn) {
        conn.lanes().unseal();
    }

    /// Whether nothing is on the wire.
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.iter().all(|s| s.holds.is_none())
    }

    /// Some operation of `conn` that is on the wire. For a connection that is reset and whose completions are all taken.
    pub(crate) fn stranded(&self, conn: &Arc<Conn>) -> Option<OpId> {
        let held = |s: &Slot| s.holds.as_ref().is_some_and(|h| Arc::ptr_eq(&h.conn, conn));
        let index = self.slots.iter().position(held)?;
        Some(OpId { index: index as u32, generation: self.slots.get(index)?.generation })
    }

    /// The connection to `node` that was last used.
    pub(crate) fn conn(&self, node: NodeId) -> Option<&Arc<Conn>> {
        self.conns.get(usize::from(node.0))?.as_ref().filter(|c| !c.is_shut())
    }

    /// A connection is in use.
    pub(crate) fn remember(&mut self, conn: &Arc<Conn>) {
        let place = usize::from(conn.peer.0);
        // One that is shut is forgotten by the poller after this or has been before.
        if conn.is_shut() {
            return;
        }
        if self.conns.len() <= place {
            self.conns.resize(place + 1, None);
        }
        if let Some(known) = self.conns.get_mut(place) {
            *known = Some(conn.clone());
        }
    }

    /// A connection is shut.
    pub(crate) fn forget(&mut self, conn: &Arc<Conn>) {
        if let Some(known) = self.conns.get_mut(usize::from(conn.peer.0))
            && known.as_ref().is_some_and(|c| Arc::ptr_eq(c, conn))
        {
            *known = None;
        }
    }

    fn release(&mut self, index: u32) -> Option<Bounce> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        slot.waker = None;
        slot.holds = None;
        self.free.push(index);
        slot.bounce.take()
    }
}
