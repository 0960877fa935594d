//! RoCE traffic: frames to queue pairs, and what queue pairs have to send.

use super::Card;
use super::host::Host;
use super::memory::Keyed;
use super::memory::address::PeerMemory;
use super::qp::connected::{self, Ended, Local, Shared};
use super::qp::{Qp, Service, State};
use super::queue_memory::MttTable;
use core::cell::Cell;
use platform::Instant;
use roce::transport::{Counters, Env};
use roce::wire::{Frame, Operation, Service as Transport};
use verbs::LinkKind;

/// Rounds of the transport: an acknowledgement waits for another round than that of its packet, so it is due as soon as
/// the card has taken the frames that came at once.
const RECEIVING: u32 = 0;
const SENDING: u32 = 1;
/// Packets that a queue pair sends before the next one has its turn.
const BURST: usize = 32;

impl Card {
    /// Runs `act` on a connected queue pair with its memory, then posts what has completed.
    fn with_transport<T>(
        &mut self,
        qpn: u32,
        host: &dyn Host,
        act: impl FnOnce(&mut Qp, Keyed<'_>, &mut Env<'_>, &mut Shared<'_>) -> T,
    ) -> Option<T> {
        let hca = self.hca.as_ref()?;
        let table = MttTable { icm: &self.icm, base: hca.mtt_base };
        let keyed = Keyed { regions: &self.regions, table, host };
        let qp = self.qps.get_mut(qpn)?;
        qp.transport.as_ref()?;
        let peer = PeerMemory {
            keyed,
            who: qp.context.domain(),
            rights: qp.context.remote_rights(),
            invalidated: Cell::new(None),
        };
        let mut ended = Ended::default();
        let mut env = Env {
            now: host.now(),
            memory: &connected::local_memory(keyed),
            remote: &peer,
            counters: &mut self.transport_counters,
            completions: &mut ended,
        };
        let mut shared = Shared { srqs: &mut self.srqs, eqs: &mut self.eqs };
        let result = act(qp, keyed, &mut env, &mut shared);
        if qp.transport.as_ref().is_some_and(|transport| transport.state() == roce::transport::State::Error) {
            // Receives that still lie in the guest's ring end as flushed too.
            if qp.context.srqn().is_none() {
                connected::take_receives(qp, keyed, &mut env, &mut shared, true);
            }
            qp.state = State::Error;
        }
        let (send_cqn, receive_cqn) = (qp.context.send_cqn(), qp.context.receive_cqn());
        let deadline = qp.transport.as_ref().and_then(|transport| transport.deadline());
        if let Some(at) = deadline {
            self.next_deadline = self.next_deadline.min(at);
        }
        if let (Some(key), who) = (peer.invalidated.get(), peer.who)
            && let Err(e) = self.regions.invalidate(key, who, true, &mut self.icm, host)
        {
            log::warn!("a key that a peer has taken away: {e}");
        }
        for (completion, send) in &ended.0 {
            let cqn = if *send { send_cqn } else { receive_cqn };
            self.cqs.post(cqn, &connected::cqe(qpn, completion, *send), &mut self.eqs, host);
        }
        Some(result)
    }

    /// The send doorbell.
    pub(super) fn ring_send(&mut self, qpn: u32, host: &dyn Host) {
        match self.qps.get_mut(qpn).map(|qp| qp.service) {
            Some(Service::Raw) => self.send_raw(qpn, host),
            Some(Service::Rc) => {
                self.transmit(qpn, host);
            }
            Some(Service::Uc | Service::Ud) | None => {}
        }
    }

    /// Sends what a queue pair has, and takes more work from its ring as the transport gets room.
    fn transmit(&mut self, qpn: u32, host: &dyn Host) {
        loop {
            let mut frames = Vec::new();
            let local = self.with_transport(qpn, host, |qp, keyed, env, _| {
                let local = connected::take_sends(qp, keyed, env);
                let transport = qp.transport.as_mut()?;
                for _ in 0..BURST {
                    let Some(tx) = transport.next_tx(SENDING) else { break };
                    let mut frame = vec![0; transport.frame_len(&tx)];
                    let emitted = transport.emit(&tx, 0, &mut frame, env.memory, env.remote);
                    let (len, good) = emitted.unwrap_or((0, false));
                    if good {
                        transport.sent(&tx, env);
                    } else {
                        transport.spoiled(&tx, env);
                    }
                    frame.truncate(len);
                    frames.push(frame);
                }
                local
            });
            let Some(qp) = self.qps.get_mut(qpn) else { return };
            let (port, counter) = (qp.context.port(), qp.context.counter());
            let local = local.flatten();
            if let Some(local) = &local {
                self.run_local(qpn, local, host);
            }
            if frames.is_empty() && local.is_none() {
                return;
            }
            if let Some(costs) = &self.costs {
                for frame in &frames {
                    costs.work(qpn);
                    costs.frame(frame.len());
                }
            }
            for frame in frames.into_iter().filter(|frame| !frame.is_empty()) {
                self.emit(port, counter, frame);
            }
        }
    }

    /// Does what a work request asks of the card itself.
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
            self.with_transport(qpn, host, |qp, _, env, _| {
                if let Some(transport) = &mut qp.transport {
                    transport.fail(None, None, env);
                }
            });
        }
    }

    /// A frame that may be RoCE; gives whether it was.
    pub(super) fn receive_roce(&mut self, port: usize, bytes: &[u8], host: &dyn Host) -> bool {
        let Ok(frame) = Frame::parse(bytes) else { return false };
        let net = &frame.headers.net;
        let link = if matches!(net, roce::wire::Net::Grh(_)) { LinkKind::RoceV1 } else { LinkKind::RoceV2 };
        let ours = self.ports.get(port).is_some_and(|port| {
            port.gids.iter().flatten().any(|row| row.gid == net.dst() && row.link == link)
        });
        if !ours {
            return false;
        }
        if !frame.icrc_ok() {
            self.transport_counters.rx_icrc_errors += 1;
            return true;
        }
        let qpn = frame.packet.bth.dest_qp.get();
        let known = self.qps.get_mut(qpn).is_some_and(|qp| {
            qp.service == Service::Rc && qp.transport.as_ref().is_some_and(|transport| transport.is_peer(net))
        });
        if !known || frame.packet.bth.opcode.service == Transport::Ud {
            self.transport_counters.rx_unknown_qp += 1;
            return true;
        }
        if let Some(costs) = &self.costs {
            costs.work(qpn);
        }
        if let Some(qp) = self.qps.get_mut(qpn) {
            self.interface_counters.received(qp.context.counter(), bytes.len());
        }
        let takes_receive = !frame.packet.bth.opcode.operation.is_response()
            && frame.packet.bth.opcode.operation != Operation::ReadRequest;
        self.with_transport(qpn, host, |qp, keyed, env, shared| {
            if takes_receive {
                connected::take_receives(qp, keyed, env, shared, false);
            }
            if let Some(transport) = &mut qp.transport {
                transport.receive(&frame.packet, frame.headers.net.ecn(), RECEIVING, env);
            }
        });
        self.pending.insert(qpn);
        true
    }

    /// Sends what frames and timers have made due. To be called after each batch of frames and at
    /// [`next_deadline`](Self::next_deadline).
    pub fn progress(&mut self, host: &dyn Host) {
        let now = host.now();
        if now >= self.next_deadline {
            self.next_deadline = Instant::MAX;
            for qpn in self.qps.numbers() {
                let due = self.with_transport(qpn, host, |qp, _, env, _| {
                    let Some(transport) = &mut qp.transport else { return false };
                    let due = transport.deadline().is_some_and(|at| at <= now);
                    if due {
                        transport.on_timer(env);
                    }
                    due
                });
                if due == Some(true) {
                    self.pending.insert(qpn);
                }
            }
        }
        for qpn in std::mem::take(&mut self.pending) {
            self.transmit(qpn, host);
        }
    }

    /// When [`progress`](Self::progress) is due even if no frame arrives.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        (self.next_deadline != Instant::MAX).then_some(self.next_deadline)
    }

    /// What the transport counts.
    #[must_use]
    pub const fn transport_counters(&self) -> &Counters {
        &self.transport_counters
    }
}
