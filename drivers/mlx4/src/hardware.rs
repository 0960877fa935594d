//! All that the driver asks of the machine: registers, doorbells, memory that the card reaches, time and chance.

use core::ops::Deref;
use core::sync::atomic::AtomicU64;
use core::time::Duration;
use platform::{Instant, IoAddr, Memory};

/// A card in a machine. Nothing here can fail: a card that is gone reads as all ones.
pub trait Hardware: Send + Sync {
    /// A piece of memory that driver and card share.
    type Block: Block;

    /// Reads the aligned word at `offset` of the function's configuration space, as the processor has it.
    fn config(&self, offset: u16) -> u32;
    /// Writes it.
    fn set_config(&self, offset: u16, value: u32);

    /// Reads the register at `offset` of BAR 0, which a virtual function does not have and is not asked for. Registers are big-endian: the value is what the four bytes say.
    fn register(&self, offset: u32) -> u32;
    /// Writes it, after all stores to memory before.
    fn set_register(&self, offset: u32, value: u32);

    /// Bytes of BAR 2, in which the doorbells are.
    fn doorbells_len(&self) -> u64;
    /// Reads the big-endian word at `offset` of BAR 2. Only a virtual function has some to be read.
    fn doorbell(&self, offset: u64) -> u32;
    /// Stores a big-endian word at `offset` of BAR 2, after all stores to memory before.
    fn ring(&self, offset: u64, value: u32);
    /// Stores a big-endian double word at once.
    fn ring_wide(&self, offset: u64, value: u64);
    /// From `offset` of BAR 2 on, the processor is to combine the words of [`blue_flame`](Self::blue_flame) into one write. Called
    /// each time the card is brought up, before anything is there. Whether the machine does so: if not, BlueFlame is not used.
    fn combine_writes(&self, offset: u64) -> bool;
    /// Copies words, as they lie in memory, to `offset` of BAR 2 in ascending order, each 64 bytes in one piece where the
    /// machine can, and sends them on their way.
    fn blue_flame(&self, offset: u64, words: &[u64]);

    /// `len` contiguous bytes, zeroed, from a multiple of 4096 on. They are free again when the block is dropped.
    fn allocate(&self, len: u64) -> Option<Self::Block>;
    /// What work requests may name, as addresses of the card.
    fn memory(&self) -> &dyn Memory;

    /// The time.
    fn now(&self) -> Instant;
    /// Lets at least so much time pass.
    fn wait(&self, time: Duration);
    /// Fills a buffer with unpredictable bytes.
    fn fill_random(&self, buf: &mut [u8]);
}

/// Memory that driver and card share: words that either may change at any time. What the card must see before something
/// else is stored with release order, what it has published is loaded with acquire order.
pub trait Block: Deref<Target = [AtomicU64]> + Send + Sync {
    /// The card's address of the first byte.
    fn addr(&self) -> IoAddr;
}
