//! The rarer questions to the table of operations: about one operation that has failed or must wait, about
//! all of a mapping or of a connection, and about deadlines.

use super::status::{OpId, OpStage, OpStatuses};
use super::table::{OpTable, Released, Slot, SlotState, Wakes, give_back, release};
use super::validity::StampId;
use crate::planted::{Bug, planted};
use crate::transport::conn::{Conn, Link};
use alloc::sync::Arc;
use core::task::{Context, Waker};
use platform::Instant;
use proto::NodeId;
use verbs::Status;

impl OpTable {
    /// Returns the published state of the operations.
    pub(crate) fn ends(&self) -> OpStatuses {
        self.ends.clone()
    }

    /// Returns the number of slots in use.
    #[cfg(feature = "testing")]
    pub(crate) fn in_use(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state != SlotState::Free).count()
    }

    /// Makes the next end of an operation wake the tasks that wait for resources or for ends. Must be called
    /// after a task has registered itself, unless this table has refused it something since then.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// Returns the connection of an operation on the wire, unless the connection is shut.
    pub(crate) fn conn_of(&self, id: OpId) -> Option<Arc<Conn>> {
        let slot = self.slots.get(id.index()).filter(|s| s.id == id)?;
        self.links.open(slot.link).filter(|_| slot.state.is_under_way()).cloned()
    }

    /// Returns the peer and the queue pair of an operation.
    pub(crate) fn lane_of(&self, id: OpId) -> Option<(NodeId, usize)> {
        let slot = self.slots.get(id.index()).filter(|s| s.id == id)?;
        let conn = self.links.conns.get(slot.link.index())?.as_ref()?;
        Some((conn.peer, usize::from(slot.qp_index)))
    }

    /// Returns true if an operation of this table through that mapping is on the wire. Its end wakes the
    /// tasks that wait for a change.
    pub(super) fn passes(&mut self, stamp: StampId) -> bool {
        let passes = self.slots.iter().any(|s| s.touch.stamp == stamp && s.state.is_under_way());
        self.wanted |= passes;
        passes
    }

    /// Ends operation `id` and returns the tasks to wake. Does nothing if the slot is in another use: a
    /// completion that came twice.
    ///
    /// An operation that has succeeded and has no buffer frees its slot here. Its task reads the
    /// success from the slot's next use.
    #[inline(never)]
    pub(crate) fn complete(&mut self, id: OpId, status: Status) -> Wakes {
        const NOBODY: Wakes = Wakes { task: None, others: false, unused: None };
        let Some(slot) = self.slots.get_mut(id.index()).filter(|s| s.id == id) else { return NOBODY };
        let abandoned = match slot.state {
            SlotState::OnWire => false,
            SlotState::Abandoned => true,
            SlotState::Posting => self.ends.is_filled(id),
            SlotState::Free | SlotState::Ended => return NOBODY,
        };
        let conn = self.links.conns.get(slot.link.index()).and_then(Option::as_ref);
        if let Some(queue_pair) = conn.and_then(|c| c.group.lanes.get(usize::from(slot.qp_index))) {
            queue_pair.end(slot.retires);
        }
        let task = slot.waker.take();
        let is_plain = status == Status::Success && !abandoned;
        if !is_plain && slot.touch.changes {
            self.unfinished.lock().ended(id, slot.touch.stamp, conn.filter(|_| status != Status::Success));
        }
        let unused = if abandoned || (is_plain && slot.buffer.is_none()) {
            release(slot, &self.ends, &mut self.free, &mut self.bounce)
        } else {
            (slot.state, slot.status) = (SlotState::Ended, status);
            self.ends.set(id, if is_plain { OpStage::Done } else { OpStage::Failed });
            None
        };
        Wakes { task, others: core::mem::take(&mut self.wanted), unused }
    }

    /// Ends the interest in an operation: no task waits for it or needs its result any more.
    #[inline]
    pub(crate) fn let_go(&mut self, id: OpId) -> Released {
        let Some(slot) = self.slots.get_mut(id.index()).filter(|s| s.id == id) else {
            return Released { wanted: false, own: None };
        };
        let own = match slot.state {
            SlotState::Free | SlotState::Posting | SlotState::Abandoned => None,
            SlotState::OnWire if planted(Bug::FlightLeaks) => None,
            SlotState::OnWire => {
                if slot.touch.changes {
                    self.unfinished.lock().abandoned(id, slot.touch.stamp);
                }
                slot.state = SlotState::Abandoned;
                slot.waker = None;
                slot.until = Instant::MAX;
                if planted(Bug::BounceReused) { give_back(slot, &mut self.bounce) } else { None }
            }
            SlotState::Ended => release(slot, &self.ends, &mut self.free, &mut self.bounce),
        };
        Released { wanted: core::mem::take(&mut self.wanted), own }
    }

    /// Releases the slot of an operation that was not posted.
    pub(crate) fn cancel(&mut self, id: OpId) -> Wakes {
        if let Some(slot) = self.slots.get_mut(id.index()).filter(|s| s.id == id) {
            slot.touch.changes = false;
        }
        let mut wakes = self.complete(id, Status::LocalQpOperationError);
        let released = self.let_go(id);
        wakes.others |= released.wanted;
        wakes.unused = wakes.unused.or(released.own);
        wakes
    }

    /// Registers `cx`'s task to be woken at the operation's end or deadline. Returns `false` if one of the
    /// two has passed.
    pub(crate) fn wait(&mut self, id: OpId, cx: &Context<'_>) -> bool {
        if self.ends.look(id) != Some(OpStage::OnWire) {
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
        let slot = self.slots.get(id.index()).filter(|s| s.id == id && s.state == SlotState::Ended);
        slot.map_or(Status::LocalQpOperationError, |s| s.status)
    }

    /// Marks the next operation from slot `from` on whose deadline is not after `now`, and returns the
    /// waker of its task. Without one, the earliest deadline is known exactly.
    pub(crate) fn next_late(&mut self, now: Instant, from: &mut usize) -> Option<Waker> {
        while let Some(slot) = self.slots.get_mut(*from) {
            *from += 1;
            if slot.state.is_under_way() && slot.until <= now {
                self.ends.set(slot.id, OpStage::Late);
                slot.until = Instant::MAX;
                if let Some(waker) = slot.waker.take() {
                    return Some(waker);
                }
            }
        }
        let on_wire = self.slots.iter().filter(|s| s.state.is_under_way());
        self.earliest = on_wire.map(|s| s.until).min().unwrap_or(Instant::MAX);
        None
    }

    /// Returns a time that is not later than the earliest deadline of a waiting operation.
    pub(crate) fn earliest(&self) -> Instant {
        self.earliest
    }

    /// Returns true if nothing is on the wire.
    pub(crate) fn is_idle(&self) -> bool {
        !self.slots.iter().any(|s| s.state.is_under_way())
    }

    /// Returns an operation of `conn` that is on the wire. For a connection that has been reset and whose
    /// completions have all been taken.
    pub(crate) fn stranded(&self, conn: &Conn) -> Option<OpId> {
        let link = conn.link(self.shard);
        let strands = |s: &Slot| s.link == link && s.state.is_under_way();
        self.slots.iter().find(|s| link != Link::NONE && strands(s)).map(|s| s.id)
    }
}
