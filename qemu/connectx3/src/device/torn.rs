//! Atomic operations that are not atomic with respect to the processor.

use super::host::{DmaError, Host};
use super::observe::Observation;
use platform::Instant;

/// A machine on which the card's atomic operations are not atomic with respect to the processor: each is a
/// separate read and write.
pub(super) struct TornAtomics<'a>(pub &'a dyn Host);

impl TornAtomics<'_> {
    fn replace(&self, addr: u64, with: impl FnOnce(u64) -> u64) -> Result<u64, DmaError> {
        let mut word = [0; 8];
        self.0.read(addr, &mut word)?;
        let before = u64::from_ne_bytes(word);
        self.0.write(addr, &with(before).to_ne_bytes())?;
        Ok(before)
    }
}

impl Host for TornAtomics<'_> {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.0.read(addr, buf)
    }
    fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.0.write(addr, data)
    }
    fn publish(&self, addr: u64, word: [u8; 8]) -> Result<(), DmaError> {
        self.0.publish(addr, word)
    }
    fn fetch_add(&self, addr: u64, add: u64) -> Result<u64, DmaError> {
        self.replace(addr, |before| before.wrapping_add(add))
    }
    fn compare_swap(&self, addr: u64, compare: u64, swap: u64) -> Result<u64, DmaError> {
        self.replace(addr, |before| if before == compare { swap } else { before })
    }
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn msix_enabled(&self) -> bool {
        self.0.msix_enabled()
    }
    fn message(&self, vector: u16) {
        self.0.message(vector);
    }
    fn set_intx(&self, asserted: bool) {
        self.0.set_intx(asserted);
    }
    fn observe(&self, what: &Observation<'_>) {
        self.0.observe(what);
    }
}
