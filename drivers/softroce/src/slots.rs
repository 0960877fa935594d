//! The queue pairs of an RNIC, found by number in one step.

use crate::config::Numbers;
use crate::queue_pair::QueuePair;
use alloc::boxed::Box;
use alloc::vec::Vec;
use platform::Instant;
use verbs::{CqId, Psn, QpNum};

/// Bits of a queue pair number that are its slot; the rest are random.
const SLOT_BITS: u32 = 12;
/// Slots that numbers can name.
pub(crate) const MAX_SLOTS: u32 = 1 << SLOT_BITS;

/// A queue pair and what the engine knows about it.
pub(crate) struct Slot {
    pub(crate) qp: QueuePair,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    /// Whether it waits for its turn to send.
    pub(crate) queued: bool,
    /// Its deadline as last looked at.
    pub(crate) deadline: Instant,
}

/// All queue pairs.
pub(crate) struct Slots {
    slots: Vec<Option<Box<Slot>>>,
    max: usize,
    numbers: Numbers,
}

impl Slots {
    pub(crate) const fn new(max: u32, numbers: Numbers) -> Self {
        let max = if max > MAX_SLOTS { MAX_SLOTS } else { max };
        Self { slots: Vec::new(), max: max as usize, numbers }
    }

    /// Slots that exist, used or not.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Finds room for a queue pair; gives its slot and a new number. The number's low bits are the slot, the others
    /// random and not all zero, which leaves out the special queue pairs 0 and 1.
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
            let bits = self.numbers.next() as u32 & (0xff_ffff >> SLOT_BITS);
            if bits != 0 {
                break bits;
            }
        };
        Some((index, QpNum::new(variable << SLOT_BITS | index as u32)))
    }

    /// An unpredictable first PSN.
    pub(crate) const fn psn(&mut self) -> Psn {
        Psn::new((self.numbers.next() >> 40) as u32)
    }

    pub(crate) fn put(&mut self, index: usize, slot: Slot) {
        if let Some(place) = self.slots.get_mut(index) {
            *place = Some(Box::new(slot));
        }
    }

    /// The slot that a number may be in.
    pub(crate) const fn index(number: QpNum) -> usize {
        (number.get() & (MAX_SLOTS - 1)) as usize
    }

    /// The queue pair with this number.
    pub(crate) fn find(&mut self, number: QpNum) -> Option<&mut Slot> {
        self.at(Self::index(number)).filter(|slot| slot.qp.number() == number)
    }

    /// The queue pair in a slot.
    pub(crate) fn at(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, index: usize) {
        if let Some(place) = self.slots.get_mut(index) {
            *place = None;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().flatten().map(|slot| &**slot)
    }
}
