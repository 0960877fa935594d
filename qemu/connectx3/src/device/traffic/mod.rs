//! The traffic of a card: sends of queue pairs, received frames, and frames that are looped back inside the
//! card.
//!
//! The wire does not return a frame to its sender. Therefore the card itself loops back a frame to an address
//! of the same port; a frame to a multicast address is looped back and also sent.
//!
//! ```text
//!  doorbell, timer ----> pending ----> send, ethernet, infiniband ----> outbox ----> cable
//!                           ^                    |                                     |
//!                           |                 looped                                   |
//!                           |                    v                                     v
//!                           +------ receive, ethernet, infiniband <---------------- receive
//! ```

mod ethernet;
mod infiniband;
mod receive;
mod send;

use super::Counters;
use super::cost::Costs;
use super::ctx::Ctx;
use super::ethernet::headers::{Headers, Length};
use super::flow::Rules;
use super::port::Port;
use super::profile::Profile;
use super::qp::{Service, Transport};
use super::queues::Queues;
use super::statistics::InterfaceCounters;
use super::steering::Steer;
use platform::Instant;
use roce::transport::Levels;
use std::sync::Arc;

/// The transport's round of receiving. An acknowledgement is sent in a later round than the one in which its
/// packet arrived, so it is due once the card has handled the frames that arrived together.
const RECEIVING: u32 = 0;
/// The number of rounds of looped-back frames per turn.
const ROUNDS: usize = 16;

/// A frame that a queue pair of this card sends to other queue pairs of the same port.
#[derive(Debug)]
pub(super) struct Looped {
    pub port: usize,
    /// The sending queue pair.
    from: u32,
    frame: Vec<u8>,
    /// True if the sender is a raw Ethernet queue pair; steering may then deliver the frame to others of that
    /// kind.
    raw: bool,
}

/// The traffic of a card.
pub(super) struct Traffic {
    /// The queues, which the traffic serves.
    pub queues: Queues,
    /// The rules of device-managed steering.
    pub flows: Rules,
    /// Default queue pairs, which receive frames that match no steering entry: by port, then by multicast and
    /// unicast.
    pub default_steering: Vec<[Vec<u32>; 2]>,
    /// The first of the special queue pairs, which packets name 0 and 1.
    pub special_qp_base: u32,
    /// The counters of queue pairs.
    pub interface_counters: InterfaceCounters,
    /// The account of the cost of work, if costs are counted.
    pub costs: Option<Arc<Costs>>,
    /// The service levels in use.
    levels: Levels,
    counters: Counters,
    looped: Vec<Looped>,
}

impl Traffic {
    /// Creates the traffic of a card without queues.
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            queues: Queues::new(profile),
            flows: Rules::default(),
            default_steering: vec![Default::default(); profile.ports.len()],
            special_qp_base: 0,
            interface_counters: InterfaceCounters::default(),
            costs: None,
            levels: Levels::default(),
            counters: Counters::default(),
            looped: Vec::new(),
        }
    }

    /// Removes every object of the guest.
    pub(super) fn forget(&mut self) {
        self.queues.forget();
        self.special_qp_base = 0;
        self.default_steering.fill(Default::default());
        self.interface_counters = InterfaceCounters::default();
        self.flows = Rules::default();
    }

    /// Returns the queue pairs that receive frames which match no steering entry.
    pub(super) fn default_members(&self, port: usize, steer: Steer) -> &[u32] {
        self.default_steering.get(port).map_or(&[], |kinds| &kinds[steer as usize])
    }

    /// Handles a frame that has arrived at a port.
    pub(super) fn receive(&mut self, port: usize, frame: &[u8], ctx: &mut Ctx<'_>) {
        let Some(at) = ctx.ports.get_mut(port).filter(|port| port.open && port.link) else { return };
        if at.is_infiniband() {
            self.receive_cable(port, frame, ctx);
            return;
        }
        let headers = Headers::parse(frame, Length::AsStated);
        if at.receive(frame, &headers) && !self.receive_roce(port, None, frame, ctx) {
            self.receive_ethernet(port, None, frame, &headers, ctx);
        }
    }

    /// Handles the send doorbell.
    pub(super) fn ring_send(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        match self.queues.qps.get_mut(qpn).map(|qp| (qp.service, &qp.transport)) {
            Some((Service::Raw, Transport::Raw)) => self.send_raw(qpn, ctx),
            Some((Service::Raw, _)) => self.send_special(qpn, ctx),
            Some(_) => self.transmit(qpn, ctx),
            None => {}
        }
    }

    /// Queues a frame of a queue pair for the other queue pairs of the same port.
    pub(super) fn keep_inside(&mut self, port: usize, from: u32, frame: Vec<u8>) {
        self.looped.push(Looped { port, from, frame, raw: false });
    }

    /// Queues a frame of a raw Ethernet queue pair for the other queue pairs of its port.
    pub(super) fn keep_raw_inside(&mut self, port: usize, from: u32, frame: Vec<u8>) {
        self.looped.push(Looped { port, from, frame, raw: true });
    }

    /// Sends the packets that received frames and expired timers have made due, and reports what is due.
    pub(super) fn progress(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.host.now();
        ctx.ports.progress(now, ctx.eqs, ctx.host);
        self.queues.cqs.progress(now, ctx.eqs, ctx.host);
        ctx.eqs.progress(now, ctx.host);
        ctx.ports.train(now);
        self.queues.run_timers(now, ctx);
        self.queues.end_late_receives(ctx);
        for _ in 0..ROUNDS {
            for qpn in self.take_pending(ctx) {
                self.ring_send(qpn, ctx);
            }
            if self.looped.is_empty() {
                return;
            }
            for Looped { port, from, frame, raw } in std::mem::take(&mut self.looped) {
                if ctx.ports.get(port).is_some_and(Port::is_infiniband) {
                    self.receive_infiniband(port, Some(from), &frame, ctx);
                } else if !self.receive_roce(port, Some(from), &frame, ctx) && raw {
                    let headers = Headers::parse(&frame, Length::AsStated);
                    self.receive_ethernet(port, Some(from), &frame, &headers, ctx);
                }
            }
        }
    }

    /// Returns the next time at which [`progress`](Self::progress) has work on the queues: `Instant::MAX`
    /// means never, and zero that there is work now.
    pub(super) fn next_deadline(&self) -> Instant {
        if !self.looped.is_empty() || !self.queues.pending.is_empty() {
            return Instant::ZERO;
        }
        let queues = &self.queues;
        let event = queues.cqs.next_due().unwrap_or(Instant::MAX);
        queues.next_deadline.min(queues.failed.due()).min(event)
    }
}
