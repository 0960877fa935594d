//! Ports whose machine shares its memory (vhost-user): the fabric takes frames from its transmit ring and
//! puts frames into its receive ring, without a thread of the hypervisor.
//!
//! One thread per connection ([`control`]) answers the hypervisor's set-up messages, which may be slow. It
//! hands complete rings ([`ring`]) to the switching thread and takes them back.

mod control;
mod ring;
#[cfg(test)]
mod tests;

pub(crate) use control::spawn;
pub(crate) use ring::{Broken, Ring};

use ring::Delivery;

use super::answer::Answer;
use super::port::{PortCounters, QUEUE_LIMIT};
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;

/// One of a network device's two rings, by its number (virtio 1.2, 5.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The ring with frames to the machine.
    Receive,
    /// The ring with frames from the machine.
    Transmit,
}

impl Side {
    /// Returns the ring with a number.
    pub(crate) fn numbered(index: u32) -> Option<Self> {
        match index {
            0 => Some(Self::Receive),
            1 => Some(Self::Transmit),
            _ => None,
        }
    }
}

/// A connected machine, as the switching thread sees it.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The number of the connection. Requests about an earlier one are ignored.
    pub generation: u64,
    /// The connection that the control thread reads. Shutting it down ends that thread.
    connection: UnixStream,
    pub receive: Option<Box<Ring>>,
    pub transmit: Option<Box<Ring>>,
    pub answer: Answer,
    /// Frames for which the ring had no buffer.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
}

impl Machine {
    pub(crate) fn new(generation: u64, connection: UnixStream) -> Self {
        Self {
            generation,
            connection,
            receive: None,
            transmit: None,
            answer: Answer::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Returns the slot of a ring.
    pub(crate) fn ring(&mut self, side: Side) -> &mut Option<Box<Ring>> {
        match side {
            Side::Receive => &mut self.receive,
            Side::Transmit => &mut self.transmit,
        }
    }

    /// Returns whether the queue is full.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting_bytes >= QUEUE_LIMIT
    }

    /// Puts a frame into the receive ring, or into the queue. Does not notify the machine yet.
    pub(crate) fn deliver(&mut self, frame: &[u8], counters: &mut PortCounters) -> Result<(), Broken> {
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

    /// Delivers queued frames while the machine has buffers, and notifies the machine if it has asked for
    /// notifications.
    pub(crate) fn flush(&mut self, counters: &mut PortCounters) -> Result<(), Broken> {
        let Some(ring) = &mut self.receive else { return Ok(()) };
        while let Some(frame) = self.waiting.front() {
            match ring.deliver(frame)? {
                Delivery::Done => {}
                Delivery::TooLong => counters.dropped_long += 1,
                // A buffer may have come before the request for a kick was visible, so the ring is checked
                // again.
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
        // The other end may have closed it already.
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
    }
}
