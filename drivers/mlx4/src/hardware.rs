//! The services that the driver needs of the machine: registers, doorbells, memory shared with the card, time
//! and randomness.

use core::ops::Deref;
use core::sync::atomic::AtomicU64;
use core::time::Duration;
use platform::{Instant, IoAddr, Memory};

/// A card in a machine. No call fails: a card that is gone reads as all ones.
pub trait Hardware: Send + Sync {
    /// A block of memory shared by driver and card.
    type Block: Block;

    /// Reads the aligned 32-bit word at `offset` of the function's configuration space, in the processor's
    /// byte order.
    fn config(&self, offset: u16) -> u32;
    /// Writes the aligned 32-bit word at `offset` of the function's configuration space, in the processor's
    /// byte order.
    fn set_config(&self, offset: u16, value: u32);

    /// Reads the 32-bit register at `offset` of BAR 0. Registers are big-endian; the value is in the
    /// processor's byte order. Never called for a virtual function, which does not have them.
    fn register(&self, offset: u32) -> u32;
    /// Writes the 32-bit register at `offset` of BAR 0, after all earlier stores to memory.
    fn set_register(&self, offset: u32, value: u32);

    /// Returns the length of BAR 2, which contains the doorbells, in bytes.
    fn doorbells_len(&self) -> u64;
    /// Reads the big-endian 32-bit word at `offset` of BAR 2. Only a virtual function has words that can be
    /// read.
    fn doorbell(&self, offset: u64) -> u32;
    /// Stores a big-endian 32-bit word at `offset` of BAR 2, after all earlier stores to memory.
    fn ring(&self, offset: u64, value: u32);
    /// Stores a big-endian 64-bit word at `offset` of BAR 2 in one access, after all earlier stores to
    /// memory.
    fn ring_wide(&self, offset: u64, value: u64);
    /// Makes the processor combine the writes of [`blue_flame`](Self::blue_flame) from `offset` of BAR 2 on.
    /// Called at each bring-up, before the first such write. Returns true if the machine does so; otherwise
    /// BlueFlame is not used.
    fn combine_writes(&self, offset: u64) -> bool;
    /// Copies words, in memory order, to `offset` of BAR 2 in ascending order, each 64 bytes in one write if
    /// the machine can, and flushes the writes to the card.
    fn blue_flame(&self, offset: u64, words: &[u64]);

    /// Allocates `len` contiguous zeroed bytes, aligned to 4096. Dropping the block frees them.
    fn allocate(&self, len: u64) -> Option<Self::Block>;
    /// Returns the memory that work requests may name, by addresses of the card.
    fn memory(&self) -> &dyn Memory;

    /// Returns the present time.
    fn now(&self) -> Instant;
    /// Waits for at least `time`.
    fn wait(&self, time: Duration);
    /// Fills a buffer with unpredictable bytes.
    fn fill_random(&self, buf: &mut [u8]);
}

/// Memory shared by driver and card: words that either may change at any time. The driver stores with release
/// order what the card must see before a later store, and loads with acquire order what the card has
/// published.
pub trait Block: Deref<Target = [AtomicU64]> + Send + Sync {
    /// Returns the card's address of the first byte.
    fn addr(&self) -> IoAddr;
}

/// Returns an unpredictable number.
pub(crate) fn random_u32(hw: &impl Hardware) -> u32 {
    let mut bytes = [0; 4];
    hw.fill_random(&mut bytes);
    u32::from_ne_bytes(bytes)
}
