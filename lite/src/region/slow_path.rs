//! The slow path of a handle's operations, which waits for whatever is missing, and the ends of operations
//! that have failed.

use super::handle::Lmr;
use crate::transport::op::{Ended, InFlight, Verb};
use crate::transport::transfer::{AttemptError, Data, Effects, TransferError, judge};
use crate::{Error, Permissions};
use core::sync::atomic::AtomicBool;
use platform::Instant;

impl Lmr {
    /// Returns the error of a failed fast-path operation that must not be repeated: `late` if its deadline
    /// has passed. Returns `Ok` if the slow path should repeat it.
    #[cold]
    pub(crate) fn failed(&self, flight: &InFlight<'_>, ended: Ended, late: Error) -> Result<(), Error> {
        if ended == Ended::Late {
            self.here().missed();
            return Err(late);
        }
        match judge(flight.status()) {
            Err(AttemptError::TransferError(TransferError::For(error))) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Copies a transfer whose bytes lie on this node, unless they are being moved; returns `false` if
    /// nothing has been copied.
    fn copy_here(&self, offset: u64, data: &mut Data<'_>) -> Result<bool, Error> {
        let node = self.here();
        let mapping = self.mapping();
        let piece = self.piece(&mapping, data.right(), offset, data.len() as u64)?;
        let Some((spot, pass)) = piece.filter(|(spot, _)| spot.at.0 == node.me) else { return Ok(false) };
        let copied = node.copy_here(spot.addr, data, (&mapping, pass.seen.1)).is_ok();
        if copied {
            node.counters.transfer(data.right() == Permissions::READ, data.len() as u64);
        }
        Ok(copied)
    }

    /// Does a transfer on the slow path. `lost`: the fast path has issued it and lost its outcome.
    pub(super) async fn transfer_long(
        &self,
        offset: u64,
        mut data: Data<'_>,
        deadline: Instant,
        lost: bool,
    ) -> Result<(), Error> {
        let node = self.here();
        let (mut _ticket, mut deadline) = (None, deadline);
        if !lost && !self.is_rated() && self.copy_here(offset, &mut data)? {
            return Ok(());
        }
        if !lost {
            self.check(data.right(), offset, data.len() as u64)?;
            (_ticket, deadline) = self.rate(data.len(), deadline).await?;
            node.counters.transfer(data.right() == Permissions::READ, data.len() as u64);
        } else {
            node.counters.retries.add(1);
        }
        let effects = if lost { Effects::of_lost() } else { Effects::default() };
        // A lost write may have been done. A lost read has no effect that can be seen.
        let harmless = AtomicBool::new(false);
        let unknown = if data.right() == Permissions::READ { &harmless } else { &effects.posted };
        let mapping = self.mapping();
        let work = node.access(&mapping, offset, data, self.share(), &effects);
        node.limit(deadline, unknown, work).await
    }

    /// Returns the error for an operation that was lost on the wire: the departure of its node, or
    /// `Unknown`.
    #[cold]
    pub(super) fn lost(&self) -> Error {
        let member = self.member();
        let at = member.and_then(|member| self.here().member(member));
        at.and_then(|(node, life)| self.here().gone(node, life)).unwrap_or(Error::Unknown)
    }

    /// Does an atomic on the slow path.
    #[cold]
    pub(super) async fn atomic_long(
        &self,
        offset: u64,
        verb: Verb<'_>,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let node = self.here();
        self.check(Permissions::ATOMIC, offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned);
        }
        let (_ticket, deadline) = self.rate(8, deadline).await?;
        node.counters.atomics.add(1);
        let issued = AtomicBool::new(false);
        let mapping = self.mapping();
        let work = node.atomic(&mapping, offset, verb, self.share(), &issued);
        node.limit(deadline, &issued, work).await
    }
}
