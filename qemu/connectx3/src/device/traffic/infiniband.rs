//! Packets of InfiniBand ports: from queue pairs to the cable or back to a port of the card, and from the
//! cable to queue pairs.

use super::Traffic;
use crate::device::ctx::Ctx;
use crate::device::qp::datagram::{Origin, Outgoing};
use crate::subnet::LinkState;
use roce::wire::{ETHERTYPE_INFINIBAND, Error, Ethernet, Frame, Lrh, Net, Symbol};
use verbs::Gid;

/// The offset of a packet in a frame.
const START: usize = Ethernet::LEN + Symbol::LEN;
/// The length of the VCRC after the ICRC, in bytes.
const VCRC_LEN: usize = 2;
/// The number of the subnet management queue pair in packets.
const QP0: u32 = 0;

impl Traffic {
    /// Sends a frame of a queue pair over the link, if its state allows it, or inside the card.
    pub(crate) fn send_infiniband(&mut self, qpn: u32, outgoing: Outgoing, ctx: &mut Ctx<'_>) {
        let Outgoing { port: index, frame, inside } = outgoing;
        let Some(port) = ctx.ports.get_mut(index) else { return };
        let Some(Ok((lrh, ..))) = frame.get(START..).map(Lrh::parse) else { return };
        let (state, management) = (port.ib.managed.info.state(), lrh.lane == Lrh::MANAGEMENT_LANE);
        let passes = state == LinkState::Active || management && state != LinkState::Down;
        let multicast = is_multicast(lrh.dlid);
        let own = inside || port.ib.managed.info.path_bits(lrh.dlid).is_some();
        let counter = self.queues.qps.get_mut(qpn).map_or(0, |qp| qp.context.counter());
        if !own && !passes {
            port.ib.traffic.tx_discards += 1;
            return;
        }
        if let Some(costs) = &self.costs {
            costs.work(qpn);
            costs.frame(frame.len());
        }
        if !own {
            port.ib.traffic.tx_packets += 1;
            port.ib.traffic.tx_bytes += (frame.len() - START - VCRC_LEN) as u64;
        }
        if own || multicast {
            self.keep_inside(index, qpn, frame.clone());
        }
        if own {
            return;
        }
        self.interface_counters.sent(counter, frame.len());
        ctx.ports.outbox.push(index, frame);
    }

    /// Handles a frame from the cable of an InfiniBand port.
    pub(crate) fn receive_cable(&mut self, index: usize, bytes: &[u8], ctx: &mut Ctx<'_>) {
        let Ok((ethernet, payload)) = Ethernet::parse(bytes) else { return };
        if ethernet.ethertype != ETHERTYPE_INFINIBAND {
            return;
        }
        match Symbol::parse(payload) {
            Ok((Symbol::Packet, _)) => self.receive_infiniband(index, None, bytes, ctx),
            Ok((symbol, _)) => ctx.ports.receive_symbol(index, symbol, ctx.eqs, ctx.host),
            Err(_) => {}
        }
    }

    /// Handles a packet. `from` is the sending queue pair of this card, or `None` for a packet from the
    /// cable.
    pub(crate) fn receive_infiniband(
        &mut self,
        index: usize,
        from: Option<u32>,
        bytes: &[u8],
        ctx: &mut Ctx<'_>,
    ) {
        let Some(port) = ctx.ports.get_mut(index) else { return };
        let frame = match Frame::parse(bytes) {
            Ok(frame) if frame.icrc_ok() => frame,
            Ok(_) | Err(Error::Checksum | Error::Truncated | Error::Malformed) => {
                port.ib.traffic.rx_errors += 1;
                self.queues.transport_counters.rx_icrc_errors += 1;
                return;
            }
            Err(_) => return,
        };
        let Net::InfiniBand(lrh, grh) = &frame.headers.net else { return };
        let management = lrh.lane == Lrh::MANAGEMENT_LANE;
        if from.is_none() && !link_takes(index, management, bytes.len(), ctx) {
            return;
        }
        let Some(port) = ctx.ports.get_mut(index) else { return };
        let dest_qp = frame.packet.bth.dest_qp.get();
        let info = &port.ib.managed.info;
        let (path_bits, ours) = match lrh.dlid {
            // A directed route, which only subnet management uses.
            Lrh::PERMISSIVE_LID => (0, management),
            dlid if is_multicast(dlid) => (0, grh.is_some()),
            dlid => info.path_bits(dlid).map_or((0, from.is_some()), |bits| (bits, true)),
        };
        // Subnet management uses its own virtual lane and its own queue pair, exclusively.
        if !ours || management != (dest_qp == QP0) {
            self.queues.transport_counters.rx_unknown_qp += 1;
            return;
        }
        let partition = port.ib.managed.partition_index(frame.packet.bth.pkey);
        if !management && partition.is_none() {
            self.queues.transport_counters.rx_bad_pkey += 1;
            return;
        }
        let origin = Origin::InfiniBand {
            slid: lrh.slid,
            service_level: lrh.service_level,
            path_bits,
            partition: partition.unwrap_or(0) as u8,
            global: grh.is_some(),
        };
        let to = match grh {
            Some(grh) if is_multicast(lrh.dlid) => self.group_members(index, Gid(grh.dst), from, ctx),
            _ => vec![self.local_number(index, dest_qp)],
        };
        for qpn in to {
            self.receive_packet(index, qpn, &frame, origin, ctx);
        }
    }
}

/// Counts a packet from the cable, and returns whether the link's state allows it.
fn link_takes(index: usize, management: bool, len: usize, ctx: &mut Ctx<'_>) -> bool {
    let Some(port) = ctx.ports.get_mut(index) else { return false };
    let state = port.ib.managed.info.state();
    if state < LinkState::Armed && !(management && state == LinkState::Init) {
        return false;
    }
    port.ib.traffic.rx_packets += 1;
    port.ib.traffic.rx_bytes += len.saturating_sub(START + VCRC_LEN) as u64;
    if !management && port.ib.managed.info.activated_by_partner() {
        ctx.ports.report_state(index, LinkState::Active, ctx.eqs, ctx.host);
    }
    true
}

const fn is_multicast(lid: u16) -> bool {
    lid >= Lrh::FIRST_MULTICAST_LID && lid != Lrh::PERMISSIVE_LID
}
