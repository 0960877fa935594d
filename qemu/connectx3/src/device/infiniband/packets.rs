//! Packets of InfiniBand ports: from queue pairs to the cable or back to a port of the card, and from the
//! cable to queue pairs.

use super::cable;
use crate::device::Card;
use crate::device::host::Host;
use crate::device::port::Port;
use crate::device::qp::Context;
use crate::device::qp::datagram::{Origin, Outgoing};
use crate::subnet::LinkState;
use roce::wire::{ETHERTYPE_INFINIBAND, Error, Ethernet, Frame, Headers, Ipv6, Lrh, Net, Packet, Symbol};
use verbs::Gid;

/// The offset of a packet in a frame.
const START: usize = Ethernet::LEN + Symbol::LEN;
/// The length of the VCRC after the ICRC, in bytes.
const VCRC_LEN: usize = 2;
/// The number of the subnet management queue pair in packets.
const QP0: u32 = 0;

impl Card {
    /// Sends a frame of a queue pair over the link, if its state allows it, or inside the card.
    pub(in crate::device) fn send_infiniband(&mut self, qpn: u32, outgoing: Outgoing) {
        let Outgoing { port: index, frame, inside } = outgoing;
        let Some(port) = self.ports.get_mut(index) else { return };
        let Some(Ok((lrh, ..))) = frame.get(START..).map(Lrh::parse) else { return };
        let (state, management) = (port.ib.managed.info.state(), lrh.lane == Lrh::MANAGEMENT_LANE);
        let passes = state == LinkState::Active || management && state != LinkState::Down;
        let multicast = is_multicast(lrh.dlid);
        let own = inside || port.ib.managed.info.path_bits(lrh.dlid).is_some();
        let counter = self.qps.get_mut(qpn).map_or(0, |qp| qp.context.counter());
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
        self.outbox.push((index, frame));
    }

    /// Handles a frame from the cable of an InfiniBand port.
    pub(in crate::device) fn receive_cable(&mut self, index: usize, bytes: &[u8], host: &dyn Host) {
        let Ok((ethernet, payload)) = Ethernet::parse(bytes) else { return };
        if ethernet.ethertype != ETHERTYPE_INFINIBAND {
            return;
        }
        match Symbol::parse(payload) {
            Ok((Symbol::Packet, _)) => self.receive_infiniband(index, None, bytes, host),
            Ok((symbol, _)) => self.receive_symbol(index, symbol, host),
            Err(_) => {}
        }
    }

    /// Handles a packet. `from` is a queue pair of this card, or the wire.
    pub(in crate::device) fn receive_infiniband(
        &mut self,
        index: usize,
        from: Option<u32>,
        bytes: &[u8],
        host: &dyn Host,
    ) {
        let Some(port) = self.ports.get_mut(index) else { return };
        let frame = match Frame::parse(bytes) {
            Ok(frame) if frame.icrc_ok() => frame,
            Ok(_) | Err(Error::Checksum | Error::Truncated | Error::Malformed) => {
                port.ib.traffic.rx_errors += 1;
                self.transport_counters.rx_icrc_errors += 1;
                return;
            }
            Err(_) => return,
        };
        let Net::InfiniBand(lrh, grh) = &frame.headers.net else { return };
        let management = lrh.lane == Lrh::MANAGEMENT_LANE;
        if from.is_none() && !self.link_takes(index, management, bytes.len(), host) {
            return;
        }
        let Some(port) = self.ports.get_mut(index) else { return };
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
            self.transport_counters.rx_unknown_qp += 1;
            return;
        }
        let partition = port.ib.managed.partition_index(frame.packet.bth.pkey);
        if !management && partition.is_none() {
            self.transport_counters.rx_bad_pkey += 1;
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
            Some(grh) if is_multicast(lrh.dlid) => self.group_members(index, Gid(grh.dst), from, host),
            _ => vec![self.local_number(index, dest_qp)],
        };
        for qpn in to {
            self.receive_packet(index, qpn, &frame, origin, host);
        }
    }

    /// Counts a packet from the cable, and returns whether the link's state allows it.
    fn link_takes(&mut self, index: usize, management: bool, len: usize, host: &dyn Host) -> bool {
        let Some(port) = self.ports.get_mut(index) else { return false };
        let state = port.ib.managed.info.state();
        if state < LinkState::Armed && !(management && state == LinkState::Init) {
            return false;
        }
        port.ib.traffic.rx_packets += 1;
        port.ib.traffic.rx_bytes += len.saturating_sub(START + VCRC_LEN) as u64;
        if !management && port.ib.managed.info.activated_by_partner() {
            self.report_state(index, LinkState::Active, host);
        }
        true
    }
}

const fn is_multicast(lid: u16) -> bool {
    lid >= Lrh::FIRST_MULTICAST_LID && lid != Lrh::PERMISSIVE_LID
}

/// The addressing of a queue pair's packets.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The destination LID.
    pub dlid: u16,
    /// The path bits that select the source among the port's LIDs.
    pub path_bits: u8,
    /// Service level.
    pub service_level: u8,
    /// The fields of the GRH, if packets have one.
    pub global: Option<GlobalRoute>,
}

/// The global part of a route.
#[derive(Clone, Copy, Debug)]
pub struct GlobalRoute {
    /// The index of the source in the port's GID table.
    pub source: usize,
    /// The destination GID.
    pub to: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Route {
    /// Returns the route of a connection.
    #[must_use]
    pub fn of(context: &Context) -> Self {
        let (hop_limit, traffic_class) = context.hop_and_class();
        Self {
            dlid: context.remote_lid(),
            path_bits: context.path_bits(),
            service_level: context.service_level(),
            global: context.has_global_route().then(|| GlobalRoute {
                source: context.source_gid(),
                to: context.remote_gid(),
                traffic_class,
                flow_label: context.flow_label(),
                hop_limit,
            }),
        }
    }

    /// Returns the headers of packets from a port, or `None` if the port lacks the source GID.
    #[must_use]
    pub fn headers(&self, port: &Port) -> Option<Headers> {
        let managed = &port.ib.managed;
        let lrh = Lrh {
            lane: managed.lane(self.service_level),
            service_level: self.service_level,
            dlid: self.dlid,
            slid: source_lid(port, self.path_bits),
        };
        let grh = match &self.global {
            None => None,
            Some(global) => Some(Ipv6 {
                traffic_class: global.traffic_class,
                flow_label: global.flow_label,
                next_header: Ipv6::NEXT_IBA,
                hop_limit: global.hop_limit,
                src: managed.gid(global.source)?.0,
                dst: global.to.0,
            }),
        };
        Some(Headers { ethernet: cable(port.mac()), net: Net::InfiniBand(lrh, grh) })
    }
}

/// Returns the LID of a port with given path bits.
fn source_lid(port: &Port, path_bits: u8) -> u16 {
    let info = &port.ib.managed.info;
    info.lid() | u16::from(path_bits) & ((1 << info.lmc()) - 1)
}

/// Returns the frame of a packet that the guest has built from the local route header up to, and without, the
/// ICRC. Fills in lengths, checks and, unless `source_given`, the source.
pub fn special_frame(made: &[u8], port: &Port, source_given: bool) -> Result<Vec<u8>, Error> {
    let (mut lrh, global, _) = Lrh::parse(made)?;
    if !source_given {
        lrh.slid = source_lid(port, lrh.slid as u8);
    }
    let rest = made.get(Lrh::LEN..).ok_or(Error::Truncated)?;
    let (grh, rest) = if global {
        let (grh, rest) = Ipv6::parse(rest)?;
        (Some(grh), rest)
    } else {
        (None, rest)
    };
    let (body, _icrc) = rest.split_last_chunk::<4>().ok_or(Error::Truncated)?;
    let Packet { bth, ext, payload } = Packet::parse(body)?;
    let headers = Headers { ethernet: cable(port.mac()), net: Net::InfiniBand(lrh, grh) };
    let mut frame = vec![0; headers.frame_len(&ext, payload.len())];
    headers
        .emit(&bth, &ext, payload.len(), &mut frame, |to| to.copy_from_slice(payload))
        .ok_or(Error::Truncated)?;
    Ok(frame)
}
