//! Reads and writes of several places of a region at once.

use super::quick::Outcome;
use super::{Flight, NotPosted, Verb};
use crate::{Error, Lmr, Permissions};
use core::task::{Context, Poll};
use platform::Instant;

/// Pieces under way at once.
const AT_ONCE: usize = 8;

impl Lmr {
    /// Reads into several buffers, each from an offset of its own. All are checked before any is read; up to eight are under
    /// way at once. On an error the buffers hold what has come so far.
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
                *flight = self.launch(*offset, Verb::Read { len: into.len() as u32 }, deadline).await?;
            }
            for ((offset, into), flight) in group.iter_mut().zip(flights) {
                match self.land(flight).await {
                    Outcome::Done(lent) => {
                        let from = lent.addr().ok_or(Error::Unknown)?;
                        let memory = self.platform().memory();
                        memory.read(from, into).map_err(|_| Error::Unknown)?;
                    }
                    Outcome::NotPosted | Outcome::Lost => self.unrated(deadline).read(*offset, into).await?,
                    Outcome::Late => return Err(Error::Deadline),
                    Outcome::Failed(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Writes several buffers, each at an offset of its own, in no particular order. All are checked before any is
    /// written; up to eight are under way at once. On an error some may have been written.
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
                *flight = self.launch(*offset, verb, deadline).await?;
            }
            for ((offset, data), flight) in group.iter().zip(flights) {
                match self.land(flight).await {
                    Outcome::Done(_) => {}
                    Outcome::NotPosted | Outcome::Lost => self.unrated(deadline).write(*offset, data).await?,
                    Outcome::Late => return Err(Error::Unknown),
                    Outcome::Failed(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Sets the 8 bytes at `offset` to 1 if they are 0, in one step; gives whether they were something else before: whoever
    /// gets `false` was the first.
    pub async fn test_and_set(&self, offset: u64) -> Result<bool, Error> {
        self.compare_swap(offset, 0, 1).await.map(|before| before != 0)
    }

    /// The same handle, whose next operation has until `deadline`.
    pub(crate) fn until(&self, deadline: Instant) -> Self {
        self.with_deadline(deadline - self.platform().now())
    }

    /// The same handle for a part of an operation that has been let go.
    fn unrated(&self, deadline: Instant) -> Self {
        self.until(deadline).without_class()
    }

    /// Posts what fits one work request, if it can be posted now.
    async fn launch(
        &self,
        offset: u64,
        verb: Verb<'_>,
        deadline: Instant,
    ) -> Result<Option<Flight<'_>>, Error> {
        let node = self.inner().0;
        let (right, len) = match verb {
            Verb::Write { head, .. } => (Permissions::WRITE, head.len()),
            Verb::Read { len } => (Permissions::READ, len as usize),
            Verb::FetchAdd { .. } | Verb::CompareSwap { .. } => (Permissions::ATOMIC, 8),
        };
        let Some((spot, pass)) = self.piece(right, offset, len as u64)? else { return Ok(None) };
        if spot.at.0 == node.me || !(1..=node.chunk).contains(&len) {
            return Ok(None);
        }
        let post = |cx: &mut Context<'_>| node.post_quick(spot, pass, verb, deadline, cx.waker());
        match core::future::poll_fn(|cx| Poll::Ready(post(cx))).await {
            Ok(id) => Ok(Some(Flight::new(node, id))),
            Err(NotPosted::Revoked) => Err(self.explain(Error::Freed)),
            Err(_) => Ok(None),
        }
    }

    async fn land<'n>(&self, flight: Option<Flight<'n>>) -> Outcome<'n> {
        match flight {
            None => Outcome::NotPosted,
            Some(mut flight) => core::future::poll_fn(|cx| flight.poll_outcome(cx)).await,
        }
    }
}
