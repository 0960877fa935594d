//! Queue pairs: their numbers, contexts and rings, and posting.

pub(crate) mod context;
pub(crate) mod numbers;
pub(crate) mod queue;

use crate::capabilities::BlueFlame;
use crate::cq::Credit;
use crate::doorbell::Page;
use crate::hardware::{Block, Hardware};
use crate::icm::PageRun;
use crate::port::Port;
use crate::wqe::{Bounds, CHUNK_WORDS, Entry, Head, Source, WORDS, Wqe, stamp, store_receive};
use alloc::sync::Arc;
use context::{Fixed, Service};
use core::sync::atomic::Ordering;
use queue::{QueuePair, Shape};
use verbs::{CqId, RecvWr, SendWr, UdSendWr, VerbsError, WrId};

/// How far a queue pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Receives may be posted.
    Created,
    /// It is connected.
    Connected,
    /// The card was reset. All its work has ended.
    Lost,
}

/// How often the card was told of work. Each queue pair counts for itself, behind its lock.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Posts {
    /// Send requests posted.
    pub(crate) sends: u64,
    /// Doorbells rung for them.
    pub(crate) doorbells: u64,
    /// Requests that went to the card along with their doorbell.
    pub(crate) blue_flames: u64,
}

impl Posts {
    /// Adds what another has counted.
    pub(crate) const fn add(&mut self, other: Self) {
        self.sends += other.sends;
        self.doorbells += other.doorbells;
        self.blue_flames += other.blue_flames;
    }
}

/// A queue pair as its poster has it, behind the lock of its slot: what the card needs in order.
pub(crate) struct Slot<B> {
    pub(crate) queue: Arc<QueuePair<B>>,
    pub(crate) fixed: Fixed,
    pub(crate) pages: PageRun,
    pub(crate) stage: Stage,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) send_credit: Arc<Credit>,
    pub(crate) recv_credit: Arc<Credit>,
    page: Page,
    blue_flame: Option<BlueFlameRegister>,
    pub(crate) posts: Posts,
}

/// The BlueFlame register of a queue pair's own page.
pub(crate) struct BlueFlameRegister {
    /// Where in BAR 2 the registers begin.
    base: u64,
    half: u64,
    second: bool,
}

impl BlueFlameRegister {
    /// That of the page with the same place behind the doorbells.
    pub(crate) const fn new(uar_len: u64, blue_flame: BlueFlame) -> Self {
        Self { base: uar_len, half: blue_flame.half, second: false }
    }

    /// Copies a request to the register of a page, along with its doorbell.
    #[inline(never)]
    fn write(&mut self, hw: &impl Hardware, page: Page, entry: &Entry) {
        let mut words = [0; WORDS];
        for (word, place) in words.iter_mut().zip(entry) {
            *word = place.load(Ordering::Relaxed);
        }
        let chunks = Head::chunks(u64::from_be(words[0]));
        let words = words.get(..chunks * CHUNK_WORDS).unwrap_or_default();
        let half = if self.second { self.half } else { 0 };
        self.second = !self.second;
        page.blue_flame(hw, self.base, half, words);
    }
}

/// What a queue pair is made of.
pub(crate) struct Parts<B> {
    pub(crate) queue: Arc<QueuePair<B>>,
    pub(crate) fixed: Fixed,
    pub(crate) pages: PageRun,
    pub(crate) cqs: [CqId; 2],
    pub(crate) credits: [Arc<Credit>; 2],
    pub(crate) page: Page,
    pub(crate) blue_flame: Option<BlueFlameRegister>,
}

/// What a poster is told: which request was refused, and why.
pub(crate) type Posted = Result<(), (usize, VerbsError)>;

impl<B: Block> Slot<B> {
    /// A queue pair that the card knows.
    pub(crate) fn new(parts: Parts<B>) -> Self {
        let Parts { queue, fixed, pages, cqs, credits, page, blue_flame } = parts;
        let ([send_cq, recv_cq], [send_credit, recv_credit]) = (cqs, credits);
        let (stage, posts) = (Stage::Created, Posts::default());
        Self {
            queue,
            fixed,
            pages,
            stage,
            send_cq,
            recv_cq,
            send_credit,
            recv_credit,
            page,
            blue_flame,
            posts,
        }
    }

    /// Queues send work of a connection.
    #[inline(always)]
    pub(crate) fn post_send<H: Hardware<Block = B>>(
        &mut self,
        bounds: &Bounds<'_, H>,
        work: &[SendWr<'_>],
    ) -> Posted {
        if self.stage != Stage::Connected {
            let connects = self.fixed.service == Service::Reliable;
            return Err((0, if connects { VerbsError::InvalidState } else { VerbsError::InvalidArgument }));
        }
        self.post(bounds.hw, work, |wr, wqe| Ok((wr.id, wqe.request(wr, bounds)?)))
    }

    /// Queues datagrams by a port.
    pub(crate) fn post_datagrams<H: Hardware<Block = B>>(
        &mut self,
        bounds: &Bounds<'_, H>,
        port: Port,
        work: &[UdSendWr<'_>],
    ) -> Posted {
        if !matches!(self.fixed.service, Service::Datagram(_)) {
            return Err((0, VerbsError::InvalidArgument));
        }
        if self.stage == Stage::Lost {
            return Err((0, VerbsError::InvalidState));
        }
        let domain = self.fixed.domain;
        self.post(bounds.hw, work, |wr, wqe| {
            let row = port.row(wr.to.link).ok_or(VerbsError::Unsupported)?;
            Ok((wr.id, wqe.datagram(wr, bounds, Source { port: port.number, row, domain })?))
        })
    }

    /// Queues requests as `write` writes them, giving their names, and rings the doorbell once for all of them.
    #[inline(always)]
    pub(crate) fn post<T, H: Hardware<Block = B>>(
        &mut self,
        hw: &H,
        work: &[T],
        write: impl Fn(&T, Wqe<'_>) -> Result<(WrId, Head), VerbsError>,
    ) -> Posted {
        let copied = work.len() == 1 && self.blue_flame.is_some();
        let (mut done, mut outcome) = (0, Ok(()));
        for wr in work {
            if let Err(error) = self.post_one(hw, wr, copied, &write) {
                outcome = Err((done, error));
                break;
            }
            done += 1;
        }
        self.posts.sends += done as u64;
        if done > 0 && !copied {
            self.page.ring_send(hw, self.fixed.number.get());
            self.posts.doorbells += 1;
        }
        outcome
    }

    /// Has `write` write a request, and gives it to the card. `copied`: it goes there along with its doorbell.
    #[inline(always)]
    fn post_one<T, H: Hardware<Block = B>>(
        &mut self,
        hw: &H,
        wr: &T,
        copied: bool,
        write: &impl Fn(&T, Wqe<'_>) -> Result<(WrId, Head), VerbsError>,
    ) -> Result<(), VerbsError> {
        let queue = &*self.queue;
        let ring = queue.send_ring();
        let at = |index: u32| ring.get((index & queue.send_mask) as usize).ok_or(VerbsError::NoResources);
        let index = queue.sends.next(queue.shape.send_depth).ok_or(VerbsError::NoResources)?;
        let (entry, ahead) = (at(index)?, at(index.wrapping_add(Shape::SPARE))?);
        if !self.send_credit.take() {
            return Err(VerbsError::NoResources);
        }
        // The card will fetch this one ahead from now on: that of the lap before, which has ended, must not look as if it were
        // written.
        stamp(ahead);
        let (id, head) = write(wr, Wqe::of(entry)).inspect_err(|_| self.send_credit.give(1))?;
        queue.sends.post(index, id);
        let word = head.word(index & (queue.send_mask + 1) != 0);
        let [first, ..] = entry;
        if copied && let Some(register) = &mut self.blue_flame {
            first.store((word | Head::address(index, self.fixed.number.get())).to_be(), Ordering::Release);
            register.write(hw, self.page, entry);
            self.posts.blue_flames += 1;
        } else {
            first.store(word.to_be(), Ordering::Release);
        }
        Ok(())
    }

    /// Queues receives, and tells the card once of all of them.
    pub(crate) fn post_recv<H: Hardware<Block = B>>(
        &mut self,
        bounds: &Bounds<'_, H>,
        work: &[RecvWr<'_>],
    ) -> Posted {
        if self.stage == Stage::Lost {
            return Err((0, VerbsError::InvalidState));
        }
        let queue = &*self.queue;
        let mut outcome = Ok(());
        for (done, wr) in work.iter().enumerate() {
            let posted = queue.receives.next(queue.shape.recv_depth).ok_or(VerbsError::NoResources);
            let posted = posted.and_then(|index| {
                store_receive(wr.scatter, bounds, queue.receive_entry(index))?;
                if self.recv_credit.take() { Ok(index) } else { Err(VerbsError::NoResources) }
            });
            match posted {
                Ok(index) => queue.receives.post(index, wr.id),
                Err(error) => {
                    outcome = Err((done, error));
                    break;
                }
            }
        }
        queue.tell_receives();
        outcome
    }
}
