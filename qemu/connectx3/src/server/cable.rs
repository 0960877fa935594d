//! What a port's cable leads to.

use fabricport::FrameStream;
use std::collections::VecDeque;

/// Frames that wait for a fabric before more are dropped, as a switch would.
const QUEUE: usize = 4096;

/// Where a port is plugged in.
pub enum Cable {
    /// Nowhere.
    Out,
    /// To this end of the switch in this process.
    Switch(usize),
    /// To a fabric's port.
    Fabric(Box<Outside>),
}

/// A port of a fabric outside.
pub struct Outside {
    /// The connection.
    pub stream: FrameStream,
    /// Frames that the fabric has not taken yet.
    waiting: VecDeque<Vec<u8>>,
    /// Whether the event loop watches for room to write.
    pub watched_for_room: bool,
}

impl Outside {
    /// Over a connection.
    pub fn new(stream: FrameStream) -> Self {
        Self { stream, waiting: VecDeque::new(), watched_for_room: false }
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: Vec<u8>) {
        if self.waiting.len() < QUEUE {
            self.waiting.push_back(frame);
        }
    }

    /// Hands over as much as is taken; gives whether the loop's watch for room must change, and to what.
    pub fn flush(&mut self) -> Option<bool> {
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
