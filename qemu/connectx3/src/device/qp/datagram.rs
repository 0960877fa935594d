//! Unreliable datagram queue pairs: the transport of `drivers/roce` fed from the rings of the guest; also the
//! receive side of special queue pairs.

use super::completed::name;
use super::connected::{Shared, resolve};
use super::context::Context;
use super::rings::MAX_WQE;
use super::state::Transition;
use super::tunnel::{self, Forwarded};
use super::unfit::Unfit;
use super::wqe::{Control, DATAGRAM, Data, Malformed, Opcode, Segments};
use super::{Ended, Qp, Transport};
use crate::device::cq::Cqe;
use crate::device::infiniband::route;
use crate::device::layout::cqe;
use crate::device::memory::{Access, Domain, Keyed};
use crate::device::port::Port;
use roce::transport::{DatagramQp, Env, Limits, Route};
use roce::wire::{Headers, Net, ud_source_port};
use verbs::{
    AddressVector, Completion, Gid, LinkKind, MacAddr, PathMtu, Payload, PortAddress, Psn, QKey, QpNum,
    Status, UdSendWr, VerbsError, WorkKind,
};

/// Datagrams wait in the guest's ring, so the transport holds only the one that is being sent.
const LIMITS: Limits = Limits {
    send_depth: 1,
    recv_depth: 64,
    max_sge: 64,
    max_inline: MAX_WQE as u32,
    max_window: 0,
    max_rd_atomic: 0,
};

/// Creates the transport of a queue pair.
#[must_use]
pub(crate) fn transport(qpn: u32, context: &Context) -> DatagramQp {
    let mtu = context.mtu().unwrap_or(PathMtu::B4096);
    DatagramQp::new(QpNum::new(qpn), QKey(context.qkey()), Psn::new(0), mtu, &LIMITS)
}

/// Applies a transition to the transport.
pub(crate) fn follow(qp: &mut DatagramQp, context: &Context, transition: Transition) {
    qp.set_qkey(QKey(context.qkey()));
    if transition == Transition::RtrToRts {
        qp.set_psn(Psn::new(context.send_psn()));
    }
}

/// The datagram segment: an address vector, and the destination queue pair (Linux `struct mlx4_eth_av`,
/// `struct mlx4_wqe_datagram_seg`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Destination {
    /// The own port, counted from 1.
    port: u8,
    /// True if the destination is on this card, whatever the address.
    inside: bool,
    /// The row of the sender's Ethernet address in the port's table.
    mac_index: usize,
    gid_index: usize,
    /// InfiniBand: the destination LID, whether there is a GRH, and the service level.
    lid: u16,
    global: bool,
    service_level: u8,
    hop_limit: u8,
    traffic_class: u8,
    flow_label: u32,
    gid: Gid,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    /// Priority and VLAN in the format of a tag. Without [`tagged`](Self::tagged) they are only for the
    /// master of a virtual function, which uses them unchanged.
    pub(super) vlan: Option<u16>,
    /// True if the card inserts a tag (rdma-core, `mlx4_create_ah`). Otherwise the VLAN field is undefined.
    tagged: bool,
    mac: MacAddr,
}

impl Destination {
    /// Parses a segment, whose GID indices are relative to row `gids` of the port's table.
    pub(super) fn parse(segment: &[u8; DATAGRAM], gids: usize) -> Self {
        const NO_VLAN: u16 = 0xffff;
        const TAGGED: u32 = 1 << 29;
        let word = |at: usize| {
            segment.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word))
        };
        let (mut gid, mut mac) = ([0; 16], [0; 6]);
        gid.copy_from_slice(&segment[0x10..0x20]);
        mac.copy_from_slice(&segment[0x2a..0x30]);
        let vlan = (word(0x28) >> 16) as u16;
        Self {
            port: (word(0) >> 24 & 3) as u8,
            inside: word(0) >> 31 != 0,
            mac_index: usize::from(segment[0x05] & 0x7f),
            gid_index: gids + usize::from(segment[0x09] & 0x7f),
            lid: (word(0x04) & 0xffff) as u16,
            global: segment[0x05] & 0x80 != 0,
            service_level: (word(0x0c) >> 28) as u8,
            hop_limit: segment[0x0b],
            traffic_class: (word(0x0c) >> 20) as u8,
            flow_label: word(0x0c) & 0xf_ffff,
            gid: Gid(gid),
            qpn: word(0x20) & 0xff_ffff,
            qkey: word(0x24),
            vlan: (vlan != NO_VLAN).then_some(vlan),
            tagged: word(0) & TAGGED != 0,
            mac: MacAddr(mac),
        }
    }

    fn address(&self, link: LinkKind) -> AddressVector {
        AddressVector {
            link,
            peer: PortAddress { mac: self.mac, gid: self.gid, lid: self.lid },
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            service_level: self.service_level,
        }
    }

    fn infiniband(&self) -> route::Route {
        route::Route {
            dlid: self.lid,
            path_bits: self.mac_index as u8,
            service_level: self.service_level,
            global: self.global.then_some(route::GlobalRoute {
                source: self.gid_index,
                to: self.gid,
                traffic_class: self.traffic_class,
                flow_label: self.flow_label,
                hop_limit: self.hop_limit,
            }),
        }
    }

    /// Returns the port, counted from 0, with the address and headers to the destination. The row of the GID
    /// table determines the RoCE version.
    pub(super) fn route(&self, from: QpNum, ports: &[Port]) -> Option<(usize, AddressVector, Headers)> {
        let index = usize::from(self.port).checked_sub(1)?;
        let port = ports.get(index)?;
        if port.is_infiniband() {
            return Some((index, self.address(LinkKind::InfiniBand), self.infiniband().headers(port)?));
        }
        let source = port.gids.get(self.gid_index).copied().flatten()?;
        let mac = port.macs.get(self.mac_index).copied().flatten().unwrap_or(port.mac());
        let to = self.address(source.link);
        let mut headers = Headers::towards(mac, source.gid, &to, ud_source_port(from))?;
        if let Net::V6(ip, _) | Net::Grh(ip) = &mut headers.net {
            ip.flow_label = self.flow_label;
        }
        Some((index, to, headers))
    }
}

/// The frame of a datagram.
pub(crate) struct Outgoing {
    /// The port, counted from 0.
    pub port: usize,
    /// The frame, with a tag if it is on a VLAN.
    pub frame: Vec<u8>,
    /// True if the destination is on this card, whatever the address.
    pub inside: bool,
}

/// Returns the frame of the next work request in the send ring. Requests that fail before they become a frame
/// complete with an error.
pub(crate) fn next_frame(
    qp: &mut Qp,
    keyed: Keyed<'_>,
    env: &mut Env<'_>,
    shared: &Shared<'_>,
) -> Option<Outgoing> {
    let (who, gids) = (qp.context.domain(), qp.context.datagram_gids());
    while qp.state.takes_sends() {
        if qp.transport.ended() != Ended::Nothing {
            super::flush::sends(qp, keyed.host, env);
            return None;
        }
        let Transport::Datagram(datagram) = &mut qp.transport else { return None };
        let (index, control, wqe) = match qp.send.next(&qp.memory, keyed.host) {
            Ok(None) => return None,
            Ok(Some(next)) => next,
            Err(e) => {
                super::flush::broken(qp, e, env);
                return None;
            }
        };
        let id = name(index, control.code());
        let forwarded = if shared.has_master {
            tunnel::forward(qp.number.get(), index, wqe, gids, who, keyed, shared.ports)
        } else {
            Ok(Forwarded::Not)
        };
        let sent = forwarded.and_then(|forwarded| match forwarded {
            Forwarded::Not => post(datagram, index, control, wqe, gids, who, keyed, env, shared.ports)
                .map(|posted| emit(datagram, posted, env)),
            Forwarded::Taken(outgoing) => {
                let ended = Completion::new(id, qp.number, Status::Success, WorkKind::Send);
                env.completions.send_ended(&ended, control.signaled());
                Ok(outgoing)
            }
        });
        match sent {
            Ok(Some(outgoing)) => return Some(outgoing),
            Ok(None) => {}
            Err(e) => {
                log::warn!("{:?}: work request {index} ({control:?}): {e}", qp.number);
                datagram.fail_send(None, env);
                let failed = Completion::new(id, qp.number, e.status(), WorkKind::Send);
                env.completions.send_ended(&failed, true);
            }
        }
    }
    None
}

/// The data for a posted datagram's frame that the transport does not know.
struct Posted {
    port: usize,
    vlan: Option<u16>,
    inside: bool,
}

#[expect(clippy::too_many_arguments, reason = "a work request consists of these parts")]
fn post(
    datagram: &mut DatagramQp,
    index: u16,
    control: Control,
    wqe: &[u8],
    gids: usize,
    who: Domain,
    keyed: Keyed<'_>,
    env: &mut Env<'_>,
    ports: &[Port],
) -> Result<Posted, Unfit> {
    let imm = match control.opcode()? {
        Opcode::Send => None,
        Opcode::SendImm => Some(control.immediate()),
        _ => return Err(Malformed::Opcode(control.code()).into()),
    };
    let mut segments = Segments::new(wqe)?;
    let to = Destination::parse(segments.datagram()?, gids);
    let (port, address, headers) = to.route(datagram.number(), ports).ok_or(VerbsError::Unreachable)?;
    let (mut list, mut inline) = (Vec::new(), Vec::new());
    for data in segments {
        match data {
            Data::Inline(bytes) => inline.extend_from_slice(bytes),
            Data::Segment { lkey, va, len } => {
                list.extend(resolve(keyed, who, lkey, va, len, Access::LocalRead)?);
            }
        }
    }
    let work = UdSendWr {
        id: name(index, control.code()),
        to: address,
        remote_qp: QpNum::new(to.qpn),
        qkey: QKey(to.qkey),
        data: if inline.is_empty() { Payload::Gather(&list) } else { Payload::Inline(&inline) },
        imm,
        signaled: control.signaled(),
        solicited: control.solicited(),
    };
    datagram.post_send(&work, Route { headers, within: false }, env)?;
    // The VLAN field has no meaning for InfiniBand.
    let vlan = to.vlan.filter(|_| to.tagged && address.link != LinkKind::InfiniBand);
    Ok(Posted { port, vlan, inside: to.inside || control.inside() })
}

fn emit(datagram: &mut DatagramQp, posted: Posted, env: &mut Env<'_>) -> Option<Outgoing> {
    let tx = datagram.next_tx()?;
    let mut frame = vec![0; datagram.frame_len(&tx)];
    if !matches!(datagram.emit(&tx, 0, &mut frame, env.memory), Some((_, true))) {
        datagram.payload_failed(env);
        return None;
    }
    datagram.sent(env);
    if let Some(vlan) = posted.vlan {
        crate::device::vlan::insert(&mut frame, vlan);
    }
    Some(Outgoing { port: posted.port, frame, inside: posted.inside })
}

/// The origin of a datagram, for its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// Ethernet.
    Ethernet {
        /// The sender's Ethernet address.
        mac: MacAddr,
        /// Priority and VLAN in the format of a tag.
        vlan: Option<u16>,
    },
    /// InfiniBand.
    InfiniBand {
        /// The sender's LID.
        slid: u16,
        /// Service level.
        service_level: u8,
        /// The path bits of the destination LID.
        path_bits: u8,
        /// The index of the partition.
        partition: u8,
        /// True if the packet had a GRH.
        global: bool,
    },
}

impl Origin {
    /// Adds the datagram fields to a completion: the sender, and whether the 40 bytes before the datagram are
    /// valid; on Ethernet the VLAN; on InfiniBand the service level and, without immediate data, the
    /// partition.
    #[must_use]
    pub(crate) fn put(self, entry: Cqe, from: QpNum, imm: bool) -> Cqe {
        /// The mask of priority and VLAN, without the bit between them.
        const PRIORITY_AND_VLAN: u16 = 0xefff;
        let entry = entry.with(cqe::REMOTE_QPN, from.get());
        match self {
            Self::Ethernet { mac, vlan } => {
                let [a, b, c, d, e, f] = mac.0;
                let entry = entry
                    .with(cqe::GLOBAL, 1)
                    .with(cqe::REMOTE_MAC_HIGH, u16::from_be_bytes([a, b]).into())
                    .with(cqe::REMOTE_MAC, u32::from_be_bytes([c, d, e, f]));
                let Some(vlan) = vlan else { return entry };
                entry.with(cqe::TAG, cqe::CUSTOMER).with(cqe::VLAN, (vlan & PRIORITY_AND_VLAN).into())
            }
            Self::InfiniBand { slid, service_level, path_bits, partition, global } => {
                let entry = entry
                    .with(cqe::GLOBAL, global.into())
                    .with(cqe::PATH_BITS, path_bits.into())
                    .with(cqe::SERVICE_LEVEL, service_level.into())
                    .with(cqe::REMOTE_LID, slid.into());
                if imm { entry } else { entry.with(cqe::IMMEDIATE, u32::from(partition & 0x7f)) }
            }
        }
    }
}

/// Returns the kind of link of a network address.
#[must_use]
pub(crate) const fn link_of(net: &Net) -> LinkKind {
    match net {
        Net::Grh(_) => LinkKind::RoceV1,
        Net::V4(..) | Net::V6(..) => LinkKind::RoceV2,
        Net::InfiniBand(..) => LinkKind::InfiniBand,
    }
}
