//! The failure of queue pairs: flushing, asynchronous events, and work requests that are posted after the
//! failure.
//!
//! No doorbell announces a posted receive. To flush the receives posted to a queue pair in the error state,
//! for which drivers wait when they drain it, the card polls its doorbell record.

use super::ctx::Ctx;
use super::eq::{Event, EventType};
use super::layout::eqe;
use super::qp::completed::Completed;
use super::qp::{Qp, State, flush};
use super::queues::Queues;
use core::time::Duration;
use platform::Instant;
use roce::transport::Counters;
use std::collections::BTreeSet;

/// The interval at which a queue pair in the error state is polled: the shortest, right after a receive was
/// flushed, and the longest.
const SOON: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(128);

/// Queue pairs in the error state, to which receives may still be posted.
#[derive(Debug)]
pub(super) struct Failed {
    qps: BTreeSet<u32>,
    due: Instant,
    wait: Duration,
}

impl Default for Failed {
    fn default() -> Self {
        Self { qps: BTreeSet::new(), due: Instant::MAX, wait: SOON }
    }
}

impl Failed {
    /// Starts to poll a queue pair.
    fn watch(&mut self, qpn: u32, now: Instant) {
        self.qps.insert(qpn);
        self.again(now, SOON);
    }

    fn again(&mut self, now: Instant, wait: Duration) {
        self.wait = wait;
        self.due = if self.qps.is_empty() { Instant::MAX } else { now + wait };
    }

    /// Returns the time of the next poll.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }
}

/// The state of a queue pair before a packet or a command changed it.
#[derive(Clone, Copy)]
pub(super) struct Before {
    state: State,
    access_errors: u64,
    invalid_requests: u64,
}

impl Before {
    /// Records the present state.
    pub(super) const fn of(qp: &Qp, counters: &Counters) -> Self {
        let Counters { access_errors, invalid_requests, .. } = *counters;
        Self { state: qp.state, access_errors, invalid_requests }
    }

    /// Returns whether the queue pair has just failed.
    pub(super) fn has_failed(self, qp: &Qp) -> bool {
        qp.state == State::Error && self.state != State::Error
    }

    /// Returns whether the card owned the send ring.
    pub(super) const fn could_send(self) -> bool {
        matches!(self.state, State::ReadyToSend | State::SendQueueDrained | State::SendQueueError)
    }

    /// Returns the event that reports the failure, if no completion does.
    pub(super) fn event(self, qp: &Qp, counters: &Counters, completed: &Completed) -> Option<EventType> {
        let told = completed.list.iter().any(|(completion, send)| {
            !send && !matches!(completion.status, verbs::Status::Success | verbs::Status::WorkRequestFlushed)
        });
        if qp.fatal {
            Some(EventType::QpFatal)
        } else if counters.access_errors > self.access_errors {
            Some(EventType::QpAccessError)
        } else if counters.invalid_requests > self.invalid_requests && !told {
            Some(EventType::QpRequestError)
        } else {
            None
        }
    }
}

impl Queues {
    /// 2ERR_QP: flushes all work requests.
    pub(super) fn fail_qp(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        self.with_qp(qpn, Completed::default(), ctx, |qp, _, env, _| {
            qp.transport.fail(env);
            qp.state = State::Error;
        });
    }

    /// Fails a queue pair whose completion queue has failed.
    pub(super) fn lose_completions(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        let alive = |qp: &&mut Qp| qp.state != State::Error;
        if let Some(qp) = self.qps.get_mut(qpn).filter(alive) {
            qp.fatal = true;
            self.fail_qp(qpn, ctx);
        }
    }

    /// Starts to flush the work requests that are posted to a failed queue pair.
    pub(super) fn watch_failed(&mut self, qpn: u32, ctx: &Ctx<'_>) {
        self.failed.watch(qpn, ctx.host.now());
    }

    /// Flushes the receives posted to queue pairs in the error state, if a poll is due.
    pub(super) fn end_late_receives(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.host.now();
        if now < self.failed.due {
            return;
        }
        let mut any = false;
        for qpn in std::mem::take(&mut self.failed.qps) {
            let found = self.with_qp(qpn, Completed::default(), ctx, |qp, keyed, env, _| {
                (qp.state == State::Error).then(|| flush::receives(qp, keyed.host, env))
            });
            if let Some(Some(found)) = found {
                self.failed.qps.insert(qpn);
                any |= found;
            }
        }
        let wait = if any { SOON } else { (self.failed.wait * 2).min(LATE) };
        self.failed.again(now, wait);
    }

    /// Posts the event that reports a drained send queue, if the send queue has drained.
    pub(super) fn report_drained(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        if qp.state == State::SendQueueDrained && qp.sends_idle() && qp.draining.take() == Some(true) {
            qp_event(EventType::SendQueueDrained, qpn, ctx);
        }
    }
}

/// Posts an event that names a queue pair.
pub(super) fn qp_event(kind: EventType, qpn: u32, ctx: &mut Ctx<'_>) {
    ctx.eqs.post(&Event::new(kind, 0).with(eqe::NUMBER, qpn), ctx.host);
}
