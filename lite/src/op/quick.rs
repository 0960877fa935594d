//! The short way of an operation that fits one work request: posted at once if its connection is there and has room, under
//! one lock and without a timer of its own. Whatever is in its way is left to the long one.

use super::{OpId, PlaceId, Touch, Verb};
use crate::node::Node;
use crate::qos::Share;
use crate::region::StampId;
use core::sync::atomic::Ordering;
use core::task::Waker;
use platform::{Instant, IoAddr};
use verbs::RemoteAddr;

/// The short way: where an operation goes if the mapping of `stamp` is as it was when it was made.
pub(crate) struct Way {
    pub(crate) place: PlaceId,
    pub(crate) addr: IoAddr,
    pub(crate) stamp: StampId,
    pub(crate) share: Share,
}

impl Node {
    /// Posts at once, with the waker of the task that waits, or not at all: then nothing has happened, and the long way finds out why.
    #[inline(always)]
    pub(crate) fn depart(&self, way: &Way, verb: Verb<'_>, deadline: Instant, waker: Waker) -> Option<OpId> {
        if !self.lease.may_begin() {
            return None;
        }
        let bytes = self.bounce_len(verb);
        let to = {
            let mut ops = self.ops.lock();
            // Under this lock, where who changes a mapping then looks for what came before.
            if !self.stamps.is_fresh(way.stamp) {
                return None;
            }
            let waits = (waker, deadline);
            let touch = Touch { stamp: way.stamp, changes: verb.changes() };
            let to = ops.depart(way.place, way.share, touch, bytes, self.config.send_depth, waits)?;
            ops.quick.count(verb);
            self.note_deadline(deadline);
            to
        };
        self.trace(|| super::post::posted(to.id, verb, to.peer, to.lane));
        let remote = RemoteAddr { addr: way.addr, key: to.key };
        self.submit(to.qp, (to.id, false), to.place, verb, remote).ok().map(|()| to.id)
    }

    /// An operation has that deadline. To be called under the table's lock.
    pub(super) fn note_deadline(&self, deadline: Instant) {
        if deadline.as_nanos() < self.earliest_op.load(Ordering::Relaxed) {
            self.earliest_op.store(deadline.as_nanos(), Ordering::Release);
        }
    }

    /// Wakes the tasks whose operations on the short way are late; gives whether there were any.
    pub(crate) fn expire_quick(&self, now: Instant) -> bool {
        if now.as_nanos() < self.earliest_op.load(Ordering::Acquire) {
            return false;
        }
        let (mut from, mut any) = (0, false);
        loop {
            let mut ops = self.ops.lock();
            let Some(waker) = ops.next_late(now, &mut from) else {
                self.earliest_op.store(ops.earliest().as_nanos(), Ordering::Release);
                return any;
            };
            drop(ops);
            any = true;
            waker.wake();
        }
    }
}
