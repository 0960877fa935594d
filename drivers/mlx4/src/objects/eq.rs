//! The event queue, in which the card reports everything except completions.

use crate::command::{Command, Opcode};
use crate::datapath::doorbell::ring_events;
use crate::device::Device;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::Object;
use crate::mailbox::{Field, Mailbox};
use core::sync::atomic::Ordering;

/// The context (Linux `mlx4_eq_context`, PRM `eqc`).
mod field {
    use super::Field;
    pub(super) const STATE: Field = Field::bits(0x00, 11, 8);
    pub(super) const LOG_ENTRIES: Field = Field::bits(0x0c, 28, 24);
    pub(super) const VECTOR: Field = Field::bits(0x14, 9, 0);
    pub(super) const MTT: Field = Field::word(0x1c);
}

const ARMED: u32 = 9;
const LOG_ENTRIES: u32 = 8;
const ENTRIES: u32 = 1 << LOG_ENTRIES;
/// The card assumes an overflow unless the consumer index is updated after this many entries (Linux
/// `mlx4_eq_int`).
const REPORT_AFTER: u32 = 0x40;
/// The types of events that Linux requests.
const ASYNCHRONOUS: u64 = 0x3d1f_46fe;
const OWNER: u64 = 0x80;
/// The number of meaningful words in the 32 bytes of an entry.
const WORDS: usize = 4;

/// An event that the card reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// An armed completion queue has completions.
    Completion { cqn: u32 },
    /// A completion queue has overflowed or cannot be written.
    CqError { cqn: u32 },
    /// A queue pair has failed in a way that no completion reports.
    QpError { qpn: u32 },
    /// A port's link has gone up or down.
    PortChange { port: u8, up: bool },
    /// The subnet manager has changed the settings of a port.
    PortManagement { port: u8 },
    /// The card reports a fatal error.
    Fatal,
    /// Any other event, by its type.
    Other(u8),
}

impl Event {
    /// Parses an entry of an event queue (PRM `event_queue_entry`).
    fn parse(words: [u64; WORDS]) -> Self {
        const UP: u8 = 4;
        let [head, second, ..] = words;
        let (kind, subtype, number) = ((head >> 48) as u8, (head >> 32) as u8, head as u32 & 0xff_ffff);
        match kind {
            0x00 => Self::Completion { cqn: number },
            0x04 => Self::CqError { cqn: number },
            0x05 | 0x10 | 0x11 => Self::QpError { qpn: number },
            0x08 => Self::Fatal,
            0x09 => Self::PortChange { port: (second >> 28) as u8 & 3, up: subtype == UP },
            0x1d => Self::PortManagement { port: number as u8 },
            other => Self::Other(other),
        }
    }
}

/// An event queue.
pub(crate) struct Eq<B> {
    number: u32,
    buffer: B,
    /// The distance of entries, in words.
    stride: usize,
    consumer: u32,
    reported: u32,
}

impl<B: Block> Eq<B> {
    /// Makes the queue, which raises the given MSI-X vector, and routes all events except completions to it.
    pub(crate) fn create(
        device: &mut Device<'_, impl Hardware<Block = B>>,
        number: u32,
        large: bool,
        vector: u16,
    ) -> Result<Self, Error> {
        let stride = if large { 2 * WORDS } else { WORDS };
        let bytes = (stride as u64 * 8) << LOG_ENTRIES;
        device.ensure_icm(Object::Eq, number.into(), 1)?;
        let buffer = device.hw().allocate(bytes).ok_or(Error::NoMemory("an event queue"))?;
        // Gives all entries to the card, which may or may not do so itself.
        for last in buffer.iter().skip(stride - 1).step_by(stride) {
            last.store(OWNER.to_be(), Ordering::Relaxed);
        }
        let pages = device.map_queue(buffer.addr(), bytes)?;
        let context = Mailbox::new()
            .with(field::STATE, ARMED)
            .with(field::LOG_ENTRIES, LOG_ENTRIES)
            .with(field::VECTOR, vector.into())
            .with(field::MTT, pages.offset() as u32);
        device.commands.exec_in(Command::new(Opcode::Sw2HwEq).of(number), &context)?;
        device.commands.exec(Command::new(Opcode::MapEq).of(number).immediate(ASYNCHRONOUS))?;
        Ok(Self { number, buffer, stride, consumer: 0, reported: 0 })
    }

    /// Returns the next event, if there is one.
    pub(crate) fn next(&mut self, hw: &impl Hardware) -> Option<Event> {
        let end = ((self.consumer & (ENTRIES - 1)) as usize + 1) * self.stride;
        let entry = self.buffer.get(end - WORDS..end)?;
        let last = u64::from_be(entry.last()?.load(Ordering::Acquire));
        if (last & OWNER != 0) != (self.consumer & ENTRIES != 0) {
            return None;
        }
        let mut words = [0; WORDS];
        for (word, from) in words.iter_mut().zip(entry) {
            *word = u64::from_be(from.load(Ordering::Relaxed));
        }
        self.consumer = self.consumer.wrapping_add(1);
        if self.consumer.wrapping_sub(self.reported) >= REPORT_AFTER {
            self.update_consumer_index(hw, false);
        }
        Some(Event::parse(words))
    }

    /// Updates the card's consumer index. With `arm`, the next event raises an interrupt.
    pub(crate) fn update_consumer_index(&mut self, hw: &impl Hardware, arm: bool) {
        if arm || self.reported != self.consumer {
            self.reported = self.consumer;
            ring_events(hw, self.number, self.consumer, arm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_card_writes_them() {
        assert_eq!(Event::parse([0x0000_0000_0000_0081, 0, 0, 0]), Event::Completion { cqn: 0x81 });
        assert_eq!(Event::parse([0x0005_0000_0000_1234, 0, 0, 0]), Event::QpError { qpn: 0x1234 });
        let port_up = Event::parse([0x0009_0004_0000_0000, 0x1000_0000, 0, 0]);
        assert_eq!(port_up, Event::PortChange { port: 1, up: true });
        assert_eq!(Event::parse([0x003e_0000_0000_0000, 0, 0, 0]), Event::Other(0x3e));
    }
}
