//! The table of operations under way.
//!
//! A slot is taken before the work request is posted and given back when its completion has come *and* the task that
//! issued it has seen it or is gone. Until then its bounce buffer is in quarantine.

use crate::bounce::Bounce;
use crate::conn::Conn;
use crate::region::Mapping;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
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

/// What a completion sets free. Dropped outside of the table's lock.
pub(crate) struct Finished {
    pub(crate) waker: Option<Waker>,
    pub(crate) holds: Option<Holds>,
    pub(crate) bounce: Option<Bounce>,
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
    holds: Option<Holds>,
    bounce: Option<Bounce>,
}

/// All slots of a node.
pub(crate) struct OpTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl OpTable {
    pub(crate) fn new(count: u32) -> Self {
        let slot = |_| Slot { generation: 0, state: State::Free, waker: None, holds: None, bounce: None };
        Self { slots: (0..count).map(slot).collect(), free: (0..count).rev().collect() }
    }

    /// Whether a slot is free.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a slot for an operation that is about to be posted. `detached`: no task waits for it.
    pub(crate) fn take(&mut self, holds: Holds, bounce: Option<Bounce>, detached: bool) -> Option<OpId> {
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(index as usize)?;
        slot.state = State::OnWire { abandoned: detached };
        slot.holds = Some(holds);
        slot.bounce = bounce;
        Some(OpId { index, generation: slot.generation })
    }

    /// The operation has ended. `None` if that slot is in another use: a completion that came twice.
    pub(crate) fn complete(&mut self, id: OpId, status: Status) -> Option<Finished> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let State::OnWire { abandoned } = slot.state else { return None };
        let mut finished = Finished { waker: slot.waker.take(), holds: slot.holds.take(), bounce: None };
        if abandoned {
            finished.bounce = self.release(id.index);
        } else {
            slot.state = State::Done(status);
        }
        Some(finished)
    }

    /// Ready once the operation has ended: the slot is free again, and the bounce buffer the caller's.
    pub(crate) fn poll(&mut self, id: OpId, cx: &Context<'_>) -> Poll<(Status, Option<Bounce>)> {
        let Some(slot) = self.slots.get_mut(id.index as usize) else {
            return Poll::Ready((Status::LocalQpOperationError, None));
        };
        if let State::Done(status) = slot.state {
            return Poll::Ready((status, self.release(id.index)));
        }
        if !slot.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            slot.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// The task does not wait any more. The buffer, if the operation has ended already.
    pub(crate) fn abandon(&mut self, id: OpId) -> Option<Bounce> {
        let slot = self.slots.get_mut(id.index as usize)?;
        match &mut slot.state {
            State::Free => None,
            State::OnWire { abandoned } => {
                *abandoned = true;
                slot.waker = None;
                None
            }
            State::Done(_) => self.release(id.index),
        }
    }

    /// Some operation of `conn` that is on the wire. For a connection that is reset and whose completions are all taken.
    pub(crate) fn stranded(&self, conn: &Arc<Conn>) -> Option<OpId> {
        let held = |s: &Slot| s.holds.as_ref().is_some_and(|h| Arc::ptr_eq(&h.conn, conn));
        let index = self.slots.iter().position(held)?;
        Some(OpId { index: index as u32, generation: self.slots.get(index)?.generation })
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
