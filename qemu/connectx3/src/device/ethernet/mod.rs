//! Raw Ethernet queue pairs: frames that the guest sends, and frames that steering delivers to it.

pub mod checksum;
pub mod filter;
pub mod headers;
pub mod rss;
mod segmentation;

use super::Card;
use super::cq::Cqe;
use super::host::Host;
use super::memory::{Access, Domain, Keyed};
use super::profile::Steering;
use super::qp::connected::{Completed, Shared};
use super::qp::syndrome::failure;
use super::qp::wqe::{Control, Opcode, Segments};
use super::qp::{Qp, Scatter, Service, State, flush, gather};
use super::queue_memory::MttTable;
use super::steering::{McgTable, Steer, hears};
use headers::{Headers, Length, TAG, TYPE, Vlan, VlanKind};
use roce::transport::Env;
use roce::wire::Icrc;
use segmentation::Cut;
use std::sync::Arc;
use verbs::{MacAddr, Status};

/// The maximum length of a frame, and of the data of a large send, in bytes.
const MAX_FRAME: usize = 16 << 10;
const MAX_LARGE_SEND: usize = 256 << 10;
/// The length of the check sequence at the end of a frame on the cable, in bytes.
const FCS: usize = 4;
/// The length to which shorter frames are padded before they are sent, in bytes.
const MIN_FRAME: usize = 60;
/// The maximum number of work requests that a queue pair completes per turn.
const TURN: usize = 64;

impl Card {
    /// Handles the send doorbell of a raw queue pair.
    pub(super) fn send_raw(&mut self, qpn: u32, host: &dyn Host) {
        for _ in 0..TURN {
            let Some(hca) = &self.hca else { return };
            let table = MttTable { icm: &self.icm, base: hca.mtt_base };
            let keyed = Keyed { regions: &self.regions, table, host };
            let Some(qp) = self.qps.get_mut(qpn) else { return };
            if qp.state != State::ReadyToSend {
                return self.flush_sends(qpn, host);
            }
            let port = qp.context.port();
            let (who, cqn) = (qp.context.domain(), qp.context.send_cqn());
            let (index, control, result) = match qp.send.next(&qp.memory, host) {
                Ok(None) => return,
                Ok(Some((index, control, wqe))) => (index, control, frames_of(control, wqe, who, keyed)),
                Err(e) => {
                    let broken = |qp: &mut Qp, _: Keyed<'_>, env: &mut Env<'_>, _: &mut Shared<'_>| {
                        flush::broken(qp, e, env);
                    };
                    self.with_qp(qpn, Completed::default(), host, broken);
                    return;
                }
            };
            let mut told = true;
            match result {
                Ok(frames) => {
                    for frame in frames {
                        self.send_ethernet(port, qpn, control, frame, host);
                    }
                    if control.signaled() {
                        let cqe = Cqe::new(qpn, index, true, control.code());
                        told = self.cqs.post(cqn, &cqe, &mut self.eqs, host);
                    }
                }
                Err(status) => {
                    log::warn!("queue pair {qpn:#x}: work request {index} ({control:?}) fails: {status:?}");
                    qp.state = State::SendQueueError;
                    let cqe = failure(qpn, index, true, status);
                    told = self.cqs.post(cqn, &cqe, &mut self.eqs, host);
                }
            }
            if !told {
                return self.lose_completions(qpn, host);
            }
        }
        self.pending.insert(qpn);
    }

    /// Completes the requests posted to a failed raw queue pair with a flush error.
    fn flush_sends(&mut self, qpn: u32, host: &dyn Host) {
        self.with_qp(qpn, Completed::default(), host, |qp, keyed, env, _| {
            if matches!(qp.state, State::SendQueueError | State::Error) {
                flush::sends(qp, keyed.host, env);
            }
        });
    }

    /// Sends a frame of a raw queue pair over the wire, inside the card, or both. The frame is looped back
    /// inside the card if the work request asks for it or if its destination matches a steering entry or rule
    /// of the same port. A unicast frame with such a match stays inside the card; multicast goes both ways.
    fn send_ethernet(&mut self, port: usize, qpn: u32, control: Control, frame: Vec<u8>, host: &dyn Host) {
        if control.inside() {
            return self.keep_raw_inside(port, qpn, frame);
        }
        if let Some(destination) = control.looped() {
            if is_multicast(destination) {
                self.keep_raw_inside(port, qpn, frame.clone());
            } else if self.has_taker(port, qpn, destination, &frame, host) {
                return self.keep_raw_inside(port, qpn, frame);
            }
        }
        let counter = self.qps.get_mut(qpn).map_or(0, |qp| qp.context.counter());
        self.emit(port, counter, frame);
    }

    /// Returns whether steering delivers a unicast frame to another queue pair of the port. Default queue
    /// pairs do not count.
    fn has_taker(&self, port: usize, from: u32, destination: [u8; 6], frame: &[u8], host: &dyn Host) -> bool {
        let Some(hca) = &self.hca else { return false };
        match hca.steering {
            Steering::Groups => {
                let table = McgTable { icm: &self.icm, hca };
                !table.members(port, Steer::Unicast, destination, host).is_empty()
            }
            Steering::Table => {
                self.ports.get(port).is_some_and(|port| port.macs.contains(&Some(MacAddr(destination))))
            }
            Steering::Flows => {
                self.flows.describe(port, Some(from), frame, &Headers::parse(frame, Length::AsStated))
            }
        }
    }

    /// Delivers a frame to the guest's Ethernet driver. `from` is a queue pair of this card, or the wire.
    pub(super) fn receive_ethernet(
        &mut self,
        port: usize,
        from: Option<u32>,
        frame: &[u8],
        headers: &Headers,
        host: &dyn Host,
    ) {
        let Some(&destination) = frame.first_chunk::<6>() else { return };
        let (Some(hca), Some(at)) = (&self.hca, self.ports.get(port)) else { return };
        // Rules name the accepted groups, including groups that the driver's own filter does not list.
        let by_rules = hca.steering == Steering::Flows;
        if !at.filters.passes_vlan(headers.vlan) || !(by_rules || at.filters.passes_group(destination)) {
            return;
        }
        let to = self.steer(port, from, destination, frame, headers, host);
        if to.is_empty() {
            self.counters.rx_unsteered += 1;
        }
        let sender = from.and_then(|qpn| self.qps.get_mut(qpn)).map(|qp| qp.context.counter());
        for qpn in to.iter().filter_map(|&word| hears(word, from)) {
            let takes = |counter| {
                let qp = self.qps.get_mut(qpn);
                qp.is_some_and(|qp| qp.context.takes_looped(!is_multicast(destination), counter))
            };
            if sender.is_none_or(takes) {
                self.deliver_ethernet(qpn, frame, headers, host);
            }
        }
    }

    /// Returns the queue pairs that receive a frame, as words of a steering entry.
    fn steer(
        &self,
        port: usize,
        from: Option<u32>,
        destination: [u8; 6],
        frame: &[u8],
        headers: &Headers,
        host: &dyn Host,
    ) -> Arc<[u32]> {
        let Some(hca) = &self.hca else { return Arc::default() };
        let unicast = !is_multicast(destination);
        match hca.steering {
            Steering::Groups => {
                let steer = if unicast { Steer::Unicast } else { Steer::Multicast };
                let to = McgTable { icm: &self.icm, hca }.members(port, steer, destination, host);
                if to.is_empty() { self.default_members(port, steer).into() } else { to }
            }
            Steering::Table => {
                let Some(port) = self.ports.get(port) else { return Arc::default() };
                let row = port.macs.iter().position(|row| *row == Some(MacAddr(destination)));
                let queues = &port.queues;
                let to = match row {
                    Some(row) => Some(queues.base_qpn + row as u32),
                    None if unicast => queues.promiscuous,
                    None => queues.multicast,
                };
                to.as_slice().into()
            }
            Steering::Flows => self.flows.find(port, from, frame, headers),
        }
    }

    fn deliver_ethernet(&mut self, qpn: u32, frame: &[u8], headers: &Headers, host: &dyn Host) {
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        if !takes_frames(qp) {
            return;
        }
        self.interface_counters.received(qp.context.counter(), frame.len());
        let (qpn, hash) = match &qp.rss {
            Some(rss) => rss.spread(frame, headers),
            None => (qpn, 0),
        };
        let Some(hca) = &self.hca else { return };
        let table = MttTable { icm: &self.icm, base: hca.mtt_base };
        let keyed = Keyed { regions: &self.regions, table, host };
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        if !takes_frames(qp) || qp.rss.is_some() {
            return;
        }
        let strip = qp.context.strips_vlan() && headers.vlan.is_some();
        let (cqn, port) = (qp.context.receive_cqn(), qp.context.port());
        let keeps_fcs = qp.context.keeps_fcs();
        let cqe = match scatter_frame(qp, frame, strip, keyed) {
            Ok(None) => {
                self.counters.rx_no_buffer += 1;
                if let Some(port) = self.ports.get_mut(port) {
                    port.statistics.no_buffer += 1;
                }
                return;
            }
            Ok(Some(index)) => {
                let len = frame.len() - if strip { TAG } else { 0 } + if keeps_fcs { FCS } else { 0 };
                completion(qpn, index, frame, headers, hash).with(0x14, &(len as u32).to_be_bytes())
            }
            Err((index, status)) => {
                let cqe = failure(qpn, index, false, status);
                self.cqs.post(cqn, &cqe, &mut self.eqs, host);
                return self.fail_qp(qpn, host);
            }
        };
        if !self.cqs.post(cqn, &cqe, &mut self.eqs, host) {
            self.lose_completions(qpn, host);
        }
    }
}

/// Returns whether an Ethernet address is a group address.
const fn is_multicast(address: [u8; 6]) -> bool {
    address[0] & 1 != 0
}

/// Returns whether a queue pair is a raw one in a state that can receive.
fn takes_frames(qp: &Qp) -> bool {
    qp.service == Service::Raw && matches!(qp.state, State::ReadyToReceive | State::ReadyToSend)
}

/// Returns a receive completion, complete except for its length, that describes the frame's headers.
fn completion(qpn: u32, index: u16, frame: &[u8], headers: &Headers, hash: u32) -> Cqe {
    const SEND: u8 = 1;
    const CUSTOMER_TAG: u32 = 1 << 29;
    const SERVICE_TAG: u32 = 1 << 30;
    const TRANSPORT_OK: u8 = 1 << 2;
    let verdict = checksum::check(frame, headers);
    let mut cqe = Cqe::new(qpn, index, false, SEND)
        .with(0x04, &hash.to_be_bytes())
        .with(0x10, &verdict.status.to_be_bytes())
        .with(0x13, &[if verdict.transport_ok { TRANSPORT_OK } else { 0 }])
        .with(0x1a, &verdict.checksum.to_be_bytes());
    if let Some(vlan) = headers.vlan {
        let flag = match vlan.kind {
            VlanKind::Customer => CUSTOMER_TAG,
            VlanKind::Service => SERVICE_TAG,
        };
        cqe = cqe.with(0x00, &(flag | qpn).to_be_bytes()).with(0x0c, &vlan.tci.to_be_bytes());
    }
    cqe
}

/// Returns the frames of a send work request, as they go to the cable.
fn frames_of(control: Control, wqe: &[u8], who: Domain, keyed: Keyed<'_>) -> Result<Vec<Vec<u8>>, Status> {
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
fn scatter_frame(
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
