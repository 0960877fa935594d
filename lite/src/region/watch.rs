//! The wait for a word of a region: a task looks at it again and again.

use super::handle::Lmr;
use super::layout::Location;
use super::mapped::Mapping;
use crate::base::wait::Epoch;
use crate::{Error, Permissions};
use core::time::Duration;
use platform::{Look, yield_now};

/// The pause between two looks on a platform that polls elsewhere, and between two reads.
const PAUSE: Duration = Duration::from_micros(10);
/// The length of the word.
const WORD: u64 = 8;

impl Lmr {
    /// Looks at the 8 bytes at `offset` (native endian) again and again until `is_wanted` returns true for
    /// them, and returns them.
    ///
    /// This is the quickest way to notice a peer's write, and a busy wait: the processor does not
    /// halt meanwhile. If the word is in this node's memory, the task looks at that. It lets other
    /// tasks run whenever they are ready. Otherwise each look is a [`read`](Self::read), and there
    /// are pauses. A waiter that has time opens a mailbox, and the writer uses
    /// [`write_notify`](Self::write_notify).
    ///
    /// # Errors
    /// Those of a read; `Misaligned` unless `offset` is a multiple of 8; `Deadline` if no look until then has
    /// found what is wanted.
    ///
    /// ```
    /// # use lite::{Error, Lmr};
    /// # async fn example(own: &Lmr) -> Result<(), Error> {
    /// let turn = own.poll_until(0, |turn| turn >= 7).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn poll_until(
        &self,
        offset: u64,
        mut is_wanted: impl FnMut(u64) -> bool + Send,
    ) -> Result<u64, Error> {
        let deadline = self.deadline();
        if !offset.is_multiple_of(WORD) {
            return Err(Error::Misaligned);
        }
        let mapping = self.mapping();
        loop {
            let seen = match self.word_here(&mapping, offset)? {
                Some(place) => self.poll_here(&mapping, place, &mut is_wanted)?,
                None => None,
            };
            let seen = match seen {
                Some(seen) => seen,
                None => {
                    let mut bytes = [0; WORD as usize];
                    self.read(offset, &mut bytes).await?;
                    Seen::new(bytes, &mut is_wanted, Look::Later)
                }
            };
            let now = self.platform().now();
            match seen {
                Seen::Wanted(word) => return Ok(word),
                Seen::Unwanted(_) if now >= deadline => return Err(Error::Deadline),
                Seen::Unwanted(Look::Later) => self.here().timers.until((now + PAUSE).min(deadline)).await,
                Seen::Unwanted(Look::Yield | Look::Again) => yield_now().await,
            }
        }
    }

    /// Returns the place of the word at `offset` if it is in this node's memory, and no limits apply to a
    /// read.
    fn word_here(&self, mapping: &Mapping, offset: u64) -> Result<Option<(Location, Epoch)>, Error> {
        let piece = self.piece(mapping, Permissions::READ, offset, WORD)?;
        let here = piece.filter(|(spot, _)| spot.at.0 == self.here().me && !self.is_rated());
        Ok(here.map(|(spot, access)| (spot, access.seen.1)))
    }

    /// Looks at a word in this node's memory until it is wanted or the task must do something else. Returns
    /// `None` if only a read can tell what the word is.
    fn poll_here(
        &self,
        mapping: &Mapping,
        (spot, epoch): (Location, Epoch),
        is_wanted: &mut impl FnMut(u64) -> bool,
    ) -> Result<Option<Seen>, Error> {
        let node = self.here();
        let mut look = Look::Again;
        loop {
            if !node.lease.may_begin() || mapping.gate.enter(epoch).is_err() {
                return Ok(None);
            }
            let mut bytes = [0; WORD as usize];
            let read = node.read_here(spot.addr, &mut bytes);
            mapping.gate.exit();
            read?;
            let seen = Seen::new(bytes, is_wanted, look);
            if seen != Seen::Unwanted(Look::Again) {
                return Ok(Some(seen));
            }
            // What ends the polling may also be what has changed the word, so it is looked at once more.
            look = node.platform.poll_in_task();
        }
    }
}

/// The result of a look at a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Wanted(u64),
    /// The value tells what to do before the next look.
    Unwanted(Look),
}

impl Seen {
    fn new(bytes: [u8; WORD as usize], is_wanted: &mut impl FnMut(u64) -> bool, next: Look) -> Self {
        let word = u64::from_ne_bytes(bytes);
        if is_wanted(word) { Self::Wanted(word) } else { Self::Unwanted(next) }
    }
}
