//! The queues of a card, and the work of queue pairs on them: completions, events, failures.

use super::cq::Cqs;
use super::ctx::Ctx;
use super::eq::EventType;
use super::failures::{Before, Failed, qp_event};
use super::host::Host;
use super::mailbox::Mailbox;
use super::memory::Keyed;
use super::memory::address::PeerMemory;
use super::profile::{Function, Profile};
use super::qp::completed::{Completed, srqn_of};
use super::qp::connected::{self, Shared};
use super::qp::{Ended, Qp, Qps, Service, State, flush};
use super::srq::Srqs;
use super::torn::TornAtomics;
use core::cell::Cell;
use platform::Instant;
use roce::transport::{Counters, Env};
use std::collections::BTreeSet;

/// The completion queues, shared receive queues and queue pairs of a card.
pub(super) struct Queues {
    /// The completion queues.
    pub cqs: Cqs,
    /// The shared receive queues.
    pub srqs: Srqs,
    /// The queue pairs.
    pub qps: Qps,
    /// Queue pairs that may have something to send.
    pub pending: BTreeSet<u32>,
    /// Queue pairs in the error state.
    pub failed: Failed,
    /// A lower bound of all queue pairs' deadlines.
    pub next_deadline: Instant,
    /// The transport's counters.
    pub transport_counters: Counters,
    /// True if the card is a virtual function, whose special queue pairs are tunnels to its master.
    pub has_master: bool,
    torn_atomics: bool,
}

/// The changes of a queue pair that must be reported with its completions.
struct Changes {
    /// True if the queue pair has just failed.
    failed: bool,
    /// The event that reports the failure, if no completion does.
    event: Option<EventType>,
    /// True while the send queue drains.
    draining: bool,
    /// True if receives come from shared queues.
    shares_receives: bool,
    /// True if the queue pair receives from a shared queue.
    had_receives: bool,
    /// The completion queues of sends and of receives.
    cqns: [u32; 2],
}

impl Queues {
    /// Creates the empty tables of queues of a card.
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            cqs: Cqs::default(),
            srqs: Srqs::default(),
            qps: Qps::default(),
            pending: BTreeSet::new(),
            failed: Failed::default(),
            next_deadline: Instant::MAX,
            transport_counters: Counters::default(),
            has_master: profile.function == Function::Virtual,
            torn_atomics: profile.torn_atomics,
        }
    }

    /// Removes every queue of the guest.
    pub(super) fn forget(&mut self) {
        self.cqs = Cqs::default();
        self.srqs = Srqs::default();
        self.qps = Qps::default();
    }

    /// Handles the expired timers of queue pairs, which may then have something to send.
    pub(super) fn run_timers(&mut self, now: Instant, ctx: &mut Ctx<'_>) {
        if now < self.next_deadline {
            return;
        }
        let (due, next) = self.qps.due(now);
        self.next_deadline = next;
        for qpn in due {
            self.with_qp(qpn, Completed::default(), ctx, |qp, _, env, _| qp.transport.on_timer(env));
            self.pending.insert(qpn);
        }
    }

    /// Runs `act` on a queue pair and its memory, then posts the resulting completions and events.
    pub(super) fn with_qp<T>(
        &mut self,
        qpn: u32,
        mut completed: Completed,
        ctx: &mut Ctx<'_>,
        act: impl FnOnce(&mut Qp, Keyed<'_>, &mut Env<'_>, &mut Shared<'_>) -> T,
    ) -> Option<T> {
        let torn = TornAtomics(ctx.host);
        let host: &dyn Host = if self.torn_atomics { &torn } else { ctx.host };
        let keyed = ctx.tables.keyed(host)?;
        let qp = self.qps.get_mut(qpn)?;
        let peer = PeerMemory {
            keyed,
            who: Cell::new(qp.context.domain()),
            extended: qp.context.xrc_domain().map(|domain| (domain, self.srqs.domains())),
            rights: qp.context.remote_rights(),
            invalidated: Cell::new(None),
        };
        let mut env = Env {
            now: host.now(),
            memory: &connected::local_memory(keyed),
            remote: &peer,
            counters: &mut self.transport_counters,
            completions: &mut completed,
        };
        let mut shared =
            Shared { srqs: &mut self.srqs, eqs: ctx.eqs, ports: &ctx.ports.all, has_master: self.has_master };
        let before = Before::of(qp, env.counters);
        let result = act(qp, keyed, &mut env, &mut shared);
        let failed = follow_transport(qp, before, host, &mut env);
        let mut changes = Changes {
            failed,
            event: None,
            draining: qp.draining.is_some(),
            shares_receives: qp.context.shares_receives(),
            // An XRC initiator receives nothing.
            had_receives: qp.context.srqn().is_some() || qp.context.xrc_domain().is_some(),
            cqns: [qp.context.send_cqn(), qp.context.receive_cqn()],
        };
        completed.extended = qp.service == Service::Xrc;
        if let Some(at) = qp.transport.deadline() {
            self.next_deadline = self.next_deadline.min(at);
        }
        if let (Some(key), who) = (peer.invalidated.get(), peer.who.get())
            && let Err(e) = ctx.tables.regions.invalidate(key, who, true, &mut ctx.tables.icm, host)
        {
            log::warn!("a peer cannot invalidate a key: {e}");
        }
        if failed {
            changes.event = before.event(qp, &self.transport_counters, &completed);
        }
        self.report_changes(qpn, &completed, &changes, ctx);
        Some(result)
    }

    /// Posts a queue pair's completions, and the events of its changes.
    fn report_changes(&mut self, qpn: u32, completed: &Completed, changes: &Changes, ctx: &mut Ctx<'_>) {
        let [send_cqn, receive_cqn] = changes.cqns;
        let mut all_posted = true;
        for (completion, send) in &completed.list {
            let cqn = match *send {
                true => send_cqn,
                false if completed.extended => match self.srqs.cqn(srqn_of(completion.id)) {
                    Some(cqn) => cqn,
                    // The guest has taken the queue back, and with it the receives.
                    None => continue,
                },
                false => receive_cqn,
            };
            all_posted &= self.cqs.post(cqn, &completed.cqe(qpn, completion, *send), ctx.eqs, ctx.host);
        }
        if let Some(kind) = changes.event {
            qp_event(kind, qpn, ctx);
        }
        if changes.failed && changes.had_receives {
            qp_event(EventType::LastWqeReached, qpn, ctx);
        } else if changes.failed && !changes.shares_receives {
            self.watch_failed(qpn, ctx);
        }
        if changes.draining {
            self.report_drained(qpn, ctx);
        }
        if !all_posted {
            self.lose_completions(qpn, ctx);
        }
    }

    /// DIAG_RPRT: writes the transport's counters to `out` (Linux `hw/mlx4/main.c`, `diag_basic` and
    /// `diag_ext`).
    pub(super) fn transport_report(&self, out: &mut Mailbox) {
        let counters = &self.transport_counters;
        for (offset, count) in [
            (0x68, counters.tx_rnr_naks),
            (0x6c, counters.rx_rnr_naks),
            (0x100, counters.rx_out_of_sequence),
            (0x104, counters.rx_naks),
            (0x130, counters.rx_duplicates),
            (0x134, counters.timeouts),
        ] {
            out.put_u32(offset, count as u32);
        }
    }
}

/// Updates a queue pair's state from its transport, and flushes its rings if it has just failed. Returns
/// whether it has.
fn follow_transport(qp: &mut Qp, before: Before, host: &dyn Host, env: &mut Env<'_>) -> bool {
    match qp.transport.ended() {
        Ended::All => qp.state = State::Error,
        Ended::Sends if qp.state == State::ReadyToSend => qp.state = State::SendQueueError,
        Ended::Sends | Ended::Nothing => {}
    }
    let failed = before.has_failed(qp);
    if failed {
        // Requests that are still in the guest's rings are flushed too.
        if before.could_send() {
            flush::sends(qp, host, env);
        }
        flush::receives(qp, host, env);
    }
    failed
}
