//! Sent packets: the turns of the queue pairs, those above service level 0 first, and the ways to the port
//! and within the RNIC.

use crate::common::Common;
use crate::engine::Core;
use crate::port::EthernetPort;
use crate::slots::Slot;
use core::time::Duration;
use platform::Instant;
use roce::transport::Tx;

/// The number of packets that a queue pair sends before the next one may send.
const BURST: usize = 16;
/// The time for which a full transmit ring is left alone.
const RING_FULL_WAIT: Duration = Duration::from_micros(20);

impl Core {
    /// Sends at most about `budget` packets, and returns their number.
    pub(crate) fn transmit(&mut self, port: &mut impl EthernetPort, now: Instant, budget: usize) -> usize {
        self.ring_full_until = None;
        let (mut sent, mut on_wire) = (0, 0);
        // A queue pair whose acknowledgement is not due yet stays in the list, so each pass visits every
        // queue pair once.
        loop {
            let before = sent;
            for _ in 0..self.common.ready.len() {
                if sent >= budget || self.ring_full_until.is_some() {
                    break;
                }
                let Some(index) = self.common.ready.pop_front() else { break };
                self.send_burst(index, port, now, (budget - sent).min(BURST), &mut sent, &mut on_wire);
            }
            if sent == before || sent >= budget || self.ring_full_until.is_some() {
                break;
            }
        }
        if on_wire > 0 {
            port.flush();
        }
        sent
    }

    /// Sends up to `burst` packets of the queue pair in a slot that was removed from the list.
    fn send_burst(
        &mut self,
        index: usize,
        port: &mut impl EthernetPort,
        now: Instant,
        burst: usize,
        sent: &mut usize,
        on_wire: &mut usize,
    ) {
        if self.common.levels.is_used() {
            self.look_at_levels(index, now);
        }
        // The queue pair counts as queued until the burst is over, so that it is checked for more work only
        // once.
        for _ in 0..burst {
            let Some(slot) = self.slots.at(index) else { return };
            // A reference, because a packet is long and would be moved.
            let Some(tx) = &slot.qp.next_tx(self.round) else { break };
            if slot.qp.sends_within() {
                self.send_within(index, tx, now);
            } else if send_out(&mut self.common, slot, tx, self.ip_id, port, now) {
                self.ip_id = self.ip_id.wrapping_add(1);
                *on_wire += 1;
            } else {
                self.ring_full_until = Some(now + RING_FULL_WAIT);
                break;
            }
            *sent += 1;
        }
        if let Some(slot) = self.slots.at(index) {
            if slot.level > 0 {
                self.common.levels.note(slot.level, now);
            }
            self.common.end_turn(slot);
        }
    }

    /// Lets the queue pair in a slot give way to those of higher service levels that are in use.
    #[cold]
    fn look_at_levels(&mut self, index: usize, now: Instant) {
        if let Some(slot) = self.slots.at(index) {
            slot.qp.set_yielding(self.common.levels.yields(slot.level, now));
        }
    }

    /// Passes a packet to a queue pair of the same RNIC. The acknowledgement of the packet is due at once.
    fn send_within(&mut self, index: usize, tx: &Tx, now: Instant) {
        let Some(slot) = self.slots.at(index) else { return };
        let mut scratch = core::mem::take(&mut self.scratch);
        let origin = slot.qp.origin(tx);
        let packet = slot.qp.loop_back(tx, &mut scratch, self.common.memory(), &self.common.remote());
        self.common.counters.loopback_packets += 1;
        // With an unreadable payload the queue pair fails.
        self.common.call_in_burst(slot, now, |qp, env| qp.sent(tx, packet.is_some(), env));
        if let Some(packet) = packet {
            self.deliver_within(&packet, origin.as_ref(), now);
        }
        self.scratch = scratch;
    }
}

/// Passes a packet to the port, with IPv4 identification `id`. Returns false if the transmit ring is full.
fn send_out(
    common: &mut Common,
    slot: &mut Slot,
    tx: &Tx,
    id: u16,
    port: &mut impl EthernetPort,
    now: Instant,
) -> bool {
    let (mut len, mut good) = (slot.qp.frame_len(tx), true);
    let taken = port.transmit(len, &mut |out| {
        let emitted = slot.qp.emit(tx, id, out, common.memory(), &common.remote());
        (len, good) = emitted.unwrap_or((0, false));
        len
    });
    if !taken {
        return false;
    }
    common.counters.tx_packets += 1;
    common.counters.tx_bytes += len as u64;
    // With an unreadable payload the queue pair fails.
    common.call_in_burst(slot, now, |qp, env| qp.sent(tx, good, env));
    true
}
