//! RoCE packets that arrive, from the wire or from inside the card.

use super::{RECEIVING, Traffic};
use crate::device::ctx::Ctx;
use crate::device::eq::EventType;
use crate::device::failures::qp_event;
use crate::device::infiniband::partition;
use crate::device::master::gsi;
use crate::device::profile::Steering;
use crate::device::qp::completed::Completed;
use crate::device::qp::datagram::{self, Origin};
use crate::device::qp::{State, Transport, connected, receives};
use crate::device::steering::{McgTable, receiver};
use crate::device::vlan;
use roce::wire::{Bth, Frame, Service as WireService, XrcEth};
use verbs::Gid;

/// The mask of a partition key without the bit for full membership.
const PARTITION: u16 = 0x7fff;

/// The number of special queue pairs, from the first one on.
const SPECIAL_QPS: u32 = 8;

impl Traffic {
    /// Handles a frame that may be RoCE. `from` is a queue pair of this card, or `None` for the wire. Returns
    /// whether it was RoCE.
    pub(crate) fn receive_roce(
        &mut self,
        port: usize,
        from: Option<u32>,
        bytes: &[u8],
        ctx: &mut Ctx<'_>,
    ) -> bool {
        let tagged = vlan::strip(bytes);
        let bytes = tagged.as_ref().map_or(bytes, |(_, plain)| plain);
        let Ok(frame) = Frame::parse(bytes) else { return false };
        let net = &frame.headers.net;
        let link = datagram::link_of(net);
        let mac = frame.headers.ethernet.dst.0;
        let to = if mac[0] & 1 != 0 {
            let members = self.group_members(port, net.dst(), from, ctx);
            if members.is_empty() {
                return false;
            }
            members
        } else {
            let ours = ctx.ports.get(port).is_some_and(|port| {
                port.gids.iter().flatten().any(|row| row.gid == net.dst() && row.link == link)
            });
            if !ours {
                return false;
            }
            vec![self.local_number(port, frame.packet.bth.dest_qp.get())]
        };
        if !frame.icrc_ok() {
            self.queues.transport_counters.rx_icrc_errors += 1;
            return true;
        }
        if frame.packet.bth.pkey & PARTITION != Bth::DEFAULT_PKEY & PARTITION {
            self.queues.transport_counters.rx_bad_pkey += 1;
            return true;
        }
        let vlan = tagged.as_ref().map(|(tag, _)| *tag);
        if self.queues.has_master && frame.packet.bth.dest_qp == gsi::GSI {
            // The port's own queue pair belongs to the master, which forwards the slave's share to it.
            if let Some(frame) = gsi::inbound(port, &frame, vlan) {
                self.keep_inside(port, gsi::tunnel(port), frame);
            }
            return true;
        }
        let origin = Origin::Ethernet { mac: frame.headers.ethernet.src, vlan };
        for qpn in to {
            self.receive_packet(port, qpn, &frame, origin, ctx);
        }
        true
    }

    /// Returns the card's number of the queue pair that a packet names: 0 and 1 stand for the port's special
    /// ones.
    pub(crate) const fn local_number(&self, port: usize, qpn: u32) -> u32 {
        match qpn {
            0 | 1 => self.special_qp_base + 2 * qpn + port as u32,
            _ => qpn,
        }
    }

    /// Handles a packet for a queue pair, whose partition has been checked.
    pub(crate) fn receive_packet(
        &mut self,
        port: usize,
        qpn: u32,
        frame: &Frame<'_>,
        origin: Origin,
        ctx: &mut Ctx<'_>,
    ) {
        let Bth { opcode, solicited, xrc, .. } = frame.packet.bth;
        let named = xrc.map(XrcEth::srq);
        let level = self.level(qpn, ctx);
        let at = ctx.ports.get(port);
        let counters = &mut self.queues.transport_counters;
        let Some(qp) = self.queues.qps.get_mut(qpn).filter(|qp| qp.transport.takes(opcode.service)) else {
            counters.rx_unknown_qp += 1;
            return;
        };
        // Special queue pairs accept packets of all partitions of the port, which were checked before.
        let own = at.map_or(Bth::DEFAULT_PKEY, |at| partition::of(at, qp.context.partition_index()));
        let is_special = qpn.wrapping_sub(self.special_qp_base) < SPECIAL_QPS;
        if !is_special && !partition::accepts(own, frame.packet.bth.pkey) {
            counters.rx_bad_pkey += 1;
            return;
        }
        let takes_receive = match &qp.transport {
            Transport::Connected(connection)
                if !connection.is_peer(&frame.headers.net)
                    || !connected::is_in_vlan(&qp.context, at, origin) =>
            {
                counters.rx_wrong_peer += 1;
                return;
            }
            Transport::Connected(_) => receives::takes_receive(opcode.operation),
            _ => qp.context.port() == port && qp.state.receives(),
        };
        self.interface_counters.received(qp.context.counter(), frame_len(frame));
        self.levels.note(level, ctx.host.now());
        if let Some(costs) = &self.costs {
            costs.work(qpn);
        }
        let datagram = opcode.service == WireService::Ud;
        let completed = Completed { solicited, origin: datagram.then_some(origin), ..Completed::default() };
        let first = matches!(qp.transport, Transport::Connected(_))
            && qp.state == State::ReadyToReceive
            && !std::mem::replace(&mut qp.has_received, true);
        if first {
            qp_event(EventType::CommunicationEstablished, qpn, ctx);
        }
        self.queues.with_qp(qpn, completed, ctx, |qp, keyed, env, shared| {
            if takes_receive {
                receives::take_receives(qp, named, keyed, env, shared);
            }
            match &mut qp.transport {
                Transport::Connected(connection) => {
                    connection.receive(&frame.packet, frame.headers.net.ecn(), RECEIVING, env);
                }
                Transport::Datagram(qp) if takes_receive => qp.receive(&frame.packet, &frame.origin(), env),
                Transport::Datagram(_) => env.counters.rx_wrong_state += 1,
                Transport::Raw => {}
            }
            receives::return_receives(qp, named, keyed.host, shared);
        });
        if !datagram {
            self.queues.pending.insert(qpn);
        }
    }

    /// Returns the queue pairs that receive a frame to an RDMA multicast group at a port. `from` is a queue
    /// pair of the card, or `None` for the wire.
    pub(crate) fn group_members(&self, port: usize, gid: Gid, from: Option<u32>, ctx: &Ctx<'_>) -> Vec<u32> {
        let Some(hca) = &ctx.tables.hca else { return Vec::new() };
        let members = match hca.steering {
            Steering::Flows => self.flows.group(port, &gid.0).into(),
            Steering::Groups | Steering::Table => McgTable { icm: &ctx.tables.icm, hca }.group(gid, ctx.host),
        };
        let wants = |&word: &u32| {
            let qpn = receiver(word, from)?;
            (self.queues.qps.get(qpn)?.context.port() == port).then_some(qpn)
        };
        members.iter().filter_map(wants).collect()
    }
}

/// Returns the length of a frame as received, without a VLAN tag.
fn frame_len(frame: &Frame<'_>) -> usize {
    frame.headers.frame_len_of(&frame.packet.bth, &frame.packet.ext, frame.packet.payload.len())
}
