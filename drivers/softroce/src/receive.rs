//! Received packets: their queue pairs, and the reasons to drop them.

use crate::common::Common;
use crate::engine::Core;
use crate::queue_pair::QueuePair;
use crate::slots::Slot;
use platform::Instant;
use roce::wire::{Bth, Ecn, Frame, Packet, Service};
use verbs::GRH_LEN;

impl Core {
    /// Handles a received frame.
    pub(crate) fn on_frame(&mut self, bytes: &[u8], now: Instant) {
        self.common.counters.rx_packets += 1;
        self.common.counters.rx_bytes += bytes.len() as u64;
        // A reference, because a frame is long and would be moved.
        let Ok(frame) = &Frame::parse(bytes) else {
            self.common.counters.rx_malformed += 1;
            return;
        };
        let net = &frame.headers.net;
        if frame.headers.ethernet.dst != self.mac || net.dst() != self.config.gid {
            self.common.counters.rx_not_ours += 1;
            return;
        }
        if !frame.icrc_ok_by(&mut self.seeds) {
            self.common.counters.rx_icrc_errors += 1;
            return;
        }
        let bth = &frame.packet.bth;
        if bth.version != 0 {
            self.common.counters.rx_malformed += 1;
            return;
        }
        let Some(slot) = self.slots.find(bth.dest_qp) else {
            self.common.counters.rx_unknown_qp += 1;
            return;
        };
        // The top bit of the partition key is the sender's membership (specification 10.9.3).
        if (bth.pkey ^ Bth::DEFAULT_PKEY) & 0x7fff != 0 {
            self.common.counters.rx_bad_pkey += 1;
            return;
        }
        match (&slot.qp, bth.opcode.service) {
            (QueuePair::Reliable(qp), Service::Rc | Service::Cnp) if qp.is_peer(net) => {
                let (round, ecn) = (self.round, net.ecn());
                self.common.levels.note(slot.level, now);
                receive(&mut self.common, slot, &frame.packet, ecn, round, now);
            }
            (QueuePair::Reliable(_), Service::Rc | Service::Cnp) => self.common.counters.rx_wrong_peer += 1,
            (QueuePair::Datagram(_), Service::Ud) => {
                receive_datagram(&mut self.common, slot, &frame.packet, &frame.origin(), now);
            }
            _ => self.common.counters.rx_wrong_service += 1,
        }
    }

    /// Handles a packet that a queue pair of this RNIC has sent. `origin` precedes it in the receive, if it
    /// is a datagram.
    pub(crate) fn deliver_within(
        &mut self,
        packet: &Packet<'_>,
        origin: Option<&[u8; GRH_LEN as usize]>,
        now: Instant,
    ) {
        let Some(slot) = self.slots.find(packet.bth.dest_qp) else {
            self.common.counters.rx_unknown_qp += 1;
            return;
        };
        match (&slot.qp, origin) {
            (QueuePair::Reliable(qp), None) if qp.path().is_none() => {
                // Its acknowledgement is due at once.
                let earlier = self.round.wrapping_sub(1);
                receive(&mut self.common, slot, packet, Ecn::NotCapable, earlier, now);
            }
            (QueuePair::Reliable(_), None) => self.common.counters.rx_wrong_peer += 1,
            (QueuePair::Datagram(_), Some(origin)) => {
                receive_datagram(&mut self.common, slot, packet, origin, now);
            }
            _ => self.common.counters.rx_wrong_service += 1,
        }
    }
}

fn receive(common: &mut Common, slot: &mut Slot, packet: &Packet<'_>, ecn: Ecn, round: u32, now: Instant) {
    common.call(slot, now, |qp, env| {
        if let QueuePair::Reliable(qp) = qp {
            qp.receive(packet, ecn, round, env);
        }
    });
}

fn receive_datagram(
    common: &mut Common,
    slot: &mut Slot,
    packet: &Packet<'_>,
    origin: &[u8; GRH_LEN as usize],
    now: Instant,
) {
    common.call(slot, now, |qp, env| {
        if let QueuePair::Datagram(qp) = qp {
            qp.receive(packet, origin, env);
        }
    });
}
