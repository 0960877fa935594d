//! The events of a run, as one number.

use std::sync::Mutex;

/// A running FNV-1a hash of all events, and their number.
#[derive(Debug)]
pub struct Trace(Mutex<(u64, u64)>);

impl Default for Trace {
    fn default() -> Self {
        Self(Mutex::new((0xcbf2_9ce4_8422_2325, 0)))
    }
}

impl Trace {
    /// Adds an event: its time, the number of its source, and its bytes.
    pub fn event(&self, now: u64, who: u64, bytes: &[u8]) {
        let mut trace = self.0.lock().expect("no panic under the lock");
        let words = now.to_le_bytes().into_iter().chain(who.to_le_bytes());
        for byte in words.chain(bytes.iter().copied()) {
            trace.0 = (trace.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        trace.1 += 1;
    }

    /// Returns the hash and the number of events.
    #[must_use]
    pub fn hash(&self) -> (u64, u64) {
        *self.0.lock().expect("no panic under the lock")
    }
}
