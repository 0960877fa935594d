//! Completion queues: taking entries that the card has written, and the completions of queue pairs that are gone.

use crate::capabilities::Capabilities;
use crate::command::{Command, Commands, Opcode};
use crate::cqe::Cqe;
use crate::doorbell::{Arm, Page};
use crate::error::Error;
use crate::hardware::{Block, Hardware};
use crate::icm::{Object, PageRun};
use crate::layout::{Field, Mailbox};
use crate::qp::queue::QueuePair;
use crate::tables::Tables;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use verbs::{Completion, QpNum};

/// The context (Linux `mlx4_cq_context`, PRM `cqc`).
mod field {
    use super::Field;
    pub(super) const LOG_ENTRIES: Field = Field::bits(0x0c, 28, 24);
    pub(super) const UAR: Field = Field::bits(0x0c, 23, 0);
    pub(super) const EQN: Field = Field::bits(0x14, 8, 0);
    pub(super) const MTT: Field = Field::word(0x1c);
    pub(super) const RECORD: usize = 0x38;
}

/// What every byte of a new queue is (Linux): its entries are the card's.
const UNWRITTEN: u64 = 0xcccc_cccc_cccc_cccc;
/// Words of the 32 bytes of an entry that say something.
const WORDS: usize = 4;
/// Bytes behind the entries, for the doorbell record.
const RECORD: u64 = 64;
/// The card counts entries in so many bits.
const INDEX: u32 = 0xff_ffff;

/// Room of a completion queue for work that has not completed: the card must never find it full.
pub(crate) struct Credit(AtomicU32);

impl Credit {
    /// Takes room for one more. `false` if there is none.
    pub(crate) fn take(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Gives room back.
    pub(crate) fn give(&self, count: u32) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// A completion queue.
pub(crate) struct Cq<B> {
    number: u32,
    buffer: B,
    log_entries: u32,
    /// Words from entry to entry.
    stride: usize,
    page: Page,
    /// Where the card finds the buffer's pages.
    pages: PageRun,
    /// Entries taken, as the card counts.
    consumer: u32,
    /// Events that it has made, and one more.
    sequence: u32,
    pub(crate) credit: Arc<Credit>,
    /// The queue pairs that complete here, by their slots.
    queues: Vec<Option<Arc<QueuePair<B>>>>,
    /// What was taken from the card before its queue pair went, and what it left undone.
    backlog: VecDeque<Completion>,
    /// Entries that no work is behind.
    stray: u64,
}

/// Entries of a completion queue as they are taken.
struct Entries<'a, B> {
    words: &'a [AtomicU64],
    log_entries: u32,
    stride: usize,
    consumer: u32,
    queues: &'a [Option<Arc<QueuePair<B>>>],
    /// The queue pair of the entry taken last.
    last: Option<&'a QueuePair<B>>,
    /// Work requests that have ended with what was taken.
    retired: u32,
    /// Entries that no work is behind.
    stray: u32,
}

impl<'a, B: Block> Entries<'a, B> {
    /// The entry at the consumer's index, if the card has written it.
    #[inline(always)]
    fn peek(&self) -> Option<Cqe> {
        const OWNER: u64 = 0x80;
        let mask = (1u32 << self.log_entries) - 1;
        let end = ((self.consumer & mask) as usize + 1) * self.stride;
        let [first, second, third, last] = self.words.get(end - WORDS..end)? else { return None };
        let last = u64::from_be(last.load(Ordering::Acquire));
        let lap = self.consumer >> self.log_entries & 1 != 0;
        let word = |word: &AtomicU64| u64::from_be(word.load(Ordering::Relaxed));
        ((last & OWNER != 0) == lap).then(|| Cqe([word(first), word(second), word(third), last]))
    }

    /// Takes the next completion, to `place`; gives its entry. Entries that tell of no work are left out, as many as the queue
    /// holds: a card that writes nothing else keeps nobody.
    #[inline(always)]
    fn next(&mut self, place: &mut Completion) -> Option<Cqe> {
        loop {
            let cqe = self.peek()?;
            self.consumer = self.consumer.wrapping_add(1);
            if let Some(retired) = self.queue(cqe.qp()).and_then(|queue| queue.complete(cqe, place)) {
                self.retired = self.retired.wrapping_add(retired);
                return Some(cqe);
            }
            self.stray += 1;
            if self.stray >> self.log_entries != 0 {
                return None;
            }
        }
    }

    /// The queue pair with a number, if it completes here.
    #[inline(always)]
    fn queue(&mut self, number: QpNum) -> Option<&'a QueuePair<B>> {
        if let Some(queue) = self.last.filter(|queue| queue.number() == number) {
            return Some(queue);
        }
        let queue = self.queues.get(QueuePair::<B>::slot_of(number))?.as_deref()?;
        self.last = Some(queue).filter(|queue| queue.number() == number);
        self.last
    }
}

impl<B: Block> Cq<B> {
    /// Makes a queue for `depth` completions.
    pub(crate) fn create(
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        tables: &mut Tables<B>,
        card: &Capabilities,
        [number, eqn, depth]: [u32; 3],
    ) -> Result<Self, Error> {
        let log_entries = (depth + 1).next_power_of_two().ilog2();
        let stride = if card.large_cqes { 2 * WORDS } else { WORDS };
        let bytes = (stride as u64 * 8) << log_entries;
        let buffer = hw.allocate(bytes + RECORD).ok_or(Error::NoMemory("a completion queue"))?;
        let mut queue = Self {
            number,
            buffer,
            log_entries,
            stride,
            page: Page::of(0, card),
            pages: PageRun::new(0, 0),
            consumer: 0,
            sequence: 1,
            credit: Arc::new(Credit(AtomicU32::new(depth))),
            queues: Vec::new(),
            backlog: VecDeque::new(),
            stray: 0,
        };
        queue.renew(hw, commands, tables, card, [number, eqn])?;
        Ok(queue)
    }

    /// Has a card that does not know the queue know it, as a new one by a number. What was taken from it before stays.
    pub(crate) fn renew(
        &mut self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        tables: &mut Tables<B>,
        card: &Capabilities,
        [number, eqn]: [u32; 2],
    ) -> Result<(), Error> {
        let bytes = (self.stride as u64 * 8) << self.log_entries;
        tables.back(hw, commands, Object::Cq, number.into(), 1)?;
        for word in self.buffer.iter().take(self.stride << self.log_entries) {
            word.store(UNWRITTEN, Ordering::Relaxed);
        }
        (self.number, self.consumer, self.sequence) = (number, 0, 1);
        if let Some(record) = self.buffer.get(self.stride << self.log_entries) {
            record.store(0, Ordering::Release);
        }
        let pages = tables.map_queue(hw, commands, self.buffer.addr(), bytes)?;
        let mut context = Mailbox::new()
            .with(field::LOG_ENTRIES, self.log_entries)
            .with(field::UAR, self.page.index())
            .with(field::EQN, eqn)
            .with(field::MTT, pages.offset() as u32);
        context.set_wide(field::RECORD, self.buffer.addr().0 + bytes);
        let create = Command::new(Opcode::Sw2HwCq).of(number).variant(card.marks_cqs.into());
        if let Err(error) = commands.send(hw, create, &context) {
            tables.unmap_queue(hw, commands, pages);
            return Err(error);
        }
        self.pages = pages;
        Ok(())
    }

    /// Its number on the card.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Whether queue pairs complete here.
    pub(crate) fn is_used(&self) -> bool {
        self.queues.iter().any(Option::is_some)
    }

    /// Takes it back from the card, which writes nothing into it any more.
    pub(crate) fn destroy(
        &self,
        hw: &impl Hardware<Block = B>,
        commands: &mut Commands<B>,
        tables: &mut Tables<B>,
    ) -> Result<(), Error> {
        const WITHOUT_MAILBOX: u8 = 1;
        commands.run(hw, Command::new(Opcode::Hw2SwCq).of(self.number).variant(WITHOUT_MAILBOX))?;
        tables.unmap_queue(hw, commands, self.pages);
        tables.give_cq(hw, commands, self.number)
    }

    /// The queue pair in a slot completes here from now on.
    pub(crate) fn attach(&mut self, slot: usize, queue: Arc<QueuePair<B>>) {
        if self.queues.len() <= slot {
            self.queues.resize_with(slot + 1, || None);
        }
        if let Some(place) = self.queues.get_mut(slot) {
            *place = Some(queue);
        }
    }

    /// The card has let go of the queue pair in a slot: what it has written is taken, and `undone` says what ends with it.
    pub(crate) fn detach(
        &mut self,
        slot: usize,
        undone: impl FnOnce(&QueuePair<B>, &mut VecDeque<Completion>),
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

    /// Takes up to `out.len()` completions.
    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> usize {
        let before = if self.backlog.is_empty() { 0 } else { self.take_backlog(out) };
        let rest = out.get_mut(before..).unwrap_or_default();
        before
            + self.take_entries(|entries| {
                let mut taken = 0;
                for place in rest {
                    if entries.next(place).is_none() {
                        break;
                    }
                    taken += 1;
                }
                taken
            })
    }

    #[cold]
    fn take_backlog(&mut self, out: &mut [Completion]) -> usize {
        let count = self.backlog.len().min(out.len());
        for (place, completion) in out.iter_mut().zip(self.backlog.drain(..count)) {
            *place = completion;
        }
        count
    }

    /// Takes one completion, with all that the card says of it.
    pub(crate) fn take(&mut self) -> Option<(Completion, Cqe)> {
        let mut completion = Completion::BLANK;
        let cqe = self.take_entries(|entries| entries.next(&mut completion))?;
        Some((completion, cqe))
    }

    /// The entries that the card has written and nobody has taken.
    #[inline(always)]
    fn entries(&self) -> Entries<'_, B> {
        Entries {
            words: &self.buffer,
            log_entries: self.log_entries,
            stride: self.stride,
            consumer: self.consumer,
            queues: &self.queues,
            last: None,
            retired: 0,
            stray: 0,
        }
    }

    /// Has `take` take entries, and then tells the card, and whoever posts, how many were taken.
    #[inline(always)]
    fn take_entries<T>(&mut self, take: impl FnOnce(&mut Entries<'_, B>) -> T) -> T {
        let mut entries = self.entries();
        let taken = take(&mut entries);
        let Entries { consumer, retired, stray, .. } = entries;
        self.stray += u64::from(stray);
        if consumer != self.consumer {
            self.consumer = consumer;
            self.credit.give(retired);
            self.tell();
        }
        taken
    }

    /// Tells the card how far entries were taken. The arm word of the record stays.
    fn tell(&self) {
        let arm = Arm { sequence: self.sequence, consumer: self.consumer }.record();
        self.store_record(arm);
    }

    fn store_record(&self, arm: u32) {
        if let Some(record) = self.buffer.get(self.stride << self.log_entries) {
            let word = u64::from(self.consumer & INDEX) << 32 | u64::from(arm);
            record.store(word.to_be(), Ordering::Release);
        }
    }

    /// Asks for an event. `true`: completions already wait.
    pub(crate) fn arm(&self, hw: &impl Hardware) -> bool {
        if !self.backlog.is_empty() || self.entries().peek().is_some() {
            return true;
        }
        let arm = Arm { sequence: self.sequence, consumer: self.consumer };
        self.store_record(arm.record());
        self.page.arm(hw, self.number, arm);
        false
    }

    /// It has made an event.
    pub(crate) const fn had_event(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Entries that no work was behind.
    pub(crate) const fn stray(&self) -> u64 {
        self.stray
    }
}
