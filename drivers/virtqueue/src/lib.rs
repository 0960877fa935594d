//! The driver's side of a virtio split virtqueue whose buffers never move (virtio 1.2, section 2.7).
//!
//! Descriptor `i` always describes buffer `i`, so a buffer changes hands by one index in a ring: nothing is
//! linked, shared or written twice, and a frame is read where the device put it. `virtio-drivers` has a queue
//! too. It is not used because version 0.13 requests an interrupt with every element that it takes (it stores
//! `used_event` in `pop_used`), which defeats suppression while polling; compares indices without wrapping
//! when it decides on a kick (`should_notify`); and uses the device's values as indices without a check.
//!
//! # Neighbours
//! The kernel's virtio-net devices (`kernel/src/virtio`) are built on it.
#![no_std]

#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The maximum number of buffers, enough for any device that this project drives.
pub const MAX_SIZE: u16 = 1024;

/// `VIRTQ_DESC_F_WRITE`: the device writes the buffer.
const DESC_WRITE: u16 = 2;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`, `VIRTQ_USED_F_NO_NOTIFY`.
const FLAG_NONE_WANTED: u16 = 1;

/// The layout of the three parts of a queue in one zeroed, 16-byte aligned run of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the available ring (the driver area).
    pub avail: usize,
    /// Offset of the used ring (the device area).
    pub used: usize,
    /// The length of all parts, in bytes.
    pub total: usize,
}

impl Layout {
    /// Returns the layout of a queue of `size` buffers. The descriptor table is at offset 0.
    #[must_use]
    pub const fn of(size: u16) -> Self {
        let n = size as usize;
        let avail = 16 * n;
        // flags, idx, ring, used_event; then the used ring on a cache line of its own.
        let used = (avail + 6 + 2 * n).next_multiple_of(64);
        // flags, idx, (id, len) each, avail_event.
        Self { avail, used, total: (used + 6 + 8 * n).next_multiple_of(64) }
    }
}

/// A buffer that the device has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The number of the buffer.
    pub id: u16,
    /// The number of bytes that the device claims to have written. It may be wrong, so the caller must bound
    /// it by the buffer's size.
    pub len: u32,
}

/// The device violated the protocol: it returned a buffer that it did not have. The queue is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A split virtqueue of `size` fixed buffers.
pub struct Queue {
    base: NonNull<u8>,
    layout: Layout,
    size: u16,
    event_idx: bool,
    /// The next index of the available ring. The device has not yet seen the entries from `published` to
    /// here.
    avail_idx: u16,
    published: u16,
    /// The published index at the last kick. Entries from here on have caused none.
    kicked: u16,
    used_idx: u16,
    /// One bit per buffer: set if the device has it, or will have it at the next `publish`.
    lent: [u64; MAX_SIZE as usize / 64],
}

// SAFETY: the queue owns its memory, and nothing in it is tied to a processor.
unsafe impl Send for Queue {}

impl Queue {
    /// Makes a queue in `memory`, with interrupts suppressed. All buffers are the driver's.
    ///
    /// # Safety
    /// `memory` must be aligned to 64, zeroed, and valid for [`Layout::of`]`(size).total` bytes for as long
    /// as the queue or the device lives. Nothing but the device may access it otherwise.
    ///
    /// # Panics
    /// If `size` is not a power of two of at most [`MAX_SIZE`].
    #[must_use]
    pub unsafe fn new(memory: NonNull<u8>, size: u16, event_idx: bool) -> Self {
        assert!(size.is_power_of_two() && size <= MAX_SIZE, "virtqueue size {size}");
        let mut queue = Self {
            base: memory,
            layout: Layout::of(size),
            size,
            event_idx,
            avail_idx: 0,
            published: 0,
            kicked: 0,
            used_idx: 0,
            lent: [0; MAX_SIZE as usize / 64],
        };
        queue.disarm();
        queue
    }

    /// Returns the number of buffers.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    fn u16_at(&self, offset: usize) -> &AtomicU16 {
        debug_assert!(offset.is_multiple_of(2) && offset + 2 <= self.layout.total);
        // SAFETY: inside the queue's memory (callers use layout offsets and slots below `size`), aligned, and
        // shared with the device by atomic accesses only.
        unsafe { AtomicU16::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn u32_at(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.layout.total);
        // SAFETY: as in `u16_at`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    fn avail_flags(&self) -> &AtomicU16 {
        self.u16_at(self.layout.avail)
    }

    fn used_event(&self) -> &AtomicU16 {
        self.u16_at(self.layout.avail + 4 + 2 * usize::from(self.size))
    }

    fn used_flags(&self) -> &AtomicU16 {
        self.u16_at(self.layout.used)
    }

    fn avail_event(&self) -> &AtomicU16 {
        self.u16_at(self.layout.used + 4 + 8 * usize::from(self.size))
    }

    /// Returns true if the device has returned buffers that [`take`](Self::take) has not returned yet.
    #[must_use]
    pub fn has_used(&self) -> bool {
        self.u16_at(self.layout.used + 2).load(Ordering::Acquire) != self.used_idx
    }

    fn lent_bit(&mut self, id: u16) -> (&mut u64, u64) {
        (&mut self.lent[usize::from(id) / 64], 1 << (id % 64))
    }

    /// Sets the address of buffer `id`: `len` bytes at bus address `addr`, which the device writes or reads.
    ///
    /// # Panics
    /// If `id` is not below the size, or the device has the buffer.
    pub fn set_buffer(&mut self, id: u16, addr: u64, len: u32, device_writes: bool) {
        assert!(id < self.size);
        let (word, bit) = self.lent_bit(id);
        assert!(*word & bit == 0, "buffer {id} is the device's");
        let at = 16 * usize::from(id);
        // SAFETY: as in `u16_at`; descriptors are 16 bytes, aligned to 16.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }.store(addr, Ordering::Relaxed);
        self.u32_at(at + 8).store(len, Ordering::Relaxed);
        self.u16_at(at + 12).store(if device_writes { DESC_WRITE } else { 0 }, Ordering::Relaxed);
        self.u16_at(at + 14).store(0, Ordering::Relaxed);
    }

    /// Changes the length of buffer `id`, in bytes. The driver must have the buffer.
    ///
    /// # Panics
    /// As [`set_buffer`](Self::set_buffer).
    pub fn set_len(&mut self, id: u16, len: u32) {
        assert!(id < self.size);
        let (word, bit) = self.lent_bit(id);
        assert!(*word & bit == 0, "buffer {id} is the device's");
        self.u32_at(16 * usize::from(id) + 8).store(len, Ordering::Relaxed);
    }

    /// Passes buffer `id` to the device, which sees it after the next [`publish`](Self::publish).
    ///
    /// # Panics
    /// If `id` is not below the size, or the device already has the buffer.
    pub fn give(&mut self, id: u16) {
        assert!(id < self.size);
        let (word, bit) = self.lent_bit(id);
        assert!(*word & bit == 0, "buffer {id} is the device's");
        *word |= bit;
        let at = self.layout.avail + 4 + 2 * self.slot(self.avail_idx);
        self.u16_at(at).store(id, Ordering::Relaxed);
        self.avail_idx = self.avail_idx.wrapping_add(1);
    }

    /// Shows the device the buffers passed since the last time, without a kick. A device that looks at the
    /// queue takes them at once. [`publish`](Self::publish) must follow, for a device that waits for a kick.
    pub fn expose(&mut self) {
        self.u16_at(self.layout.avail + 2).store(self.avail_idx, Ordering::Release);
    }

    /// Shows the device the buffers passed since the last time. Returns true if the device needs a kick: also
    /// for earlier buffers, if it has asked for one since.
    ///
    /// A driver that polls should call this in each turn, even if it has passed nothing. QEMU before 8.1
    /// leaves out the barriers of a machine with one processor under TCG (its commit c914d46d), so the
    /// device's request may be read before the index is visible. The device then waits for a kick that the
    /// driver finds unnecessary, and the next call finds the request.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.published != self.avail_idx {
            self.u16_at(self.layout.avail + 2).store(self.avail_idx, Ordering::Release);
            self.published = self.avail_idx;
            // The index must be visible before the device's request is read, or both sides may sleep.
            fence(Ordering::SeqCst);
        }
        // The device has at most `size` buffers, so it waits for none before these.
        if self.published.wrapping_sub(self.kicked) > self.size {
            self.kicked = self.published.wrapping_sub(self.size);
        }
        let needed = self.kicked != self.published
            && if self.event_idx {
                need_event(self.avail_event().load(Ordering::Relaxed), self.published, self.kicked)
            } else {
                self.used_flags().load(Ordering::Relaxed) & FLAG_NONE_WANTED == 0
            };
        if needed {
            self.kicked = self.published;
        }
        needed
    }

    /// Takes back the next buffer that the device has returned.
    ///
    /// # Errors
    ///
    /// Fails with [`Broken`] if the device returns a buffer that it did not have.
    pub fn take(&mut self) -> Result<Option<Used>, Broken> {
        if !self.has_used() {
            return Ok(None);
        }
        let at = self.layout.used + 4 + 8 * self.slot(self.used_idx);
        let id = self.u32_at(at).load(Ordering::Relaxed);
        let len = self.u32_at(at + 4).load(Ordering::Relaxed);
        let id = u16::try_from(id).ok().filter(|id| *id < self.size).ok_or(Broken)?;
        let (word, bit) = self.lent_bit(id);
        if *word & bit == 0 {
            return Err(Broken);
        }
        *word &= !bit;
        self.used_idx = self.used_idx.wrapping_add(1);
        if self.event_idx && self.used_idx & 0x3fff == 0 {
            // `disarm` put the event half the index space away. This keeps it there while polling.
            self.disarm_event();
        }
        Ok(Some(Used { id, len }))
    }

    /// Returns the buffer that [`take`](Self::take) would return next, without taking it.
    ///
    /// # Errors
    ///
    /// Fails with [`Broken`] if the device returns a buffer that it did not have.
    pub fn peek(&self) -> Result<Option<Used>, Broken> {
        if !self.has_used() {
            return Ok(None);
        }
        let at = self.layout.used + 4 + 8 * self.slot(self.used_idx);
        let id = self.u32_at(at).load(Ordering::Relaxed);
        let len = self.u32_at(at + 4).load(Ordering::Relaxed);
        let id = u16::try_from(id).ok().filter(|id| *id < self.size).ok_or(Broken)?;
        if self.lent[usize::from(id) / 64] & (1 << (id % 64)) == 0 {
            return Err(Broken);
        }
        Ok(Some(Used { id, len }))
    }

    /// Requests an interrupt for the next buffer that the device returns. Returns true if buffers are already
    /// waiting; there may then be no interrupt.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        if self.event_idx {
            self.used_event().store(self.used_idx, Ordering::Relaxed);
        } else {
            self.avail_flags().store(0, Ordering::Relaxed);
        }
        // The request must be visible before the index is read, or a buffer returned in between goes
        // unnoticed.
        fence(Ordering::SeqCst);
        self.has_used()
    }

    /// Requests no interrupts (with event indices: none for the next 32768 buffers).
    pub fn disarm(&mut self) {
        if self.event_idx {
            self.disarm_event();
        } else {
            self.avail_flags().store(FLAG_NONE_WANTED, Ordering::Relaxed);
        }
    }

    fn disarm_event(&mut self) {
        self.used_event().store(self.used_idx.wrapping_add(0x8000), Ordering::Relaxed);
    }
}

/// Returns true if an index that went from `old` to `new` passed `event` (virtio 1.2, 2.7.10.1).
const fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
