//! Packets that queue pairs send, over the wire or inside the card.

use super::Traffic;
use crate::device::ctx::Ctx;
use crate::device::infiniband::partition;
use crate::device::memory::Keyed;
use crate::device::port::Port;
use crate::device::qp::completed::{Completed, Local, local_cqe};
use crate::device::qp::connected::{self, Shared};
use crate::device::qp::datagram::{self, Outgoing};
use crate::device::qp::{Qp, Transport};
use crate::device::{special, vlan};
use roce::transport::Env;
use roce::wire::Bth;

/// The transport's round of sending, which follows [`RECEIVING`](super::RECEIVING).
const SENDING: u32 = super::RECEIVING + 1;
/// The number of packets that a queue pair sends per burst.
const BURST: usize = 32;
/// The number of bursts of a queue pair per turn.
const TURN: usize = 8;
/// The maximum number of frames that a special queue pair sends per turn.
const SPECIAL_TURN: usize = 64;

impl Traffic {
    /// Takes the queue pairs that may have something to send, those of higher service levels first.
    pub(crate) fn take_pending(&mut self, ctx: &Ctx<'_>) -> Vec<u32> {
        let mut pending: Vec<u32> = std::mem::take(&mut self.queues.pending).into_iter().collect();
        pending.sort_by_key(|qpn| std::cmp::Reverse(self.level(*qpn, ctx)));
        pending
    }

    /// Returns the service level of a queue pair's connection.
    pub(crate) fn level(&self, qpn: u32, ctx: &Ctx<'_>) -> u8 {
        let Some(qp) = self.queues.qps.get(qpn) else { return 0 };
        if !matches!(qp.transport, Transport::Connected(_)) {
            return 0;
        }
        let infiniband = ctx.ports.get(qp.context.port()).is_some_and(Port::is_infiniband);
        if infiniband { qp.context.service_level() } else { qp.context.priority() }
    }

    /// Sends up to [`TURN`] bursts of a queue pair, and moves more work from its ring to the transport as
    /// that has room.
    pub(crate) fn transmit(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        let (level, now) = (self.level(qpn, ctx), ctx.host.now());
        let yields = self.levels.yields(level, now);
        if let Some(Transport::Connected(connection)) =
            self.queues.qps.get_mut(qpn).map(|qp| &mut qp.transport)
        {
            connection.set_yielding(yields);
        }
        for _ in 0..TURN {
            let Some((frames, local)) = self.queues.with_qp(qpn, Completed::default(), ctx, burst) else {
                return;
            };
            if !frames.is_empty() {
                self.levels.note(level, now);
            }
            if let Some(local) = &local {
                self.run_local(qpn, local, ctx);
            }
            if frames.is_empty() && local.is_none() {
                return;
            }
            for outgoing in frames {
                self.send_roce(qpn, outgoing, ctx);
            }
        }
        self.queues.pending.insert(qpn);
    }

    /// Executes a work request on the card's own tables.
    fn run_local(&mut self, qpn: u32, local: &Local, ctx: &mut Ctx<'_>) {
        let Some(qp) = self.queues.qps.get_mut(qpn) else { return };
        let (who, cqn) = (qp.context.domain(), qp.context.send_cqn());
        let Some(result) = ctx.tables.run(&local.work, who, ctx.host) else { return };
        if let Err(e) = result {
            log::warn!("queue pair {qpn:#x}: work request {} ({:?}): {e}", local.index, local.work);
        }
        if let Some(cqe) = local_cqe(qpn, local, result) {
            self.queues.cqs.post(cqn, &cqe, ctx.eqs, ctx.host);
        }
        if result.is_err() {
            self.queues.with_qp(qpn, Completed::default(), ctx, |qp, _, env, _| {
                if let Transport::Connected(connection) = &mut qp.transport {
                    connection.fail_send(None, env);
                }
            });
        }
    }

    /// Sends a frame of a queue pair over the wire, inside the card, or both.
    pub(crate) fn send_roce(&mut self, qpn: u32, outgoing: Outgoing, ctx: &mut Ctx<'_>) {
        if ctx.ports.get(outgoing.port).is_some_and(Port::is_infiniband) {
            self.send_infiniband(qpn, outgoing, ctx);
            return;
        }
        let Outgoing { port, frame, inside } = outgoing;
        let Some(to) = frame.first_chunk().copied() else { return };
        let own = ctx.ports.get(port).is_some_and(|port| port.has_mac(to));
        if let Some(costs) = &self.costs {
            costs.work(qpn);
            costs.frame(frame.len());
        }
        let multicast = to[0] & 1 != 0;
        if inside || multicast || own {
            self.keep_inside(port, qpn, frame.clone());
        }
        if multicast || !(inside || own) {
            let counter = self.queues.qps.get_mut(qpn).map_or(0, |qp| qp.context.counter());
            self.emit(port, counter, frame, ctx);
        }
    }

    /// Handles the send doorbell of a special queue pair.
    pub(crate) fn send_special(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        for _ in 0..SPECIAL_TURN {
            let next = self.queues.with_qp(qpn, Completed::default(), ctx, special::next_frame);
            let Some(Some(outgoing)) = next else { return };
            self.send_roce(qpn, outgoing, ctx);
        }
        self.queues.pending.insert(qpn);
    }

    /// Queues a frame of a queue pair for transmission.
    pub(crate) fn emit(&mut self, port: usize, counter: u8, frame: Vec<u8>, ctx: &mut Ctx<'_>) {
        let len = frame.len();
        if ctx.ports.send(port, frame) {
            self.interface_counters.sent(counter, len);
        }
    }
}

/// Returns the next frames of a queue pair, and the work that the card must execute itself now.
fn burst(
    qp: &mut Qp,
    keyed: Keyed<'_>,
    env: &mut Env<'_>,
    shared: &mut Shared<'_>,
) -> (Vec<Outgoing>, Option<Local>) {
    let mut frames = Vec::new();
    let local = connected::take_sends(qp, keyed, env);
    let port = qp.context.port();
    let tag = shared.ports.get(port).and_then(|port| connected::tag(&qp.context, port));
    let key = shared.ports.get(port).map(|port| partition::of(port, qp.context.partition_index()));
    let key = key.unwrap_or(Bth::DEFAULT_PKEY);
    while frames.len() < BURST {
        let Transport::Connected(connection) = &mut qp.transport else {
            match datagram::next_frame(qp, keyed, env, shared) {
                Some(mut outgoing) => {
                    if key != Bth::DEFAULT_PKEY {
                        partition::put(&mut outgoing.frame, key);
                    }
                    frames.push(outgoing);
                }
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
        if key != Bth::DEFAULT_PKEY {
            partition::put(&mut frame, key);
        }
        if let Some(tag) = tag {
            vlan::insert(&mut frame, tag);
        }
        frames.push(Outgoing { port, frame, inside: false });
    }
    (frames, local)
}
