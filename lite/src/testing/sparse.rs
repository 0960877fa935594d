//! A [`Memory`] that uses the heap only for bytes that have been written: for machines with far more memory
//! than this one has.

use super::Host;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use platform::runs::{PAGE, Runs};
use platform::{HostLent, Instant, IoAddr, Lent, Memory, MemoryError, MemoryStats, Platform, Task};
use spin::Mutex;

type Page = Box<[u8; PAGE as usize]>;

/// Memory whose pages exist once they are written; the others are zero. Every access takes one lock. Clones
/// share the memory.
#[derive(Clone)]
pub struct Sparse {
    base: u64,
    len: u64,
    pages: Arc<Mutex<BTreeMap<u64, Page>>>,
    runs: Arc<Mutex<Runs>>,
}

impl Sparse {
    /// Returns `len` zero bytes, a multiple of 4096, from the address `base`.
    #[must_use]
    pub fn new(base: IoAddr, len: u64) -> Self {
        Self { base: base.0, len, pages: Arc::default(), runs: Arc::new(Mutex::new(Runs::new(len))) }
    }

    /// Returns the bytes of the heap that the written pages use.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.pages.lock().len() as u64 * PAGE
    }

    fn free(&self, addr: IoAddr, len: u64) {
        self.runs.lock().give(addr.0.wrapping_sub(self.base), len);
    }

    fn offset(&self, addr: IoAddr, len: u64) -> Result<u64, MemoryError> {
        if len == 0 {
            return Ok(0);
        }
        let offset = addr.0.checked_sub(self.base);
        let fits = |offset: &u64| offset.checked_add(len).is_some_and(|end| end <= self.len);
        offset.filter(fits).ok_or(MemoryError::OutOfRange)
    }

    /// Returns the part of each page that the bytes are in: number of the page, first byte, and length.
    fn parts(mut offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
        let end = offset + len;
        core::iter::from_fn(move || {
            let left = end - offset;
            let (page, at) = (offset / PAGE, offset % PAGE);
            let part = left.min(PAGE - at);
            offset += part;
            (left > 0).then_some((page, at as usize, part as usize))
        })
    }

    fn update(&self, addr: IoAddr, f: impl FnOnce(u64) -> u64) -> Result<u64, MemoryError> {
        if !addr.0.is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        let before = u64::from_ne_bytes(word);
        self.write(addr, &f(before).to_ne_bytes())?;
        Ok(before)
    }
}

impl Memory for Sparse {
    fn range(&self) -> (IoAddr, u64) {
        (IoAddr(self.base), self.len)
    }

    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.offset(addr, len).map(drop)
    }

    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        let offset = self.offset(addr, buf.len() as u64)?;
        let pages = self.pages.lock();
        let mut left = buf;
        for (page, at, len) in Self::parts(offset, left.len() as u64) {
            let (now, rest) = left.split_at_mut(len);
            match pages.get(&page) {
                Some(bytes) => now.copy_from_slice(&bytes[at..at + len]),
                None => now.fill(0),
            }
            left = rest;
        }
        Ok(())
    }

    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        let offset = self.offset(addr, data.len() as u64)?;
        let mut pages = self.pages.lock();
        let mut left = data;
        for (page, at, len) in Self::parts(offset, data.len() as u64) {
            let (now, rest) = left.split_at(len);
            let bytes = pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            bytes[at..at + len].copy_from_slice(now);
            left = rest;
        }
        Ok(())
    }

    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        let offset = self.offset(addr, len)?;
        if byte == 0 && offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) {
            let mut pages = self.pages.lock();
            pages.extract_if(offset / PAGE..(offset + len) / PAGE, |_, _| true).for_each(drop);
            return Ok(());
        }
        self.write(addr, &vec![byte; len as usize])
    }

    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.check(dst, len)?;
        self.check(src, len)?;
        let mut bytes = vec![0; len as usize];
        self.read(src, &mut bytes)?;
        self.write(dst, &bytes)
    }

    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        self.update(addr, |before| before.wrapping_add(add))
    }

    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.update(addr, |before| if before == compare { swap } else { before })
    }

    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let (start, rounded) = self.runs.lock().take(len)?;
        let addr = IoAddr(self.base + start);
        self.fill(addr, rounded, 0).ok()?;
        Some(Box::new(HostLent::new(self.clone(), addr, len, Self::free)))
    }

    fn stats(&self) -> MemoryStats {
        self.runs.lock().stats()
    }

    fn largest_free(&self) -> u64 {
        self.runs.lock().largest_free()
    }
}

/// A [`Host`] with [`Sparse`] memory in place of its own.
pub struct SparseHost {
    host: Arc<Host>,
    memory: Sparse,
}

impl SparseHost {
    /// Returns a host like `host`, with `memory` in place of its memory.
    #[must_use]
    pub fn new(host: Arc<Host>, memory: Sparse) -> Arc<Self> {
        Arc::new(Self { host, memory })
    }

    /// Returns the memory.
    #[must_use]
    pub fn sparse(&self) -> &Sparse {
        &self.memory
    }
}

impl Platform for SparseHost {
    fn now(&self) -> Instant {
        self.host.now()
    }

    fn fill_random(&self, buf: &mut [u8]) {
        self.host.fill_random(buf);
    }

    fn cpus(&self) -> usize {
        self.host.cpus()
    }

    fn spawn(&self, name: &'static str, task: Task) {
        self.host.spawn(name, task);
    }

    fn memory(&self) -> &dyn Memory {
        &self.memory
    }
}
