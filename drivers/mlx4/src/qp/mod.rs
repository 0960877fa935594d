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
use crate::wqe::{Bounds, CHUNK_WORDS, Source, WORDS, Wqe, store_receive};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use context::{Fixed, Service};
use queue::QueuePair;
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
    /// Where requests are written.
    wqe: Wqe,
    /// Chunks that the request last stored in each entry had.
    chunks: Box<[u8]>,
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

impl<B: Block> Slot<B> {
    /// A queue pair that the card knows.
    pub(crate) fn new(parts: Parts<B>) -> Self {
        let Parts { queue, fixed, pages, cqs, credits, page, blue_flame } = parts;
        let ([send_cq, recv_cq], [send_credit, recv_credit]) = (cqs, credits);
        let chunks = vec![1; 1 << queue.shape.log_sends].into();
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
            wqe: Wqe::blank(),
            chunks,
        }
    }

    /// Queues send work of a connection.
    #[inline]
    pub(crate) fn post_send<H: Hardware<Block = B>>(
        &mut self,
        bounds: &Bounds<'_, H>,
        work: &[SendWr<'_>],
    ) -> Result<(), (usize, VerbsError)> {
        if self.fixed.service != Service::Reliable {
            return Err((0, VerbsError::InvalidArgument));
        }
        if self.stage != Stage::Connected {
            return Err((0, VerbsError::InvalidState));
        }
        self.post(bounds.hw, work, |wr, wqe| wqe.request(wr, bounds).map(|()| wr.id))
    }

    /// Queues datagrams by a port.
    pub(crate) fn post_datagrams<H: Hardware<Block = B>>(
        &mut self,
        bounds: &Bounds<'_, H>,
        port: Port,
        work: &[UdSendWr<'_>],
    ) -> Result<(), (usize, VerbsError)> {
        if !matches!(self.fixed.service, Service::Datagram(_)) {
            return Err((0, VerbsError::InvalidArgument));
        }
        if self.stage == Stage::Lost {
            return Err((0, VerbsError::InvalidState));
        }
        let domain = self.fixed.domain;
        self.post(bounds.hw, work, |wr, wqe| {
            let row = port.row(wr.to.link).ok_or(VerbsError::Unsupported)?;
            wqe.datagram(wr, bounds, Source { port: port.number, row, domain })?;
            Ok(wr.id)
        })
    }

    /// Queues requests as `write` writes them, giving their names, and rings the doorbell once for all of them.
    #[inline]
    pub(crate) fn post<T, H: Hardware<Block = B>>(
        &mut self,
        hw: &H,
        work: &[T],
        write: impl Fn(&T, &mut Wqe) -> Result<WrId, VerbsError>,
    ) -> Result<(), (usize, VerbsError)> {
        let (mut done, mut outcome) = (0, Ok(()));
        let alone = work.len() == 1;
        for wr in work {
            let written = write(wr, &mut self.wqe);
            match written.and_then(|id| self.post_one(hw, id, alone)) {
                Ok(()) => done += 1,
                Err(error) => {
                    outcome = Err((done, error));
                    break;
                }
            }
        }
        if done == 0 {
            return outcome;
        }
        self.posts.sends += done as u64;
        if alone && self.blue_flame.is_some() {
            self.posts.blue_flames += 1;
        } else {
            self.page.ring_send(hw, self.fixed.number.get());
            self.posts.doorbells += 1;
        }
        // The next entry that comes into the card's reach ahead.
        self.stamp_ahead(done);
        outcome
    }

    /// Stores the request that was written; `alone`: it goes to the card with its doorbell where that can be.
    #[inline]
    fn post_one(&mut self, hw: &impl Hardware<Block = B>, id: WrId, alone: bool) -> Result<(), VerbsError> {
        let (queue, wqe) = (&*self.queue, &mut self.wqe);
        let index = queue.sends.next(queue.shape.send_depth).ok_or(VerbsError::NoResources)?;
        if !self.send_credit.take() {
            return Err(VerbsError::NoResources);
        }
        let number = self.fixed.number.get();
        let register = self.blue_flame.as_mut().filter(|_| alone);
        if register.is_some() {
            wqe.address(index, number);
        }
        queue.sends.post(index, id);
        wqe.store(queue.send_entry(index), index >> queue.shape.log_sends & 1 != 0);
        if let Some(chunks) = self.chunks.get_mut(index as usize & ((1 << queue.shape.log_sends) - 1)) {
            *chunks = wqe.chunks() as u8;
        }
        if let Some(register) = register {
            let mut words = [0; WORDS];
            for (place, word) in words.iter_mut().zip(wqe.words()) {
                *place = word;
            }
            let words = words.get(..wqe.chunks() * CHUNK_WORDS).unwrap_or_default();
            let half = if register.second { register.half } else { 0 };
            register.second = !register.second;
            self.page.blue_flame(hw, register.base, half, words);
        }
        Ok(())
    }

    /// Marks the entries that the card will fetch ahead from now on as not written: those of the lap before that lie
    /// [`Shape::SPARE`](queue::Shape::SPARE) ahead of the last `count` requests, and so have ended.
    #[inline]
    fn stamp_ahead(&mut self, count: usize) {
        let queue = &*self.queue;
        let mask = (1u32 << queue.shape.log_sends) - 1;
        let next = queue.sends.posted();
        for n in 0..count as u32 {
            let index = next.wrapping_sub(1 + n).wrapping_add(queue::Shape::SPARE);
            if let Some(chunks) = self.chunks.get_mut((index & mask) as usize).filter(|chunks| **chunks > 1) {
                QueuePair::<B>::stamp(queue.send_entry(index), usize::from(*chunks) * CHUNK_WORDS);
                *chunks = 1;
            }
        }
    }

    /// Queues receives, and tells the card once of all of them.
    pub(crate) fn post_recv<H: Hardware<Block = B>>(
        &mut self,
        bounds: &Bounds<'_, H>,
        work: &[RecvWr<'_>],
    ) -> Result<(), (usize, VerbsError)> {
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
