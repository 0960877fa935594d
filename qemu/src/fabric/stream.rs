//! A machine that is connected by a stream of frames, as QEMU's `-netdev stream` and any program can speak it: each frame
//! with its length in front, and what the machine has not taken yet.

use super::port::{Disconnected, PortCounters, QUEUE_LIMIT};
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;

/// A connection.
#[derive(Debug)]
pub struct Stream {
    pub socket: UnixStream,
    /// Whether the poller watches for room to write.
    pub watched_for_write: bool,
    /// The beginning of a frame whose rest has not come yet, prefix included.
    partial: Vec<u8>,
    /// What the machine has not taken yet; `sent` bytes of its front are gone.
    waiting: Vec<u8>,
    sent: usize,
}

impl Stream {
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, watched_for_write: false, partial: Vec::new(), waiting: Vec::new(), sent: 0 }
    }

    /// Reads once, as much as there is and fits. Gives the length of the part of `buffer` that holds frames, the last
    /// of them possibly incomplete; [`keep_partial`](Self::keep_partial) must get what is left of it.
    pub fn read(&mut self, buffer: &mut [u8], counters: &mut PortCounters) -> Result<usize, Disconnected> {
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

    /// Keeps the incomplete frame at the end of what was read.
    pub fn keep_partial(&mut self, rest: &[u8]) {
        self.partial.extend_from_slice(rest);
    }

    /// Whether so much waits that no more is taken.
    pub fn is_full(&self) -> bool {
        self.waiting.len() - self.sent >= QUEUE_LIMIT
    }

    /// Writes the frames in `ranges` of `buffer`, prefixes included; what is not taken now is queued.
    pub fn send(
        &mut self,
        buffer: &[u8],
        ranges: &[Range<usize>],
        counters: &mut PortCounters,
    ) -> Result<(), Disconnected> {
        let mut written = 0;
        if self.waiting.is_empty() {
            // More ranges than the kernel takes at once (1024) are rare: the rest goes by way of the queue.
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

    /// Writes once of what waits.
    pub fn send_waiting(&mut self, counters: &mut PortCounters) -> Result<(), Disconnected> {
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

    /// Whether something waits for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
