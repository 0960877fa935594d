//! The fast path of an operation that fits one work request: it is posted at once if its connection exists
//! and has room, under one lock and without a timer of its own. In all other cases the slow path does it.

use super::links::MemberIndex;
use super::status::OpId;
use super::transport::Transport;
use super::validity::StampId;
use super::work::{Effect, Verb};
use crate::base::qos::Share;
use core::sync::atomic::Ordering;
use core::task::Waker;
use platform::{Instant, IoAddr};
use verbs::RemoteAddr;

/// The target on the fast path, valid while the mapping of `stamp` is as it was when it was made.
pub(crate) struct FastRoute {
    pub(crate) place: MemberIndex,
    pub(crate) addr: IoAddr,
    pub(crate) stamp: StampId,
    pub(crate) share: Share,
}

impl Transport {
    /// Posts at once, with the waker of the task that waits. Otherwise returns `None` and nothing has
    /// happened; the slow path finds the reason.
    #[inline(always)]
    pub(crate) fn post_fast(
        &self,
        route: &FastRoute,
        verb: Verb<'_>,
        deadline: Instant,
        waker: Waker,
    ) -> Option<OpId> {
        if !self.local.lease.may_begin() {
            return None;
        }
        let bytes = self.bounce_len(verb);
        let to = {
            let mut ops = self.ops.lock();
            // Checked under this lock: a task that changes a mapping then finds the operations posted
            // before under this lock.
            if !self.stamps.is_valid(route.stamp) {
                return None;
            }
            let waits = (waker, deadline);
            let touch = Effect { stamp: route.stamp, changes: verb.changes() };
            let to = ops.take_fast(route.place, route.share, touch, bytes, self.send_depth, waits)?;
            ops.fast_path.count(verb);
            self.note_deadline(deadline);
            to
        };
        self.local.trace(|| super::post::posted(to.id, verb, to.peer, to.qp_index));
        let remote = RemoteAddr { addr: route.addr, key: to.key };
        self.submit(to.qp, (to.id, false), to.place, verb, remote).ok().map(|()| to.id)
    }

    /// Notes the deadline of an operation. Must be called under the table's lock.
    pub(crate) fn note_deadline(&self, deadline: Instant) {
        if deadline.as_nanos() < self.earliest_op.load(Ordering::Relaxed) {
            self.earliest_op.store(deadline.as_nanos(), Ordering::Release);
        }
    }

    /// Wakes the tasks whose operations on the fast path are late; returns true if there were any.
    #[inline]
    pub(crate) fn expire_fast_path(&self, now: Instant) -> bool {
        now.as_nanos() >= self.earliest_op.load(Ordering::Acquire) && self.wake_late(now)
    }

    #[cold]
    fn wake_late(&self, now: Instant) -> bool {
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
