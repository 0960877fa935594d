//! A machine connected by a stream of frames, which QEMU's `-netdev stream` and any program can use. Each
//! frame is preceded by its length. Data that the machine has not accepted yet is queued.

use super::port::{Disconnected, PortCounters, QUEUE_LIMIT};
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;

/// A stream connection.
#[derive(Debug)]
pub(crate) struct Stream {
    pub socket: UnixStream,
    /// True while the poller watches the socket for room to write.
    pub watched_for_write: bool,
    /// The beginning of a frame that is not complete yet, including the prefix.
    partial: Vec<u8>,
    /// Data that the machine has not accepted yet. The first `sent` bytes have been sent.
    waiting: Vec<u8>,
    sent: usize,
}

impl Stream {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, watched_for_write: false, partial: Vec::new(), waiting: Vec::new(), sent: 0 }
    }

    /// Reads once. Returns the length of the part of `buffer` that holds frames, of which the last may be
    /// incomplete. The caller must pass the incomplete rest to [`keep_partial`](Self::keep_partial).
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        counters: &mut PortCounters,
    ) -> Result<usize, Disconnected> {
        let kept = self.partial.len();
        buffer[..kept].copy_from_slice(&self.partial);
        counters.reads += 1;
        match self.socket.read(&mut buffer[kept..]) {
            Ok(0) => Err(Disconnected),
            Ok(n) => {
                self.partial.clear();
                Ok(kept + n)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            Err(_) => Err(Disconnected),
        }
    }

    /// Keeps the incomplete frame at the end of a read.
    pub(crate) fn keep_partial(&mut self, rest: &[u8]) {
        self.partial.extend_from_slice(rest);
    }

    /// Returns whether the queue is full.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() - self.sent >= QUEUE_LIMIT
    }

    /// Writes the frames in `ranges` of `buffer`, prefixes included. Data that the socket does not accept now
    /// is queued.
    pub(crate) fn send(
        &mut self,
        buffer: &[u8],
        ranges: &[Range<usize>],
        counters: &mut PortCounters,
    ) -> Result<(), Disconnected> {
        let mut written = 0;
        if self.waiting.is_empty() {
            // The kernel accepts at most 1024 ranges at a time; further ones, which are rare, are queued.
            let slices: Vec<IoSlice<'_>> =
                ranges.iter().take(1024).map(|r| IoSlice::new(&buffer[r.clone()])).collect();
            counters.writes += 1;
            written = match self.socket.write_vectored(&slices) {
                Ok(n) => n,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
                Err(_) => return Err(Disconnected),
            };
        }
        for range in ranges {
            let skipped = written.min(range.len());
            written -= skipped;
            self.waiting.extend_from_slice(&buffer[range.start + skipped..range.end]);
        }
        Ok(())
    }

    /// Writes queued data once.
    pub(crate) fn send_waiting(&mut self, counters: &mut PortCounters) -> Result<(), Disconnected> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        counters.writes += 1;
        match self.socket.write(&self.waiting[self.sent..]) {
            Ok(n) => self.sent += n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => return Err(Disconnected),
        }
        if self.sent == self.waiting.len() {
            self.waiting.clear();
            self.sent = 0;
        } else if self.sent >= QUEUE_LIMIT {
            self.waiting.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Returns whether data is queued.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
