//! Connected queue pairs: the transport of `drivers/roce`, fed from the rings of the guest.

use super::completed::{Local, name};
use super::context::Context;
use super::datagram::Origin;
use super::local;
use super::unfit::Unfit;
use super::wqe::{Control, Data, Malformed, Opcode, Segments};
use super::{Connection, Ended, Qp, Transport};
use crate::device::eq::Eqs;
use crate::device::infiniband::route;
use crate::device::memory::address::{self, LocalMemory};
use crate::device::memory::{Access, Domain, Keyed, LocalWork, Refused};
use crate::device::port::Port;
use crate::device::srq::Srqs;
use crate::device::vlan;
use core::time::Duration;
use platform::IoAddr;
use roce::transport::{Env, Limits, ReliableQp, UnreliableQp};
use roce::wire::{Headers, RnrTimer};
use verbs::{
    AddressVector, Completion, LinkKind, PathMtu, Payload, PortAddress, Psn, QpConnect, QpNum, RemoteAddr,
    RemoteKey, SendOp, SendWr, Sge, VerbsError, WorkKind,
};

/// The number of send work requests that the transport holds. Further ones wait in the guest's ring.
const SEND_DEPTH: u32 = 128;
/// The number of receives that the transport holds. Further ones wait in the guest's ring.
pub(crate) const RECEIVE_DEPTH: u32 = 64;
/// The maximum number of packets in flight.
const MAX_WINDOW: u32 = 128;
/// The maximum number of READs and atomics in flight.
const MAX_RD_ATOMIC: u8 = 16;

/// Returns the transport's limits for the rings of a context. A work request fits one entry.
fn limits(context: &Context) -> Limits {
    const ELEMENT: u32 = 16;
    let ((_, send), (_, receive)) = (context.send_size(), context.receive_size());
    // An entry of a shared queue may be longer than one of the own ring, which does not exist in this case.
    let receive = if context.shares_receives() { super::rings::MAX_RECEIVE } else { 1 << receive };
    Limits {
        send_depth: SEND_DEPTH,
        recv_depth: RECEIVE_DEPTH,
        max_sge: (1 << send).max(receive as u32) / ELEMENT,
        max_inline: 1 << send,
        max_window: MAX_WINDOW,
        max_rd_atomic: MAX_RD_ATOMIC,
    }
}

/// Returns the approximate memory of the process for the transport of a context, in bytes.
#[must_use]
pub(crate) fn footprint(context: &Context) -> u64 {
    let limits = limits(context);
    let (elements, requests) = (u64::from(limits.max_sge) * 16, 128);
    u64::from(SEND_DEPTH) * (elements + u64::from(limits.max_inline) + requests)
        + u64::from(RECEIVE_DEPTH) * (elements + requests)
}

/// Creates the transport of an RC queue pair.
#[must_use]
pub(crate) fn reliable(qpn: u32, context: &Context) -> Connection {
    Connection::Reliable(Box::new(ReliableQp::new(QpNum::new(qpn), &limits(context))))
}

/// Creates the transport of a UC queue pair.
#[must_use]
pub(crate) fn unreliable(qpn: u32, context: &Context) -> Connection {
    Connection::Unreliable(Box::new(UnreliableQp::new(QpNum::new(qpn), &limits(context))))
}

/// Creates the transport of an XRC queue pair.
#[must_use]
pub(crate) fn extended(qpn: u32, context: &Context) -> Connection {
    Connection::Reliable(Box::new(ReliableQp::new_extended(QpNum::new(qpn), &limits(context))))
}

/// Returns whether all sends have ended.
#[must_use]
pub(crate) const fn is_idle(connection: &Connection) -> bool {
    connection.send_room() == SEND_DEPTH
}

/// Returns the connection parameters of a context.
#[must_use]
pub(crate) fn connect(context: &Context, address: AddressVector) -> QpConnect {
    /// A timeout code of 0 means no timeout; this value exceeds any guest's run time.
    const FOR_EVER: Duration = Duration::from_secs(1 << 20);
    let (retries, rnr_retries) = context.retries();
    let (requester, _) = context.rd_atomic();
    let ack_timeout = match context.ack_timeout() {
        0 => FOR_EVER,
        code => Duration::from_nanos(4096 << code),
    };
    QpConnect {
        address,
        remote_qp: QpNum::new(context.remote_qpn()),
        send_psn: Psn::new(context.send_psn()),
        recv_psn: Psn::new(context.receive_psn()),
        mtu: context.mtu().unwrap_or(PathMtu::B1024),
        max_rd_atomic: requester.min(MAX_RD_ATOMIC),
        ack_timeout,
        retries,
        rnr_retries,
        min_rnr_delay: RnrTimer::from_code(context.rnr_timer()).delay(),
    }
}

/// Returns the address of the peer.
#[must_use]
pub(crate) fn address(context: &Context) -> AddressVector {
    let (hop_limit, traffic_class) = context.hop_and_class();
    AddressVector {
        link: if context.roce_v2() { LinkKind::RoceV2 } else { LinkKind::RoceV1 },
        peer: PortAddress { mac: context.remote_mac(), gid: context.remote_gid(), lid: 0 },
        traffic_class,
        hop_limit,
        service_level: 0,
    }
}

/// Moves work requests from the send ring to the transport while it has room. Stops at work that the card
/// executes itself. Such work is executed after all earlier requests have ended, as drivers request by the
/// strong ordering bit, and ends before later ones begin; it is returned when its turn has come. A refused
/// work request also waits for the earlier ones, so that their outcome is unaffected.
pub(crate) fn take_sends(qp: &mut Qp, keyed: Keyed<'_>, env: &mut Env<'_>) -> Option<Local> {
    if qp.context.is_xrc_target() {
        return None;
    }
    let who = qp.context.domain();
    let fast_register = qp.context.fast_register();
    while qp.state.takes_sends() {
        if qp.transport.ended() != Ended::Nothing {
            super::flush::sends(qp, keyed.host, env);
            return None;
        }
        let Transport::Connected(transport) = &mut qp.transport else { return None };
        if transport.send_room() == 0 {
            return None;
        }
        let idle = is_idle(transport);
        let (index, control, wqe) = match qp.send.next(&qp.memory, keyed.host) {
            Ok(None) => return None,
            Ok(Some(next)) => next,
            // Earlier requests end first, unaffected by this one.
            Err(_) if !idle => return None,
            Err(e) => {
                super::flush::broken(qp, e, env);
                return None;
            }
        };
        let local = control
            .opcode()
            .and_then(|opcode| Ok((opcode, local::parse(opcode, &mut Segments::new(wqe)?)?)))
            .map_err(Unfit::from);
        let posted = match local {
            Ok((_, Some(LocalWork::FastRegister(work)))) if !fast_register => Err(Unfit::Forbidden(work.key)),
            Ok((_, Some(work))) if idle => return Some(Local { index, control, work }),
            Ok((_, Some(_))) => {
                qp.send.put_back();
                return None;
            }
            Ok((opcode, None)) => post(transport, index, control, opcode, wqe, who, keyed, env),
            Err(e) => Err(e),
        };
        if let Err(e) = posted {
            if !idle {
                qp.send.put_back();
                return None;
            }
            log::warn!("{:?}: work request {index} ({control:?}): {e}", qp.number);
            let id = name(index, control.code());
            env.completions.send_ended(&Completion::new(id, qp.number, e.status(), WorkKind::Send), true);
            transport.fail_send(None, env);
        }
    }
    None
}

#[expect(clippy::too_many_arguments, reason = "a work request consists of these parts")]
fn post(
    transport: &mut Connection,
    index: u16,
    control: Control,
    opcode: Opcode,
    wqe: &[u8],
    who: Domain,
    keyed: Keyed<'_>,
    env: &mut Env<'_>,
) -> Result<(), Unfit> {
    let mut segments = Segments::new(wqe)?;
    let remote = |segments: &mut Segments<'_>| -> Result<RemoteAddr, Malformed> {
        let remote = segments.remote()?;
        Ok(RemoteAddr { addr: IoAddr(remote.va), key: RemoteKey(remote.rkey) })
    };
    let imm = Some(control.immediate());
    let mut wr = SendWr {
        id: name(index, control.code()),
        op: SendOp::Send { data: Payload::Inline(&[]), imm: None },
        signaled: control.signaled(),
        solicited: control.solicited(),
        fence: control.fence(),
    };
    let (target, atomic) = match opcode {
        Opcode::Write | Opcode::WriteImm | Opcode::Read => (Some(remote(&mut segments)?), None),
        Opcode::CompareSwap | Opcode::FetchAdd => {
            let target = remote(&mut segments)?;
            (Some(target), Some(segments.atomic()?))
        }
        Opcode::Send | Opcode::SendImm | Opcode::SendInvalidate => (None, None),
        _ => return Err(Malformed::Opcode(control.code()).into()),
    };
    let access = if matches!(opcode, Opcode::Read | Opcode::CompareSwap | Opcode::FetchAdd) {
        Access::LocalWrite
    } else {
        Access::LocalRead
    };
    let (mut list, mut inline) = (Vec::new(), Vec::new());
    for data in segments {
        match data {
            Data::Inline(bytes) => inline.extend_from_slice(bytes),
            Data::Segment { lkey, va, len } => list.extend(resolve(keyed, who, lkey, va, len, access)?),
        }
    }
    let data = if inline.is_empty() { Payload::Gather(&list) } else { Payload::Inline(&inline) };
    wr.op = match (opcode, target, atomic) {
        (Opcode::Send, ..) => SendOp::Send { data, imm: None },
        (Opcode::SendImm, ..) => SendOp::Send { data, imm },
        (Opcode::SendInvalidate, ..) => SendOp::SendInvalidate { data, key: RemoteKey(control.immediate()) },
        (Opcode::Write, Some(remote), _) => SendOp::Write { data, remote, imm: None },
        (Opcode::WriteImm, Some(remote), _) => SendOp::Write { data, remote, imm },
        (Opcode::Read, Some(remote), _) => SendOp::Read { into: &list, remote },
        (Opcode::FetchAdd, Some(remote), Some((add, _))) => {
            SendOp::FetchAdd { result: result(&list)?, remote, add }
        }
        (Opcode::CompareSwap, Some(remote), Some((swap, compare))) => {
            SendOp::CompareSwap { result: result(&list)?, remote, compare, swap }
        }
        _ => return Err(Malformed::Opcode(control.code()).into()),
    };
    Ok(transport.post_send(&wr, control.remote_srq(), env)?)
}

/// Returns the address for an atomic's result.
fn result(list: &[Sge]) -> Result<IoAddr, VerbsError> {
    match list {
        [Sge { addr, len: 8.. }] => Ok(*addr),
        _ => Err(VerbsError::InvalidArgument),
    }
}

/// Returns an element of a list in the transport's form. An element without bytes is dropped, whatever its
/// key.
pub(super) fn resolve(
    keyed: Keyed<'_>,
    who: Domain,
    lkey: u32,
    va: u64,
    len: u32,
    access: Access,
) -> Result<Option<Sge>, Refused> {
    if len == 0 {
        return Ok(None);
    }
    keyed.check(lkey, who, va, u64::from(len), access)?;
    Ok(Some(Sge { addr: address::of(keyed, lkey, va)?, len }))
}

/// The objects that queue pairs share.
pub(crate) struct Shared<'a> {
    /// The shared receive queues.
    pub srqs: &'a mut Srqs,
    /// The event queues.
    pub eqs: &'a mut Eqs,
    /// The card's ports.
    pub ports: &'a [Port],
    /// True if the card is a virtual function, whose special queue pairs are tunnels to its master.
    pub has_master: bool,
}

/// Returns the headers of frames to the peer.
#[must_use]
pub(crate) fn path(context: &Context, port: &Port) -> Option<Headers> {
    if port.is_infiniband() {
        return route::Route::of(context).headers(port);
    }
    let source = port.gids.get(context.source_gid()).copied().flatten()?;
    let mac = port.macs.get(context.source_mac()).copied().flatten().unwrap_or(port.mac());
    Headers::towards(mac, source.gid, &address(context), context.source_port() | 0xc000)
}

/// Returns the VLAN tag of frames to the peer.
#[must_use]
pub(crate) fn tag(context: &Context, port: &Port) -> Option<u16> {
    let (row, priority) = context.vlan()?;
    Some(u16::from(priority) << 13 | port.vlan(row)?)
}

/// Returns whether a packet is in the VLAN of the path, or untagged if the path has none. Only the VLAN is
/// compared: a tag with VLAN 0 carries a priority alone. InfiniBand has no tags.
#[must_use]
pub(crate) fn is_in_vlan(context: &Context, port: Option<&Port>, origin: Origin) -> bool {
    let Origin::Ethernet { vlan, .. } = origin else { return true };
    let of_path = port.and_then(|port| tag(context, port));
    vlan::id(of_path) == vlan::id(vlan)
}

/// Returns the memory of a queue pair's own work requests.
#[must_use]
pub(crate) const fn local_memory<'a>(keyed: Keyed<'a>) -> LocalMemory<'a> {
    LocalMemory { keyed }
}
