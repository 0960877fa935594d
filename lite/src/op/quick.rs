//! The short way of an operation that fits one work request: posted at once if its connection is there and has room, under
//! one lock and without a timer of its own. Whatever is in its way is left to the long one.

use super::post::posted;
use super::transfer::{Lost, Stop, judge};
use super::{Flight, Holds, Lent, NotPosted, OpId, Pass, Verb, Waits};
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
    pub(super) fn poll_outcome(&mut self, cx: &Context<'_>) -> Poll<Outcome<'n>> {
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
    /// Does `verb` at `spot`, with `pass`, by `deadline`.
    pub(crate) async fn quick(
        &self,
        spot: Spot,
        pass: Pass<'_>,
        verb: Verb<'_>,
        deadline: Instant,
    ) -> Outcome<'_> {
        let mut flight = Flight::grounded(self);
        core::future::poll_fn(|cx| {
            if !flight.is_posted() {
                return match self.post_quick(spot, pass, verb, deadline, cx.waker()) {
                    Ok(id) => {
                        flight.depart(id);
                        Poll::Pending
                    }
                    Err(NotPosted::Revoked) => Poll::Ready(Outcome::Failed(self.ended(pass.mapping))),
                    Err(_) => Poll::Ready(Outcome::NotPosted),
                };
            }
            flight.poll_outcome(cx)
        })
        .await
    }

    /// Posts at once or not at all.
    pub(super) fn post_quick(
        &self,
        Spot { at: (to, life), addr, .. }: Spot,
        pass: Pass<'_>,
        verb: Verb<'_>,
        deadline: Instant,
        waker: &Waker,
    ) -> Result<OpId, NotPosted> {
        if self.is_fenced() {
            return Err(NotPosted::ConnectionLost);
        }
        pass.enter()?;
        let mapping = pass.mapping;
        let bytes = self.bounce_len(verb);
        let mut ops = self.ops.lock();
        let conn = ops.conn(to).filter(|c| c.incarnation == life).cloned();
        let Some(conn) = conn else {
            drop(ops);
            mapping.gate.exit();
            return Err(NotPosted::ConnectionLost);
        };
        let lane = conn.pick(pass.share);
        let (qp, key) = (conn.lane(lane).map(|l| l.number), conn.remote_key.rkey);
        let holds = Holds { conn, lane, mapping: Some(mapping.clone()) };
        let waits = Waits::Until(waker.clone(), deadline);
        let taken = ops.take(holds, bytes, self.config.send_depth, waits);
        if taken.is_ok() {
            ops.quick.count(verb);
            self.note_deadline(deadline);
        }
        drop(ops);
        match (taken, qp) {
            (Ok((id, place)), Some(qp)) => {
                self.trace(|| posted(id, verb, to, lane));
                self.submit(qp, id, verb, place, RemoteAddr { addr, key }).map(|()| id)
            }
            (Ok(_), None) => Err(NotPosted::Invalid),
            (Err((why, holds)), _) => {
                mapping.gate.exit();
                drop(holds);
                Err(why)
            }
        }
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
