//! The queue pairs that have packets to send, by service level.

use alloc::collections::VecDeque;

/// The number of service levels of an Ethernet port.
const LEVELS: usize = 8;

/// The slots of queue pairs that have packets to send, each at most once.
#[derive(Default)]
pub(crate) struct Ready {
    queues: [VecDeque<usize>; LEVELS],
    /// The levels whose queues are not empty, as bits.
    levels: u8,
}

impl Ready {
    pub(crate) const fn is_empty(&self) -> bool {
        self.levels == 0
    }

    /// Makes room for `count` queue pairs of `level`.
    pub(crate) fn reserve(&mut self, level: u8, count: usize) {
        if let Some(queue) = self.queues.get_mut(usize::from(level)) {
            queue.reserve(count.saturating_sub(queue.len()));
        }
    }

    pub(crate) fn push(&mut self, level: u8, slot: usize) {
        if let Some(queue) = self.queues.get_mut(usize::from(level)) {
            queue.push_back(slot);
            self.levels |= 1 << level;
        }
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, slot: usize) {
        for (level, queue) in self.queues.iter_mut().enumerate() {
            queue.retain(|&ready| ready != slot);
            if queue.is_empty() {
                self.levels &= !(1 << level);
            }
        }
    }

    /// Begins a pass over all levels, the highest first.
    pub(crate) const fn pass(&self) -> Pass {
        Pass { levels: self.levels, left: 0, level: 0 }
    }

    /// Takes the next slot of a pass. A slot that is pushed during a pass is not part of it, so that a level
    /// with much to send does not keep lower ones waiting.
    pub(crate) fn next(&mut self, pass: &mut Pass) -> Option<usize> {
        while pass.left == 0 {
            pass.level = pass.levels.checked_ilog2()? as usize;
            pass.levels &= !(1 << pass.level);
            pass.left = self.queues.get(pass.level)?.len();
        }
        pass.left -= 1;
        let queue = self.queues.get_mut(pass.level)?;
        let slot = queue.pop_front();
        if queue.is_empty() {
            self.levels &= !(1 << pass.level);
        }
        slot
    }
}

/// The rest of a pass over the levels.
pub(crate) struct Pass {
    /// The levels that follow, as bits.
    levels: u8,
    /// The present level, and the number of its slots that follow.
    level: usize,
    left: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_levels_come_first_and_each_slot_once() {
        let mut ready = Ready::default();
        assert_eq!(ready.next(&mut ready.pass()), None);
        for (level, slot) in [(0, 1), (4, 2), (0, 3), (7, 4), (4, 5)] {
            ready.push(level, slot);
        }
        ready.remove(5);
        let mut pass = ready.pass();
        let mut order = alloc::vec::Vec::new();
        while let Some(slot) = ready.next(&mut pass) {
            order.push(slot);
            if slot == 4 {
                ready.push(7, 4);
            }
        }
        assert_eq!((&*order, ready.is_empty()), (&[4, 2, 1, 3][..], false));
        ready.remove(4);
        assert!(ready.is_empty());
    }
}
