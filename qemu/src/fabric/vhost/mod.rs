//! Ports whose machine shares its memory (vhost-user): frames are taken from its transmit ring and put into its receive
//! ring, and no thread of its hypervisor has a part in it.
//!
//! A thread of its own per connection ([`control`]) answers the hypervisor's set-up messages, which may come slowly, and
//! hands complete rings ([`ring`]) to the switching thread, or takes them back.

mod control;
mod ring;
#[cfg(test)]
mod tests;

pub use control::spawn;
pub use ring::{Broken, Ring};

use ring::Delivery;

use super::port::{PortCounters, QUEUE_LIMIT};
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

/// One of a network device's two rings, by its number (virtio 1.2, 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Frames to the machine.
    Receive,
    /// Frames from the machine.
    Transmit,
}

impl Side {
    /// The one with this number.
    pub fn numbered(index: u32) -> Option<Self> {
        match index {
            0 => Some(Self::Receive),
            1 => Some(Self::Transmit),
            _ => None,
        }
    }
}

/// A connected machine, as the switching thread sees it.
#[derive(Debug)]
pub struct Machine {
    /// Which connection of the port it is; messages about an earlier one are void.
    pub life: u64,
    /// The connection that the control thread reads; shut down, it ends that thread.
    connection: UnixStream,
    pub receive: Option<Box<Ring>>,
    pub transmit: Option<Box<Ring>>,
    /// Frames that found no buffer.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
}

impl Machine {
    pub fn new(life: u64, connection: UnixStream) -> Self {
        Self { life, connection, receive: None, transmit: None, waiting: VecDeque::new(), waiting_bytes: 0 }
    }

    /// The place of a ring.
    pub fn ring(&mut self, side: Side) -> &mut Option<Box<Ring>> {
        match side {
            Side::Receive => &mut self.receive,
            Side::Transmit => &mut self.transmit,
        }
    }

    /// Whether so much waits that no more is taken.
    pub fn is_full(&self) -> bool {
        self.waiting_bytes >= QUEUE_LIMIT
    }

    /// Puts a frame into the receive ring, or into the queue before it. The machine is not told yet.
    pub fn deliver(&mut self, frame: &[u8], counters: &mut PortCounters) -> Result<(), Broken> {
        let Some(ring) = &mut self.receive else { return Ok(()) };
        let delivery = if self.waiting.is_empty() { ring.deliver(frame)? } else { Delivery::NoBuffer };
        match delivery {
            Delivery::Done => {}
            Delivery::NoBuffer => {
                self.waiting_bytes += frame.len();
                self.waiting.push_back(frame.to_vec());
            }
            Delivery::TooLong => counters.dropped_long += 1,
        }
        Ok(())
    }

    /// Delivers what waits, as far as there are buffers, and tells the machine what it has got if it wants to know.
    pub fn flush(&mut self, counters: &mut PortCounters) -> Result<(), Broken> {
        let Some(ring) = &mut self.receive else { return Ok(()) };
        while let Some(frame) = self.waiting.front() {
            match ring.deliver(frame)? {
                Delivery::Done => {}
                Delivery::TooLong => counters.dropped_long += 1,
                // Asked for a kick, and looked again in case a buffer came before that was seen.
                Delivery::NoBuffer if ring.listen()? => continue,
                Delivery::NoBuffer => break,
            }
            self.waiting_bytes -= frame.len();
            self.waiting.pop_front();
        }
        counters.writes += u64::from(ring.call()?);
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Closed by its other end already, perhaps.
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
    }
}
