//! Runs: lists of keys and values, encoded in a region one after the other, behind a table of their offsets.
//!
//! The region begins with one 8-byte little-endian offset per run, and a last one for the end of the last
//! run. A record consists of the key's length, the value's length (both encoded as [`Value`] encodes `u64`),
//! the key, and the value.

use crate::OutOfMemory;
use crate::region::Region;
use crate::value::{VARINT_MAX, Value, take_varint};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::marker::PhantomData;
use core::ops::Range;
use core::task::Poll;
use runtime::{BoxFuture, JobError};

/// Bytes that are written at once.
const WRITE_BLOCK: usize = 64 << 10;
/// Reads of a run that are in flight at once.
const DEPTH: usize = 2;

/// Returns the length of the table at the front of a region of `runs` runs, in bytes.
pub(crate) const fn table_len(runs: usize) -> u64 {
    (runs as u64 + 1) * 8
}

/// Returns the length of an encoded record, in bytes. Overwrites `scratch`.
pub(crate) fn record_len<V: Value>(key_len: usize, value: &V, scratch: &mut Vec<u8>) -> u64 {
    scratch.clear();
    value.encode(scratch);
    let value_len = scratch.len();
    (key_len as u64).encode(scratch);
    (value_len as u64).encode(scratch);
    (scratch.len() + key_len) as u64
}

/// Writes runs into a region, front to back.
pub(crate) struct RunWriter<R> {
    region: R,
    offset: u64,
    buffer: Vec<u8>,
    value: Vec<u8>,
}

impl<R: Region> RunWriter<R> {
    /// Starts with the table for runs of these lengths, in bytes.
    pub(crate) fn new(region: R, lens: &[u64]) -> Self {
        let mut buffer = Vec::with_capacity(WRITE_BLOCK);
        let mut offset = table_len(lens.len());
        buffer.extend_from_slice(&offset.to_le_bytes());
        for len in lens {
            offset += len;
            buffer.extend_from_slice(&offset.to_le_bytes());
        }
        Self { region, offset: 0, buffer, value: Vec::new() }
    }

    /// Appends a record.
    pub(crate) async fn push<V: Value>(&mut self, key: &[u8], value: &V) -> Result<(), JobError> {
        self.value.clear();
        value.encode(&mut self.value);
        (key.len() as u64).encode(&mut self.buffer);
        (self.value.len() as u64).encode(&mut self.buffer);
        if key.len() > WRITE_BLOCK {
            // A large key is written from its own memory, without another copy.
            self.flush().await?;
            self.region.write(self.offset, key).await?;
            self.offset += key.len() as u64;
        } else {
            self.buffer.extend_from_slice(key);
        }
        self.buffer.extend_from_slice(&self.value);
        if self.buffer.len() >= WRITE_BLOCK { self.flush().await } else { Ok(()) }
    }

    /// Writes the rest of the buffer. Returns the total number of bytes.
    pub(crate) async fn finish(mut self) -> Result<u64, JobError> {
        self.flush().await?;
        Ok(self.offset)
    }

    async fn flush(&mut self) -> Result<(), JobError> {
        self.region.write(self.offset, &self.buffer).await?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// The state of a read of a run's next block.
enum Fetch {
    Pending(BoxFuture<'static, Result<Vec<u8>, JobError>>),
    Ready(Result<Vec<u8>, JobError>),
}

/// Reads consecutive runs block by block, with the next blocks always in flight.
pub(crate) struct RunReader<R, V> {
    region: R,
    /// The rank of the node that owns the region.
    rank: usize,
    block: usize,
    /// Offset of the next read, and of the end of the runs.
    next: u64,
    end: u64,
    pending: VecDeque<Fetch>,
    /// Bytes up to `end` that are not in `window` yet.
    missing: u64,
    window: Vec<u8>,
    /// Offset of the next record in the window.
    at: usize,
    /// The latest record's key in the window.
    key: Range<usize>,
    value: PhantomData<fn() -> V>,
}

/// The result of decoding the front of the window.
enum Front<V> {
    Record(V),
    /// An incomplete record of at least this many bytes.
    Partial(usize),
    End,
}

impl<R: Region, V: Value> RunReader<R, V> {
    /// Opens the runs `range` of a region with `runs` runs that the node of rank `rank` has written. Reads
    /// `block` bytes at a time.
    pub(crate) async fn open(
        region: R,
        rank: usize,
        runs: usize,
        range: Range<usize>,
        block: usize,
    ) -> Result<Self, JobError> {
        let table = region.read(0, table_len(runs) as usize).await?;
        let offset = |run: usize| {
            let word = table.get(run * 8..)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        };
        let (Some(next), Some(end)) = (offset(range.start), offset(range.end)) else {
            return Err(JobError::Malformed { rank });
        };
        let missing = end.checked_sub(next).ok_or(JobError::Malformed { rank })?;
        let (pending, window) = (VecDeque::new(), Vec::new());
        Ok(Self {
            region,
            rank,
            block,
            next,
            end,
            pending,
            missing,
            window,
            at: 0,
            key: 0..0,
            value: PhantomData,
        })
    }

    /// Moves to the next record and returns its value, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<V>, JobError> {
        loop {
            match self.front()? {
                Front::Record(value) => return Ok(Some(value)),
                Front::Partial(len) => self.fill(len).await?,
                Front::End => return Ok(None),
            }
        }
    }

    /// Returns the key of the latest record.
    pub(crate) fn key(&self) -> &[u8] {
        &self.window[self.key.clone()]
    }

    /// Decodes the record at the front of the window, if all of it is there.
    fn front(&mut self) -> Result<Front<V>, JobError> {
        let malformed = JobError::Malformed { rank: self.rank };
        let bytes = &self.window[self.at..];
        if bytes.is_empty() && self.missing == 0 {
            return Ok(Front::End);
        }
        let lens = take_varint(bytes).and_then(|(key, first)| {
            let (value, second) = take_varint(&bytes[first..])?;
            Some((key, value, first + second))
        });
        let Some((key_len, value_len, start)) = lens else {
            let longer = bytes.len() < 2 * VARINT_MAX && self.missing > 0;
            return if longer { Ok(Front::Partial(bytes.len() + 1)) } else { Err(malformed) };
        };
        let there = (bytes.len() as u64).saturating_add(self.missing);
        let len = key_len.checked_add(value_len).and_then(|len| len.checked_add(start as u64));
        let Some(len) = len.filter(|&len| len <= there) else { return Err(malformed) };
        let len = usize::try_from(len).map_err(|_| malformed.clone())?;
        if len > bytes.len() {
            return Ok(Front::Partial(len));
        }
        let value_at = start + key_len as usize;
        let value = V::decode(&bytes[value_at..len]).ok_or(malformed)?;
        self.key = self.at + start..self.at + value_at;
        self.at += len;
        Ok(Front::Record(value))
    }

    /// Reads until the window holds at least `len` bytes, or all that are missing.
    async fn fill(&mut self, len: usize) -> Result<(), JobError> {
        self.window.drain(..self.at);
        (self.at, self.key) = (0, 0..0);
        if len > self.window.capacity() {
            let wanted = len.checked_add(self.block).ok_or(JobError::Malformed { rank: self.rank })?;
            let failed = |_| JobError::OutOfMemory { wanted: wanted as u64, has: 0 };
            self.window.try_reserve_exact(wanted - self.window.len()).map_err(failed)?;
        }
        while self.window.len() < len && self.missing > 0 {
            self.fetch_ahead().await;
            let bytes = match self.pending.pop_front() {
                Some(Fetch::Pending(read)) => read.await?,
                Some(Fetch::Ready(result)) => result?,
                None => return Err(JobError::Malformed { rank: self.rank }),
            };
            self.missing -= bytes.len() as u64;
            self.window.extend_from_slice(&bytes);
        }
        self.fetch_ahead().await;
        Ok(())
    }

    /// Starts reads until [`DEPTH`] are in flight.
    async fn fetch_ahead(&mut self) {
        while self.pending.len() < DEPTH && self.next < self.end {
            let len = (self.end - self.next).min(self.block as u64);
            let mut read = self.region.read(self.next, len as usize);
            self.next += len;
            // The first poll posts the read.
            let fetch = poll_fn(|cx| {
                Poll::Ready(match read.as_mut().poll(cx) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                })
            })
            .await;
            self.pending.push_back(match fetch {
                Some(result) => Fetch::Ready(result),
                None => Fetch::Pending(read),
            });
        }
    }
}

impl From<OutOfMemory> for JobError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory { wanted: error.wanted as u64, has: 0 }
    }
}
