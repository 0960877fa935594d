//! Numbers of queue pairs: unpredictable ones, so that what was meant for a former queue pair finds none.

use crate::icm::layout::LOG_QPS;
use crate::qp::queue::{SLOT_BITS, SLOTS};
use alloc::boxed::Box;
use alloc::vec;

/// Numbers whose entries in the card's tables are given memory together.
const BLOCK: usize = 64;
/// Queue pairs that can exist: half of the numbers, so that a number does not come back soon.
pub(crate) const MAX_QPS: u32 = SLOTS as u32 / 2;

/// The numbers from one base on. Their low bits are their slots.
pub(crate) struct Numbers {
    base: u32,
    taken: Box<[bool]>,
    count: usize,
    /// Numbers from the base on that the card has memory for.
    backed: usize,
}

impl Numbers {
    /// The numbers above one base that chance picks, which leaves out the first ones: those are the firmware's and the
    /// special ones.
    pub(crate) fn new(chance: u32) -> Self {
        const BASES: u32 = 1 << (LOG_QPS - SLOT_BITS);
        let base = (1 + chance % (BASES - 1)) << SLOT_BITS;
        Self { base, taken: vec![false; SLOTS].into(), count: 0, backed: 0 }
    }

    /// The numbers that memory is needed for before the next is taken: the first, and how many.
    pub(crate) const fn wanted(&self) -> Option<(u32, u32)> {
        if self.backed < SLOTS && 2 * (self.count + 1) > self.backed {
            Some((self.base + self.backed as u32, BLOCK as u32))
        } else {
            None
        }
    }

    /// The numbers that were wanted have memory.
    pub(crate) const fn were_backed(&mut self) {
        self.backed += BLOCK;
    }

    /// Takes a number by chance.
    pub(crate) fn take(&mut self, chance: u32) -> Option<u32> {
        if self.count >= MAX_QPS as usize || self.backed == 0 {
            return None;
        }
        let from = chance as usize % self.backed;
        let slot = (from..self.backed).chain(0..from).find(|&slot| self.taken.get(slot) == Some(&false))?;
        *self.taken.get_mut(slot)? = true;
        self.count += 1;
        Some(self.base + slot as u32)
    }

    /// Gives a number back.
    pub(crate) fn give(&mut self, number: u32) {
        let slot = number.wrapping_sub(self.base) as usize;
        if let Some(taken) = self.taken.get_mut(slot).filter(|taken| **taken) {
            *taken = false;
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn numbers_are_taken_once_and_memory_grows_with_them() {
        let mut numbers = Numbers::new(0xdead_beef);
        let mut seen = BTreeSet::new();
        let mut chance = 1u32;
        for n in 0..MAX_QPS {
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
