//! The table of operations under way, with all that an operation takes: its slot, its bounce buffer, its place in the send
//! queue. One lock covers them.
//!
//! A slot is taken before the work request is posted and given back when its completion has come *and* the task that
//! issued it has seen it or is gone. Until then its bounce buffer is in quarantine.

use super::{NotPosted, Verb};
use crate::bounce::{Bounce, BouncePool};
use crate::conn::Conn;
use crate::membership::Life;
use crate::region::StampId;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Poll, Waker};
use platform::{Instant, IoAddr};
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

/// Names a connection in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Link(u32);

impl Link {
    /// Of a connection that is not in the table.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
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

/// What a completion sets free. To be dropped outside of the table's lock.
pub(crate) struct Finished {
    pub(crate) waker: Option<Waker>,
    /// Its connection, if it has failed and that is not shut yet.
    pub(crate) failed: Option<Arc<Conn>>,
    /// It went through a mapping.
    pub(crate) mapped: bool,
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
    /// Its connection, and which queue pair of it.
    link: Link,
    lane: u8,
    /// The mapping that it goes through: while it is on the wire, that is not drained.
    stamp: StampId,
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
    /// Connections in use, until they are shut and nothing of them is on the wire.
    links: Vec<Option<Arc<Conn>>>,
    /// By node id, those for one-sided operations.
    by_node: Vec<Link>,
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
            link: Link::NONE,
            lane: 0,
            stamp: StampId::NONE,
            bounce: None,
        };
        let free = (0..count).rev().collect();
        let slots = (0..count).map(slot).collect();
        Self { slots, free, bounce, links: Vec::new(), by_node: Vec::new(), quick: Quick::default() }
    }

    /// Slots that are taken.
    #[cfg(feature = "testing")]
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot for an operation that is about to be posted through the mapping of `stamp`, and a bounce buffer of `bytes`
    /// if it needs one; gives where that lies. There may be `depth` operations on its queue pair.
    #[inline]
    pub(crate) fn take(
        &mut self,
        (link, lane): (Link, usize),
        stamp: StampId,
        bytes: Option<usize>,
        depth: u32,
        waits: Waits,
    ) -> Result<(OpId, Option<IoAddr>), NotPosted> {
        let conn = self.links.get(link.0 as usize).and_then(Option::as_ref).filter(|c| !c.is_shut());
        let conn = conn.ok_or(NotPosted::ConnectionLost)?;
        let queue_pair = conn.lane(lane).ok_or(NotPosted::Invalid)?;
        if queue_pair.load.is_full(depth) {
            return Err(NotPosted::Busy);
        }
        let &index = self.free.last().ok_or(NotPosted::Busy)?;
        let bounce = match bytes {
            None => None,
            Some(bytes) => Some(self.bounce.take(bytes).ok_or(NotPosted::Busy)?),
        };
        let slot = self.slots.get_mut(index as usize).ok_or(NotPosted::Invalid)?;
        queue_pair.load.begin();
        self.free.pop();
        slot.state = State::OnWire { abandoned: matches!(waits, Waits::Nobody) };
        (slot.link, slot.lane, slot.stamp, slot.late) = (link, lane as u8, stamp, false);
        let place = bounce.as_ref().map(|b| b.addr);
        slot.bounce = bounce;
        (slot.waker, slot.until) = match waits {
            Waits::Nobody | Waits::Task => (None, Instant::MAX),
            Waits::Until(waker, until) => (Some(waker), until),
        };
        Ok((OpId { index, generation: slot.generation }, place))
    }

    /// The operation has ended. `None` if that slot is in another use: a completion that came twice.
    #[inline]
    pub(crate) fn complete(&mut self, id: OpId, status: Status) -> Option<Finished> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let State::OnWire { abandoned } = slot.state else { return None };
        let conn = self.links.get(slot.link.0 as usize).and_then(Option::as_ref);
        if let Some(queue_pair) = conn.and_then(|c| c.lane(usize::from(slot.lane))) {
            queue_pair.load.end();
        }
        let failed = conn.filter(|c| status != Status::Success && !c.is_shut()).cloned();
        let mapped = slot.stamp != StampId::NONE;
        let finished = Finished { waker: slot.waker.take(), failed, mapped };
        if abandoned {
            let bounce = self.release(id.index);
            self.give(bounce);
        } else {
            slot.state = State::Done(status);
        }
        Some(finished)
    }

    /// Whether something that goes through that mapping is on the wire.
    pub(crate) fn passes(&self, stamp: StampId) -> bool {
        self.slots.iter().any(|s| s.stamp == stamp && matches!(s.state, State::OnWire { .. }))
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
    #[inline]
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
        !self.slots.iter().any(|s| matches!(s.state, State::OnWire { .. }))
    }

    /// Some operation of `conn` that is on the wire. For a connection that is reset and whose completions are all taken.
    pub(crate) fn stranded(&self, conn: &Conn) -> Option<OpId> {
        let link = conn.link();
        let strands = |s: &Slot| s.link == link && matches!(s.state, State::OnWire { .. });
        let index = self.slots.iter().position(strands).filter(|_| link != Link::NONE)?;
        Some(OpId { index: index as u32, generation: self.slots.get(index)?.generation })
    }

    /// The connection for one-sided operations to that life of that node, and which it is here.
    #[inline]
    pub(crate) fn conn(&self, (node, life): Life) -> Option<(Link, &Arc<Conn>)> {
        let &link = self.by_node.get(usize::from(node.0))?;
        let conn = self.links.get(link.0 as usize)?.as_ref()?;
        ((conn.peer, conn.incarnation) == (node, life) && !conn.is_shut()).then_some((link, conn))
    }

    /// Which one a connection is here; [`Link::NONE`] if it is shut.
    pub(crate) fn link(&mut self, conn: &Arc<Conn>) -> Link {
        let known = conn.link();
        // One that is shut is forgotten by the poller after this, or has been before.
        if known != Link::NONE || conn.is_shut() {
            return known;
        }
        let free = self.links.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        if let Some(place) = self.links.get_mut(at) {
            *place = Some(conn.clone());
            conn.set_link(Link(at as u32));
        }
        conn.link()
    }

    /// One-sided operations may use a connection.
    pub(crate) fn remember(&mut self, conn: &Arc<Conn>) {
        let (link, place) = (self.link(conn), usize::from(conn.peer.0));
        if self.by_node.len() <= place {
            self.by_node.resize(place + 1, Link::NONE);
        }
        if let Some(known) = self.by_node.get_mut(place) {
            *known = link;
        }
    }

    /// A connection is shut, and nothing of it is on the wire. What is given is to be dropped outside of the table's lock.
    pub(crate) fn forget(&mut self, conn: &Conn) -> Option<Arc<Conn>> {
        let link = conn.link();
        conn.set_link(Link::NONE);
        self.links.get_mut(link.0 as usize)?.take()
    }

    #[inline]
    fn release(&mut self, index: u32) -> Option<Bounce> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        slot.waker = None;
        self.free.push(index);
        slot.bounce.take()
    }
}
