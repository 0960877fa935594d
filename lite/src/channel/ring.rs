//! The arithmetic of a request ring. Positions count bytes since the connection began; records never wrap.

use super::wire::GRAIN;
use crate::base::writers::{AtomicU64, Ordering};
use crate::planted::{Bug, planted};

/// The peer has broken the ring's protocol; the connection must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

fn grains(len: u32) -> u64 {
    u64::from(len.next_multiple_of(GRAIN))
}

/// Returns the offset of a position in a ring of `len` bytes. The length is a power of two, so that the
/// offset needs no division, which takes as long as 10 to 20 other instructions.
#[inline(always)]
fn offset(position: u64, len: u64) -> u64 {
    position & (len - 1)
}

/// The writer's view.
pub(crate) struct RingTx {
    len: u64,
    head: u64,
    /// The position before which everything has been consumed.
    credited: u64,
}

impl RingTx {
    /// `len` is a power of two.
    pub(crate) fn new(len: u32) -> Self {
        debug_assert!(len.is_power_of_two());
        Self { len: u64::from(len), head: 0, credited: 0 }
    }

    /// Returns the offset of a record of `bytes`, and the position for [`commit`](Self::commit) once it is
    /// written; `None` while there is no room.
    #[inline(always)]
    pub(crate) fn place(&self, bytes: u32) -> Option<(u32, u64)> {
        let bytes = grains(bytes);
        let at = offset(self.head, self.len);
        let skip = if at + bytes > self.len { self.len - at } else { 0 };
        let end = self.head + skip + bytes;
        (end - self.credited <= self.len || planted(Bug::RingOverrun))
            .then(|| (offset(end - bytes, self.len) as u32, end))
    }

    pub(crate) fn commit(&mut self, end: u64) {
        self.head = end;
    }

    /// Handles a credit: the reader has consumed `grains` grains in all, modulo 2^24.
    pub(crate) fn credit(&mut self, grains: u32) -> Result<(), Violation> {
        let grain = u64::from(GRAIN);
        let more = (u64::from(grains)).wrapping_sub(self.credited / grain) & 0xff_ffff;
        let credited = self.credited + more * grain;
        if credited > self.head {
            return Err(Violation);
        }
        self.credited = credited;
        Ok(())
    }
}

/// The reader's view. Only one thread reads at a time, so that it needs no lock of its own.
pub(crate) struct RingRx {
    len: u64,
    consumed: AtomicU64,
    credited: AtomicU64,
}

impl RingRx {
    /// `len` is a power of two.
    pub(crate) fn new(len: u32) -> Self {
        debug_assert!(len.is_power_of_two());
        Self { len: u64::from(len), consumed: AtomicU64::new(0), credited: AtomicU64::new(0) }
    }

    /// Notes that a record of `bytes` at the offset `record`, which must be the next one, is read. Returns
    /// the credit to send once it has been read, if a quarter of the ring has been consumed since the last
    /// credit.
    #[inline(always)]
    pub(crate) fn consume(&self, record: u32, bytes: u32) -> Result<Option<u32>, Violation> {
        let (record, bytes) = (u64::from(record), grains(bytes));
        let before = self.consumed.load(Ordering::Relaxed);
        let at = offset(before, self.len);
        let skip = match record {
            o if o == at => 0,
            0 if at + bytes > self.len => self.len - at,
            _ => return Err(Violation),
        };
        if record + bytes > self.len {
            return Err(Violation);
        }
        let consumed = before + skip + bytes;
        self.consumed.store(consumed, Ordering::Relaxed);
        if consumed - self.credited.load(Ordering::Relaxed) < self.len / 4 {
            return Ok(None);
        }
        self.credited.store(consumed, Ordering::Relaxed);
        Ok(Some(((consumed / u64::from(GRAIN)) & 0xff_ffff) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes after which a credit wraps.
    const CREDIT_WRAP: u64 = (1 << 24) * GRAIN as u64;
    const LEN: u32 = 16384;

    /// A position of a connection: near its beginning, or near one where a number wraps.
    fn position() -> impl Strategy<Value = u64> {
        let wraps = prop_oneof![Just(CREDIT_WRAP), Just(1 << 32), Just(7 * CREDIT_WRAP), Just(1 << 56)];
        let near = (wraps, 0..4 * u64::from(LEN / GRAIN));
        prop_oneof![Just(0), near.prop_map(|(wrap, grains)| wrap - grains * u64::from(GRAIN))]
    }

    /// Both ends of a ring of which all has been consumed up to a position.
    fn both_at(start: u64) -> (RingTx, RingRx) {
        let len = u64::from(LEN);
        let [consumed, credited] = [start; 2].map(AtomicU64::new);
        (RingTx { len, head: start, credited: start }, RingRx { len, consumed, credited })
    }

    proptest! {
        /// For all sizes, all delays of the reader and all starting positions, records do not overlap
        /// unread ones, and both sides make progress.
        #[test]
        fn never_overruns(
            sizes in proptest::collection::vec(1u32..4096, 1..400),
            lag in 0usize..20,
            start in position(),
        ) {
            let (mut tx, rx) = both_at(start);
            let mut unread = std::collections::VecDeque::new();
            for size in sizes {
                loop {
                    if let Some((at, end)) = tx.place(size) {
                        let range = at..at + size;
                        prop_assert!(range.end <= LEN);
                        for &(a, n) in &unread {
                            prop_assert!(a + n <= range.start || range.end <= a, "{:?} over {}+{}", range, a, n);
                        }
                        tx.commit(end);
                        unread.push_back((at, size));
                        break;
                    }
                    // No room although all is read would be a deadlock.
                    let (at, n) = unread.pop_front().expect("stuck");
                    if let Some(credit) = rx.consume(at, n).expect("the next record") {
                        prop_assert_eq!(tx.credit(credit), Ok(()));
                    }
                }
                while unread.len() > lag {
                    let (at, n) = unread.pop_front().unwrap();
                    if let Some(credit) = rx.consume(at, n).expect("the next record") {
                        prop_assert_eq!(tx.credit(credit), Ok(()));
                    }
                }
            }
        }

        #[test]
        fn nonsense_is_refused(
            offset in 1u32..u32::MAX,
            bytes in 1u32..1 << 20,
            credit in 1u32..1 << 24,
            start in position(),
        ) {
            prop_assert_eq!(RingRx::new(LEN).consume(offset, bytes), Err(Violation));
            // A credit for more than has been written, which is nothing.
            let (mut tx, _) = both_at(start);
            let given = (start / u64::from(GRAIN)) as u32;
            prop_assert_eq!(tx.credit(given.wrapping_add(credit) & 0xff_ffff), Err(Violation));
            prop_assert_eq!(tx.credit(given & 0xff_ffff), Ok(()), "the same once more changes nothing");
            prop_assert_eq!(tx.credited, start);
        }
    }
}
