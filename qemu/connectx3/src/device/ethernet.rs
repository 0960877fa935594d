//! Raw Ethernet queue pairs: frames that the guest makes, and those that steering gives to it.

use super::Card;
use super::cq::Cqe;
use super::host::Host;
use super::qp::wqe::{Control, Data, Opcode, Segments};
use super::qp::{Qp, Service, State};
use super::queue_memory::MttTable;
use super::region::{Access, Keyed, Refused};
use super::steering::{McgTable, Steer};

/// The longest frame.
const MAX_FRAME: usize = 16 << 10;
/// Completion syndromes (Linux `include/linux/mlx4/cq.h`).
const LOCAL_LENGTH: u8 = 0x01;
const LOCAL_QP_OPERATION: u8 = 0x02;
const LOCAL_PROTECTION: u8 = 0x04;

impl Card {
    /// The send doorbell of a raw queue pair.
    pub(super) fn send_raw(&mut self, qpn: u32, host: &dyn Host) {
        let Some(hca) = &self.hca else { return };
        let table = MttTable { icm: &self.icm, base: hca.mtt_base };
        let keyed = Keyed { regions: &self.regions, table, host };
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        if qp.state != State::ReadyToSend {
            return;
        }
        let (port, pd, cqn) = (qp.context.port(), qp.context.pd(), qp.context.send_cqn());
        loop {
            let (index, control, result) = match qp.send.next(&qp.memory, host) {
                Ok(None) => return,
                Ok(Some((index, control, wqe))) => (index, control, gather_frame(&control, wqe, pd, keyed)),
                Err(e) => {
                    log::warn!("queue pair {qpn:#x}: {e}");
                    qp.state = State::SendQueueError;
                    return;
                }
            };
            match result {
                Ok(frame) => {
                    self.outbox.push((port, frame));
                    if control.signaled() {
                        let cqe = Cqe::new(qpn, index, true, control.code());
                        self.cqs.post(cqn, &cqe, &mut self.eqs, host);
                    }
                }
                Err(syndrome) => {
                    qp.state = State::SendQueueError;
                    self.cqs.post(cqn, &Cqe::error(qpn, index, true, syndrome, 0), &mut self.eqs, host);
                    return;
                }
            }
        }
    }

    /// A frame for the guest's Ethernet driver.
    pub(super) fn receive_ethernet(&mut self, port: usize, frame: &[u8], host: &dyn Host) {
        let Some(destination) = frame.first_chunk::<6>() else { return };
        let Some(hca) = &self.hca else { return };
        let steering = McgTable { icm: &self.icm, hca };
        let steer = if destination[0] & 1 == 0 { Steer::Unicast } else { Steer::Multicast };
        let mut to = steering.members(port, steer, *destination, host);
        if to.is_empty() {
            to = self.default_members(port, steer).to_vec();
        }
        if to.is_empty() {
            self.counters.rx_unsteered += 1;
        }
        for qpn in to {
            self.deliver_ethernet(qpn, frame, host);
        }
    }

    fn deliver_ethernet(&mut self, qpn: u32, frame: &[u8], host: &dyn Host) {
        let Some(hca) = &self.hca else { return };
        let table = MttTable { icm: &self.icm, base: hca.mtt_base };
        let keyed = Keyed { regions: &self.regions, table, host };
        let Some(qp) = self.qps.get_mut(qpn) else { return };
        if qp.service != Service::Raw || !matches!(qp.state, State::ReadyToReceive | State::ReadyToSend) {
            return;
        }
        let cqn = qp.context.receive_cqn();
        match scatter_frame(qp, frame, keyed) {
            Ok(None) => self.counters.rx_no_buffer += 1,
            Ok(Some(index)) => {
                const SEND: u8 = 1;
                let cqe = Cqe::new(qpn, index, false, SEND).with(0x14, &(frame.len() as u32).to_be_bytes());
                self.cqs.post(cqn, &cqe, &mut self.eqs, host);
            }
            Err((index, syndrome)) => {
                qp.state = State::Error;
                self.cqs.post(cqn, &Cqe::error(qpn, index, false, syndrome, 0), &mut self.eqs, host);
            }
        }
    }
}

/// The frame of a send work request, with its checksums put in.
fn gather_frame(control: &Control, wqe: &[u8], pd: u32, keyed: Keyed<'_>) -> Result<Vec<u8>, u8> {
    if !matches!(control.opcode(), Ok(Opcode::Send)) {
        return Err(LOCAL_QP_OPERATION);
    }
    let mut frame = Vec::new();
    for data in Segments::new(wqe).map_err(|_| LOCAL_QP_OPERATION)? {
        match data {
            Data::Inline(bytes) => frame.extend_from_slice(bytes),
            Data::Segment { lkey, va, len } => {
                let start = frame.len();
                if start + len as usize > MAX_FRAME {
                    return Err(LOCAL_LENGTH);
                }
                let mut gather = || -> Result<(), Refused> {
                    keyed.check(lkey, pd, va, u64::from(len), Access::LocalRead)?;
                    frame.resize(start + len as usize, 0);
                    keyed.read(lkey, va, frame.get_mut(start..).unwrap_or_default())
                };
                gather().map_err(|e| {
                    log::warn!("a frame cannot be gathered: {e}");
                    LOCAL_PROTECTION
                })?;
            }
        }
    }
    let (ip, transport) = control.checksums();
    super::checksum::fill(&mut frame, ip, transport);
    Ok(frame)
}

/// Puts a frame into the next receive buffer. `Ok(None)`: there is none.
fn scatter_frame(qp: &mut Qp, frame: &[u8], keyed: Keyed<'_>) -> Result<Option<u16>, (u16, u8)> {
    let pd = qp.context.pd();
    let mut list = Vec::new();
    let index = match qp.receive.next(&qp.memory, keyed.host, &mut list) {
        Ok(Some(index)) => index,
        Ok(None) => return Ok(None),
        Err(e) => {
            log::warn!("a receive ring cannot be read: {e}");
            return Err((0, LOCAL_QP_OPERATION));
        }
    };
    let mut rest = frame;
    for element in list {
        let (part, after) = rest.split_at(rest.len().min(element.len as usize));
        let written = keyed
            .check(element.lkey, pd, element.va, part.len() as u64, Access::LocalWrite)
            .and_then(|()| keyed.write(element.lkey, element.va, part));
        written.map_err(|e| {
            log::warn!("a frame cannot be scattered: {e}");
            (index, LOCAL_PROTECTION)
        })?;
        rest = after;
        if rest.is_empty() {
            return Ok(Some(index));
        }
    }
    Err((index, LOCAL_LENGTH))
}
