//! The memory of a process that devices and peers reach: one mapping, addressed by its virtual addresses.
//!
//! A peer may change any byte at any time, so every access here is an atomic access of a byte or an aligned
//! word, and none makes a reference to the bytes. `fetch_add` and `compare_swap` are atomic against this
//! process. Only an atomic through the RNIC is atomic against the atomics of peers (`rdma_rxe` has a lock of
//! its own, cards have a unit of their own).

use crate::sync::lock;
use platform::runs::{PAGE, Runs};
use platform::{HostLent, IoAddr, Lent, Memory, MemoryError, MemoryStats};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The unit of access, in bytes.
const WORD: usize = 8;
/// The size of the buffer for copies within the arena, in bytes.
const CHUNK: usize = 1024;
/// The size of a huge page (x86-64), of which the size of such an arena is a multiple.
const HUGE_PAGE: u64 = 2 << 20;

/// A mapping of this process, and its allocator.
///
/// Forked children do not inherit it, so that its pages stay those that the device knows. Clones are the same
/// memory, which is unmapped with the last clone and the last memory that it has lent.
#[derive(Clone, Debug)]
pub struct Arena {
    mapping: Arc<Mapping>,
    runs: Arc<Mutex<Runs>>,
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed only by atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Arena {
    /// Maps `len` zero bytes (rounded up to whole pages).
    pub fn map(len: u64, huge_pages: bool) -> io::Result<Self> {
        let page = if huge_pages { HUGE_PAGE } else { PAGE };
        let len = len.max(1).checked_next_multiple_of(page).and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = if huge_pages { MapFlags::PRIVATE | MapFlags::HUGETLB } else { MapFlags::PRIVATE };
        // SAFETY: a new mapping at an address that the kernel chooses replaces no other.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Arc::new(Mapping { start, len });
        let arena = Self { mapping, runs: Arc::new(Mutex::new(Runs::new(len as u64))) };
        // SAFETY: it is the mapping just made, and `DontFork` changes nothing in this process.
        unsafe { madvise(arena.mapping.start.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(arena)
    }

    /// Returns the first byte and the length of the mapping, for registration.
    #[must_use]
    pub fn raw(&self) -> (*mut c_void, usize) {
        (self.mapping.start.as_ptr().cast(), self.mapping.len)
    }

    /// Allocates `len` contiguous bytes (rounded up to 4096), zeroed, and returns their address.
    #[must_use]
    pub fn alloc(&self, len: u64) -> Option<IoAddr> {
        let (start, len) = lock(&self.runs).take(len)?;
        let addr = IoAddr(self.mapping.start.as_ptr() as u64 + start);
        self.fill(addr, len, 0).ok()?;
        Some(addr)
    }

    /// Frees the run at `addr`, which was allocated with the same `len`.
    ///
    /// # Panics
    ///
    /// Panics if no such run is allocated.
    pub fn free(&self, addr: IoAddr, len: u64) {
        lock(&self.runs).give(addr.0.wrapping_sub(self.mapping.start.as_ptr() as u64), len);
    }

    /// Returns a pointer to the `len` bytes at `addr`, if all of them are in the mapping. It is valid for
    /// atomics as long as `self`.
    fn at(&self, addr: IoAddr, len: u64) -> Result<*mut u8, MemoryError> {
        if len == 0 {
            return Ok(self.mapping.start.as_ptr());
        }
        let offset = addr.0.checked_sub(self.mapping.start.as_ptr() as u64).ok_or(MemoryError::OutOfRange)?;
        let end = offset.checked_add(len).ok_or(MemoryError::OutOfRange)?;
        if end > self.mapping.len as u64 {
            return Err(MemoryError::OutOfRange);
        }
        // SAFETY: the offset is within the mapping, whose length fits an `isize`.
        Ok(unsafe { self.mapping.start.as_ptr().add(offset as usize) })
    }

    fn word(&self, addr: IoAddr) -> Result<&AtomicU64, MemoryError> {
        if !addr.0.is_multiple_of(WORD as u64) {
            return Err(MemoryError::Misaligned);
        }
        let at = self.at(addr, WORD as u64)?;
        // SAFETY: an aligned word of the mapping, which lives as long as `self` and is accessed only by
        // atomics.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

/// Returns the `i`th byte from `at`.
///
/// # Safety
/// The byte must be in a mapping that is accessed only by atomics and outlives `'a`.
unsafe fn byte<'a>(at: *mut u8, i: usize) -> &'a AtomicU8 {
    // SAFETY: the caller guarantees it.
    unsafe { AtomicU8::from_ptr(at.add(i)) }
}

/// Returns the word at byte `i` from `at`.
///
/// # Safety
/// The requirements of [`byte`], for 8 bytes that are aligned to 8.
unsafe fn word<'a>(at: *mut u8, i: usize) -> &'a AtomicU64 {
    // SAFETY: the caller guarantees it.
    unsafe { AtomicU64::from_ptr(at.add(i).cast()) }
}

/// Returns the number of bytes at `at`, of `len`, before the first aligned word.
fn before_words(at: *mut u8, len: usize) -> usize {
    at.align_offset(WORD).min(len)
}

/// Copies bytes out of the mapping.
///
/// # Safety
/// `buf.len()` bytes from `at` must be in a mapping that is accessed only by atomics.
unsafe fn load(at: *mut u8, buf: &mut [u8]) {
    let head = before_words(at, buf.len());
    let (first, rest) = buf.split_at_mut(head);
    for (i, to) in first.iter_mut().enumerate() {
        // SAFETY: within the bytes that the caller guarantees.
        *to = unsafe { byte(at, i) }.load(Ordering::Acquire);
    }
    let (words, last) = rest.as_chunks_mut::<WORD>();
    for (i, to) in words.iter_mut().enumerate() {
        // SAFETY: as above; `head` made it aligned.
        *to = unsafe { word(at, head + i * WORD) }.load(Ordering::Acquire).to_ne_bytes();
    }
    let done = head + words.len() * WORD;
    for (i, to) in last.iter_mut().enumerate() {
        // SAFETY: as above.
        *to = unsafe { byte(at, done + i) }.load(Ordering::Acquire);
    }
}

/// Copies bytes into the mapping, in ascending order: a reader that sees the last byte sees all.
///
/// # Safety
/// The requirements of [`load`].
unsafe fn store(at: *mut u8, data: &[u8]) {
    let head = before_words(at, data.len());
    let (first, rest) = data.split_at(head);
    for (i, from) in first.iter().enumerate() {
        // SAFETY: within the bytes that the caller guarantees.
        unsafe { byte(at, i) }.store(*from, Ordering::Release);
    }
    let (words, last) = rest.as_chunks::<WORD>();
    for (i, from) in words.iter().enumerate() {
        // SAFETY: as above; `head` made it aligned.
        unsafe { word(at, head + i * WORD) }.store(u64::from_ne_bytes(*from), Ordering::Release);
    }
    let done = head + words.len() * WORD;
    for (i, from) in last.iter().enumerate() {
        // SAFETY: as above.
        unsafe { byte(at, done + i) }.store(*from, Ordering::Release);
    }
}

impl Memory for Arena {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(self.mapping.start.as_ptr() as u64), self.mapping.len as u64)
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.at(addr, len).map(|_| ())
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let at = self.at(addr, buf.len() as u64)?;
        // SAFETY: `at` found the bytes in the mapping.
        unsafe { load(at, buf) };
        Ok(())
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        let at = self.at(addr, data.len() as u64)?;
        // SAFETY: `at` found the bytes in the mapping.
        unsafe { store(at, data) };
        Ok(())
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let at = self.at(addr, len)?;
        let chunk = [byte; CHUNK];
        // It is in the mapping, so it fits.
        for start in (0..len as usize).step_by(CHUNK) {
            let part = chunk.len().min(len as usize - start);
            // SAFETY: `at` found all `len` bytes in the mapping.
            unsafe { store(at.add(start), chunk.get(..part).unwrap_or_default()) };
        }
        Ok(())
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        let from = self.at(src, len)?;
        let to = self.at(dst, len)?;
        let len = len as usize;
        let mut chunk = [0; CHUNK];
        let mut done = 0;
        while done < len {
            let part = CHUNK.min(len - done);
            // If the target is above the source, the copy runs from the end, so that no byte is overwritten
            // before it is copied.
            let start = if src < dst { len - done - part } else { done };
            let chunk = chunk.get_mut(..part).unwrap_or_default();
            // SAFETY: `at` found all `len` bytes of both ranges in the mapping.
            unsafe { load(from.add(start), chunk) };
            // SAFETY: as above.
            unsafe { store(to.add(start), chunk) };
            done += part;
        }
        Ok(())
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        Ok(self.word(addr)?.fetch_add(add, Ordering::AcqRel))
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        let word = self.word(addr)?;
        Ok(word
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|before| before))
    }

    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let addr = self.alloc(len)?;
        Some(Box::new(HostLent::new(self.clone(), addr, len, Self::free)))
    }

    fn stats(&self) -> MemoryStats {
        lock(&self.runs).stats()
    }

    fn take_least_free(&self) -> u64 {
        lock(&self.runs).take_least_free()
    }

    fn largest_free(&self) -> u64 {
        lock(&self.runs).largest_free()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this object, and nobody else has it any more. If the call failed, it
        // would stay mapped.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
