//! What the device sees of the machine that it is plugged into.

use super::observe::Observation;
use platform::Instant;

/// An address that the guest has not given to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("DMA to {addr:#x}, {len} bytes: not memory of the guest")]
pub struct DmaError {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
}

/// Memory by bus address, and interrupts. Accesses to memory fail whole.
pub trait Host: Sync {
    /// Copies from memory.
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError>;
    /// Copies to memory.
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError>;
    /// Stores eight aligned bytes at once, after everything written before: how a device says "done".
    fn publish(&self, addr: u64, word: [u8; 8]) -> Result<(), DmaError>;
    /// Adds to the aligned native-endian word at `addr`; gives the value before.
    fn fetch_add(&self, addr: u64, add: u64) -> Result<u64, DmaError>;
    /// Stores `swap` in the aligned native-endian word at `addr` if it holds `compare`; gives the value before.
    fn compare_swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, DmaError>;
    /// The time.
    fn now(&self) -> Instant;
    /// Whether the guest takes interrupts by MSI-X.
    fn msix_enabled(&self) -> bool;
    /// Raises an MSI-X vector.
    fn message(&self, vector: u16);
    /// Sets the level of INTx.
    fn set_intx(&self, asserted: bool);
    /// Is told of what happens between driver and card.
    fn observe(&self, _what: &Observation<'_>) {}
}

/// Reads a big-endian 32-bit word.
pub fn read_be32(host: &dyn Host, addr: u64) -> Result<u32, DmaError> {
    let mut bytes = [0; 4];
    host.read(addr, &mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}
