//! Bounce buffers: memory that the RNIC reads from and writes to on behalf of operations.

use crate::sometimes::sometimes;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::{IoAddr, Platform};

/// A contiguous run of the node's memory, given back when dropped.
pub(crate) struct Run {
    platform: Arc<dyn Platform>,
    addr: IoAddr,
    len: u64,
}

impl Run {
    /// Takes `len` zeroed bytes.
    pub(crate) fn take(platform: &Arc<dyn Platform>, len: u64) -> Option<Self> {
        let addr = platform.memory().alloc(len)?;
        Some(Self { platform: platform.clone(), addr, len })
    }

    pub(crate) fn addr(&self) -> IoAddr {
        self.addr
    }

    /// Bytes that were asked for.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.platform.memory().free(self.addr, self.len);
    }
}

/// A buffer of the pool. Whoever holds it gives it back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Bounce {
    pub(crate) addr: IoAddr,
    class: usize,
}

struct Class {
    size: u32,
    free: Vec<IoAddr>,
    #[cfg(feature = "testing")]
    count: usize,
    /// Keeps the memory that the buffers lie in.
    _run: Run,
}

/// The free buffers, by size class, ascending.
pub(crate) struct BouncePool(Vec<Class>);

impl BouncePool {
    /// Takes memory for all buffers. `Err`: the bytes that were asked for.
    pub(crate) fn new(platform: &Arc<dyn Platform>, classes: &[(u32, u32)]) -> Result<Self, u64> {
        let mut pool = Vec::new();
        for &(size, count) in classes {
            let len = u64::from(size) * u64::from(count);
            let run = Run::take(platform, len).ok_or(len)?;
            let at = |i: u32| IoAddr(run.addr().0 + u64::from(size) * u64::from(i));
            pool.push(Class {
                size,
                free: (0..count).rev().map(at).collect(),
                #[cfg(feature = "testing")]
                count: count as usize,
                _run: run,
            });
        }
        Ok(Self(pool))
    }

    /// The RNIC may still reach the buffers: their memory is never used for anything else.
    #[cold]
    pub(crate) fn lose(&mut self) {
        core::mem::forget(core::mem::take(&mut self.0));
    }

    /// Buffers that are taken.
    #[cfg(feature = "testing")]
    pub(crate) fn in_use(&self) -> usize {
        self.0.iter().map(|class| class.count - class.free.len()).sum()
    }

    /// The smallest free buffer of at least `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Option<Bounce> {
        let fits = self.0.iter_mut().enumerate().filter(|(_, c)| c.size as usize >= len);
        let taken = fits.into_iter().find_map(|(class, c)| c.free.pop().map(|addr| Bounce { addr, class }));
        if taken.is_none() {
            sometimes!("no bounce buffer was free");
        }
        taken
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, bounce: Bounce) {
        if let Some(class) = self.0.get_mut(bounce.class) {
            class.free.push(bounce.addr);
        }
    }
}
