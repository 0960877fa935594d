//! The outstanding work requests of one queue, in the order in which they were posted.
//!
//! A completion of libibverbs carries 64 bits of the caller's, contains only its status if the work failed,
//! and stands for all earlier work without a completion of its own. Those bits are therefore the index in
//! this ring, which records the rest.

/// The index of an element in a [`Ring`]. It counts from 0 at the ring's creation, and does not wrap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct RingIndex(pub u64);

/// A queue with a fixed capacity, whose elements have indices.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    slots: Box<[T]>,
    head: u64,
    tail: u64,
}

impl<T: Copy + Default> Ring<T> {
    /// Makes an empty ring for `depth` elements.
    pub(crate) fn new(depth: u32) -> Self {
        Self { slots: vec![T::default(); depth as usize].into(), head: 0, tail: 0 }
    }

    /// Returns the number of elements for which there is room.
    pub(crate) fn room(&self) -> usize {
        self.slots.len() - (self.tail - self.head) as usize
    }

    /// Returns the index that the `n`th element appended from now on will have.
    pub(crate) fn next_index(&self, n: usize) -> RingIndex {
        RingIndex(self.tail + n as u64)
    }

    /// Appends an element. Returns false if there is no room.
    pub(crate) fn push(&mut self, element: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        let slot = self.slot(self.tail);
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = element;
        }
        self.tail += 1;
        true
    }

    /// Removes all elements up to `index`. Returns the last of them and their number, or `None` if it is not
    /// in the ring.
    pub(crate) fn complete(&mut self, index: RingIndex) -> Option<(T, u32)> {
        if !(self.head..self.tail).contains(&index.0) {
            return None;
        }
        let element = self.slots.get(self.slot(index.0)).copied()?;
        let count = u32::try_from(index.0 + 1 - self.head).ok()?;
        self.head = index.0 + 1;
        Some((element, count))
    }

    /// Removes the oldest element.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.complete(RingIndex(self.head)).map(|(element, _)| element)
    }

    fn slot(&self, position: u64) -> usize {
        (position % self.slots.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_stands_for_all_earlier_work() {
        let mut ring = Ring::new(4);
        for n in 10..14 {
            assert_eq!(ring.next_index(0), RingIndex(n - 10));
            assert!(ring.push(n));
        }
        assert!(!ring.push(14) && ring.room() == 0);
        assert_eq!(ring.complete(RingIndex(2)), Some((12, 3)));
        assert_eq!(ring.complete(RingIndex(2)), None, "not twice");
        assert_eq!(ring.complete(RingIndex(4)), None, "not before it is there");
        assert!(ring.push(14) && ring.push(15) && ring.push(16) && !ring.push(17));
        assert_eq!(ring.complete(RingIndex(5)), Some((15, 3)));
        assert_eq!((ring.pop(), ring.pop()), (Some(16), None));
        assert_eq!(ring.room(), 4);
    }
}
