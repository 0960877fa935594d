//! The device's interface to the machine into which it is plugged.

use super::observe::Observation;
use platform::Instant;

/// An access to an address that the guest has not made accessible to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("DMA of {len} bytes at {addr:#x}: not memory of the guest")]
pub struct DmaError {
    /// The first address of the access.
    pub addr: u64,
    /// The length of the access, in bytes.
    pub len: usize,
}

/// Memory by bus address, interrupts and time. A memory access succeeds or fails as a whole.
pub trait Host: Sync {
    /// Copies from memory.
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError>;
    /// Copies to memory.
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError>;
    /// Stores eight aligned bytes atomically, after all earlier writes. A device signals completion in this
    /// way.
    fn publish(&self, addr: u64, word: [u8; 8]) -> Result<(), DmaError>;
    /// Adds to the aligned native-endian word at `addr` and returns the previous value.
    fn fetch_add(&self, addr: u64, add: u64) -> Result<u64, DmaError>;
    /// Stores `swap` in the aligned native-endian word at `addr` if it equals `compare`. Returns the previous
    /// value.
    fn compare_swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, DmaError>;
    /// Returns the current time.
    fn now(&self) -> Instant;
    /// Returns whether the guest has enabled MSI-X.
    fn msix_enabled(&self) -> bool;
    /// Raises an MSI-X vector.
    fn message(&self, vector: u16);
    /// Sets the level of INTx.
    fn set_intx(&self, asserted: bool);
    /// Receives a record of each interaction between driver and card. Ignored by default.
    fn observe(&self, _what: &Observation<'_>) {}
}

/// Reads a big-endian 32-bit word.
pub(super) fn read_be32(host: &dyn Host, addr: u64) -> Result<u32, DmaError> {
    let mut bytes = [0; 4];
    host.read(addr, &mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}
