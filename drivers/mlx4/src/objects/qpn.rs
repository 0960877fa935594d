//! The allocator of queue pair numbers. It returns unpredictable ones, so that a late packet for a destroyed
//! queue pair does not reach a new one.

use crate::datapath::ring::{SLOT_BITS, SLOTS};
use crate::icm::layout::LOG_QPS;
use alloc::boxed::Box;
use alloc::vec;

/// The number of numbers that receive table entries at a time.
const BLOCK: usize = 64;

/// An allocator of consecutive queue pair numbers. The low bits of a number are its slot.
#[derive(Clone)]
pub(crate) struct QpnAllocator {
    base: u32,
    /// The number of numbers, at most that of slots.
    len: usize,
    /// True for each slot whose number is in use.
    taken: Box<[bool]>,
    count: usize,
    /// The number of numbers, from the base on, that have entries in the card's tables.
    backed: usize,
}

impl QpnAllocator {
    /// Makes the allocator of a physical function, at a base that `random` determines. The lowest numbers
    /// are left out: they are the firmware's and the special queue pairs'.
    pub(crate) fn for_pf(random: u32) -> Self {
        const BASES: u32 = 1 << (LOG_QPS - SLOT_BITS);
        Self::for_vf((1 + random % (BASES - 1)) << SLOT_BITS, SLOTS as u32)
    }

    /// Makes the allocator of a virtual function, for `len` numbers from `base` on that the master has
    /// granted.
    pub(crate) fn for_vf(base: u32, len: u32) -> Self {
        let len = SLOTS.min(len as usize);
        Self { base, len, taken: vec![false; SLOTS].into(), count: 0, backed: 0 }
    }

    /// Returns the maximum number of queue pairs: half of the numbers, so that a number is not reused soon.
    pub(crate) const fn capacity(&self) -> u32 {
        self.len as u32 / 2
    }

    /// Marks the numbers that were in use before a reset of the card as in use, until they are freed.
    pub(crate) fn excluding(mut self, before: Option<&Self>) -> Self {
        if let Some(before) = before {
            self.taken.clone_from(&before.taken);
            self.count = before.count;
        }
        self
    }

    /// Returns the first number and the count of those that must receive table entries before the next
    /// allocation.
    pub(crate) fn next_unbacked(&self) -> Option<(u32, u32)> {
        let rest = self.len - self.backed;
        (rest > 0 && 2 * (self.count + 1) > self.backed)
            .then_some((self.base + self.backed as u32, rest.min(BLOCK) as u32))
    }

    /// Records that the numbers of [`next_unbacked`](Self::next_unbacked) have table entries.
    pub(crate) fn mark_backed(&mut self) {
        self.backed = self.len.min(self.backed + BLOCK);
    }

    /// Allocates a number that `random` determines.
    pub(crate) fn allocate(&mut self, random: u32) -> Option<u32> {
        if self.count >= self.capacity() as usize || self.backed == 0 {
            return None;
        }
        let from = random as usize % self.backed;
        let mut numbers = (from..self.backed).chain(0..from).map(|offset| self.base + offset as u32);
        let number = numbers.find(|number| self.taken.get(slot(*number)) == Some(&false))?;
        *self.taken.get_mut(slot(number))? = true;
        self.count += 1;
        Some(number)
    }

    /// Frees a number.
    pub(crate) fn free(&mut self, number: u32) {
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
        let mut qpns = QpnAllocator::for_pf(0xdead_beef);
        let mut seen = BTreeSet::new();
        let mut random = 1u32;
        for n in 0..qpns.capacity() {
            while let Some((first, count)) = qpns.next_unbacked() {
                assert_eq!((first - qpns.base, count), (qpns.backed as u32, BLOCK as u32));
                qpns.mark_backed();
            }
            assert!(qpns.backed <= (2 * n as usize + 2).next_multiple_of(BLOCK));
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = qpns.allocate(random >> 8).unwrap();
            assert!((1 << SLOT_BITS..1 << LOG_QPS).contains(&number) && seen.insert(number));
        }
        assert_eq!(qpns.allocate(0), None);
        let number = *seen.first().unwrap();
        qpns.free(number);
        qpns.free(number);
        assert_eq!(qpns.allocate(0), Some(number));
        assert_eq!(qpns.allocate(0), None);
    }
}
