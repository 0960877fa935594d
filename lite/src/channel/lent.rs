//! Memory that a caller lends for one call: for a long request or a long reply.

use super::wire::{MAX_PIECES, Piece};
use crate::Error;
use crate::base::bounce::Run;
use alloc::sync::Arc;
use alloc::vec::Vec;
use platform::Platform;

/// Memory lent for a long request or reply, in as many runs as needed, because free memory is seldom
/// contiguous.
#[derive(Default)]
pub(crate) struct Lent(Vec<(Run, u64)>);

impl Lent {
    /// Takes `len` bytes of the node's memory.
    pub(crate) fn take(platform: &Arc<dyn Platform>, len: u64) -> Result<Self, Error> {
        let mut runs = Vec::new();
        let mut left = len;
        while left > 0 {
            let take = |bytes| {
                let has_room = bytes > 0 && runs.len() < MAX_PIECES;
                has_room.then(|| platform.memory().lend(bytes)).flatten()
            };
            let (run, most) = match take(left) {
                Some(run) => (run, left),
                None => {
                    let free = platform.memory().largest_free();
                    let most = left.min(free);
                    (take(most).ok_or(Error::NoMemory { asked: len, free })?, most)
                }
            };
            runs.push((run, most));
            left -= most;
        }
        Ok(Self(runs))
    }

    /// Returns the number of [`pieces`](Self::pieces).
    pub(crate) fn count(&self) -> u8 {
        self.0.len() as u8
    }

    /// Returns the runs as pieces.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.0.iter().map(|(run, len)| Piece { addr: run.addr(), len: *len })
    }

    /// Copies `data` into the lent memory.
    pub(crate) fn write(&self, mut data: &[u8]) -> Result<(), Error> {
        for (run, len) in &self.0 {
            let (now, rest) = data.split_at(data.len().min(*len as usize));
            run.write(0, now).map_err(|e| Error::Refused(alloc::format!("{e}")))?;
            data = rest;
        }
        Ok(())
    }

    /// Copies from the start of the lent memory until `into` is full.
    pub(crate) fn read(&self, mut into: &mut [u8]) -> Result<(), Error> {
        for (run, len) in &self.0 {
            let (now, rest) = into.split_at_mut(into.len().min(*len as usize));
            run.read(0, now).map_err(|e| Error::Refused(alloc::format!("{e}")))?;
            into = rest;
        }
        Ok(())
    }
}
