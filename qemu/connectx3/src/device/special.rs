//! Special queue pairs, which carry management datagrams. The guest builds their sends including the headers,
//! and the card inserts the checks. Their receive side is that of a datagram queue pair.

use super::infiniband::route::special_frame;
use super::memory::{Domain, Keyed};
use super::port::Port;
use super::qp::connected::Shared;
use super::qp::datagram::Outgoing;
use super::qp::wqe::{Control, Opcode, Segments};
use super::qp::{Ended, Qp, Transport, flush, gather};
use super::vlan;
use roce::transport::Env;
use roce::wire::Frame;
use verbs::{Completion, Status, WorkKind};

/// The maximum length of a frame in bytes; a management datagram is one packet.
const MAX_FRAME: usize = 4096 + 256;

/// Returns the frame of the next work request in the send ring. Requests that fail before they become a frame
/// complete with an error.
pub(super) fn next_frame(
    qp: &mut Qp,
    keyed: Keyed<'_>,
    env: &mut Env<'_>,
    shared: &mut Shared<'_>,
) -> Option<Outgoing> {
    let (port, who) = (qp.context.port(), qp.context.domain());
    while qp.state.takes_sends() {
        if qp.transport.ended() != Ended::Nothing {
            flush::sends(qp, keyed.host, env);
            return None;
        }
        let Transport::Datagram(datagram) = &mut qp.transport else { return None };
        let (index, control, wqe) = match qp.send.next(&qp.memory, keyed.host) {
            Ok(None) => return None,
            Ok(Some(next)) => next,
            Err(e) => {
                flush::broken(qp, e, env);
                return None;
            }
        };
        let result = frame(&control, wqe, who, keyed, shared.ports.get(port)).inspect_err(|status| {
            log::warn!("{:?}: work request {index} ({control:?}): {status:?}", qp.number);
            datagram.fail_send(None, env);
        });
        let status = result.as_ref().err().copied().unwrap_or(Status::Success);
        let id = super::qp::completed::name(index, control.code());
        let report = control.signaled() || status != Status::Success;
        env.completions.send_ended(&Completion::new(id, qp.number, status, WorkKind::Send), report);
        if let Ok(frame) = result {
            return Some(Outgoing { port, frame, inside: control.inside() });
        }
    }
    None
}

/// Returns the frame of a work request, with its ICRC and lengths filled in.
fn frame(
    control: &Control,
    wqe: &[u8],
    who: Domain,
    keyed: Keyed<'_>,
    port: Option<&Port>,
) -> Result<Vec<u8>, Status> {
    if !matches!(control.opcode(), Ok(Opcode::Send)) {
        return Err(Status::LocalQpOperationError);
    }
    let segments = Segments::new(wqe).map_err(|_| Status::LocalQpOperationError)?;
    let made = gather(segments, MAX_FRAME, who, keyed).map_err(|e| {
        log::warn!("a management datagram cannot be gathered: {e}");
        e.status()
    })?;
    if let Some(port) = port.filter(|port| port.is_infiniband()) {
        return special_frame(&made, port, control.source_given()).map_err(|e| {
            log::warn!("a special queue pair sends {made:02x?}: {e}");
            Status::LocalQpOperationError
        });
    }
    let tagged = vlan::strip(&made);
    let plain = tagged.as_ref().map_or(&made, |(_, plain)| plain);
    let parsed = Frame::parse(plain).map_err(|e| {
        log::warn!("a special queue pair sends {made:02x?}: {e}");
        Status::LocalQpOperationError
    })?;
    let mut out = vec![0; plain.len().max(64)];
    let len = parsed.emit(&mut out).ok_or(Status::LocalLengthError)?;
    out.truncate(len);
    if let Some((tag, _)) = tagged {
        vlan::insert(&mut out, tag);
    }
    Ok(out)
}
