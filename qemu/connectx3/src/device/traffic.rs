//! RoCE traffic: sends of queue pairs, received frames, and frames that are looped back inside the card.
//!
//! The wire does not return a frame to its sender. Therefore the card itself loops back a frame to an address
//! of the same port; a frame to a multicast address is looped back and also sent.

use super::Card;
use super::Function;
use super::eq::EventType;
use super::ethernet::headers::{Headers, Length};
use super::failures::Before;
use super::host::Host;
use super::link::TornAtomics;
use super::mailbox::Mailbox;
use super::master::gsi;
use super::memory::Keyed;
use super::memory::address::PeerMemory;
use super::port::Port;
use super::qp::connected::{self, Completed, Local, Shared};
use super::qp::datagram::{self, Origin};
use super::qp::{Ended, Qp, Service, State, Transport, flush};
use super::queue_memory::MttTable;
use super::vlan;
use core::cell::Cell;
use platform::Instant;
use roce::transport::{Counters, Env};
use roce::wire::{Bth, Frame, Service as WireService, XrcEth};

/// Rounds of the transport. An acknowledgement is sent in a later round than the one in which its packet
/// arrived, so it is due once the card has handled the frames that arrived together.
const RECEIVING: u32 = 0;
const SENDING: u32 = 1;
/// The number of packets that a queue pair sends per burst.
const BURST: usize = 32;
/// The number of bursts of a queue pair per turn.
const TURN: usize = 8;
/// The number of rounds of looped-back frames per turn.
const ROUNDS: usize = 16;

/// The mask of a partition key without the bit for full membership.
const PARTITION: u16 = 0x7fff;

/// A frame from a queue pair of this card to the same port.
#[derive(Debug)]
pub struct Inside {
    port: usize,
    /// The sending queue pair.
    from: u32,
    frame: Vec<u8>,
    /// True if the sender is a raw Ethernet queue pair; steering may then deliver the frame to others of that
    /// kind.
    raw: bool,
}

impl Card {
    /// Runs `act` on a queue pair and its memory, then posts the resulting completions and events.
    pub(super) fn with_qp<T>(
        &mut self,
        qpn: u32,
        mut completed: Completed,
        host: &dyn Host,
        act: impl FnOnce(&mut Qp, Keyed<'_>, &mut Env<'_>, &mut Shared<'_>) -> T,
    ) -> Option<T> {
        let torn = TornAtomics(host);
        let host = if self.profile.torn_atomics { &torn } else { host };
        let hca = self.hca.as_ref()?;
        let table = MttTable { icm: &self.icm, base: hca.mtt_base };
        let keyed = Keyed { regions: &self.regions, table, host };
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
        let mut shared = Shared {
            srqs: &mut self.srqs,
            eqs: &mut self.eqs,
            ports: &self.ports,
            has_master: self.profile.function == Function::Virtual,
        };
        let before = Before::of(qp, env.counters);
        let result = act(qp, keyed, &mut env, &mut shared);
        match qp.transport.ended() {
            Ended::All => qp.state = State::Error,
            Ended::Sends if qp.state == State::ReadyToSend => qp.state = State::SendQueueError,
            Ended::Sends | Ended::Nothing => {}
        }
        let failed = before.has_failed(qp);
        if failed {
            // Requests that are still in the guest's rings are flushed too.
            if before.could_send() {
                flush::sends(qp, host, &mut env);
            }
            flush::receives(qp, host, &mut env);
        }
        let (send_cqn, receive_cqn) = (qp.context.send_cqn(), qp.context.receive_cqn());
        let (shares_receives, drains) = (qp.context.shares_receives(), qp.draining.is_some());
        // An XRC initiator receives nothing.
        let had_receives = qp.context.srqn().is_some() || qp.context.xrc_domain().is_some();
        completed.extended = qp.service == Service::Xrc;
        if let Some(at) = qp.transport.deadline() {
            self.next_deadline = self.next_deadline.min(at);
        }
        if let (Some(key), who) = (peer.invalidated.get(), peer.who.get())
            && let Err(e) = self.regions.invalidate(key, who, true, &mut self.icm, host)
        {
            log::warn!("a key that a peer has taken away: {e}");
        }
        let event = if failed { before.event(qp, &self.transport_counters, &completed) } else { None };
        let mut told = true;
        for (completion, send) in &completed.list {
            let cqn = match *send {
                true => send_cqn,
                false if completed.extended => match self.srqs.cqn(connected::srqn_of(completion.id)) {
                    Some(cqn) => cqn,
                    // The guest has taken the queue back, and with it the receives.
                    None => continue,
                },
                false => receive_cqn,
            };
            told &= self.cqs.post(cqn, &completed.cqe(qpn, completion, *send), &mut self.eqs, host);
        }
        if let Some(kind) = event {
            self.qp_event(kind, qpn, host);
        }
        if failed && had_receives {
            self.qp_event(EventType::LastWqeReached, qpn, host);
        } else if failed && !shares_receives {
            self.watch_failed(qpn, host);
        }
        if drains {
            self.tell_drained(qpn, host);
        }
        if !told {
            self.lose_completions(qpn, host);
        }
        Some(result)
    }

    /// Handles the send doorbell.
    pub(super) fn ring_send(&mut self, qpn: u32, host: &dyn Host) {
        match self.qps.get_mut(qpn).map(|qp| (qp.service, &qp.transport)) {
            Some((Service::Raw, Transport::Raw)) => self.send_raw(qpn, host),
            Some((Service::Raw, _)) => self.send_special(qpn, host),
            Some(_) => self.transmit(qpn, host),
            None => {}
        }
    }

    /// Sends up to [`TURN`] bursts of a queue pair, and moves more work from its ring to the transport as
    /// that has room.
    fn transmit(&mut self, qpn: u32, host: &dyn Host) {
        for _ in 0..TURN {
            let Some((frames, local)) = self.with_qp(qpn, Completed::default(), host, burst) else { return };
            if let Some(local) = &local {
                self.run_local(qpn, local, host);
            }
            if frames.is_empty() && local.is_none() {
                return;
            }
            for outgoing in frames {
                self.send_roce(qpn, outgoing);
            }
        }
        self.pending.insert(qpn);
    }

    /// Executes a work request on the card's own tables.
    fn run_local(&mut self, qpn: u32, local: &Local, host: &dyn Host) {
        let Some(hca) = &self.hca else { return };
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        let (who, cqn) = (qp.context.domain(), qp.context.send_cqn());
        let result = self.regions.run(&local.work, who, hca.mtt_base, &mut self.icm, host);
        if let Err(e) = result {
            log::warn!("queue pair {qpn:#x}: work request {} ({:?}): {e}", local.index, local.work);
        }
        if let Some(cqe) = connected::local_cqe(qpn, local, result) {
            self.cqs.post(cqn, &cqe, &mut self.eqs, host);
        }
        if result.is_err() {
            self.with_qp(qpn, Completed::default(), host, |qp, _, env, _| {
                if let Transport::Connected(connection) = &mut qp.transport {
                    connection.fail_send(None, env);
                }
            });
        }
    }

    /// Sends a frame of a queue pair over the wire, inside the card, or both.
    pub(super) fn send_roce(&mut self, qpn: u32, outgoing: datagram::Outgoing) {
        if self.ports.get(outgoing.port).is_some_and(Port::is_infiniband) {
            self.send_infiniband(qpn, outgoing);
            return;
        }
        let datagram::Outgoing { port, frame, inside } = outgoing;
        let Some(to) = frame.first_chunk().copied() else { return };
        let own = self.ports.get(port).is_some_and(|port| port.has_mac(to));
        if let Some(costs) = &self.costs {
            costs.work(qpn);
            costs.frame(frame.len());
        }
        let multicast = to[0] & 1 != 0;
        if inside || multicast || own {
            self.keep_inside(port, qpn, frame.clone());
        }
        if multicast || !(inside || own) {
            let counter = self.qps.get_mut(qpn).map_or(0, |qp| qp.context.counter());
            self.emit(port, counter, frame);
        }
    }

    /// Queues a frame of a queue pair for others of its port.
    pub(super) fn keep_inside(&mut self, port: usize, from: u32, frame: Vec<u8>) {
        self.inside.push(Inside { port, from, frame, raw: false });
    }

    /// Queues a frame of a raw Ethernet queue pair for others of its port.
    pub(super) fn keep_raw_inside(&mut self, port: usize, from: u32, frame: Vec<u8>) {
        self.inside.push(Inside { port, from, frame, raw: true });
    }

    /// Handles a frame that may be RoCE. `from` is a queue pair of this card, or `None` for the wire. Returns
    /// whether it was RoCE.
    pub(super) fn receive_roce(
        &mut self,
        port: usize,
        from: Option<u32>,
        bytes: &[u8],
        host: &dyn Host,
    ) -> bool {
        let tagged = vlan::strip(bytes);
        let bytes = tagged.as_ref().map_or(bytes, |(_, plain)| plain);
        let Ok(frame) = Frame::parse(bytes) else { return false };
        let net = &frame.headers.net;
        let link = datagram::link_of(net);
        let mac = frame.headers.ethernet.dst.0;
        let to = if mac[0] & 1 != 0 {
            let members = self.group_members(port, net.dst(), from, host);
            if members.is_empty() {
                return false;
            }
            members
        } else {
            let ours = self.ports.get(port).is_some_and(|port| {
                port.gids.iter().flatten().any(|row| row.gid == net.dst() && row.link == link)
            });
            if !ours {
                return false;
            }
            vec![self.local_number(port, frame.packet.bth.dest_qp.get())]
        };
        if !frame.icrc_ok() {
            self.transport_counters.rx_icrc_errors += 1;
            return true;
        }
        if frame.packet.bth.pkey & PARTITION != Bth::DEFAULT_PKEY & PARTITION {
            self.transport_counters.rx_bad_pkey += 1;
            return true;
        }
        let vlan = tagged.as_ref().map(|(tag, _)| *tag);
        if self.profile.function == Function::Virtual && frame.packet.bth.dest_qp == gsi::GSI {
            // The port's own queue pair belongs to the master, which forwards the slave's share to it.
            if let Some(frame) = gsi::inbound(port, &frame, vlan) {
                self.keep_inside(port, gsi::tunnel(port), frame);
            }
            return true;
        }
        let origin = Origin::Ethernet { mac: frame.headers.ethernet.src, vlan };
        for qpn in to {
            self.receive_packet(port, qpn, &frame, origin, host);
        }
        true
    }

    /// Returns the card's number of the queue pair that a packet names: 0 and 1 stand for the port's special
    /// ones.
    pub(super) const fn local_number(&self, port: usize, qpn: u32) -> u32 {
        match qpn {
            0 | 1 => self.special_qp_base + 2 * qpn + port as u32,
            _ => qpn,
        }
    }

    /// Handles a packet for a queue pair, whose partition has been checked.
    pub(super) fn receive_packet(
        &mut self,
        port: usize,
        qpn: u32,
        frame: &Frame<'_>,
        origin: Origin,
        host: &dyn Host,
    ) {
        let Bth { opcode, solicited, xrc, .. } = frame.packet.bth;
        let named = xrc.map(XrcEth::srq);
        let counters = &mut self.transport_counters;
        let Some(qp) = self.qps.get_mut(qpn).filter(|qp| qp.transport.takes(opcode.service)) else {
            counters.rx_unknown_qp += 1;
            return;
        };
        let takes_receive = match &qp.transport {
            Transport::Connected(connection) if !connection.is_peer(&frame.headers.net) => {
                counters.rx_wrong_peer += 1;
                return;
            }
            Transport::Connected(_) => connected::takes_receive(opcode.operation),
            _ => qp.context.port() == port && qp.state.receives(),
        };
        self.interface_counters.received(qp.context.counter(), frame_len(frame));
        if let Some(costs) = &self.costs {
            costs.work(qpn);
        }
        let datagram = opcode.service == WireService::Ud;
        let completed = Completed { solicited, origin: datagram.then_some(origin), ..Completed::default() };
        let first = matches!(qp.transport, Transport::Connected(_))
            && qp.state == State::ReadyToReceive
            && !std::mem::replace(&mut qp.heard, true);
        if first {
            self.qp_event(EventType::CommunicationEstablished, qpn, host);
        }
        self.with_qp(qpn, completed, host, |qp, keyed, env, shared| {
            if takes_receive {
                connected::take_receives(qp, named, keyed, env, shared);
            }
            match &mut qp.transport {
                Transport::Connected(connection) => {
                    connection.receive(&frame.packet, frame.headers.net.ecn(), RECEIVING, env);
                }
                Transport::Datagram(qp) if takes_receive => qp.receive(&frame.packet, &frame.origin(), env),
                Transport::Datagram(_) => env.counters.rx_wrong_state += 1,
                Transport::Raw => {}
            }
            connected::return_receives(qp, named, keyed.host, shared);
        });
        if !datagram {
            self.pending.insert(qpn);
        }
    }

    /// Sends the packets that received frames and expired timers have made due. Call it after each batch of
    /// frames and at [`next_deadline`](Self::next_deadline).
    pub fn progress(&mut self, host: &dyn Host) {
        if self.is_broken() {
            return;
        }
        let now = host.now();
        self.progress_events(now, host);
        if now >= self.next_deadline {
            let (due, next) = self.qps.due(now);
            self.next_deadline = next;
            self.train(now);
            for qpn in due {
                self.with_qp(qpn, Completed::default(), host, |qp, _, env, _| qp.transport.on_timer(env));
                self.pending.insert(qpn);
            }
        }
        self.end_late_receives(host);
        for _ in 0..ROUNDS {
            for qpn in std::mem::take(&mut self.pending) {
                self.ring_send(qpn, host);
            }
            if self.inside.is_empty() {
                return;
            }
            for Inside { port, from, frame, raw } in std::mem::take(&mut self.inside) {
                if self.ports.get(port).is_some_and(Port::is_infiniband) {
                    self.receive_infiniband(port, Some(from), &frame, host);
                } else if !self.receive_roce(port, Some(from), &frame, host) && raw {
                    let headers = Headers::parse(&frame, Length::AsStated);
                    self.receive_ethernet(port, Some(from), &frame, &headers, host);
                }
            }
        }
    }

    /// Returns the time at which [`progress`](Self::progress) is due even if no frame arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_broken() {
            return None;
        }
        if !self.inside.is_empty() || !self.pending.is_empty() {
            return Some(Instant::ZERO);
        }
        let own = self.next_deadline.min(self.failed.due());
        let deadline = self.next_event().map_or(own, |event| event.min(own));
        (deadline != Instant::MAX).then_some(deadline)
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

    /// Returns the transport's counters.
    #[must_use]
    pub const fn transport_counters(&self) -> &Counters {
        &self.transport_counters
    }
}

/// Returns the length of a frame as received, without a VLAN tag.
fn frame_len(frame: &Frame<'_>) -> usize {
    frame.headers.frame_len_of(&frame.packet.bth, &frame.packet.ext, frame.packet.payload.len())
}

/// Returns the next frames of a queue pair, and the work that the card must execute itself now.
fn burst(
    qp: &mut Qp,
    keyed: Keyed<'_>,
    env: &mut Env<'_>,
    shared: &mut Shared<'_>,
) -> (Vec<datagram::Outgoing>, Option<Local>) {
    let mut frames = Vec::new();
    let local = connected::take_sends(qp, keyed, env);
    let port = qp.context.port();
    let tag = shared.ports.get(port).and_then(|port| connected::tag(&qp.context, port));
    while frames.len() < BURST {
        let Transport::Connected(connection) = &mut qp.transport else {
            match datagram::next_frame(qp, keyed, env, shared) {
                Some(outgoing) => frames.push(outgoing),
                None => break,
            }
            continue;
        };
        let Some(tx) = connection.next_tx(SENDING) else { break };
        let mut frame = vec![0; connection.frame_len(&tx)];
        let (len, good) = connection.emit(&tx, &mut frame, env.memory, env.remote).unwrap_or((0, false));
        if good {
            connection.sent(&tx, env);
        } else {
            connection.spoiled(&tx, env);
        }
        frame.truncate(len);
        if let Some(tag) = tag {
            vlan::insert(&mut frame, tag);
        }
        frames.push(datagram::Outgoing { port, frame, inside: false });
    }
    (frames, local)
}
