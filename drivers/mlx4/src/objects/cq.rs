//! Completion queues: the entries that the card has written, and the completions of queue pairs that were
//! destroyed.

use crate::bringup::capabilities::Capabilities;
use crate::command::{Command, Opcode};
use crate::datapath::cqe::Cqe;
use crate::datapath::doorbell::{Arm, Page};
use crate::datapath::ring::QpRings;
use crate::device::Device;
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::{Object, PageRun};
use crate::mailbox::{Field, Mailbox};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use verbs::{Completion, CqId, QpNum};

/// The context (Linux `mlx4_cq_context`, PRM `cqc`).
mod field {
    use super::Field;
    pub(super) const LOG_ENTRIES: Field = Field::bits(0x0c, 28, 24);
    pub(super) const UAR: Field = Field::bits(0x0c, 23, 0);
    pub(super) const EQN: Field = Field::bits(0x14, 8, 0);
    pub(super) const MTT: Field = Field::word(0x1c);
    pub(super) const RECORD: usize = 0x38;
}

/// The value of each byte in a new queue (Linux), which marks the entries as the card's.
const UNWRITTEN: u64 = 0xcccc_cccc_cccc_cccc;
/// The number of meaningful words in the 32 bytes of an entry.
const WORDS: usize = 4;
/// Bytes after the entries, for the doorbell record.
const RECORD: u64 = 64;
/// Mask of the card's index of entries.
const INDEX: u32 = 0xff_ffff;

/// The number of work requests that a completion queue still has room for: the card must never find it full.
/// Below 0 while a caller that asked for too much gives it back.
pub(crate) struct Credit(AtomicI32);

impl Credit {
    /// Reserves room for up to `most` more work requests. Returns the number of those that there is room for.
    #[inline(always)]
    pub(crate) fn take(&self, most: u32) -> u32 {
        let left = self.0.fetch_sub(most.cast_signed(), Ordering::Relaxed);
        if left >= most.cast_signed() { most } else { self.take_rest(most, left) }
    }

    /// Returns the smaller of `most` and `left`, and releases the credit above it.
    #[cold]
    fn take_rest(&self, most: u32, left: i32) -> u32 {
        let taken = left.max(0).cast_unsigned();
        self.give(most - taken);
        taken
    }

    /// Releases room for `count` work requests.
    pub(crate) fn give(&self, count: u32) {
        self.0.fetch_add(count.cast_signed(), Ordering::Relaxed);
    }
}

/// The numbers on the card: that of a completion queue, and that of the event queue it reports to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqNumbers {
    pub(crate) queue: u32,
    pub(crate) eqn: u32,
}

/// A reference to a completion queue, which queue pairs hold.
#[derive(Clone)]
pub(crate) struct CqRef {
    pub(crate) id: CqId,
    /// The queue's number on the card.
    pub(crate) number: u32,
    pub(crate) credit: Arc<Credit>,
}

/// A completion queue.
pub(crate) struct Cq<B> {
    number: u32,
    buffer: B,
    log_entries: u32,
    /// The distance of entries, in words.
    stride: usize,
    page: Page,
    /// The page entries of the buffer.
    pages: PageRun,
    /// The number of entries consumed, as the card counts them.
    consumer: u32,
    /// The number of events of the completion queue so far, plus one.
    sequence: u32,
    credit: Arc<Credit>,
    /// The queue pairs that use this completion queue, by slot.
    queues: Vec<Option<Arc<QpRings<B>>>>,
    /// The slot of the queue pair of the last completion.
    last: usize,
    /// Completions taken from the card before their queue pair was destroyed, and those of its flushed work.
    backlog: VecDeque<Completion>,
    /// The number of entries without a work request.
    unexpected: u64,
}

/// A consumer of a queue's entries.
struct Entries<'a, B> {
    /// The queue's memory from the first entry's content on. The content of an entry of 64 bytes is in its
    /// second half.
    words: &'a [AtomicU64],
    /// The number of entries, a power of two.
    count: u32,
    stride: usize,
    consumer: u32,
    queues: &'a [Option<Arc<QpRings<B>>>],
    /// The slot of the queue pair of the last entry.
    last: usize,
    /// The number of work requests that the consumed entries have completed.
    retired: u32,
    /// The number of entries without a work request.
    unexpected: u32,
}

impl<'a, B: Block> Entries<'a, B> {
    /// Returns the words of the entry at a consumer index, and the last one's value, if the card has written
    /// it.
    #[inline(always)]
    fn written(&self, consumer: u32) -> Option<(&[AtomicU64; WORDS], u64)> {
        const OWNER: u64 = 0x80;
        let from = (consumer & (self.count - 1)) as usize * self.stride;
        let words = self.words.get(from..)?.first_chunk::<WORDS>()?;
        let [.., last] = words;
        let last = u64::from_be(last.load(Ordering::Acquire));
        let lap = consumer & self.count != 0;
        ((last & OWNER != 0) == lap).then_some((words, last))
    }

    /// Returns the completion entry at a consumer index, if the card has written it.
    #[inline(always)]
    fn entry(&self, consumer: u32) -> Option<Cqe> {
        let (words, last) = self.written(consumer)?;
        Some(Self::read(words, last))
    }

    /// Returns a completion entry that the card has written, whose last word is `last`.
    #[inline(always)]
    fn read([first, second, third, _]: &[AtomicU64; WORDS], last: u64) -> Cqe {
        let word = |word: &AtomicU64| u64::from_be(word.load(Ordering::Relaxed));
        Cqe([word(first), word(second), word(third), last])
    }

    /// Consumes entries up to the end of `out`, writes their completions there, and returns their number.
    #[inline(always)]
    fn take(&mut self, out: &mut [Completion]) -> usize {
        let mut taken = 0;
        while let Some((words, last)) = self.written(self.consumer) {
            // A receive mostly comes alone, and the loop over sends costs more than a look at one entry.
            if Cqe([0, 0, 0, last]).is_send() {
                let (sends, is_empty) = self.take_sends(out.get_mut(taken..).unwrap_or_default());
                taken += sends;
                if is_empty || out.get_mut(taken).and_then(|out| self.next(out)).is_none() {
                    break;
                }
                taken += 1;
            } else {
                let cqe = Self::read(words, last);
                let Some(out) = out.get_mut(taken) else { break };
                if self.consume(cqe, out, QpRings::complete_receive) {
                    taken += 1;
                } else if self.has_skipped_most() {
                    break;
                }
            }
        }
        taken
    }

    /// Consumes the next entries as long as they are of successful send work of the last queue pair. This is
    /// most of all entries, so they have a loop without calls. Returns their number, and true if the card has
    /// written no more.
    #[inline(never)]
    fn take_sends(&mut self, out: &mut [Completion]) -> (usize, bool) {
        let Some(queue) = self.queues.get(self.last).and_then(Option::as_deref) else { return (0, false) };
        let mut sends = queue.sends_in_flight();
        let mut consumer = self.consumer;
        let mut is_empty = false;
        for out in out {
            let Some(cqe) = self.entry(consumer) else {
                is_empty = true;
                break;
            };
            if cqe.qp() != queue.number() || queue.complete_success(&mut sends, cqe, out).is_none() {
                break;
            }
            consumer = consumer.wrapping_add(1);
        }
        self.retired = self.retired.wrapping_add(sends.finish());
        let before = core::mem::replace(&mut self.consumer, consumer);
        (consumer.wrapping_sub(before) as usize, is_empty)
    }

    /// Consumes entries up to the next completion, writes that to `out`, and returns its entry. Entries
    /// without a work request are skipped.
    #[inline(never)]
    fn next(&mut self, out: &mut Completion) -> Option<Cqe> {
        loop {
            let cqe = self.entry(self.consumer)?;
            if self.consume(cqe, out, QpRings::complete) {
                return Some(cqe);
            }
            if self.has_skipped_most() {
                return None;
            }
        }
    }

    /// Returns true if as many entries without a work request have been consumed as the queue holds. The
    /// consumer ends then, so that a faulty card cannot keep the poller in it.
    #[inline(always)]
    const fn has_skipped_most(&self) -> bool {
        self.unexpected >= self.count
    }

    /// Consumes an entry. `complete` writes its completion to `out`, and returns the number of work requests
    /// that it completes. Returns false for an entry without a work request.
    #[inline(always)]
    fn consume(
        &mut self,
        cqe: Cqe,
        out: &mut Completion,
        complete: impl FnOnce(&QpRings<B>, Cqe, &mut Completion) -> Option<u32>,
    ) -> bool {
        self.consumer = self.consumer.wrapping_add(1);
        let retired = self.queue(cqe.qp()).and_then(|queue| complete(queue, cqe, out));
        self.retired = self.retired.wrapping_add(retired.unwrap_or(0));
        self.unexpected += u32::from(retired.is_none());
        retired.is_some()
    }

    /// Returns the queue pair with a number, if it uses this completion queue.
    fn queue(&mut self, number: QpNum) -> Option<&'a QpRings<B>> {
        self.last = QpRings::<B>::slot_of(number);
        self.queues.get(self.last)?.as_deref().filter(|queue| queue.number() == number)
    }
}

impl<B: Block> Cq<B> {
    /// Makes a queue for up to `depth` completions.
    pub(crate) fn create(
        device: &mut Device<'_, impl Hardware<Block = B>>,
        card: &Capabilities,
        numbers: CqNumbers,
        depth: u32,
    ) -> Result<Self, Error> {
        let log_entries = (depth + 1).next_power_of_two().ilog2();
        let stride = if card.large_cqes { 2 * WORDS } else { WORDS };
        let bytes = (stride as u64 * 8) << log_entries;
        let buffer = device.hw().allocate(bytes + RECORD).ok_or(Error::NoMemory("a completion queue"))?;
        let mut queue = Self {
            number: numbers.queue,
            buffer,
            log_entries,
            stride,
            page: Page::of(0, card),
            pages: PageRun::new(0, 0),
            consumer: 0,
            sequence: 1,
            credit: Arc::new(Credit(AtomicI32::new(depth.cast_signed()))),
            queues: Vec::new(),
            last: 0,
            backlog: VecDeque::new(),
            unexpected: 0,
        };
        queue.recreate(device, card, numbers)?;
        Ok(queue)
    }

    /// Makes the queue known to a card, under its numbers there. Completions taken from it
    /// before are kept.
    pub(crate) fn recreate(
        &mut self,
        device: &mut Device<'_, impl Hardware<Block = B>>,
        card: &Capabilities,
        numbers: CqNumbers,
    ) -> Result<(), Error> {
        let CqNumbers { queue: number, eqn } = numbers;
        let bytes = (self.stride as u64 * 8) << self.log_entries;
        device.ensure_icm(Object::Cq, number.into(), 1)?;
        for word in self.buffer.iter().take(self.stride << self.log_entries) {
            word.store(UNWRITTEN, Ordering::Relaxed);
        }
        (self.number, self.consumer, self.sequence) = (number, 0, 1);
        if let Some(record) = self.buffer.get(self.stride << self.log_entries) {
            record.store(0, Ordering::Release);
        }
        let pages = device.map_queue(self.buffer.addr(), bytes)?;
        let mut context = Mailbox::new()
            .with(field::LOG_ENTRIES, self.log_entries)
            .with(field::UAR, self.page.index())
            .with(field::EQN, eqn)
            .with(field::MTT, pages.offset() as u32);
        context.set_wide(field::RECORD, self.buffer.addr().0 + bytes);
        let create = Command::new(Opcode::Sw2HwCq).of(number).variant(card.marks_cqs.into());
        if let Err(error) = device.commands.exec_in(create, &context) {
            device.unmap(pages);
            return Err(error);
        }
        self.pages = pages;
        Ok(())
    }

    /// Returns a reference to this queue, which queue pairs hold. `id` is the index of the queue.
    pub(crate) fn reference(&self, id: CqId) -> CqRef {
        CqRef { id, number: self.number, credit: self.credit.clone() }
    }

    /// Returns the queue's number on the card.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns true if any queue pair uses this completion queue.
    pub(crate) fn is_used(&self) -> bool {
        self.queues.iter().any(Option::is_some)
    }

    /// Destroys the queue on the card, which no longer writes to it after success.
    pub(crate) fn destroy(&self, device: &mut Device<'_, impl Hardware<Block = B>>) -> Result<(), Error> {
        const WITHOUT_MAILBOX: u8 = 1;
        device.commands.exec(Command::new(Opcode::Hw2SwCq).of(self.number).variant(WITHOUT_MAILBOX))?;
        device.unmap(self.pages);
        device.free_cqn(self.number)
    }

    /// Registers the queue pair in a slot as a user of this completion queue.
    pub(crate) fn attach(&mut self, slot: usize, queue: Arc<QpRings<B>>) {
        if self.queues.len() <= slot {
            self.queues.resize_with(slot + 1, || None);
        }
        if let Some(entry) = self.queues.get_mut(slot) {
            *entry = Some(queue);
        }
    }

    /// Detaches the queue pair in a slot, which the card has released. Takes all entries from the card;
    /// `undone` then adds the completions of the outstanding work.
    pub(crate) fn detach(
        &mut self,
        slot: usize,
        undone: impl FnOnce(&QpRings<B>, &mut VecDeque<Completion>),
    ) {
        let mut taken = core::mem::take(&mut self.backlog);
        self.take_entries(|entries| {
            let mut completion = Completion::BLANK;
            while entries.next(&mut completion).is_some() {
                taken.push_back(completion);
            }
        });
        self.backlog = taken;
        if let Some(queue) = self.queues.get_mut(slot).and_then(Option::take) {
            let before = self.backlog.len();
            undone(&queue, &mut self.backlog);
            self.credit.give((self.backlog.len() - before) as u32);
        }
    }

    /// Returns up to `out.len()` completions in `out`, and their number.
    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> usize {
        // A waiting core finds nothing most of the time, and then looks at one word only.
        if self.backlog.is_empty() && self.entries().written(self.consumer).is_none() {
            return 0;
        }
        let before = if self.backlog.is_empty() { 0 } else { self.take_backlog(out) };
        let rest = out.get_mut(before..).unwrap_or_default();
        before + self.take_entries(|entries| entries.take(rest))
    }

    #[cold]
    fn take_backlog(&mut self, out: &mut [Completion]) -> usize {
        let count = self.backlog.len().min(out.len());
        for (entry, completion) in out.iter_mut().zip(self.backlog.drain(..count)) {
            *entry = completion;
        }
        count
    }

    /// Takes one completion, with the 32-byte entry it was made from.
    pub(crate) fn take(&mut self) -> Option<(Completion, Cqe)> {
        let mut completion = Completion::BLANK;
        let cqe = self.take_entries(|entries| entries.next(&mut completion))?;
        Some((completion, cqe))
    }

    /// Returns a consumer of the entries that the card has written and the driver has not consumed.
    #[inline(always)]
    fn entries(&self) -> Entries<'_, B> {
        Entries {
            words: self.buffer.get(self.stride - WORDS..).unwrap_or_default(),
            count: 1 << self.log_entries,
            stride: self.stride,
            consumer: self.consumer,
            queues: &self.queues,
            last: self.last,
            retired: 0,
            unexpected: 0,
        }
    }

    /// Calls `take` to consume entries, and then updates the card's consumer index and the posters' credit.
    #[inline(always)]
    fn take_entries<T>(&mut self, take: impl FnOnce(&mut Entries<'_, B>) -> T) -> T {
        let mut entries = self.entries();
        let taken = take(&mut entries);
        let Entries { consumer, last, retired, unexpected, .. } = entries;
        self.last = last;
        self.unexpected += u64::from(unexpected);
        if consumer != self.consumer {
            self.consumer = consumer;
            self.credit.give(retired);
            self.update_consumer_index();
        }
        taken
    }

    /// Updates the card's consumer index. The arm word of the doorbell record stays.
    fn update_consumer_index(&self) {
        let arm = Arm { sequence: self.sequence, consumer: self.consumer }.record();
        self.store_record(arm);
    }

    fn store_record(&self, arm: u32) {
        if let Some(record) = self.buffer.get(self.stride << self.log_entries) {
            let word = u64::from(self.consumer & INDEX) << 32 | u64::from(arm);
            record.store(word.to_be(), Ordering::Release);
        }
    }

    /// Requests an event. Returns true if completions are already waiting.
    pub(crate) fn arm(&self, hw: &impl Hardware) -> bool {
        if !self.backlog.is_empty() || self.entries().entry(self.consumer).is_some() {
            return true;
        }
        let arm = Arm { sequence: self.sequence, consumer: self.consumer };
        self.store_record(arm.record());
        self.page.arm(hw, self.number, arm);
        false
    }

    /// Counts events of this queue.
    pub(crate) const fn on_events(&mut self, count: u32) {
        self.sequence = self.sequence.wrapping_add(count);
    }

    /// Returns the number of entries without a work request.
    pub(crate) const fn unexpected_entries(&self) -> u64 {
        self.unexpected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::ring::Shape;
    use core::ops::Deref;
    use platform::IoAddr;
    use verbs::{WorkKind, WrId};

    struct Words(Vec<AtomicU64>);

    impl Deref for Words {
        type Target = [AtomicU64];
        fn deref(&self) -> &[AtomicU64] {
            &self.0
        }
    }

    impl Block for Words {
        fn addr(&self) -> IoAddr {
            IoAddr(0)
        }
    }

    fn words(count: usize) -> Words {
        Words((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// The number of the queue pair, and another one in the same slot.
    const QP: u32 = 0x5040;
    const OTHER: u32 = 0x6040;

    /// Takes up to `room` completions out of eight entries of receives of these queue pairs, all of which the
    /// card has written. Returns the identifiers, the number of entries consumed, and the number of entries
    /// without a work request.
    fn take(of: [u32; 8], room: usize) -> (Vec<u64>, u32, u32) {
        let shape = Shape::new(1, 8, 14).unwrap();
        let number = QpNum::new(QP);
        let rings = Arc::new(QpRings::new(number, false, words(shape.bytes() as usize / 8 + 1), shape));
        for index in 0..8 {
            rings.receives.post(index, WrId(u64::from(index) + 100));
        }
        let mut queues: Vec<Option<Arc<QpRings<Words>>>> = Vec::new();
        queues.resize_with(QpRings::<Words>::slot_of(number) + 1, || None);
        queues[QpRings::<Words>::slot_of(number)] = Some(rings);
        let memory = words(8 * WORDS);
        for (entry, qp) in memory.0.chunks(WORDS).zip(of) {
            entry[0].store((u64::from(qp) << 32 | 7).to_be(), Ordering::Relaxed);
        }
        let mut entries = Entries {
            words: &memory,
            count: 8,
            stride: WORDS,
            consumer: 0,
            queues: &queues,
            last: 0,
            retired: 0,
            unexpected: 0,
        };
        let mut out = [Completion::BLANK; 8];
        let taken = entries.take(&mut out[..room]);
        assert_eq!(entries.retired as usize, taken);
        for completion in &out[..taken] {
            assert_eq!((completion.kind, completion.imm), (WorkKind::RecvWriteImm, Some(7)));
        }
        let ids = out[..taken].iter().map(|completion| completion.id.0).collect();
        (ids, entries.consumer, entries.unexpected)
    }

    #[test]
    fn receives_are_taken_and_entries_without_a_work_request_skipped() {
        assert_eq!(take([QP; 8], 8), ((100..108).collect(), 8, 0));
        assert_eq!(take([QP; 8], 3), ([100, 101, 102].into(), 3, 0));
        let mixed = [QP, OTHER, OTHER, QP, OTHER, QP, OTHER, OTHER];
        assert_eq!(take(mixed, 8), ([100, 101, 102].into(), 8, 5));
        assert_eq!(take(mixed, 2), ([100, 101].into(), 4, 2));
        assert_eq!(take([OTHER; 8], 8), (Vec::new(), 8, 8));
    }
}
