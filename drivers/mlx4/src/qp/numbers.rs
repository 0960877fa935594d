//! Numbers of queue pairs: unpredictable ones, so that what was meant for a former queue pair finds none.

use crate::icm::layout::LOG_QPS;
use crate::qp::queue::{SLOT_BITS, SLOTS};
use crate::start::Former;
use alloc::boxed::Box;
use alloc::vec;

/// Numbers that are given entries in the card's tables together.
const BLOCK: usize = 64;
/// The numbers from one base on. Their low bits are their slots.
#[derive(Clone)]
pub(crate) struct Numbers {
    base: u32,
    /// How many there are: at most as many as slots.
    len: usize,
    /// By slot.
    taken: Box<[bool]>,
    count: usize,
    /// Numbers from the base on that the card has entries for.
    backed: usize,
}

impl Numbers {
    /// The numbers above one base that chance picks, which leaves out the first ones: those are the firmware's and the
    /// special ones.
    pub(crate) fn own(chance: u32) -> Self {
        const BASES: u32 = 1 << (LOG_QPS - SLOT_BITS);
        Self::granted((1 + chance % (BASES - 1)) << SLOT_BITS, SLOTS as u32)
    }

    /// Numbers in a row that a master has given.
    pub(crate) fn granted(base: u32, len: u32) -> Self {
        let len = SLOTS.min(len as usize);
        Self { base, len, taken: vec![false; SLOTS].into(), count: 0, backed: 0 }
    }

    /// Queue pairs that can exist: half of the numbers, so that a number does not come back soon.
    pub(crate) const fn most(&self) -> u32 {
        self.len as u32 / 2
    }

    /// Leaves out what was taken before a reset of the card, until it is given back.
    pub(crate) fn beside(mut self, former: Option<&Former>) -> Self {
        if let Some(Former { numbers, .. }) = former {
            self.taken.clone_from(&numbers.taken);
            self.count = numbers.count;
        }
        self
    }

    /// The numbers that entries are needed for before the next is taken: the first, and how many.
    pub(crate) fn wanted(&self) -> Option<(u32, u32)> {
        let rest = self.len - self.backed;
        (rest > 0 && 2 * (self.count + 1) > self.backed)
            .then_some((self.base + self.backed as u32, rest.min(BLOCK) as u32))
    }

    /// The numbers that were wanted have entries.
    pub(crate) fn were_backed(&mut self) {
        self.backed = self.len.min(self.backed + BLOCK);
    }

    /// Takes a number by chance.
    pub(crate) fn take(&mut self, chance: u32) -> Option<u32> {
        if self.count >= self.most() as usize || self.backed == 0 {
            return None;
        }
        let from = chance as usize % self.backed;
        let mut numbers = (from..self.backed).chain(0..from).map(|place| self.base + place as u32);
        let number = numbers.find(|number| self.taken.get(slot(*number)) == Some(&false))?;
        *self.taken.get_mut(slot(number))? = true;
        self.count += 1;
        Some(number)
    }

    /// Gives a number back.
    pub(crate) fn give(&mut self, number: u32) {
        if let Some(taken) = self.taken.get_mut(slot(number)).filter(|taken| **taken) {
            *taken = false;
            self.count -= 1;
        }
    }
}

const fn slot(number: u32) -> usize {
    number as usize & (SLOTS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn numbers_are_taken_once_and_memory_grows_with_them() {
        let mut numbers = Numbers::own(0xdead_beef);
        let mut seen = BTreeSet::new();
        let mut chance = 1u32;
        for n in 0..numbers.most() {
            while let Some((first, count)) = numbers.wanted() {
                assert_eq!((first - numbers.base, count), (numbers.backed as u32, BLOCK as u32));
                numbers.were_backed();
            }
            assert!(numbers.backed <= (2 * n as usize + 2).next_multiple_of(BLOCK));
            chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = numbers.take(chance >> 8).unwrap();
            assert!((1 << SLOT_BITS..1 << LOG_QPS).contains(&number) && seen.insert(number));
        }
        assert_eq!(numbers.take(0), None);
        let number = *seen.first().unwrap();
        numbers.give(number);
        numbers.give(number);
        assert_eq!(numbers.take(0), Some(number));
        assert_eq!(numbers.take(0), None);
    }
}
