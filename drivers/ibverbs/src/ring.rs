//! The work requests of one queue that have not completed, in the order they were posted.
//!
//! A completion of libibverbs carries 64 bits of the caller's, says nothing but its status when it failed, and stands for
//! all work without a completion of its own before it. So those bits are the place in this ring, which remembers the rest.

/// A place in a [`Ring`]: counts from 0 at its creation, does not wrap within its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place(pub u64);

/// A queue of at most so many elements, each with a [`Place`].
#[derive(Debug)]
pub struct Ring<T> {
    slots: Box<[T]>,
    head: u64,
    tail: u64,
}

impl<T: Copy + Default> Ring<T> {
    /// An empty ring for `depth` elements.
    pub fn new(depth: u32) -> Self {
        Self { slots: vec![T::default(); depth as usize].into(), head: 0, tail: 0 }
    }

    /// How many more it can take.
    pub fn room(&self) -> usize {
        self.slots.len() - (self.tail - self.head) as usize
    }

    /// The place that the `n`th element appended from here on will have.
    pub fn next_place(&self, n: usize) -> Place {
        Place(self.tail + n as u64)
    }

    /// Appends an element; `false` if there is no room.
    pub fn push(&mut self, element: T) -> bool {
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

    /// Takes all elements up to `place`: the last of them, and how many they were. `None` if it is not in the ring.
    pub fn complete(&mut self, place: Place) -> Option<(T, u32)> {
        if !(self.head..self.tail).contains(&place.0) {
            return None;
        }
        let element = self.slots.get(self.slot(place.0)).copied()?;
        let count = u32::try_from(place.0 + 1 - self.head).ok()?;
        self.head = place.0 + 1;
        Some((element, count))
    }

    /// Takes the oldest element.
    pub fn pop(&mut self) -> Option<T> {
        self.complete(Place(self.head)).map(|(element, _)| element)
    }

    fn slot(&self, position: u64) -> usize {
        (position % self.slots.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_stands_for_what_was_before_it() {
        let mut ring = Ring::new(4);
        for n in 10..14 {
            assert_eq!(ring.next_place(0), Place(n - 10));
            assert!(ring.push(n));
        }
        assert!(!ring.push(14) && ring.room() == 0);
        assert_eq!(ring.complete(Place(2)), Some((12, 3)));
        assert_eq!(ring.complete(Place(2)), None, "not twice");
        assert_eq!(ring.complete(Place(4)), None, "not before it is there");
        assert!(ring.push(14) && ring.push(15) && ring.push(16) && !ring.push(17));
        assert_eq!(ring.complete(Place(5)), Some((15, 3)));
        assert_eq!((ring.pop(), ring.pop()), (Some(16), None));
        assert_eq!(ring.room(), 4);
    }
}
