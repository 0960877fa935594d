//! Reads and writes of several ranges at once: of a region, and of an application's own memory.

use super::handle::{Lmr, on_fast_path};
use super::local::LocalMemory;
use crate::base::own::Span;
use crate::transport::op::{Ended, InFlight, MAX_INLINE, TaskWaker, Verb};
use crate::transport::transfer::Data;
use crate::{Error, Permissions};
use core::future::poll_fn;
use core::mem::replace;
use core::ops::Range;
use core::pin::Pin;
use core::task::Poll;
use platform::Instant;

/// The most pieces in flight at once.
const AT_ONCE: usize = 8;

impl Lmr {
    /// Reads from `offset` into a range of `memory`, without a copy.
    ///
    /// # Errors
    /// As for [`read`](Self::read). `OutOfBounds` also if the range is not in `memory`. `Refused` if `memory`
    /// is another node's, or if an operation that was given up may still use it.
    ///
    /// ```
    /// # use lite::{Error, Lite, Lmr};
    /// # async fn example(lite: &Lite, from: &Lmr, to: &Lmr) -> Result<(), Error> {
    /// let mut memory = lite.local_memory(1 << 20).await?;
    /// from.read_to(0, &mut memory, 0..1 << 20).await?;
    /// to.write_from(0, &memory, 4096..8192).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn read_to(
        &self,
        offset: u64,
        memory: &mut LocalMemory,
        range: Range<u64>,
    ) -> Result<(), Error> {
        let deadline = self.deadline();
        let mut lost = false;
        if let Some(piece) = memory.sole(&range) {
            let hold = memory.hold_to_change(self.here())?;
            lost = on_fast_path!(
                self,
                Error::Deadline,
                |waker| self.depart_own(offset, Permissions::READ, (piece, hold), deadline, waker),
                |flight| Ok(())
            );
        }
        self.read_long(offset, memory, &[range], deadline, lost).await
    }

    /// Writes a range of `memory` at `offset`, without a copy. As many bytes as the RNIC accepts inline, at
    /// most 256, are copied.
    ///
    /// # Errors
    /// As for [`write`](Self::write). `OutOfBounds` also if the range is not in `memory`. `Refused` if
    /// `memory` is another node's, or if an operation that was given up may still change it.
    pub async fn write_from(
        &self,
        offset: u64,
        memory: &LocalMemory,
        range: Range<u64>,
    ) -> Result<(), Error> {
        let deadline = self.deadline();
        let mut lost = false;
        if let Some(piece) = memory.sole(&range) {
            let hold = memory.hold_to_read(self.here())?;
            let mut short = [0; MAX_INLINE];
            let short = short.get_mut(..piece.1 as usize);
            if let Some(bytes) = short.filter(|bytes| bytes.len() <= self.here().max_inline) {
                self.here().read_here(piece.0, bytes)?;
                self.here().counters.bytes_copied.add(piece.1);
                return self.write(offset, bytes).await;
            }
            lost = on_fast_path!(
                self,
                Error::Unknown,
                |waker| self.depart_own(offset, Permissions::WRITE, (piece, hold), deadline, waker),
                |flight| Ok(())
            );
        }
        self.write_long(offset, memory, &[range], deadline, lost).await
    }

    /// Reads contiguous bytes from `offset` into the ranges of `memory`, one after the other. One work
    /// request fills as many ranges as the RNIC's lists have elements. The ranges must not overlap.
    ///
    /// # Errors
    /// As for [`read_to`](Self::read_to).
    pub async fn read_scattered(
        &self,
        offset: u64,
        memory: &mut LocalMemory,
        ranges: &[Range<u64>],
    ) -> Result<(), Error> {
        self.read_long(offset, memory, ranges, self.deadline(), false).await
    }

    /// Writes the ranges of `memory`, one after the other, to contiguous bytes at `offset`. One work request
    /// takes as many ranges as the RNIC's lists have elements.
    ///
    /// # Errors
    /// As for [`write_from`](Self::write_from).
    pub async fn write_gathered(
        &self,
        offset: u64,
        memory: &LocalMemory,
        ranges: &[Range<u64>],
    ) -> Result<(), Error> {
        self.write_long(offset, memory, ranges, self.deadline(), false).await
    }

    async fn read_long(
        &self,
        offset: u64,
        memory: &mut LocalMemory,
        ranges: &[Range<u64>],
        deadline: Instant,
        lost: bool,
    ) -> Result<(), Error> {
        let list = memory.list(ranges)?;
        let hold = memory.hold_to_change(self.here())?;
        self.transfer_long(offset, Data::ReadOwn(Span::new(hold, &list)), deadline, lost).await
    }

    async fn write_long(
        &self,
        offset: u64,
        memory: &LocalMemory,
        ranges: &[Range<u64>],
        deadline: Instant,
        lost: bool,
    ) -> Result<(), Error> {
        let list = memory.list(ranges)?;
        let hold = memory.hold_to_read(self.here())?;
        self.transfer_long(offset, Data::WriteOwn(Span::new(hold, &list)), deadline, lost).await
    }
}

impl Lmr {
    /// Reads into several buffers, each from an offset of its own. All are checked before any is read; up
    /// to eight are in flight at once. On an error some of the buffers may have been filled.
    pub async fn read_vectored(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Error> {
        for (offset, into) in pieces.iter() {
            self.check(Permissions::READ, *offset, into.len() as u64)?;
        }
        let deadline = self.deadline();
        let bytes = pieces.iter().map(|(_, into)| into.len()).sum();
        let (_ticket, deadline) = self.rate(bytes, deadline).await?;
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
        let (_ticket, deadline) = self.rate(bytes, deadline).await?;
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
