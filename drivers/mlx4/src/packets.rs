//! A queue pair of the driver's own, for packets that are sent and taken as they are: its rings, its completion queue, and
//! memory for packets.

use crate::cq::Cq;
use crate::cqe::Cqe;
use crate::hardware::{Block, Hardware};
use crate::qp::Slot;
use crate::wqe::{Head, Wqe, store_buffer};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::AtomicU64;
use platform::IoAddr;
use verbs::{Status, WorkKind, WrId};

/// How many packets there is memory for, and bytes of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) receives: u32,
    pub(crate) receive_len: u32,
    pub(crate) sends: u32,
    pub(crate) send_len: u32,
}

impl Room {
    /// Bytes of it all.
    pub(crate) const fn bytes(self) -> u64 {
        self.receives as u64 * self.receive_len as u64 + self.sends as u64 * self.send_len as u64
    }
}

/// The queue pair.
pub(crate) struct Packets<B> {
    pub(crate) cq: Cq<B>,
    slot: Box<Slot<B>>,
    memory: B,
    room: Room,
    /// The key of all memory.
    key: u32,
    /// Packets sent, and those that have left.
    posted: u32,
    left: u32,
    /// What has arrived, and was found when room was looked for.
    found: VecDeque<Arrival>,
}

/// A packet that has arrived: its buffer is the card's again after [`Packets::give_back`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    buffer: u32,
    /// Bytes, no more than there is room for; 0 of one that is broken.
    pub(crate) len: usize,
    /// What the card says of it.
    pub(crate) cqe: Cqe,
}

impl<B: Block> Packets<B> {
    /// A queue pair that is ready, whose buffers are all the card's from now on.
    pub(crate) fn new(cq: Cq<B>, slot: Slot<B>, memory: B, room: Room, key: u32) -> Self {
        let packets = Self {
            cq,
            slot: Box::new(slot),
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

    /// The number of the queue pair.
    pub(crate) fn number(&self) -> u32 {
        self.slot.queue.number().get()
    }

    /// The next packet that has arrived.
    pub(crate) fn next(&mut self) -> Option<Arrival> {
        if let Some(found) = self.found.pop_front() { Some(found) } else { self.look() }
    }

    /// Whether another packet can be sent.
    pub(crate) fn has_room(&mut self) -> bool {
        let full = |packets: &Self| packets.posted.wrapping_sub(packets.left) >= packets.room.sends;
        if full(self) {
            while let Some(arrival) = self.look() {
                // There are no more than there are buffers.
                self.found.push_back(arrival);
            }
        }
        !full(self)
    }

    /// Asks for an event of the next packet. `true`: one waits already.
    pub(crate) fn arm(&mut self, hw: &impl Hardware<Block = B>) -> bool {
        // What has left is no reason to wake up.
        while let Some(arrival) = self.look() {
            self.found.push_back(arrival);
        }
        !self.found.is_empty() || self.cq.arm(hw)
    }

    fn look(&mut self) -> Option<Arrival> {
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

    /// The words of a packet's buffer.
    pub(crate) fn words(&self, arrival: &Arrival) -> &[AtomicU64] {
        let words = self.room.receive_len as usize / 8;
        let first = arrival.buffer as usize * words;
        self.memory.get(first..first + words).unwrap_or_default()
    }

    /// A packet was read: its buffer takes another.
    pub(crate) fn give_back(&self, arrival: Arrival) {
        self.post_buffer(arrival.buffer);
    }

    fn post_buffer(&self, buffer: u32) {
        let queue = &*self.slot.queue;
        let Some(index) = queue.receives.next(self.room.receives) else { return };
        if !self.slot.recv_credit.take() {
            return;
        }
        let at = self.memory.addr().0 + u64::from(buffer) * u64::from(self.room.receive_len);
        store_buffer(self.key, IoAddr(at), self.room.receive_len, queue.receive_entry(index));
        queue.receives.post(index, WrId(buffer.into()));
        queue.tell_receives();
    }

    /// Sends a packet: `fill` writes it, `write` makes its request, given the key and where it is. `false`: those before have
    /// not left yet.
    pub(crate) fn send(
        &mut self,
        hw: &impl Hardware<Block = B>,
        fill: impl FnOnce(&[AtomicU64]),
        write: impl Fn(Wqe<'_>, u32, IoAddr) -> Head,
    ) -> bool {
        if !self.has_room() {
            return false;
        }
        let place = u64::from(self.posted % self.room.sends);
        let skip = u64::from(self.room.receives) * u64::from(self.room.receive_len)
            + place * u64::from(self.room.send_len);
        let words = skip as usize / 8..(skip as usize + self.room.send_len as usize) / 8;
        let Some(words) = self.memory.get(words) else { return false };
        fill(words);
        let at = IoAddr(self.memory.addr().0 + skip);
        let key = self.key;
        let posted = self.slot.post(hw, &[()], |(), wqe| Ok((WrId(place), write(wqe, key, at))));
        if posted.is_ok() {
            self.posted = self.posted.wrapping_add(1);
        }
        posted.is_ok()
    }
}
