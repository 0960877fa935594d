//! The queue pairs of an RNIC, found by number in one step.

use crate::config::SplitMix;
use crate::queue_pair::QueuePair;
use alloc::boxed::Box;
use alloc::vec::Vec;
use platform::Instant;
use verbs::{CqId, Psn, QpNum};

/// The number of low bits of a queue pair number that are its slot; the others are random.
const SLOT_BITS: u32 = 12;
/// The maximum number of slots.
pub(crate) const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// A queue pair and the engine's data about it.
pub(crate) struct Slot {
    pub(crate) qp: QueuePair,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// The service level, 0 to 7.
    pub(crate) level: u8,
    /// True if the queue pair is in the list of senders.
    pub(crate) queued: bool,
    /// The deadline at the last check.
    pub(crate) deadline: Instant,
}

/// All queue pairs.
pub(crate) struct Slots {
    slots: Vec<Option<Box<Slot>>>,
    max: usize,
    random: SplitMix,
}

impl Slots {
    pub(crate) const fn new(max: u32, random: SplitMix) -> Self {
        let max = if max > MAX_SLOTS { MAX_SLOTS } else { max };
        Self { slots: Vec::new(), max: max as usize, random }
    }

    /// Returns the number of slots, used or not.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Reserves a free slot, and returns it with a new queue pair number. The low bits of the number are the
    /// slot. The others are random and not all zero, which excludes the special queue pairs 0 and 1.
    pub(crate) fn reserve(&mut self) -> Option<(usize, QpNum)> {
        let free = self.slots.iter().position(Option::is_none);
        let index = match free {
            Some(index) => index,
            None if self.slots.len() < self.max => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        let variable = loop {
            let bits = self.random.next() as u32 & (0xff_ffff >> SLOT_BITS);
            if bits != 0 {
                break bits;
            }
        };
        Some((index, QpNum::new(variable << SLOT_BITS | index as u32)))
    }

    /// Returns an unpredictable first PSN.
    pub(crate) const fn psn(&mut self) -> Psn {
        Psn::new((self.random.next() >> 40) as u32)
    }

    pub(crate) fn put(&mut self, index: usize, slot: Slot) {
        if let Some(entry) = self.slots.get_mut(index) {
            *entry = Some(Box::new(slot));
        }
    }

    /// Returns the only slot in which a number can be.
    pub(crate) const fn index(number: QpNum) -> usize {
        (number.get() & (MAX_SLOTS - 1)) as usize
    }

    /// Returns the queue pair with this number.
    pub(crate) fn find(&mut self, number: QpNum) -> Option<&mut Slot> {
        self.at(Self::index(number)).filter(|slot| slot.qp.number() == number)
    }

    /// Returns the queue pair in a slot.
    pub(crate) fn at(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, index: usize) {
        if let Some(entry) = self.slots.get_mut(index) {
            *entry = None;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten().map(|slot| &**slot)
    }
}
