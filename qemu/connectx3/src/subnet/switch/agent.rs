//! The agents of a switch: subnet management and performance management.

use super::{Leaving, START, Switch, VCRC_LEN};
use crate::subnet::mad::{Answer, Mad, Outcome, attribute as attr, class, method};
use crate::subnet::port::PARTITIONS;
use crate::subnet::port_info::{LOCAL_PORT, LinkState};
use roce::wire::{Bth, Deth, Ext, Headers, Lrh, Net, Opcode, Operation, Packet, Service};
use verbs::{Psn, QpNum};

/// The capability mask: traps, SL mapping, system image GUID, client reregistration.
pub(super) const CAPABILITIES: u32 = 1 << 3 | 1 << 6 | 1 << 11 | 1 << 25;

/// The queue pairs of the agents, and the queue key of the second.
pub(super) const QP0: QpNum = QpNum::new(0);
const QP1: QpNum = QpNum::new(1);
const GENERAL_QKEY: u32 = 0x8001_0000;

const DATAGRAM: Opcode = Opcode { service: Service::Ud, operation: Operation::SendOnly };

impl Switch {
    /// Handles a packet for the switch itself, without its variant CRC.
    pub(super) fn receive_own(&mut self, from: usize, lrh: &Lrh, packet: &[u8], out: &mut Leaving) {
        let Ok((_, global, rest)) = Lrh::parse(packet) else { return };
        let Some((body, _icrc)) = rest.split_last_chunk::<4>() else { return };
        let Ok(parsed) = Packet::parse(body) else { return };
        let Ext::Deth(deth) = parsed.ext else { return };
        let management = lrh.lane == Lrh::MANAGEMENT_LANE;
        let (Some(mut mad), false) = (Mad::parse(parsed.payload), global) else { return };
        match (management, parsed.bth.dest_qp) {
            (true, QP0) => self.manage(from, lrh, mad, out),
            (false, QP1) if deth.qkey == GENERAL_QKEY && self.count(&mut mad) => {
                let back = Lrh { dlid: lrh.slid, slid: self.own.info.lid(), ..*lrh };
                self.send(from, back, (deth.src_qp, QP1, GENERAL_QKEY), &mad, out);
            }
            _ => {}
        }
    }

    pub(super) fn send(
        &mut self,
        port: usize,
        lrh: Lrh,
        (to, from, qkey): (QpNum, QpNum, u32),
        mad: &Mad,
        out: &mut Leaving,
    ) {
        let headers = Headers { ethernet: self.cable(), net: Net::InfiniBand(lrh, None) };
        let bth = Bth::new(DATAGRAM, to, Psn::new(0));
        let ext = Ext::Deth(Deth { qkey, reserved: 0, src_qp: from });
        let len = mad.bytes().len();
        let mut frame = vec![0; headers.frame_len(&ext, len)];
        if headers.emit(&bth, &ext, len, &mut frame, |to| to.copy_from_slice(mad.bytes())).is_none() {
            return;
        }
        if let Some(packet) = frame.get(START..frame.len() - VCRC_LEN) {
            self.forward(port, &lrh, packet, out);
        }
    }

    /// Handles a subnet management datagram.
    fn manage(&mut self, from: usize, lrh: &Lrh, mut mad: Mad, out: &mut Leaving) {
        let (ingress, ports) = (from as u8 + 1, self.identity.ports);
        if mad.class() == class::SUBNET_LID_ROUTED {
            if mad.method() == method::TRAP_REPRESS {
                self.end_notice(&mad);
            } else if self.answer(&mut mad, ingress, out) {
                let back = Lrh { dlid: lrh.slid, slid: self.own.info.lid(), ..*lrh };
                self.send(from, back, (QP0, QP0, 0), &mad, out);
            }
            return;
        }
        if mad.class() != class::SUBNET_DIRECTED {
            return;
        }
        let to = match mad.next_hop(ingress, ports) {
            Answer::Port(port) => Some(port),
            Answer::Here if self.answer(&mut mad, ingress, out) => {
                mad.turn_back();
                mad.first_hop_back()
            }
            Answer::Here | Answer::Drop => None,
        };
        if let Some(to) = to.and_then(|port| port.checked_sub(1)) {
            let permissive = Lrh { dlid: Lrh::PERMISSIVE_LID, slid: Lrh::PERMISSIVE_LID, ..*lrh };
            self.send(usize::from(to), permissive, (QP0, QP0, 0), &mad, out);
        }
    }

    /// Answers a datagram in place. Returns whether there is an answer to send.
    fn answer(&mut self, mad: &mut Mad, ingress: u8, out: &mut Leaving) -> bool {
        let set = match mad.method() {
            method::GET => false,
            method::SET => true,
            // Stray answers of other nodes.
            _ => return false,
        };
        if self.own.is_locked_for(mad) {
            return false;
        }
        let modifier = mad.modifier();
        let mut data = *mad.data();
        let outcome = match mad.attribute() {
            attr::NODE_DESCRIPTION if !set => {
                data = self.identity.node_description();
                Outcome::Good
            }
            attr::NODE_INFO if !set => {
                data = self.identity.node_info(ingress, self.own.guid(), PARTITIONS as u16);
                Outcome::Good
            }
            attr::SWITCH_INFO => self.tables.info(set, &mut data),
            attr::LINEAR_FORWARDING_TABLE => self.tables.linear(modifier, set, &mut data),
            attr::MULTICAST_FORWARDING_TABLE => self.tables.multicast(modifier, set, &mut data),
            attribute => {
                let outcome = self.answer_port(mad, attribute, modifier, out);
                if attribute == attr::PORT_INFO {
                    // The local port is the port that received the request, not the one described. A manager
                    // learns its own position from it.
                    let mut data = *mad.data();
                    data[LOCAL_PORT] = ingress;
                    mad.set_data(&data);
                }
                mad.answer(outcome);
                return true;
            }
        };
        mad.set_data(&data);
        mad.answer(outcome);
        true
    }

    /// Answers an attribute of the port that the modifier names.
    fn answer_port(&mut self, mad: &mut Mad, attribute: u16, modifier: u32, out: &mut Leaving) -> Outcome {
        let number = match attribute {
            attr::PORT_INFO
            | attr::SL_TO_VL_TABLE
            | attr::VL_ARBITRATION_TABLE
            | attr::LED_INFO
            | attr::EXTENDED_PORT_INFO => modifier & 0xff,
            attr::P_KEY_TABLE => modifier >> 16,
            _ => 0,
        };
        let Some(external) = (number as usize).checked_sub(1) else {
            return self.own.answer(mad).map_or(Outcome::Unsupported, |(outcome, _)| outcome);
        };
        let Some(port) = self.ports.get_mut(external) else { return Outcome::InvalidField };
        let Some((outcome, written)) = port.managed.answer(mad) else { return Outcome::Unsupported };
        if written.state == Some(LinkState::Down) {
            let disabled = port.managed.info.is_disabled();
            let symbol = port.training.stop();
            if !disabled {
                port.training.start(platform::Instant::ZERO);
            }
            self.tables.changed = true;
            if let Some(symbol) = symbol {
                self.symbol(external, symbol, out);
            }
        }
        outcome
    }

    /// Answers a performance management datagram in place. Returns whether there is an answer to send.
    fn count(&mut self, mad: &mut Mad) -> bool {
        if mad.class() != class::PERFORMANCE || ![method::GET, method::SET].contains(&mad.method()) {
            return false;
        }
        let number = mad.performance_data().get(1).copied().unwrap_or(0);
        let index = usize::from(number).checked_sub(1);
        match index.and_then(|index| self.ports.get_mut(index)) {
            Some(port) => port.traffic.answer(mad, number),
            // Attributes that do not belong to a port, and port 0, which has no link.
            None => crate::subnet::Traffic::default().answer(mad, 0),
        }
        true
    }
}
