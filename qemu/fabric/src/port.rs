//! A port: its sockets, its connection, and its counts.

use super::stream::Stream;
use super::vhost::Machine;
use std::ops::Range;
use std::os::unix::net::UnixListener;

/// The maximum length of a frame in bytes: QEMU's own limit, 4096 + 65536.
pub const MAX_FRAME: usize = 69_632;
/// The number of bytes that wait for a port before frames to it are dropped.
pub const QUEUE_LIMIT: usize = 4 << 20;
/// The length of the prefix that contains a frame's length, in bytes.
pub(crate) const PREFIX: usize = 4;

/// The counts of one port since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames received from the port's machine.
    pub frames_in: u64,
    /// Bytes received from the port's machine.
    pub bytes_in: u64,
    /// Frames sent to the port's machine or queued for it.
    pub frames_out: u64,
    /// Bytes sent to the port's machine or queued for it.
    pub bytes_out: u64,
    /// Frames to the port's machine that were dropped because the queue was full.
    pub dropped_full: u64,
    /// Frames to or from the port's machine that were dropped because the cable was unplugged or no machine
    /// was connected.
    pub dropped_down: u64,
    /// Frames from the port's machine that a switch does not forward: too short, too long, or addressed to
    /// the sender.
    pub dropped_invalid: u64,
    /// Frames to the port's machine that were longer than the machine's buffers.
    pub dropped_long: u64,
    /// Connections closed because of a violation of the stream protocol, and rings given up because of
    /// invalid contents.
    pub protocol_errors: u64,
    /// Reads from the port's socket, or batches fetched from its machine's ring.
    pub reads: u64,
    /// Writes to the port's socket, or interrupts of its machine.
    pub writes: u64,
}

/// A port.
#[derive(Debug)]
pub(crate) struct Port {
    /// The socket for machines that use the stream protocol.
    pub stream_listener: UnixListener,
    /// The socket for machines that share their memory.
    pub vhost_listener: UnixListener,
    pub peer: Peer,
    /// True if the cable is plugged in.
    pub link: bool,
    pub counters: PortCounters,
}

/// The machine connected to a port.
#[derive(Debug)]
pub(crate) enum Peer {
    /// No machine is connected to the port.
    Absent,
    /// A machine connected by a stream.
    Stream(Stream),
    /// A machine that shares its memory.
    Machine(Box<Machine>),
}

/// The machine has closed its connection or has violated the protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Disconnected;

impl Port {
    pub(crate) fn new(stream_listener: UnixListener, vhost_listener: UnixListener) -> Self {
        Self {
            stream_listener,
            vhost_listener,
            peer: Peer::Absent,
            link: true,
            counters: PortCounters::default(),
        }
    }

    /// Returns true if a machine receives frames at this port.
    pub(crate) fn is_connected(&self) -> bool {
        match &self.peer {
            Peer::Absent => false,
            Peer::Stream(_) => true,
            Peer::Machine(machine) => machine.receive.is_some(),
        }
    }

    fn is_full(&self) -> bool {
        match &self.peer {
            Peer::Absent => false,
            Peer::Stream(stream) => stream.is_full(),
            Peer::Machine(machine) => machine.is_full(),
        }
    }

    /// Returns whether a frame of `len` bytes may be sent to this port now. Counts the frame as sent or
    /// dropped.
    pub(crate) fn admit(&mut self, len: usize) -> bool {
        if !self.link || !self.is_connected() {
            self.counters.dropped_down += 1;
            false
        } else if self.is_full() {
            self.counters.dropped_full += 1;
            false
        } else {
            self.counters.frames_out += 1;
            self.counters.bytes_out += len as u64;
            true
        }
    }

    /// Sends the frames in `ranges` of `buffer`, prefixes included.
    pub(crate) fn send(&mut self, buffer: &[u8], ranges: &[Range<usize>]) -> Result<(), SendError> {
        let counters = &mut self.counters;
        match &mut self.peer {
            Peer::Absent => Ok(()),
            Peer::Stream(stream) => {
                stream.send(buffer, ranges, counters).map_err(|_| SendError::Disconnected)
            }
            Peer::Machine(machine) => {
                for range in ranges {
                    let mut rest = &buffer[range.clone()];
                    while let Front::Frame(len) = front(rest) {
                        let (frame, next) = rest[PREFIX..].split_at(len);
                        machine.deliver(frame, counters).map_err(|_| SendError::BrokenRing)?;
                        rest = next;
                    }
                }
                machine.flush(counters).map_err(|_| SendError::BrokenRing)
            }
        }
    }
}

/// The reason why frames could not be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The other end of the socket is closed.
    Disconnected,
    /// The machine's receive ring has invalid contents.
    BrokenRing,
}

/// The first item in a stream of frames.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// A complete frame, with its length in bytes without the prefix.
    Frame(usize),
    /// An incomplete prefix or frame.
    Incomplete,
    /// An invalid length: the data is not of the stream protocol, or out of step.
    Invalid,
}

/// Parses the prefix at the front of a stream of frames.
pub(crate) fn front(stream: &[u8]) -> Front {
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
