//! A port: where its machine connects, who is connected, and what has passed.

use super::stream::Stream;
use super::vhost::Machine;
use std::ops::Range;
use std::os::unix::net::UnixListener;

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
    /// Frames from it that no switch forwards: too short, too long, or to itself.
    pub dropped_invalid: u64,
    /// Frames to it that are longer than any buffer that it gives.
    pub dropped_long: u64,
    /// Connections closed because what came was not the stream protocol, and rings given up because what stood in them
    /// cannot be.
    pub protocol_errors: u64,
    /// Reads from its socket, or batches taken from its ring.
    pub reads: u64,
    /// Writes to its socket, or interrupts of its machine.
    pub writes: u64,
}

/// A port.
#[derive(Debug)]
pub struct Port {
    /// Where a machine that speaks the stream protocol connects.
    pub stream_listener: UnixListener,
    /// Where one that shares its memory connects.
    pub vhost_listener: UnixListener,
    pub peer: Peer,
    /// Whether the cable is in.
    pub link: bool,
    pub counters: PortCounters,
}

/// The machine behind a port.
#[derive(Debug)]
pub enum Peer {
    /// None.
    Absent,
    /// By a socket.
    Stream(Stream),
    /// By its memory.
    Machine(Box<Machine>),
}

/// The machine behind a port has gone, or does not speak the protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct Disconnected;

impl Port {
    pub fn new(stream_listener: UnixListener, vhost_listener: UnixListener) -> Self {
        Self {
            stream_listener,
            vhost_listener,
            peer: Peer::Absent,
            link: true,
            counters: PortCounters::default(),
        }
    }

    /// Whether a machine takes frames here.
    pub fn is_connected(&self) -> bool {
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

    /// Whether a frame of `len` bytes may go to this port now; counts it either way.
    pub fn admit(&mut self, len: usize) -> bool {
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
    pub fn send(&mut self, buffer: &[u8], ranges: &[Range<usize>]) -> Result<(), SendError> {
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

/// Why frames could not be sent.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError {
    /// The socket's other end is gone.
    Disconnected,
    /// The machine's receive ring cannot be used.
    BrokenRing,
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
