//! One virtqueue of a machine, from the device's side.
//!
//! `virtio-queue` walks the descriptors and `vm-memory` limits every access to the machine's memory, so
//! invalid contents of a ring cost the guest that ring ([`Broken`]) and nothing else. This module adds two
//! functions to the crate's: the buffers of one frame are published together, as mergeable receive buffers
//! require (virtio 1.2, 5.1.6.4), and without event indices the driver's flag that suppresses interrupts is
//! respected.

use std::fs::File;
use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::port::{MAX_FRAME, PREFIX};

/// The maximum number of descriptors in a chain. A frame of Linux has some twenty.
const MAX_DESCRIPTORS: usize = 256;
/// The maximum number of frames taken from a ring before their receivers are notified.
const BATCH: usize = 16;
/// The flag `VIRTQ_AVAIL_F_NO_INTERRUPT`.
const NO_INTERRUPT: u16 = 1;
/// Offset of `num_buffers` in `struct virtio_net_hdr_v1`.
const NUM_BUFFERS: usize = 10;
/// The maximum length of the header, in bytes.
pub(super) const LONGEST_HEADER: usize = 12;

/// The guest's ring has invalid contents and is no longer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl From<virtio_queue::Error> for Broken {
    fn from(_: virtio_queue::Error) -> Self {
        Self
    }
}

impl From<vm_memory::GuestMemoryError> for Broken {
    fn from(_: vm_memory::GuestMemoryError) -> Self {
        Self
    }
}

/// The result of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The frame is in the ring.
    Done,
    /// The guest has provided too few buffers.
    NoBuffer,
    /// The frame does not fit a buffer of this guest.
    TooLong,
}

/// The result of taking frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The number of bytes of the buffer that the frames fill.
    pub filled: usize,
    /// The number of frames.
    pub frames: usize,
    /// The number of chains without a valid frame.
    pub invalid: u64,
    /// True if the ring was found empty.
    pub empty: bool,
}

/// The two eventfds of a ring, both non-blocking.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    /// The signal from the guest that it has added entries.
    pub kick: Arc<File>,
    /// The signal to the guest that entries have been used. Without it the guest polls.
    pub call: Option<Arc<File>>,
}

/// A running virtqueue.
#[derive(Debug)]
pub(crate) struct Ring {
    queue: Queue,
    memory: Arc<GuestMemoryMmap>,
    pub signals: Signals,
    /// The length of the header before each frame, in bytes.
    header: usize,
    /// True if a frame may fill several buffers.
    mergeable: bool,
    /// True if the guest has been told that kicks are unnecessary.
    ignores: bool,
    /// The used index at the last decision about a call.
    called: Wrapping<u16>,
    /// The parts of guest memory for a frame; a field only to keep its capacity.
    parts: Vec<(GuestAddress, usize)>,
    /// The descriptor chains of `parts`, each with its head and its length in bytes.
    chains: Vec<(u16, usize)>,
}

impl Ring {
    /// Takes over a queue that is set up. Returns `None` if its rings are outside of the machine's memory.
    pub(crate) fn new(
        mut queue: Queue,
        memory: Arc<GuestMemoryMmap>,
        signals: Signals,
        header: usize,
        mergeable: bool,
    ) -> Option<Self> {
        queue.set_ready(true);
        if !queue.is_valid(&*memory) {
            return None;
        }
        let used = queue.used_idx(&*memory, Ordering::Acquire).ok()?;
        queue.set_next_used(used.0);
        let header = header.min(LONGEST_HEADER);
        let (parts, chains) = (Vec::new(), Vec::new());
        Some(Self { queue, memory, signals, header, mergeable, ignores: false, called: used, parts, chains })
    }

    /// Returns the index of the guest's next buffer, at which another device would continue.
    pub(crate) fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Takes frames from a transmit ring into `buffer`, each preceded by its length as in a stream.
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> Result<Taken, Broken> {
        let memory = &*self.memory;
        let mut taken = Taken::default();
        for _ in 0..BATCH {
            let Some(room) = buffer.get_mut(taken.filled..).filter(|b| b.len() >= PREFIX + MAX_FRAME) else {
                break;
            };
            let Some(chain) = self.queue.iter(memory)?.next() else {
                taken.empty = true;
                break;
            };
            let head = chain.head_index();
            let mut skip = self.header;
            let mut len = 0;
            let mut fits = true;
            for part in chain.readable().take(MAX_DESCRIPTORS) {
                let (addr, part_len) = (part.addr(), part.len() as usize);
                let skipped = skip.min(part_len);
                skip -= skipped;
                let bytes = part_len - skipped;
                if bytes == 0 {
                    continue;
                }
                let Some(to) =
                    room.get_mut(PREFIX + len..PREFIX + len + bytes).filter(|_| len + bytes <= MAX_FRAME)
                else {
                    fits = false;
                    break;
                };
                let from = addr.0.checked_add(skipped as u64).ok_or(Broken)?;
                memory.read_slice(to, GuestAddress(from))?;
                len += bytes;
            }
            if fits && len > 0 {
                // At most MAX_FRAME, so it fits 32 bits.
                room[..PREFIX].copy_from_slice(&(len as u32).to_be_bytes());
                taken.filled += PREFIX + len;
                taken.frames += 1;
            } else {
                taken.invalid += 1;
            }
            self.queue.add_used(memory, head, 0)?;
        }
        Ok(taken)
    }

    /// Puts a frame into a receive ring.
    pub(crate) fn deliver(&mut self, frame: &[u8]) -> Result<Delivery, Broken> {
        let needed = self.header + frame.len();
        let before = self.queue.next_avail();
        let delivery = self.find_room(needed)?;
        if delivery != Delivery::Done {
            self.queue.set_next_avail(before);
            return Ok(delivery);
        }
        let mut header = [0; LONGEST_HEADER];
        if let Some(field) = header[..self.header].get_mut(NUM_BUFFERS..) {
            // There are at most as many chains as descriptors in a queue, so the number fits 16 bits.
            field.copy_from_slice(&(self.chains.len() as u16).to_le_bytes());
        }
        let mut sources = [&header[..self.header], frame];
        for &(addr, len) in &self.parts {
            let (mut addr, mut room) = (addr.0, len);
            for source in &mut sources {
                let (now, later) = source.split_at(room.min(source.len()));
                if !now.is_empty() {
                    self.memory.write_slice(now, GuestAddress(addr))?;
                }
                *source = later;
                addr = addr.checked_add(now.len() as u64).ok_or(Broken)?;
                room -= now.len();
            }
        }
        self.publish(needed)?;
        Ok(Delivery::Done)
    }

    /// Collects chains of the ring that together have room for `needed` bytes.
    fn find_room(&mut self, needed: usize) -> Result<Delivery, Broken> {
        self.parts.clear();
        self.chains.clear();
        let mut room = 0;
        while room < needed {
            let Some(chain) = self.queue.iter(&*self.memory)?.next() else { return Ok(Delivery::NoBuffer) };
            let head = chain.head_index();
            let mut bytes = 0usize;
            for part in chain.writable().take(MAX_DESCRIPTORS) {
                if part.len() > 0 && room + bytes < needed {
                    self.parts.push((part.addr(), part.len() as usize));
                    bytes = bytes.saturating_add(part.len() as usize);
                }
            }
            if bytes == 0 {
                return Err(Broken);
            }
            self.chains.push((head, bytes));
            room = room.saturating_add(bytes);
            if room < needed && !self.mergeable {
                return Ok(Delivery::TooLong);
            }
        }
        Ok(Delivery::Done)
    }

    /// Publishes the collected chains to the guest, all at once.
    fn publish(&mut self, bytes: usize) -> Result<(), Broken> {
        let Some(((last, last_room), others)) = self.chains.split_last() else { return Ok(()) };
        let (size, base) = (self.queue.size(), self.queue.used_ring());
        let mut index = Wrapping(self.queue.next_used());
        let mut left = bytes;
        for (head, room) in others {
            // The flags and the index (4 bytes) precede the elements of id and length.
            let at = base.checked_add(4 + 8 * u64::from(index.0 % size)).ok_or(Broken)?;
            let used = left.min(*room);
            // Descriptor lengths have 32 bits, so the bytes of a frame in a chain fit them.
            let element = u64::from(*head) | (used as u64) << 32;
            self.memory.write_obj(element.to_le(), GuestAddress(at))?;
            left -= used;
            index += 1;
        }
        self.queue.set_next_used(index.0);
        self.queue.add_used(&*self.memory, *last, left.min(*last_room) as u32)?;
        Ok(())
    }

    /// Asks the guest for a kick when it adds entries. Returns `true` if it has added some in the meantime.
    pub(crate) fn listen(&mut self) -> Result<bool, Broken> {
        self.ignores = false;
        Ok(self.queue.enable_notification(&*self.memory)?)
    }

    /// Tells the guest that kicks are unnecessary.
    pub(crate) fn ignore(&mut self) -> Result<(), Broken> {
        if std::mem::replace(&mut self.ignores, true) {
            return Ok(());
        }
        if self.queue.event_idx_enabled() {
            // The guest sends a kick for the entry at this index, which it has passed (virtio 1.2, 2.7.10).
            // The field follows the elements, of 8 bytes each.
            let at = 4 + 8 * u64::from(self.queue.size());
            let field = self.queue.used_ring().checked_add(at).ok_or(Broken)?;
            let past = self.queue.next_avail().wrapping_sub(1);
            self.memory.store(past.to_le(), GuestAddress(field), Ordering::Relaxed)?;
        }
        Ok(self.queue.disable_notification(&*self.memory)?)
    }

    /// Calls the guest unconditionally, because a call to its previous receiver may have been lost.
    pub(crate) fn remind(&self) {
        if let Some(call) = &self.signals.call {
            // A full eventfd is pending already.
            let _ = rustix::io::write(&**call, &1u64.to_ne_bytes());
        }
    }

    /// Interrupts the guest if it has asked to be told about the entries used since the last interrupt.
    /// Returns true if it was interrupted.
    pub(crate) fn call(&mut self) -> Result<bool, Broken> {
        let used = Wrapping(self.queue.next_used());
        let before = std::mem::replace(&mut self.called, used);
        let Some(call) = self.signals.call.as_ref().filter(|_| used != before) else { return Ok(false) };
        // The used index must be visible before the guest's wish is read; otherwise both sides may sleep.
        fence(Ordering::SeqCst);
        let flags = self.queue.avail_ring();
        let wanted = if self.queue.event_idx_enabled() {
            let at = 4 + 2 * u64::from(self.queue.size());
            let event: u16 = self.memory.load(GuestAddress(flags + at), Ordering::Relaxed)?;
            // The condition of virtio 1.2, 2.7.7.
            used - Wrapping(u16::from_le(event)) - Wrapping(1) < used - before
        } else {
            let flags: u16 = self.memory.load(GuestAddress(flags), Ordering::Relaxed)?;
            u16::from_le(flags) & NO_INTERRUPT == 0
        };
        // A full eventfd is pending already, which is sufficient.
        Ok(wanted && rustix::io::write(&**call, &1u64.to_ne_bytes()).is_ok())
    }
}
