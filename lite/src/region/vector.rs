//! Reads and writes of several ranges of a region at once.

use super::handle::Lmr;
use crate::transport::op::{Ended, InFlight, TaskWaker, Verb};
use crate::{Error, Permissions};
use platform::Instant;

/// The most pieces in flight at once.
const AT_ONCE: usize = 8;

impl Lmr {
    /// Reads into several buffers, each from an offset of its own. All are checked before any is read; up
    /// to eight are in flight at once. On an error some of the buffers may have been filled.
    pub async fn read_vectored(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Error> {
        for (offset, into) in pieces.iter() {
            self.check(Permissions::READ, *offset, into.len() as u64)?;
        }
        let deadline = self.deadline();
        let bytes = pieces.iter().map(|(_, into)| into.len()).sum();
        let _ticket = self.rate(bytes, deadline).await?;
        for group in pieces.chunks_mut(AT_ONCE) {
            let mut flights = [const { None }; AT_ONCE];
            for ((offset, into), flight) in group.iter().zip(&mut flights) {
                let verb = Verb::Read { len: into.len() as u32 };
                *flight = self.launch(*offset, verb, deadline).await;
            }
            for ((offset, into), flight) in group.iter_mut().zip(flights) {
                if !self.land(flight, Error::Deadline, Some(into)).await? {
                    self.unrated(deadline).read(*offset, into).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes several buffers, each at an offset of its own, in no particular order. All are checked before
    /// any is written; up to eight are in flight at once. On an error some may have been written.
    pub async fn write_vectored(&self, pieces: &[(u64, &[u8])]) -> Result<(), Error> {
        for (offset, data) in pieces {
            self.check(Permissions::WRITE, *offset, data.len() as u64)?;
        }
        let deadline = self.deadline();
        let bytes = pieces.iter().map(|(_, data)| data.len()).sum();
        let _ticket = self.rate(bytes, deadline).await?;
        for group in pieces.chunks(AT_ONCE) {
            let mut flights = [const { None }; AT_ONCE];
            for ((offset, data), flight) in group.iter().zip(&mut flights) {
                let verb = Verb::Write { head: data, tail: &[], imm: None };
                *flight = self.launch(*offset, verb, deadline).await;
            }
            for ((offset, data), flight) in group.iter().zip(flights) {
                if !self.land(flight, Error::Unknown, None).await? {
                    self.unrated(deadline).write(*offset, data).await?;
                }
            }
        }
        Ok(())
    }

    /// Sets the 8 bytes at `offset` to 1 if they are 0, in one step. Returns whether they were not 0
    /// before: the caller that gets `false` was the first.
    pub async fn test_and_set(&self, offset: u64) -> Result<bool, Error> {
        self.compare_swap(offset, 0, 1).await.map(|before| before != 0)
    }

    /// Returns the handle with `deadline` for its next operation.
    pub(crate) fn until(&self, deadline: Instant) -> Self {
        self.with_deadline(deadline - self.platform().now())
    }

    /// Returns the handle for a part of an operation that has been admitted.
    fn unrated(&self, deadline: Instant) -> Self {
        self.until(deadline).without_class()
    }

    /// Posts a piece that fits one work request, if it can be posted now.
    async fn launch(&self, offset: u64, verb: Verb<'_>, deadline: Instant) -> Option<InFlight<'_>> {
        let waker = TaskWaker.await;
        self.depart(offset, verb, deadline, true, waker)
    }

    /// Waits for a piece, and copies what it has read. `late` is the error if its deadline passes. Returns
    /// `false` if the piece must be done again.
    async fn land(
        &self,
        flight: Option<InFlight<'_>>,
        late: Error,
        into: Option<&mut [u8]>,
    ) -> Result<bool, Error> {
        let Some(mut flight) = flight else { return Ok(false) };
        let ended = (&mut flight).await;
        if ended != Ended::Done {
            return self.failed(&flight, ended, late).map(|()| false);
        }
        if let Some(into) = into {
            flight.read(into)?;
        }
        Ok(true)
    }
}
