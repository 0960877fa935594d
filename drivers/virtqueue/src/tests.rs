//! The queue and a device of the test's own that follows the text of the specification, over index wraps.

use super::*;
use proptest::prelude::*;
extern crate std;
use std::collections::VecDeque;
use std::vec::Vec;

#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "memory, reached by address only")] [u8; 64]);

/// The device's side, written after section 2.7 with plain offsets.
struct Device {
    base: *mut u8,
    size: usize,
    event_idx: bool,
    seen: u16,
    used: u16,
}

impl Device {
    fn at<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: the test keeps the memory alive; offsets are those of the specification for `size`.
        unsafe { self.base.add(offset).cast::<T>().read_volatile() }
    }
    fn put<T>(&self, offset: usize, value: T) {
        // SAFETY: as above.
        unsafe { self.base.add(offset).cast::<T>().write_volatile(value) }
    }
    fn avail(&self) -> usize {
        16 * self.size
    }
    fn used_at(&self) -> usize {
        (16 * self.size + 6 + 2 * self.size).next_multiple_of(64)
    }
    fn next(&mut self) -> Option<(u16, u64, u32, u16)> {
        if self.at::<u16>(self.avail() + 2) == self.seen {
            return None;
        }
        let id: u16 = self.at(self.avail() + 4 + 2 * (usize::from(self.seen) % self.size));
        self.seen = self.seen.wrapping_add(1);
        let d = 16 * usize::from(id);
        Some((id, self.at(d), self.at(d + 8), self.at(d + 12)))
    }
    /// Returns a buffer to the driver. Returns true if an interrupt is due.
    fn give_back(&mut self, id: u32, len: u32) -> bool {
        let at = self.used_at() + 4 + 8 * (usize::from(self.used) % self.size);
        self.put(at, id);
        self.put(at + 4, len);
        let old = self.used;
        self.used = self.used.wrapping_add(1);
        self.put(self.used_at() + 2, self.used);
        if self.event_idx {
            let event: u16 = self.at(self.avail() + 4 + 2 * self.size);
            event == old
        } else {
            self.at::<u16>(self.avail()) & 1 == 0
        }
    }
    fn want_kick_after(&self, index: u16) {
        self.put(self.used_at() + 4 + 8 * self.size, index);
    }
}

fn pair(size: u16, event_idx: bool) -> (Vec<Line>, Queue, Device) {
    let mut memory = std::vec![Line([0; 64]); Layout::of(size).total / 64];
    let base = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: aligned to 64, zeroed, and kept by the caller as long as the queue.
    let queue = unsafe { Queue::new(NonNull::new(base).unwrap(), size, event_idx) };
    (memory, queue, Device { base, size: usize::from(size), event_idx, seen: 0, used: 0 })
}

#[test]
fn layout_of_256_is_that_of_the_specification() {
    let l = Layout::of(256);
    assert_eq!((l.avail, l.used, l.total), (4096, 4096 + 576, 4096 + 576 + 2112));
}

#[test]
fn descriptors_say_address_length_and_direction() {
    let (_memory, mut q, mut d) = pair(4, true);
    q.set_buffer(2, 0x1234_5678_9abc, 1514, true);
    q.give(2);
    assert_eq!(d.next(), None, "not published yet");
    let _ = q.publish();
    assert_eq!(d.next(), Some((2, 0x1234_5678_9abc, 1514, 2)));
    q.set_buffer(1, 0x1000, 64, false);
    q.set_len(1, 60);
    q.give(1);
    let _ = q.publish();
    assert_eq!(d.next(), Some((1, 0x1000, 60, 0)));
}

#[test]
fn a_buffer_returned_by_a_device_that_does_not_have_it_is_noticed() {
    for bad in [0u32, 7, 8, 65536 + 3, u32::MAX] {
        let (_memory, mut q, mut d) = pair(8, false);
        q.give(3);
        let _ = q.publish();
        d.give_back(bad, 1);
        assert_eq!(q.peek(), Err(Broken), "{bad}");
        assert_eq!(q.take(), Err(Broken), "{bad}");
    }
    let (_memory, mut q, mut d) = pair(8, false);
    q.give(3);
    let _ = q.publish();
    d.give_back(3, 1);
    d.give_back(3, 1);
    assert_eq!(q.take(), Ok(Some(Used { id: 3, len: 1 })));
    assert_eq!(q.take(), Err(Broken), "twice");
}

#[test]
fn no_interrupt_is_requested_while_disarmed_over_several_wraps() {
    for event_idx in [false, true] {
        let (_memory, mut q, mut d) = pair(4, event_idx);
        for round in 0..200_000u32 {
            q.give(0);
            let _ = q.publish();
            d.next().unwrap();
            assert!(!d.give_back(0, round), "round {round}");
            assert_eq!(q.take(), Ok(Some(Used { id: 0, len: round })));
        }
        assert!(!q.arm());
        q.give(0);
        let _ = q.publish();
        assert!(d.give_back(0, 0), "armed");
        assert!(q.arm(), "one waits already");
    }
}

#[test]
fn a_kick_is_due_exactly_when_the_index_passes_the_wish() {
    let (_memory, mut q, mut d) = pair(8, true);
    // All distances of the requested index around batches of 1 to 8, while the index wraps.
    let mut index = 0u16;
    let mut since_kick = 0;
    for step in 0..40_000u16 {
        let batch = 1 + step % 8;
        let wish = index.wrapping_add(step % 11).wrapping_sub(1);
        d.want_kick_after(wish);
        for id in 0..batch {
            q.give(id);
        }
        index = index.wrapping_add(batch);
        since_kick = (since_kick + batch).min(8);
        let passed = (1..=since_kick).any(|back| index.wrapping_sub(back) == wish);
        assert_eq!(q.publish(), passed, "index {index} batch {batch} wish {wish}");
        assert!(!q.publish(), "once is enough");
        if passed {
            since_kick = 0;
        }
        for _ in 0..batch {
            let (id, ..) = d.next().unwrap();
            d.give_back(u32::from(id), 0);
            q.take().unwrap().unwrap();
        }
    }
}

#[test]
fn a_request_that_was_read_too_early_is_found_by_the_next_turn() {
    for event_idx in [false, true] {
        let (_memory, mut q, d) = pair(8, event_idx);
        let want_kick = |wanted: bool| match event_idx {
            true => d.want_kick_after(if wanted { 0 } else { 0x8000 }),
            false => d.put(d.used_at(), u16::from(!wanted)),
        };
        want_kick(false);
        q.give(0);
        assert!(!q.publish());
        assert!(!q.publish(), "still none");
        want_kick(true);
        assert!(q.publish(), "nothing new, but the device waits");
        assert!(!q.publish(), "once is enough");
    }
}

#[test]
fn an_exposed_buffer_is_seen_and_still_causes_its_kick() {
    for event_idx in [false, true] {
        let (_memory, mut q, mut d) = pair(8, event_idx);
        q.give(0);
        assert!(d.next().is_none());
        q.expose();
        assert_eq!(d.next().map(|(id, ..)| id), Some(0));
        q.give(1);
        q.expose();
        assert!(q.publish(), "a device that has asked for a kick gets one");
        assert!(!q.publish(), "once is enough");
    }
}

proptest! {
    /// In any order of steps, buffers arrive in the order in which the device returned them, and none is
    /// lost.
    #[test]
    fn buffers_change_hands_in_order(steps in prop::collection::vec(0u8..4, 0..400), event_idx: bool) {
        let (_memory, mut q, mut d) = pair(16, event_idx);
        let mut mine: VecDeque<u16> = (0..16).collect();
        let mut devices = VecDeque::new();
        let mut back = VecDeque::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                0 => if let Some(id) = mine.pop_front() { q.give(id) },
                1 => { let _ = q.publish(); while let Some((id, ..)) = d.next() { devices.push_back(id) } }
                2 => if let Some(id) = devices.pop_back() {
                    let _ = d.give_back(u32::from(id), n as u32);
                    back.push_back(Used { id, len: n as u32 });
                },
                _ => {
                    prop_assert_eq!(q.peek().unwrap(), back.front().copied());
                    let got = q.take().unwrap();
                    prop_assert_eq!(got, back.pop_front());
                    mine.extend(got.map(|u| u.id));
                }
            }
        }
    }
}
