//! The wait for a word of a region: a task looks at it again and again.

use super::handle::Lmr;
use super::layout::Location;
use super::mapped::Mapping;
use crate::base::wait::Epoch;
use crate::{Error, Permissions};
use alloc::sync::Arc;
use core::time::Duration;
use platform::{Instant, Look, yield_now};

/// The pause between two looks on a platform that polls elsewhere, and between two reads.
const PAUSE: Duration = Duration::from_micros(10);
/// The length of the word.
const WORD: u64 = 8;

/// A word of a region, at which a task looks.
pub(super) struct Word<'l> {
    lmr: &'l Lmr,
    offset: u64,
    mapping: Arc<Mapping>,
}

impl<'l> Word<'l> {
    /// Returns the word at `offset`, which must be a multiple of 8.
    pub(super) fn new(lmr: &'l Lmr, offset: u64) -> Result<Self, Error> {
        if !offset.is_multiple_of(WORD) {
            return Err(Error::Misaligned);
        }
        Ok(Self { lmr, offset, mapping: lmr.mapping() })
    }

    /// Looks at the word until it is wanted, and returns it.
    pub(super) async fn poll(
        &self,
        mut is_wanted: impl FnMut(u64) -> bool + Send,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let mut place = None;
        loop {
            if place.is_none() {
                place = self.place()?;
            }
            let seen = match place.filter(|_| !self.lmr.is_rated()) {
                Some(place) => self.poll_here(place, &mut is_wanted)?,
                None => None,
            };
            let seen = match seen {
                Some(seen) => seen,
                None => {
                    // The mapping may have changed, so the place is found again before the next look.
                    place = None;
                    let mut bytes = [0; WORD as usize];
                    self.lmr.read(self.offset, &mut bytes).await?;
                    Seen::new(bytes, &mut is_wanted, Look::Later)
                }
            };
            let node = self.lmr.here();
            let now = node.platform.now();
            match seen {
                Seen::Wanted(word) => return Ok(word),
                Seen::Unwanted(_) if now >= deadline => return Err(Error::Deadline),
                Seen::Unwanted(Look::Later) => node.timers.until((now + PAUSE).min(deadline)).await,
                Seen::Unwanted(Look::Yield | Look::Again) => yield_now().await,
            }
        }
    }

    /// Returns the place of the word if it is in this node's memory, and the epoch in which it is there.
    fn place(&self) -> Result<Option<(Location, Epoch)>, Error> {
        let piece = self.lmr.piece(&self.mapping, Permissions::READ, self.offset, WORD)?;
        let here = piece.filter(|(spot, _)| spot.at.0 == self.lmr.here().me);
        Ok(here.map(|(spot, access)| (spot, access.seen.1)))
    }

    /// Looks at a word in this node's memory until it is wanted or the task must do something else. Returns
    /// `None` if only a read can tell what the word is.
    fn poll_here(
        &self,
        (spot, epoch): (Location, Epoch),
        is_wanted: &mut impl FnMut(u64) -> bool,
    ) -> Result<Option<Seen>, Error> {
        let (node, gate) = (self.lmr.here(), &self.mapping.gate);
        let mut look = Look::Again;
        loop {
            if !node.lease.may_begin() || gate.enter(epoch).is_err() {
                return Ok(None);
            }
            let mut bytes = [0; WORD as usize];
            let read = node.read_here(spot.addr, &mut bytes);
            gate.exit();
            read?;
            let seen = Seen::new(bytes, is_wanted, look);
            if seen != Seen::Unwanted(Look::Again) {
                return Ok(Some(seen));
            }
            // The event that ends the polling may have changed the word, so the task looks once more.
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
