//! The cable of a card's port.

use fabricport::FrameStream;
use std::collections::VecDeque;

/// The number of frames that wait for a fabric before further ones are dropped, as by a switch.
const QUEUE: usize = 4096;

/// The other end of a port's cable.
pub(super) enum Cable {
    /// The cable is unplugged.
    Out,
    /// A port of the switch in this process, by index.
    Switch(usize),
    /// A port of a fabric, through a socket.
    Fabric(Box<Outside>),
}

/// A port of a fabric in another process.
pub(super) struct Outside {
    /// The connection to the fabric.
    pub stream: FrameStream,
    /// Frames that the fabric has not accepted yet.
    waiting: VecDeque<Vec<u8>>,
    /// True while the event loop watches the connection for room to write.
    pub watched_for_room: bool,
}

impl Outside {
    /// Creates a port on a connection.
    pub(super) fn new(stream: FrameStream) -> Self {
        Self { stream, waiting: VecDeque::new(), watched_for_room: false }
    }

    /// Queues a frame.
    pub(super) fn send(&mut self, frame: Vec<u8>) {
        if self.waiting.len() < QUEUE {
            self.waiting.push_back(frame);
        }
    }

    /// Sends as many frames as the connection accepts. Returns whether the loop must start or stop to watch
    /// it for room, if that changes.
    pub(super) fn flush(&mut self) -> Option<bool> {
        while self.waiting.front().is_some_and(|frame| self.stream.send(frame)) {
            self.waiting.pop_front();
        }
        self.stream.flush();
        let wants = self.stream.watch().wants_write() || !self.waiting.is_empty();
        (wants != self.watched_for_room).then(|| {
            self.watched_for_room = wants;
            wants
        })
    }
}
