//! The requester turns send work into request packets, and responses into completions (specification 9.7.3,
//! 9.7.5).
//!
//! ```text
//!      head of queue          cursor
//!        |                      |
//!   ----[una .............. next) ........ sent) ---->  PSN
//!        oldest not            next to     highest sent
//!        acknowledged          send        before, plus 1
//! ```
//! `next` falls behind `sent` when the requester goes back. `next - una` is bounded by a [`Window`]. If a
//! response is late, a *probe* repeats the packet at `una` and changes nothing else; its response shows the
//! responder's progress.

mod responses;

use super::congestion::Window;
use super::qp::Tx;
use super::request::Request;
use super::rtt::Rtt;
use super::send_queue::{Op, SendQueue, Wqe};
use super::timers::{Due, Timers};
use super::{Env, READ_CHUNK};
use alloc::collections::VecDeque;
use core::time::Duration;
use platform::Instant;
use verbs::{Completion, Psn, QpConnect, QpNum, SendWr, Status, VerbsError};

/// The RNR retry count that means no limit (specification 9.7.5.2.8).
const RNR_UNLIMITED: u8 = 7;
/// The bytes that a queue pair keeps in flight while one of a higher service level is in use.
const YIELDING: usize = 8 << 10;
/// The pause of such a queue pair after these bytes are acknowledged, as a multiple of the time that they
/// took, and the longest pause. So the higher level has the path for itself for two thirds of the time.
const PAUSE: u32 = 2;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// Returns the distance from `b` up to `a`, modulo 2^24.
const fn ahead(a: Psn, b: Psn) -> u32 {
    a.get().wrapping_sub(b.get()) & 0xff_ffff
}

/// A gap to which the requester went back.
#[derive(Clone, Copy)]
struct Gap {
    at: Psn,
    when: Instant,
    /// True if the gap was seen again, though perhaps only by responses that were already in flight.
    again: bool,
}

pub(super) struct Requester {
    qp: QpNum,
    queue: SendQueue,
    remote_qp: QpNum,
    mtu: usize,
    max_rd_atomic: usize,
    rnr_retries: u8,

    /// The oldest PSN that is not acknowledged.
    una: Psn,
    /// The next PSN to send.
    next: Psn,
    /// One past the highest PSN ever sent.
    sent: Psn,
    /// The first PSN of the next work request to be posted.
    post: Psn,
    /// The position of the work request to which `next` belongs.
    cursor: u64,
    /// The ends (one past) of the READ requests and atomics between `una` and `sent`. A repeated request must
    /// end where it ended before, because the responder remembers the original.
    rd_atomic: VecDeque<Psn>,
    /// The number of outstanding READs and atomics whose PSN is before `next`.
    rd_atomic_sent: usize,
    /// The gap in the acknowledgements that begins at `una`, once it is known.
    gap: Option<Gap>,
    window: Window,
    /// Present while a queue pair of a higher service level is in use.
    yields: Option<Burst>,
    rtt: Rtt,
    /// One past the last packet that was sent when the round began.
    round_end: Psn,
    /// The number of packets sent since the last one that requested an acknowledgement.
    unasked: u32,
    rnr_left: u8,
    timers: Timers,
    /// The time before which nothing is sent, because the responder was not ready.
    wait_until: Option<Instant>,
    /// True if the packet at `una` must be repeated.
    probe_due: bool,
    /// One past the packet repeated last, as long as its acknowledgement would be the last progress.
    probed: Option<Psn>,
}

/// The packets that a yielding requester sends between two pauses.
#[derive(Clone, Copy)]
struct Burst {
    /// The PSN of the first one.
    first: Psn,
    /// The time at which the first one was sent; `None` for packets from before the requester yielded.
    begun: Option<Instant>,
    /// The number of packets.
    packets: u32,
}

impl Burst {
    /// Returns true if the packet with that PSN is behind the burst.
    const fn is_over(&self, next: Psn) -> bool {
        ahead(next, self.first) >= self.packets
    }
}

/// A packet that may be sent next.
struct Sendable {
    /// The number of packets of the work request that precede this one.
    done: u32,
    /// The number of PSNs that the work request consumes.
    packets: u32,
    in_flight: u32,
}

impl Requester {
    pub(super) fn new(qp: QpNum, queue: SendQueue, max_rd_atomic: u8, max_window: u32) -> Self {
        Self {
            qp,
            queue,
            remote_qp: QpNum::new(0),
            mtu: 256,
            max_rd_atomic: 0,
            rnr_retries: 0,
            una: Psn::new(0),
            next: Psn::new(0),
            sent: Psn::new(0),
            post: Psn::new(0),
            cursor: 0,
            rd_atomic: VecDeque::with_capacity(usize::from(max_rd_atomic)),
            rd_atomic_sent: 0,
            gap: None,
            window: Window::new(max_window),
            yields: None,
            rtt: Rtt::new(),
            round_end: Psn::new(0),
            unasked: 0,
            rnr_left: 0,
            timers: Timers::new(),
            wait_until: None,
            probe_due: false,
            probed: None,
        }
    }

    pub(super) fn connect(&mut self, connect: &QpConnect) {
        self.remote_qp = connect.remote_qp;
        self.mtu = connect.mtu.bytes();
        self.max_rd_atomic = usize::from(connect.max_rd_atomic);
        self.rnr_retries = connect.rnr_retries;
        self.rnr_left = connect.rnr_retries;
        self.timers.connect(connect.ack_timeout, connect.retries);
        self.una = connect.send_psn;
        self.next = connect.send_psn;
        self.sent = connect.send_psn;
        self.post = connect.send_psn;
        self.round_end = connect.send_psn;
    }

    pub(super) fn post(
        &mut self,
        work: &SendWr<'_>,
        srq: u32,
        memory: &dyn platform::Memory,
    ) -> Result<(), VerbsError> {
        let packets = self.queue.push_to(work, srq, self.post, self.mtu, memory)?;
        self.post = self.post.add(packets);
        Ok(())
    }

    pub(super) const fn queue(&self) -> &SendQueue {
        &self.queue
    }

    pub(super) const fn next_psn(&self) -> Psn {
        self.next
    }

    pub(super) const fn unacknowledged_psn(&self) -> Psn {
        self.una
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.wait_until.or_else(|| self.timers.deadline())
    }

    /// Keeps little in flight from now on, with pauses, or as much as the window allows.
    pub(super) fn set_yielding(&mut self, yields: bool) {
        if yields != self.yields.is_some() {
            let packets = (YIELDING / self.mtu) as u32;
            self.yields = yields.then_some(Burst { first: self.una, begun: None, packets });
            self.window.set_ceiling(if yields { packets } else { u32::MAX });
        }
    }

    /// Returns true if [`next_request`](Self::next_request) returns a packet.
    pub(super) fn has_work(&self) -> bool {
        self.probe_due || self.queue.get(self.cursor).is_some_and(|wqe| self.sendable(wqe).is_some())
    }

    /// Returns the next request packet, if one may be sent now.
    pub(super) fn next_request(&self) -> Option<Request<'_>> {
        if self.probe_due {
            return self.probe();
        }
        let wqe = self.queue.get(self.cursor)?;
        let Sendable { done, packets, in_flight } = self.sendable(wqe)?;
        let ack_request = wqe.op.is_rd_atomic() || self.requests_ack(wqe, done, in_flight);
        Some(self.request(wqe, self.cursor, self.next, done, packets, ack_request))
    }

    /// Returns the packet at `next`, which belongs to `wqe`, if it may be sent.
    fn sendable(&self, wqe: &Wqe) -> Option<Sendable> {
        if self.wait_until.is_some() {
            return None;
        }
        let done = ahead(self.next, wqe.first);
        let in_flight = ahead(self.next, self.una);
        if in_flight > 0 {
            // Packets without a request for an acknowledgement get none, so they must not fill the window.
            if in_flight >= self.window.packets() && in_flight > self.unasked {
                return None;
            }
            if self.yields.is_some_and(|burst| burst.is_over(self.next)) {
                return None;
            }
            if wqe.fence && done == 0 && self.rd_atomic_sent > 0 {
                return None;
            }
        }
        if !wqe.op.is_rd_atomic() {
            return Some(Sendable { done, packets: 1, in_flight });
        }
        if self.rd_atomic_sent >= self.max_rd_atomic {
            return None;
        }
        let packets = match self.rd_atomic.get(self.rd_atomic_sent) {
            Some(&end) => ahead(end, self.next),
            None => self.piece(wqe, done),
        };
        let fits = in_flight == 0 || in_flight + packets <= self.window.packets();
        fits.then_some(Sendable { done, packets, in_flight })
    }

    /// Returns the number of PSNs of a new READ request or atomic, from packet number `done` on. It is chosen
    /// so that a few requests fill the window.
    fn piece(&self, wqe: &Wqe, done: u32) -> u32 {
        let few = self.max_rd_atomic.clamp(1, 4) as u32;
        let most = (self.window.packets() / few).clamp(1, READ_CHUNK);
        if let Op::Read(_) = wqe.op { most.min(wqe.packets - done) } else { 1 }
    }

    /// Returns true if packet number `done` of a SEND or WRITE requests an acknowledgement: if somebody waits
    /// for it, if no packet follows, and often enough to advance the window.
    fn requests_ack(&self, wqe: &Wqe, done: u32, in_flight: u32) -> bool {
        let last = done + 1 == wqe.packets;
        let nothing_follows = self.cursor + 1 == self.queue.tail();
        let window = self.window.packets();
        last && (wqe.signaled || nothing_follows)
            || (self.unasked + 1) * 4 >= window
            || in_flight + 1 >= window
            || self.yields.is_some_and(|burst| burst.is_over(self.next.add(1)))
    }

    /// Returns the packet at `una` again.
    fn probe(&self) -> Option<Request<'_>> {
        let (wqe, position) = (self.queue.front()?, self.queue.head());
        let done = ahead(self.una, wqe.first);
        let end = self.rd_atomic.front().filter(|_| wqe.op.is_rd_atomic());
        let packets = end.map_or(1, |&end| ahead(end, self.una));
        Some(self.request(wqe, position, self.una, done, packets, true))
    }

    const fn request<'a>(
        &'a self,
        wqe: &'a Wqe,
        position: u64,
        psn: Psn,
        done: u32,
        packets: u32,
        ack_request: bool,
    ) -> Request<'a> {
        let (mtu, remote_qp) = (self.mtu, self.remote_qp);
        Request { wqe, position, psn, done, packets, ack_request, mtu, remote_qp }
    }

    /// Records that `tx`, the packet of [`next_request`](Self::next_request), was sent.
    pub(super) fn on_sent(&mut self, tx: &Tx, packets: u32, env: &mut Env<'_>) {
        if self.probe_due {
            self.probe_due = false;
            env.counters.retransmits += 1;
            let end = self.una.add(packets);
            self.probed = Some(end);
            self.rtt.forget_before(end);
            return;
        }
        let Some(wqe) = self.queue.get(self.cursor) else { return };
        let (rd_atomic, end) = (wqe.op.is_rd_atomic(), wqe.first.add(wqe.packets));
        let first = self.next;
        if first == self.una
            && let Some(burst) = &mut self.yields
        {
            (burst.first, burst.begun) = (first, Some(env.now));
        }
        self.next = first.add(packets);
        if rd_atomic {
            if self.rd_atomic_sent == self.rd_atomic.len() {
                self.rd_atomic.push_back(self.next);
            }
            self.rd_atomic_sent += 1;
        }
        if self.next == end {
            self.cursor += 1;
        }
        if first != self.sent {
            env.counters.retransmits += 1;
        } else if tx.bth.ack_request {
            self.rtt.time(first.add(1), env.now);
        }
        if ahead(self.next, self.una) > ahead(self.sent, self.una) {
            self.sent = self.next;
        }
        self.unasked = if tx.bth.ack_request { 0 } else { self.unasked + 1 };
        if !self.timers.running() {
            self.timers.start(env.now, self.rtt.timeout());
        }
    }

    fn go_back(&mut self) {
        self.next = self.una;
        self.cursor = self.queue.head();
        self.rd_atomic_sent = 0;
        self.unasked = 0;
        self.rtt.forget();
        self.probe_due = false;
        self.probed = None;
    }

    /// Ends a wait at `env.now`, or reacts to a missing acknowledgement.
    pub(super) fn on_timer(&mut self, env: &mut Env<'_>) -> Result<(), Status> {
        if let Some(until) = self.wait_until {
            if env.now >= until {
                self.wait_until = None;
            }
            return Ok(());
        }
        match self.timers.due(env.now, self.rtt.timeout()) {
            Due::Nothing => {}
            Due::Probe if self.next == self.una => {}
            // The responder had missed the packet that the probe repeated, and thus the packets after it; or
            // a repeated packet was lost.
            Due::Probe if self.probed == Some(self.una) || self.gap.is_some_and(|gap| gap.again) => {
                self.on_gap(Some(0), env);
            }
            Due::Probe => {
                env.counters.probes += 1;
                self.probe_due = true;
            }
            Due::GoBack => {
                env.counters.timeouts += 1;
                self.window.on_timeout();
                self.go_back();
                self.gap = None;
            }
            Due::GiveUp => {
                env.counters.timeouts += 1;
                return Err(Status::RetryExceeded);
            }
        }
        Ok(())
    }

    /// Completes all work: the oldest request with `status` if there is one, the others as flushed.
    pub(super) fn flush(&mut self, status: Option<Status>, env: &mut Env<'_>) {
        if let Some(status) = status {
            self.complete_front(status, env);
        }
        while self.complete_front(Status::WorkRequestFlushed, env) {}
        self.go_back();
        self.rd_atomic.clear();
        self.una = self.post;
        self.next = self.post;
        self.sent = self.post;
        self.timers.stop();
        self.wait_until = None;
    }

    /// Removes the oldest work request and completes it. Returns false if there was none.
    fn complete_front(&mut self, status: Status, env: &mut Env<'_>) -> bool {
        let Some(wqe) = self.queue.front() else { return false };
        let (byte_len, kind) = (wqe.len, wqe.op.kind());
        let completion = Completion { byte_len, ..Completion::new(wqe.id, self.qp, status, kind) };
        let report = wqe.signaled || status != Status::Success;
        self.queue.pop();
        env.completions.send_ended(&completion, report);
        true
    }
}
