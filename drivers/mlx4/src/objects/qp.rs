//! Queue pairs, and posting to their rings.

use crate::bringup::capabilities::BlueFlame;
use crate::datapath::doorbell::Page;
use crate::datapath::ring::{QpRings, Shape};
use crate::datapath::wqe::entry::{CHUNK_WORDS, Entry, Head, WORDS, stamp};
use crate::datapath::wqe::{PostLimits, Source, Wqe, store_receive};
use crate::hardware::{Block, Hardware};
use crate::icm::PageRun;
use crate::objects::cq::CqRef;
use crate::objects::port::Port;
use crate::objects::qp_context::{QpAttributes, Service};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use verbs::{RecvWr, SendWr, UdSendWr, VerbsError, WrId};

/// The state of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QpState {
    /// Receives may be posted.
    Created,
    /// The queue pair is connected.
    Connected,
    /// The card was reset, and all work has completed as flushed.
    Lost,
}

/// Counts of posted work. Each queue pair has its own, behind its lock.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct PostCounts {
    /// The number of send requests posted.
    pub(crate) sends: u64,
    /// The number of doorbells rung for sends.
    pub(crate) doorbells: u64,
    /// The number of requests written to the card together with their doorbell.
    pub(crate) blue_flames: u64,
}

impl PostCounts {
    /// Adds the counts of another queue pair.
    pub(crate) const fn add(&mut self, other: Self) {
        self.sends += other.sends;
        self.doorbells += other.doorbells;
        self.blue_flames += other.blue_flames;
    }
}

/// The completion queues of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct Cqs<T> {
    pub(crate) send: T,
    pub(crate) receive: T,
}

/// The poster's side of a queue pair, behind the lock of its slot, because the card needs work requests in
/// order.
pub(crate) struct Qp<B> {
    pub(crate) rings: Arc<QpRings<B>>,
    pub(crate) attributes: QpAttributes,
    pub(crate) pages: PageRun,
    pub(crate) state: QpState,
    pub(crate) cqs: Cqs<CqRef>,
    page: Page,
    blue_flame: Option<BlueFlameRegister>,
    pub(crate) posts: PostCounts,
}

/// The BlueFlame register on the page of a queue pair.
pub(crate) struct BlueFlameRegister {
    /// The offset in BAR 2 at which the registers begin.
    base: u64,
    half: u64,
    second: bool,
}

impl BlueFlameRegister {
    /// Makes the register; its page has the same index among the registers as among the doorbells.
    pub(crate) const fn new(uar_len: u64, blue_flame: BlueFlame) -> Self {
        Self { base: uar_len, half: blue_flame.half, second: false }
    }

    /// Writes a request to the register of a page, together with its doorbell.
    #[inline(never)]
    fn write(&mut self, hw: &impl Hardware, page: Page, entry: &Entry) {
        let mut words = [0; WORDS];
        for (word, source) in words.iter_mut().zip(entry) {
            *word = source.load(Ordering::Relaxed);
        }
        let chunks = Head::chunks(u64::from_be(words[0]));
        let words = words.get(..chunks * CHUNK_WORDS).unwrap_or_default();
        let half = if self.second { self.half } else { 0 };
        self.second = !self.second;
        page.blue_flame(hw, self.base, half, words);
    }
}

/// The constituents of a queue pair.
pub(crate) struct Parts<B> {
    pub(crate) rings: Arc<QpRings<B>>,
    pub(crate) attributes: QpAttributes,
    pub(crate) pages: PageRun,
    pub(crate) cqs: Cqs<CqRef>,
    pub(crate) page: Page,
    pub(crate) blue_flame: Option<BlueFlameRegister>,
}

/// The result of posting. An error names the index of the refused request.
pub(crate) type PostResult = Result<(), (usize, VerbsError)>;

impl<B: Block> Qp<B> {
    /// Makes a queue pair that the card knows.
    pub(crate) fn new(parts: Parts<B>) -> Self {
        let Parts { rings, attributes, pages, cqs, page, blue_flame } = parts;
        let (state, posts) = (QpState::Created, PostCounts::default());
        Self { rings, attributes, pages, state, cqs, page, blue_flame, posts }
    }

    /// Queues send work of a connection.
    #[inline(always)]
    pub(crate) fn post_send<H: Hardware<Block = B>>(
        &mut self,
        limits: &PostLimits<'_, H>,
        work: &[SendWr<'_>],
    ) -> PostResult {
        if self.state != QpState::Connected {
            let connects = self.attributes.service == Service::Reliable;
            return Err((0, if connects { VerbsError::InvalidState } else { VerbsError::InvalidArgument }));
        }
        self.post(limits.hw, work, |wr, wqe| Ok((wr.id, wqe.request(wr, limits)?)))
    }

    /// Queues datagrams that leave by a port.
    pub(crate) fn post_datagrams<H: Hardware<Block = B>>(
        &mut self,
        limits: &PostLimits<'_, H>,
        port: Port,
        work: &[UdSendWr<'_>],
    ) -> PostResult {
        if !matches!(self.attributes.service, Service::Datagram(_)) {
            return Err((0, VerbsError::InvalidArgument));
        }
        if self.state == QpState::Lost {
            return Err((0, VerbsError::InvalidState));
        }
        let domain = self.attributes.domain;
        self.post(limits.hw, work, |wr, wqe| {
            let row = port.row(wr.to.link).ok_or(VerbsError::Unsupported)?;
            Ok((wr.id, wqe.datagram(wr, limits, Source { port: port.number, row, domain })?))
        })
    }

    /// Queues requests, which `write` writes and identifies, and rings the doorbell once for all of them.
    #[inline(always)]
    pub(crate) fn post<T, H: Hardware<Block = B>>(
        &mut self,
        hw: &H,
        work: &[T],
        write: impl Fn(&T, Wqe<'_>) -> Result<(WrId, Head), VerbsError>,
    ) -> PostResult {
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
            self.page.ring_send(hw, self.attributes.number.get());
            self.posts.doorbells += 1;
        }
        outcome
    }

    /// Lets `write` write a request, and passes it to the card. With `copied`, it is written to the card
    /// together with its doorbell.
    #[inline(always)]
    fn post_one<T, H: Hardware<Block = B>>(
        &mut self,
        hw: &H,
        wr: &T,
        copied: bool,
        write: &impl Fn(&T, Wqe<'_>) -> Result<(WrId, Head), VerbsError>,
    ) -> Result<(), VerbsError> {
        let rings = &*self.rings;
        let ring = rings.send_ring();
        let at = |index: u32| ring.get((index & rings.send_mask) as usize).ok_or(VerbsError::NoResources);
        let index = rings.sends.next(rings.shape.send_depth).ok_or(VerbsError::NoResources)?;
        let (entry, ahead) = (at(index)?, at(index.wrapping_add(Shape::SPARE))?);
        if !self.cqs.send.credit.take() {
            return Err(VerbsError::NoResources);
        }
        // From now on the card may prefetch the entry ahead, so the completed request of the previous lap
        // must not look valid.
        stamp(ahead);
        let (id, head) = write(wr, Wqe::of(entry)).inspect_err(|_| self.cqs.send.credit.give(1))?;
        rings.sends.post(index, id);
        let word = head.word(index & (rings.send_mask + 1) != 0);
        let [first, ..] = entry;
        if copied && let Some(register) = &mut self.blue_flame {
            first.store(
                (word | Head::address(index, self.attributes.number.get())).to_be(),
                Ordering::Release,
            );
            register.write(hw, self.page, entry);
            self.posts.blue_flames += 1;
        } else {
            first.store(word.to_be(), Ordering::Release);
        }
        Ok(())
    }

    /// Queues receives, and updates the doorbell record once for all of them.
    pub(crate) fn post_recv<H: Hardware<Block = B>>(
        &mut self,
        limits: &PostLimits<'_, H>,
        work: &[RecvWr<'_>],
    ) -> PostResult {
        if self.state == QpState::Lost {
            return Err((0, VerbsError::InvalidState));
        }
        let rings = &*self.rings;
        let mut outcome = Ok(());
        for (done, wr) in work.iter().enumerate() {
            let posted = rings.receives.next(rings.shape.recv_depth).ok_or(VerbsError::NoResources);
            let posted = posted.and_then(|index| {
                store_receive(wr.scatter, limits, rings.receive_entry(index))?;
                if self.cqs.receive.credit.take() { Ok(index) } else { Err(VerbsError::NoResources) }
            });
            match posted {
                Ok(index) => rings.receives.post(index, wr.id),
                Err(error) => {
                    outcome = Err((done, error));
                    break;
                }
            }
        }
        rings.publish_receives();
        outcome
    }
}
