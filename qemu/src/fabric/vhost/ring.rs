//! One virtqueue of a machine, from the device's side: frames out of it or into it.
//!
//! `virtio-queue` walks the descriptors and `vm-memory` bounds every access by the machine's memory, so whatever a guest
//! writes into its ring costs it the ring ([`Broken`]) at most. Two things are done here that the crate does not do:
//! buffers of one frame are published together, as mergeable receive buffers need it (virtio 1.2, 5.1.6.4), and without
//! event indices the driver's flag that suppresses interrupts is heeded.

use std::fs::File;
use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::super::port::{MAX_FRAME, PREFIX};

/// Descriptors of a chain that are looked at. A frame of Linux has some twenty.
const MAX_DESCRIPTORS: usize = 256;
/// Frames taken from a ring at a time; then their receivers hear of them.
const BATCH: usize = 16;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`.
const NO_INTERRUPT: u16 = 1;
/// `num_buffers` in `struct virtio_net_hdr_v1`.
const NUM_BUFFERS: usize = 10;
/// The longest header.
pub const LONGEST_HEADER: usize = 12;

/// What a guest wrote into its ring cannot be: the ring is not used further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

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

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the ring.
    Done,
    /// The guest has given too few buffers.
    NoBuffer,
    /// It does not fit a buffer of this guest.
    TooLong,
}

/// Frames that were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How much of the buffer they fill.
    pub filled: usize,
    /// Chains that held no frame that a switch takes.
    pub invalid: u64,
    /// Whether the ring was seen empty.
    pub empty: bool,
}

/// The wire of a ring: its two eventfds, never blocking.
#[derive(Clone, Debug)]
pub struct Signals {
    /// The guest has given something.
    pub kick: Arc<File>,
    /// The guest is told that it has got something; without one it polls.
    pub call: Option<Arc<File>>,
}

/// A running virtqueue.
#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    memory: Arc<GuestMemoryMmap>,
    pub signals: Signals,
    /// Length of the header before each frame.
    header: usize,
    /// Whether a frame may fill several buffers.
    mergeable: bool,
    /// The used index when the guest was last considered for a call.
    called: Wrapping<u16>,
    /// Parts of guest memory that a frame goes to; kept for its capacity.
    parts: Vec<(GuestAddress, usize)>,
    /// Chains of them: head, bytes.
    chains: Vec<(u16, usize)>,
}

impl Ring {
    /// Takes over a queue that is set up. `None`: its rings do not lie in the machine's memory.
    pub fn new(
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
        Some(Self { queue, memory, signals, header, mergeable, called: used, parts, chains })
    }

    /// Index of the next buffer of the guest, where another device would go on.
    pub fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Takes frames out of a transmit ring, each with its length in front as on a stream, into `buffer`.
    pub fn take(&mut self, buffer: &mut [u8]) -> Result<Taken, Broken> {
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
            } else {
                taken.invalid += 1;
            }
            self.queue.add_used(memory, head, 0)?;
        }
        Ok(taken)
    }

    /// Puts a frame into a receive ring.
    pub fn deliver(&mut self, frame: &[u8]) -> Result<Delivery, Broken> {
        let needed = self.header + frame.len();
        let before = self.queue.next_avail();
        let delivery = self.find_room(needed)?;
        if delivery != Delivery::Done {
            self.queue.set_next_avail(before);
            return Ok(delivery);
        }
        let mut header = [0; LONGEST_HEADER];
        if let Some(field) = header[..self.header].get_mut(NUM_BUFFERS..) {
            // No more chains than a queue has descriptors, so it fits 16 bits.
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

    /// Notes chains of the ring that together have room for `needed` bytes.
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

    /// Gives the noted chains to the guest, all at once.
    fn publish(&mut self, bytes: usize) -> Result<(), Broken> {
        let Some(((last, last_room), others)) = self.chains.split_last() else { return Ok(()) };
        let (size, base) = (self.queue.size(), self.queue.used_ring());
        let mut index = Wrapping(self.queue.next_used());
        let mut left = bytes;
        for (head, room) in others {
            // flags and idx (4 bytes), then elements of id and length.
            let at = base.checked_add(4 + 8 * u64::from(index.0 % size)).ok_or(Broken)?;
            let used = left.min(*room);
            // Descriptors are of 32 bits, so a chain's bytes of a frame are too.
            let element = u64::from(*head) | (used as u64) << 32;
            self.memory.write_obj(element.to_le(), GuestAddress(at))?;
            left -= used;
            index += 1;
        }
        self.queue.set_next_used(index.0);
        self.queue.add_used(&*self.memory, *last, left.min(*last_room) as u32)?;
        Ok(())
    }

    /// Asks the guest for a kick when it gives more; `true` if it has meanwhile.
    pub fn listen(&mut self) -> Result<bool, Broken> {
        Ok(self.queue.enable_notification(&*self.memory)?)
    }

    /// Asks for none, as far as the ring has a way to.
    pub fn ignore(&mut self) -> Result<(), Broken> {
        Ok(self.queue.disable_notification(&*self.memory)?)
    }

    /// Calls the guest in any case: a call to the one who listened before may have been lost.
    pub fn remind(&self) {
        if let Some(call) = &self.signals.call {
            // Full means that it has been written to.
            let _ = rustix::io::write(&**call, &1u64.to_ne_bytes());
        }
    }

    /// Calls the guest if it wants to hear of what it has got since the last time. Gives whether it was called.
    pub fn call(&mut self) -> Result<bool, Broken> {
        let used = Wrapping(self.queue.next_used());
        let before = std::mem::replace(&mut self.called, used);
        let Some(call) = self.signals.call.as_ref().filter(|_| used != before) else { return Ok(false) };
        // The used index must be visible before the guest's wish is read, or both sides may go to sleep.
        fence(Ordering::SeqCst);
        let flags = self.queue.avail_ring();
        let wanted = if self.queue.event_idx_enabled() {
            let at = 4 + 2 * u64::from(self.queue.size());
            let event: u16 = self.memory.load(GuestAddress(flags + at), Ordering::Relaxed)?;
            // Virtio 1.2, 2.7.10.1.
            used - Wrapping(u16::from_le(event)) - Wrapping(1) < used - before
        } else {
            let flags: u16 = self.memory.load(GuestAddress(flags), Ordering::Relaxed)?;
            u16::from_le(flags) & NO_INTERRUPT == 0
        };
        // An eventfd that is full has been written to, and that is all that was wanted.
        Ok(wanted && rustix::io::write(&**call, &1u64.to_ne_bytes()).is_ok())
    }
}
