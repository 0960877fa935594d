//! Reads and writes of shared regions, and moves of these.

use super::stage::{PART, RW};
use super::worker::{Ended, Worker, is_unsure};
use crate::explore::check::WriteEnd;
use lite::{Error, Lmr, Permissions};

/// Returns the end of a write.
pub(super) fn written<T>(result: &Ended<T>) -> WriteEnd {
    match result {
        Some(Ok(_)) => WriteEnd::Done,
        Some(Err(error)) if !is_unsure(error) => WriteEnd::Never,
        None | Some(Err(_)) => WriteEnd::Unknown,
    }
}

/// Returns the end of a write that another node does.
pub(super) fn asked<T>(result: &Ended<T>) -> WriteEnd {
    match written(result) {
        WriteEnd::Unknown => WriteEnd::Asked,
        other => other,
    }
}

impl Worker {
    /// Returns a shared region, and maps it if it is not mapped yet.
    pub(super) async fn region(&mut self, n: usize) -> Option<Lmr> {
        if self.regions[n].is_none() {
            let timeout = self.timeout();
            let lite = self.lite.with_deadline(timeout);
            let name = format!("region-{n}");
            let map = async { lite.map(&name, RW).await };
            self.regions[n] = Some(self.run(format!("map {name}"), timeout, map).await?.ok()?);
        }
        let region = self.regions[n].clone()?;
        self.partly_gone = region.shares().iter().any(|(node, _)| self.check.has_ended(Some(*node)));
        Some(region)
    }

    /// Returns some bytes of a part: the first, and the number.
    pub(super) fn range(&mut self) -> (usize, usize) {
        let at = self.random.below(PART as u64) as usize;
        (at, 1 + self.random.below((PART - at) as u64) as usize)
    }

    /// Returns the offset of byte `at` of this task's part in the region.
    pub(super) const fn offset(&self, at: usize) -> u64 {
        (self.number * PART + at) as u64
    }

    pub(super) async fn write(&mut self) -> Option<()> {
        let n = self.shared();
        let region = self.region(n).await?;
        let timeout = self.timeout();
        let region = region.with_deadline(timeout);
        let (at, len) = self.range();
        let (offset, data) = (self.offset(at), self.random.bytes(len));
        let id = self.check.writes(self.member(), n, self.number, at, &data);
        let what = format!("Write {len} at {offset} of region {n}");
        let result = self.post(what, timeout, region.write(offset, &data)).await;
        self.check.wrote(n, self.number, id, written(&result));
        result?.ok()
    }

    pub(super) async fn memset(&mut self) -> Option<()> {
        let n = self.shared();
        let region = self.region(n).await?;
        let timeout = self.timeout();
        let region = region.with_deadline(timeout);
        let (at, len) = self.range();
        let (offset, byte) = (self.offset(at), self.random.next() as u8);
        let id = self.check.writes(self.member(), n, self.number, at, &vec![byte; len]);
        let what = format!("Memset {len} at {offset} of region {n}");
        let result = self.post(what, timeout, region.memset(offset, len as u64, byte)).await;
        self.check.wrote(n, self.number, id, asked(&result));
        result?.ok()
    }

    /// Reads from the task's own part, or from another task's.
    pub(super) async fn read(&mut self) -> Option<()> {
        let n = self.shared();
        let region = self.region(n).await?;
        let timeout = self.timeout();
        let region = region.with_deadline(timeout);
        let (mut at, mut len) = self.range();
        let (parts, orphans) = (region.len() / PART as u64, self.check.orphans(n));
        let who = if !orphans.is_empty() && self.random.one_in(2) {
            // The task does not write to it any more, so its bytes should stay.
            (at, len) = (0, PART);
            self.random.pick(&orphans)
        } else if self.random.one_in(2) {
            self.number
        } else {
            self.random.below(parts) as usize
        };
        let offset = (who * PART + at) as u64;
        let mut got = vec![0; len];
        let since = self.check.reads(n, who);
        let what = format!("Read {len} at {offset} of region {n}");
        let result = self.post(what, timeout, region.read(offset, &mut got)).await;
        let is_read = matches!(result, Some(Ok(())));
        self.check.read(n, who, since, is_read.then_some((at, &got[..])));
        result?.ok()
    }

    /// Reads or writes several pieces of the task's part at once.
    pub(super) async fn vectored(&mut self) -> Option<()> {
        const PIECES: usize = 3;
        const STEP: usize = PART / PIECES;
        let n = self.shared();
        let region = self.region(n).await?;
        let timeout = self.timeout();
        let region = region.with_deadline(timeout);
        let lens = [0; PIECES].map(|_| 1 + self.random.below(STEP as u64) as usize);
        let first = self.offset(0);
        if self.random.one_in(2) {
            let data = lens.map(|len| self.random.bytes(len));
            let begun: Vec<_> = (0..PIECES)
                .map(|i| self.check.writes(self.member(), n, self.number, i * STEP, &data[i]))
                .collect();
            let pieces: Vec<(u64, &[u8])> =
                data.iter().enumerate().map(|(i, data)| (first + (i * STEP) as u64, &data[..])).collect();
            let what = format!("write {PIECES} pieces of region {n}");
            let result = self.run(what, timeout, region.write_vectored(&pieces)).await;
            // After an error some pieces may have been written.
            let end = if matches!(result, Some(Ok(()))) { WriteEnd::Done } else { WriteEnd::Unknown };
            begun.into_iter().for_each(|id| self.check.wrote(n, self.number, id, end));
            return result?.ok();
        }
        let mut got = lens.map(|len| vec![0; len]);
        let begun: Vec<_> = (0..PIECES).map(|_| self.check.reads(n, self.number)).collect();
        let mut pieces: Vec<(u64, &mut [u8])> =
            got.iter_mut().enumerate().map(|(i, got)| (first + (i * STEP) as u64, &mut got[..])).collect();
        let what = format!("read {PIECES} pieces of region {n}");
        let result = self.run(what, timeout, region.read_vectored(&mut pieces)).await;
        let is_read = matches!(result, Some(Ok(())));
        for (i, since) in begun.into_iter().enumerate() {
            let piece = is_read.then_some((i * STEP, &got[i][..]));
            self.check.read(n, self.number, since, piece);
        }
        result?.ok()
    }

    /// Moves a region that all tasks use.
    pub(super) async fn relocate(&mut self) -> Option<()> {
        if self.owned.is_empty() {
            return None;
        }
        let pick = self.random.below(self.owned.len() as u64) as usize;
        let (n, region) = self.owned[pick].clone();
        let timeout = self.timeout();
        let region = region.with_deadline(timeout);
        let to = self.anywhere();
        let what = format!("move region {n} to {to:?}");
        self.run(what, timeout, region.move_to(to)).await?.ok()
    }

    /// Moves all regions off the task's node for a while.
    pub(super) async fn vacate(&mut self) -> Option<()> {
        let timeout = self.timeout();
        let lite = self.lite.with_deadline(timeout);
        self.check.vacates(self.member());
        let result = self.attempt("vacate the node", timeout, lite.vacate()).await;
        lite.accept_regions();
        match &result {
            // All other nodes may be about to vacate, too.
            Some(Err(Error::NoMemory { .. })) => self.check.sometimes("a node could not vacate"),
            Some(Err(error)) if self.calm && !self.is_explained(error) => {
                self.violated("a healthy cluster works", format_args!("vacate the node: {error}"));
            }
            _ => {}
        }
        result?.ok()
    }

    /// Drops a mapping, so that the region is mapped again before its next use.
    pub(super) fn remap(&mut self) -> Option<()> {
        let n = self.shared();
        self.regions[n] = None;
        self.gates[n] = None;
        self.cells[n] = None;
        self.borrowed[n] = None;
        Some(())
    }

    /// Checks that operations that must be refused are refused.
    pub(super) async fn refused(&mut self) -> Option<()> {
        let n = self.shared();
        let lite = self.lite.with_deadline(super::stage::PATIENT);
        let name = format!("region-{n}");
        let map = async { lite.map(&name, Permissions::READ).await };
        let region = self.run(format!("map {name} to read"), super::stage::PATIENT, map).await?.ok()?;
        let len = region.len();
        let beyond = 1 + self.random.below(100);
        let refusals = [
            ("a write without the right", region.write(0, &[1]).await, Error::Permission),
            ("a memset without the right", region.memset(0, 1, 1).await, Error::Permission),
            ("an atomic without the right", region.fetch_add(0, 1).await.map(drop), Error::Permission),
            ("a free without the right", region.clone().free().await, Error::Permission),
            ("a read across the end", region.read(len - 50, &mut [0; 151]).await, Error::OutOfBounds),
            ("a read beyond the end", region.read(len + beyond, &mut [0]).await, Error::OutOfBounds),
            ("a read at the end of all", region.read(u64::MAX, &mut [0]).await, Error::OutOfBounds),
        ];
        for (what, result, expected) in refusals {
            let gone = matches!(result, Err(Error::Freed | Error::NodeDown(_) | Error::LinkDown));
            if result != Err(expected) && !gone {
                self.violated("rights and bounds hold", format_args!("{what}: {result:?}"));
            }
        }
        Some(())
    }
}
