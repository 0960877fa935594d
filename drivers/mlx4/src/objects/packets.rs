//! A queue pair for the driver's own use, which sends and receives whole packets: its rings, its completion
//! queue, and its packet memory.

use crate::datapath::cqe::Cqe;
use crate::datapath::wqe::entry::Head;
use crate::datapath::wqe::{Wqe, store_buffer};
use crate::hardware::{Block, Hardware};
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::AtomicU64;
use platform::IoAddr;
use verbs::{Status, WorkKind, WrId};

/// The number of packets that there is memory for, and their maximum lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) receives: u32,
    pub(crate) receive_len: u32,
    pub(crate) sends: u32,
    pub(crate) send_len: u32,
}

impl Room {
    /// Returns the size of all packet memory, in bytes.
    pub(crate) const fn bytes(self) -> u64 {
        self.receives as u64 * self.receive_len as u64 + self.sends as u64 * self.send_len as u64
    }
}

/// A queue pair for packets.
pub(crate) struct Packets<B> {
    pub(crate) cq: Cq<B>,
    qp: Box<Qp<B>>,
    memory: B,
    room: Room,
    /// The memory key that covers all memory.
    key: u32,
    /// Numbers of packets posted and sent, modulo 2^32.
    posted: u32,
    left: u32,
    /// Received packets that were found while looking for completed sends.
    found: VecDeque<Arrival>,
}

/// A received packet. [`Packets::give_back`] returns its buffer to the card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    buffer: u32,
    /// The length in bytes, within the buffer's; 0 for a damaged packet.
    pub(crate) len: usize,
    /// The completion queue entry.
    pub(crate) cqe: Cqe,
}

impl<B: Block> Packets<B> {
    /// Makes a queue pair that is ready to send, and posts all receive buffers.
    pub(crate) fn new(cq: Cq<B>, qp: Qp<B>, memory: B, room: Room, key: u32) -> Self {
        let packets = Self {
            cq,
            qp: Box::new(qp),
            memory,
            room,
            key,
            posted: 0,
            left: 0,
            found: VecDeque::with_capacity(room.receives as usize),
        };
        for buffer in 0..room.receives {
            packets.post_buffer(buffer);
        }
        packets
    }

    /// Returns the number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.qp.rings.number().get()
    }

    /// Returns the next received packet.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        if let Some(found) = self.found.pop_front() { Some(found) } else { self.next_from_cq() }
    }

    /// Returns true if the send queue has room for another packet.
    pub(crate) fn has_room(&mut self) -> bool {
        let full = |packets: &Self| packets.posted.wrapping_sub(packets.left) >= packets.room.sends;
        if full(self) {
            while let Some(arrival) = self.next_from_cq() {
                // There are no more arrivals than buffers.
                self.found.push_back(arrival);
            }
        }
        !full(self)
    }

    /// Requests an event for the next packet. Returns true if one has already arrived.
    pub(crate) fn arm(&mut self, hw: &impl Hardware<Block = B>) -> bool {
        // Completed sends are not a reason to wake up.
        while let Some(arrival) = self.next_from_cq() {
            self.found.push_back(arrival);
        }
        !self.found.is_empty() || self.cq.arm(hw)
    }

    fn next_from_cq(&mut self) -> Option<Arrival> {
        loop {
            let (completion, cqe) = self.cq.take()?;
            if completion.kind != WorkKind::Recv {
                self.left = self.left.wrapping_add(1);
                continue;
            }
            let broken = completion.status != Status::Success || completion.byte_len > self.room.receive_len;
            let len = if broken { 0 } else { completion.byte_len as usize };
            return Some(Arrival { buffer: completion.id.0 as u32, len, cqe });
        }
    }

    /// Returns the words of a packet's buffer.
    pub(crate) fn words(&self, arrival: &Arrival) -> &[AtomicU64] {
        let words = self.room.receive_len as usize / 8;
        let first = arrival.buffer as usize * words;
        self.memory.get(first..first + words).unwrap_or_default()
    }

    /// Posts the buffer of a packet again.
    pub(crate) fn give_back(&self, arrival: Arrival) {
        self.post_buffer(arrival.buffer);
    }

    fn post_buffer(&self, buffer: u32) {
        let rings = &*self.qp.rings;
        let Some(index) = rings.receives.next(self.room.receives) else { return };
        if self.qp.cqs.receive.credit.take(1) == 0 {
            return;
        }
        let at = self.memory.addr().0 + u64::from(buffer) * u64::from(self.room.receive_len);
        store_buffer(self.key, IoAddr(at), self.room.receive_len, rings.receive_entry(index));
        rings.receives.post(index, WrId(buffer.into()));
        rings.publish_receives();
    }

    /// Sends a packet: `fill` writes the packet, and `write` writes its work request, given the key and the
    /// packet's address. Returns false if there is no room because earlier packets have not been sent yet.
    pub(crate) fn send(
        &mut self,
        hw: &impl Hardware<Block = B>,
        fill: impl FnOnce(&[AtomicU64]),
        write: impl Fn(Wqe<'_>, u32, IoAddr) -> Head,
    ) -> bool {
        if !self.has_room() {
            return false;
        }
        let index = u64::from(self.posted % self.room.sends);
        let skip = u64::from(self.room.receives) * u64::from(self.room.receive_len)
            + index * u64::from(self.room.send_len);
        let words = skip as usize / 8..(skip as usize + self.room.send_len as usize) / 8;
        let Some(words) = self.memory.get(words) else { return false };
        fill(words);
        let at = IoAddr(self.memory.addr().0 + skip);
        let key = self.key;
        let posted = self.qp.post(hw, &[()], |ring, next, ()| {
            let place = ring.place(next, WrId(index))?;
            let head = write(place.wqe(), key, at);
            place.post(head);
            Ok(())
        });
        if posted.is_ok() {
            self.posted = self.posted.wrapping_add(1);
        }
        posted.is_ok()
    }
}
