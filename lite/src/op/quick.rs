//! The short way of an operation that fits one work request: posted at once if its connection is there and has room, under
//! one lock and without a timer of its own. Whatever is in its way is left to the long one.

use super::post::posted;
use super::transfer::{Lost, Stop, judge};
use super::{Flight, Lent, NotPosted, OpId, Pass, Verb, Waits};
use crate::Error;
use crate::node::Node;
use crate::region::Spot;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll, Waker};
use platform::Instant;
use verbs::RemoteAddr;

/// How the short way ended.
pub(crate) enum Outcome<'n> {
    /// Done; with the bounce buffer.
    Done(Lent<'n>),
    /// It could not be posted: nothing has happened.
    NotPosted,
    /// It was posted, and its connection failed.
    Lost,
    /// It was posted, and its time is over.
    Late,
    /// It failed for good.
    Failed(Error),
}

impl<'n> Flight<'n> {
    /// Ready when it has ended, one way or another.
    #[inline]
    pub(crate) fn poll_outcome(&mut self, cx: &Context<'_>) -> Poll<Outcome<'n>> {
        self.poll_landed(cx).map(|landed| match landed {
            None => {
                self.node().missed();
                Outcome::Late
            }
            Some((status, lent)) => match judge(status) {
                Ok(()) => Outcome::Done(lent),
                Err(Lost::Stop(Stop::For(error))) => Outcome::Failed(error),
                Err(Lost::Connection | Lost::Stop(Stop::Changed)) => Outcome::Lost,
            },
        })
    }
}

impl Node {
    /// Posts at once or not at all.
    #[inline]
    pub(crate) fn post_quick(
        &self,
        Spot { at, addr, .. }: Spot,
        pass: Pass<'_>,
        verb: Verb<'_>,
        deadline: Instant,
        waker: &Waker,
    ) -> Result<OpId, NotPosted> {
        if self.is_fenced() {
            return Err(NotPosted::ConnectionLost);
        }
        let bytes = self.bounce_len(verb);
        let mut ops = self.ops.lock();
        pass.check(self)?;
        let (link, conn) = ops.conn(at).ok_or(NotPosted::ConnectionLost)?;
        let lane = conn.pick(pass.share);
        let qp = conn.lane(lane).ok_or(NotPosted::Invalid)?.number;
        let key = conn.remote_key.rkey;
        let waits = Waits::Until(waker.clone(), deadline);
        let (id, place) = ops.take((link, lane), pass.stamp, bytes, self.config.send_depth, waits)?;
        ops.quick.count(verb);
        self.note_deadline(deadline);
        drop(ops);
        self.trace(|| posted(id, verb, at.0, lane));
        self.submit(qp, id, verb, place, RemoteAddr { addr, key }).map(|()| id)
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
