//! Bounce buffers: memory that the RNIC reads and writes on behalf of operations.

use crate::sometimes::sometimes;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::{IoAddr, Lent, MemoryError, Platform};

/// The alignment of the buffers of each size, in bytes.
const PAGE: u64 = 4096;

/// A contiguous run of the node's memory. Dropping it frees it.
pub(crate) type Run = Box<dyn Lent>;

/// The offset of a buffer in the memory of all buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BufferOffset(u64);

impl BufferOffset {
    /// Returns the offset as a number.
    #[inline]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the offset that [`bits`](Self::bits) encoded.
    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The memory of all buffers, one run.
#[derive(Clone)]
pub(crate) struct Buffers {
    run: Arc<Run>,
    base: IoAddr,
}

impl Buffers {
    /// Returns a buffer's address, for the RNIC.
    #[inline]
    pub(crate) fn addr(&self, offset: BufferOffset) -> IoAddr {
        IoAddr(self.base.0 + offset.0)
    }

    /// Copies from the front of a buffer.
    #[inline]
    pub(crate) fn read(&self, offset: BufferOffset, into: &mut [u8]) -> Result<(), MemoryError> {
        self.run.read(offset.0, into)
    }

    /// Copies into a buffer, from its byte `at`.
    #[inline]
    pub(crate) fn write(&self, offset: BufferOffset, at: usize, data: &[u8]) -> Result<(), MemoryError> {
        self.run.write(offset.0 + at as u64, data)
    }
}

/// A buffer of the pool. Its holder must give it back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Bounce {
    pub(crate) offset: BufferOffset,
    class: usize,
}

struct Class {
    size: u32,
    free: Vec<BufferOffset>,
    #[cfg(feature = "testing")]
    count: usize,
}

/// The free buffers, by size class, ascending.
pub(crate) struct BouncePool {
    classes: Vec<Class>,
    buffers: Buffers,
}

impl BouncePool {
    /// Allocates memory for all buffers. `Err` is the number of bytes that were asked for.
    pub(crate) fn new(platform: &Arc<dyn Platform>, classes: &[(u32, u32)]) -> Result<Self, u64> {
        let mut pool = Vec::new();
        let mut len = 0;
        for &(size, count) in classes {
            let at = |i: u32| BufferOffset(len + u64::from(size) * u64::from(i));
            pool.push(Class {
                size,
                free: (0..count).rev().map(at).collect(),
                #[cfg(feature = "testing")]
                count: count as usize,
            });
            len += (u64::from(size) * u64::from(count)).next_multiple_of(PAGE);
        }
        let run = platform.memory().lend(len).ok_or(len)?;
        let buffers = Buffers { base: run.addr(), run: Arc::new(run) };
        Ok(Self { classes: pool, buffers })
    }

    /// Returns the memory of the buffers.
    pub(crate) fn buffers(&self) -> Buffers {
        self.buffers.clone()
    }

    /// Removes all buffers for ever, because the RNIC may still access them: their memory is never reused.
    #[cold]
    pub(crate) fn lose(&mut self) {
        self.classes.clear();
        core::mem::forget(self.buffers.clone());
    }

    /// Returns the number of buffers in use.
    #[cfg(feature = "testing")]
    pub(crate) fn in_use(&self) -> usize {
        self.classes.iter().map(|class| class.count - class.free.len()).sum()
    }

    /// Returns the smallest free buffer of at least `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Option<Bounce> {
        for (class, c) in self.classes.iter_mut().enumerate() {
            if c.size as usize >= len
                && let Some(offset) = c.free.pop()
            {
                return Some(Bounce { offset, class });
            }
        }
        sometimes!("no bounce buffer was free");
        None
    }

    /// Adds a buffer to the free ones.
    pub(crate) fn give(&mut self, bounce: Bounce) {
        if let Some(class) = self.classes.get_mut(bounce.class) {
            class.free.push(bounce.offset);
        }
    }
}
