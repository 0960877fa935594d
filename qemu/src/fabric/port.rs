//! One port of the fabric: its connection, what is half read, and what its machine has not taken yet.

use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};

/// The longest frame that is taken: QEMU's own limit is 4096 + 65536.
pub const MAX_FRAME: usize = 69_632;
/// Bytes that wait for a port before frames to it are dropped.
pub const QUEUE_LIMIT: usize = 4 << 20;
/// Length of the length in front of each frame.
pub const PREFIX: usize = 4;

/// What one port has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames that came from its machine.
    pub frames_in: u64,
    /// Bytes of them.
    pub bytes_in: u64,
    /// Frames given to its machine, or queued for it.
    pub frames_out: u64,
    /// Bytes of them.
    pub bytes_out: u64,
    /// Frames to it that were dropped because it did not take the ones before.
    pub dropped_full: u64,
    /// Frames to or from it that were dropped because its cable is out or no machine is connected.
    pub dropped_down: u64,
    /// Frames from it that no switch forwards: too short, or to itself.
    pub dropped_invalid: u64,
    /// Connections closed because what came was not the stream protocol.
    pub protocol_errors: u64,
    /// Reads from its socket.
    pub reads: u64,
    /// Writes to its socket.
    pub writes: u64,
}

/// A port.
#[derive(Debug)]
pub struct Port {
    pub listener: UnixListener,
    pub stream: Option<UnixStream>,
    /// Whether the cable is in.
    pub link: bool,
    pub counters: PortCounters,
    /// Whether the poller watches for room to write.
    pub watched_for_write: bool,
    /// The beginning of a frame whose rest has not come yet, prefix included.
    partial: Vec<u8>,
    /// What the machine has not taken yet; `sent` bytes of its front are gone.
    waiting: Vec<u8>,
    sent: usize,
}

/// The machine behind a port has gone, or does not speak the protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Disconnected;

impl Port {
    pub fn new(listener: UnixListener) -> Self {
        Self {
            listener,
            stream: None,
            link: true,
            counters: PortCounters::default(),
            watched_for_write: false,
            partial: Vec::new(),
            waiting: Vec::new(),
            sent: 0,
        }
    }

    /// Forgets the connection and everything on its way.
    pub fn disconnect(&mut self) {
        self.stream = None;
        self.watched_for_write = false;
        self.partial.clear();
        self.waiting.clear();
        self.sent = 0;
    }

    /// Reads once, as much as there is and fits. Gives the length of the part of `buffer` that holds frames, the last
    /// of them possibly incomplete; [`keep_partial`](Self::keep_partial) must get what is left of it.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Disconnected> {
        let Some(stream) = &mut self.stream else { return Ok(0) };
        let kept = self.partial.len();
        buffer[..kept].copy_from_slice(&self.partial);
        self.counters.reads += 1;
        match stream.read(&mut buffer[kept..]) {
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

    /// Whether a frame of `len` bytes may go to this port now; counts it either way.
    pub fn admit(&mut self, len: usize) -> bool {
        if !self.link || self.stream.is_none() {
            self.counters.dropped_down += 1;
            false
        } else if self.waiting.len() - self.sent >= QUEUE_LIMIT {
            self.counters.dropped_full += 1;
            false
        } else {
            self.counters.frames_out += 1;
            self.counters.bytes_out += len as u64;
            true
        }
    }

    /// Writes the frames in `ranges` of `buffer`, prefixes included; what is not taken now is queued.
    pub fn send(&mut self, buffer: &[u8], ranges: &[Range<usize>]) -> Result<(), Disconnected> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let mut written = 0;
        if self.waiting.is_empty() {
            // More ranges than the kernel takes at once (1024) are rare: the rest goes by way of the queue.
            let slices: Vec<IoSlice<'_>> =
                ranges.iter().take(1024).map(|r| IoSlice::new(&buffer[r.clone()])).collect();
            self.counters.writes += 1;
            written = match stream.write_vectored(&slices) {
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
    pub fn send_waiting(&mut self) -> Result<(), Disconnected> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.counters.writes += 1;
        match stream.write(&self.waiting[self.sent..]) {
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

/// What stands at the front of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Front {
    /// A whole frame of so many bytes after its prefix.
    Frame(usize),
    /// Not all of it is there yet.
    Incomplete,
    /// No frame has this length: the stream is not the protocol's, or out of step.
    Invalid,
}

/// Looks at the front of a stream of frames with prefixes.
pub fn front(stream: &[u8]) -> Front {
    let Some(prefix) = stream.first_chunk::<PREFIX>() else { return Front::Incomplete };
    match usize::try_from(u32::from_be_bytes(*prefix)) {
        Ok(len) if (1..=MAX_FRAME).contains(&len) => {
            if stream.len() - PREFIX >= len {
                Front::Frame(len)
            } else {
                Front::Incomplete
            }
        }
        _ => Front::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fronts() {
        assert_eq!(front(&[]), Front::Incomplete);
        assert_eq!(front(&[0, 0, 0]), Front::Incomplete);
        assert_eq!(front(&[0, 0, 0, 2, 9]), Front::Incomplete);
        assert_eq!(front(&[0, 0, 0, 2, 9, 9, 7]), Front::Frame(2));
        assert_eq!(front(&[0, 0, 0, 0]), Front::Invalid);
        assert_eq!(front(&[0, 1, 0x10, 1]), Front::Invalid);
        assert_eq!(front(&[0, 1, 0x10, 0]), Front::Incomplete);
        assert_eq!(front(&[0xff; 8]), Front::Invalid);
    }
}
