//! The events of a run, as one number.

use std::sync::Mutex;

/// A running hash of all events, and their number. The hash is FNV-1a, but of words of eight bytes.
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
        let (words, rest) = bytes.as_chunks();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let ends = [now, who, bytes.len() as u64, u64::from_le_bytes(last)];
        for word in ends.into_iter().chain(words.iter().copied().map(u64::from_le_bytes)) {
            // The upper bits must have an effect on the lower ones, too.
            trace.0 = (trace.0.rotate_right(29) ^ word).wrapping_mul(0x100_0000_01b3);
        }
        trace.1 += 1;
    }

    /// Returns the hash and the number of events.
    #[must_use]
    pub fn hash(&self) -> (u64, u64) {
        *self.0.lock().expect("no panic under the lock")
    }
}
