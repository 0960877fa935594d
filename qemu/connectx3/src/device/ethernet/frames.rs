//! Frames of raw Ethernet queue pairs: gathered from the guest's memory, and scattered to it.

use super::checksum;
use super::headers::{Headers, Length, TAG, TYPE, Vlan, VlanKind};
use super::segmentation::Cut;
use crate::device::cq::Cqe;
use crate::device::layout::cqe;
use crate::device::memory::{Access, Domain, Keyed};
use crate::device::qp::wqe::{Control, Opcode, Segments};
use crate::device::qp::{Qp, Scatter, Service, State, gather};
use roce::wire::Icrc;
use verbs::Status;

/// The maximum length of a frame, and of the data of a large send, in bytes.
const MAX_FRAME: usize = 16 << 10;
const MAX_LARGE_SEND: usize = 256 << 10;
/// The length of the check sequence at the end of a frame on the cable, in bytes.
pub(crate) const FCS: usize = 4;
/// The length to which shorter frames are padded before they are sent, in bytes.
const MIN_FRAME: usize = 60;

/// Returns whether an Ethernet address is a group address.
pub(crate) const fn is_multicast(address: [u8; 6]) -> bool {
    address[0] & 1 != 0
}

/// Returns whether a queue pair is a raw one in a state that can receive.
pub(crate) fn takes_frames(qp: &Qp) -> bool {
    qp.service == Service::Raw && matches!(qp.state, State::ReadyToReceive | State::ReadyToSend)
}

/// Returns a receive completion, complete except for its length, that describes the frame's headers.
pub(crate) fn completion(qpn: u32, index: u16, frame: &[u8], headers: &Headers, hash: u32) -> Cqe {
    const SEND: u8 = 1;
    let verdict = checksum::check(frame, headers);
    let entry = Cqe::new(qpn, index, false, SEND)
        .with(cqe::IMMEDIATE, hash)
        .with(cqe::HEADERS, verdict.status.into())
        .with(cqe::TRANSPORT_OK, verdict.transport_ok.into())
        .with(cqe::CHECKSUM, verdict.checksum.into());
    let Some(vlan) = headers.vlan else { return entry };
    let tag = match vlan.kind {
        VlanKind::Customer => cqe::CUSTOMER,
        VlanKind::Service => cqe::SERVICE,
    };
    entry.with(cqe::TAG, tag).with(cqe::VLAN, vlan.tci.into())
}

/// Returns the frames of a send work request, as they go to the cable.
pub(crate) fn frames_of(
    control: Control,
    wqe: &[u8],
    who: Domain,
    keyed: Keyed<'_>,
) -> Result<Vec<Vec<u8>>, Status> {
    let mut frames = match control.opcode() {
        Ok(Opcode::Send) => {
            let mut frame = gathered(
                Segments::new(wqe).map_err(|_| Status::LocalQpOperationError)?,
                MAX_FRAME,
                who,
                keyed,
            )?;
            let (ip, transport) = control.checksums();
            if ip || transport {
                let headers = Headers::parse(&frame, Length::AsStated);
                checksum::fill(&mut frame, &headers, ip, transport);
            }
            vec![frame]
        }
        Ok(Opcode::Lso) => {
            const CONTROL: usize = 16;
            let (cut, data) = wqe.get(CONTROL..).and_then(Cut::parse).ok_or(Status::LocalQpOperationError)?;
            let data = gathered(Segments::after(data), MAX_LARGE_SEND, who, keyed)?;
            cut.segments(&data).ok_or(Status::LocalQpOperationError)?
        }
        _ => return Err(Status::LocalQpOperationError),
    };
    for frame in &mut frames {
        if let Some((service, tci)) = control.vlan() {
            let kind = if service { VlanKind::Service } else { VlanKind::Customer };
            let at = TYPE.min(frame.len());
            frame.splice(at..at, Vlan { kind, tci }.bytes());
        }
        if frame.len() < MIN_FRAME {
            frame.resize(MIN_FRAME, 0);
        }
    }
    Ok(frames)
}

/// Returns the data to which segments point.
fn gathered(segments: Segments<'_>, max: usize, who: Domain, keyed: Keyed<'_>) -> Result<Vec<u8>, Status> {
    gather(segments, max, who, keyed).map_err(|e| {
        log::warn!("a frame cannot be gathered: {e}");
        e.status()
    })
}

/// Scatters a frame into the next receive buffer: without its outermost VLAN tag if `strip` is set, and with
/// its check sequence if the queue pair keeps it. The check sequence is that of the frame as received, with
/// the tag. Returns `Ok(None)` if no buffer is posted.
pub(crate) fn scatter_frame(
    qp: &mut Qp,
    frame: &[u8],
    strip: bool,
    keyed: Keyed<'_>,
) -> Result<Option<u16>, (u16, Status)> {
    let who = qp.context.domain();
    let mut list = Vec::new();
    let index = match qp.receive.next(&qp.memory, keyed.host, &mut list) {
        Ok(Some(index)) => index,
        Ok(None) => return Ok(None),
        Err(e) => {
            log::warn!("a receive ring cannot be read: {e}");
            return Err((0, Status::LocalQpOperationError));
        }
    };
    let mut room = list.into_iter();
    let mut current = Scatter { lkey: 0, va: 0, len: 0 };
    let skip = if strip { TAG } else { 0 };
    let (addresses, rest) = frame.split_at(TYPE.min(frame.len()));
    let fcs = if qp.context.keeps_fcs() { &Icrc::EMPTY.feed(frame).finish()[..] } else { &[] };
    for mut part in [addresses, rest.get(skip..).unwrap_or_default(), fcs] {
        while !part.is_empty() {
            if current.len == 0 {
                current = room.next().ok_or((index, Status::LocalLengthError))?;
                continue;
            }
            let (now, later) = part.split_at(part.len().min(current.len as usize));
            let written = keyed
                .check(current.lkey, who, current.va, now.len() as u64, Access::LocalWrite)
                .and_then(|()| keyed.write(current.lkey, current.va, now));
            written.map_err(|e| {
                log::warn!("a frame cannot be scattered: {e}");
                (index, Status::LocalProtectionError)
            })?;
            current.va += now.len() as u64;
            current.len -= now.len() as u32;
            part = later;
        }
    }
    Ok(Some(index))
}
