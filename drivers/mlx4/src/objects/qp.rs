//! Queue pairs, and posting to their rings.

use crate::bringup::capabilities::BlueFlame;
use crate::config::Vlan;
use crate::datapath::doorbell::Page;
use crate::datapath::ring::{QpRings, SendRing, WrRing};
use crate::datapath::wqe::entry::{CHUNK_WORDS, Entry, Head, WORDS};
use crate::datapath::wqe::{InlineWrite, ListCheck, Source, store_receive};
use crate::hardware::{Block, Hardware};
use crate::icm::PageRun;
use crate::objects::cq::{CqRef, Credit};
use crate::objects::port::Port;
use crate::objects::qp_context::{QpAttributes, Service};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use verbs::{RecvWr, SendWr, UdSendWr, VerbsError};

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

/// Puts a request of a connection into a ring, at an index. An inline WRITE, which LITE posts
/// mostly, needs no calls, so that values stay in registers; for one of a cache line the compiler
/// also knows the length.
#[inline(always)]
fn put<H: Hardware>(
    ring: &SendRing<'_>,
    index: u32,
    wr: &SendWr<'_>,
    check: &ListCheck<'_, H>,
) -> Result<(), VerbsError> {
    match InlineWrite::of(wr) {
        Some(write) if write.is_cache_line() => put_inline_write(ring, index, write),
        Some(write) => put_any_inline_write(ring, index, write),
        None => put_other(ring, index, wr, check),
    }
}

#[inline(never)]
fn put_any_inline_write(ring: &SendRing<'_>, index: u32, write: InlineWrite<'_>) -> Result<(), VerbsError> {
    put_inline_write(ring, index, write)
}

#[inline(always)]
fn put_inline_write(ring: &SendRing<'_>, index: u32, write: InlineWrite<'_>) -> Result<(), VerbsError> {
    let place = ring.place(index, write.id())?;
    let head = place.wqe().inline_write(write);
    place.post(head);
    Ok(())
}

#[inline(never)]
fn put_other<H: Hardware>(
    ring: &SendRing<'_>,
    index: u32,
    wr: &SendWr<'_>,
    check: &ListCheck<'_, H>,
) -> Result<(), VerbsError> {
    let place = ring.place(index, wr.id)?;
    let head = place.wqe().request(wr, *check)?;
    place.post(head);
    Ok(())
}

/// Reserves room for requests in the completion queue of `credit`. Returns the index of the next request of
/// `ring`, and the number of requests that both queues have room for, up to `count`, if at most `depth` are
/// in flight.
#[inline(always)]
fn reserve(ring: &WrRing, depth: u32, credit: &Credit, count: usize) -> (u32, usize) {
    let (index, room) = ring.room(depth);
    (index, credit.take(count.min(room as usize) as u32) as usize)
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
        check: ListCheck<'_, H>,
        work: &[SendWr<'_>],
    ) -> PostResult {
        if self.state != QpState::Connected {
            let connects = self.attributes.service == Service::Reliable;
            return Err((0, if connects { VerbsError::InvalidState } else { VerbsError::InvalidArgument }));
        }
        self.post(check.hw, work, |ring, index, wr| put(ring, index, wr, &check))
    }

    /// Queues datagrams that leave by a port.
    pub(crate) fn post_datagrams<H: Hardware<Block = B>>(
        &mut self,
        check: ListCheck<'_, H>,
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
        self.post(check.hw, work, |ring, index, wr| {
            let row = port.row(wr.to.link).ok_or(VerbsError::Unsupported)?;
            let from = Source { port: port.number, row, domain, tag: port.vlan.map(Vlan::tag) };
            let place = ring.place(index, wr.id)?;
            let head = place.wqe().datagram(wr, check, from)?;
            place.post(head);
            Ok(())
        })
    }

    /// Queues requests, each of which `put` puts into the ring, and rings the doorbell once for all
    /// of them. A single request is copied to the BlueFlame register, if there is one, together
    /// with its doorbell.
    #[inline(always)]
    pub(crate) fn post<T, H: Hardware<Block = B>>(
        &mut self,
        hw: &H,
        work: &[T],
        put: impl Fn(&SendRing<'_>, u32, &T) -> Result<(), VerbsError>,
    ) -> PostResult {
        if self.blue_flame.is_some()
            && let [wr] = work
        {
            return self.post_copied(hw, |ring, index| put(ring, index, wr)).map_err(|error| (0, error));
        }
        let (mut index, room) = self.reserve_sends(work.len());
        let ring = self.rings.send_ring();
        let fitting = work.get(..room).unwrap_or(work);
        for (done, wr) in fitting.iter().enumerate() {
            if let Err(error) = put(&ring, index, wr) {
                self.cqs.send.credit.give((fitting.len() - done) as u32);
                self.announce(hw, done);
                return Err((done, error));
            }
            index = index.wrapping_add(1);
        }
        self.announce(hw, fitting.len());
        if fitting.len() == work.len() { Ok(()) } else { Err((fitting.len(), VerbsError::NoResources)) }
    }

    /// Queues a request and copies it to the BlueFlame register.
    #[inline(never)]
    fn post_copied<H: Hardware<Block = B>>(
        &mut self,
        hw: &H,
        put: impl FnOnce(&SendRing<'_>, u32) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        let (index, room) = self.reserve_sends(1);
        if room == 0 {
            return Err(VerbsError::NoResources);
        }
        let address = Head::address(index, self.attributes.number.get());
        put(&self.rings.send_ring().with_address(address), index)
            .inspect_err(|_| self.cqs.send.credit.give(1))?;
        if let (Some(register), Some(entry)) = (&mut self.blue_flame, self.rings.send_ring().entry(index)) {
            register.write(hw, self.page, entry);
        }
        self.posts.sends += 1;
        self.posts.blue_flames += 1;
        Ok(())
    }

    /// Reserves room for send requests, as [`reserve`] does.
    #[inline(always)]
    fn reserve_sends(&self, count: usize) -> (u32, usize) {
        reserve(&self.rings.sends, self.rings.shape.send_depth, &self.cqs.send.credit, count)
    }

    /// Rings the doorbell for requests that are in the ring.
    #[inline(always)]
    fn announce<H: Hardware<Block = B>>(&mut self, hw: &H, count: usize) {
        if count > 0 {
            self.page.ring_send(hw, self.attributes.number.get());
            self.posts.sends += count as u64;
            self.posts.doorbells += 1;
        }
    }

    /// Queues receives, and updates the doorbell record once for all of them.
    pub(crate) fn post_recv<H: Hardware<Block = B>>(
        &mut self,
        check: ListCheck<'_, H>,
        work: &[RecvWr<'_>],
    ) -> PostResult {
        if self.state == QpState::Lost {
            return Err((0, VerbsError::InvalidState));
        }
        let rings = &*self.rings;
        let credit = &self.cqs.receive.credit;
        let (mut index, room) = reserve(&rings.receives, rings.shape.recv_depth, credit, work.len());
        let fitting = work.get(..room).unwrap_or(work);
        let mut outcome = if room < work.len() { Err((room, VerbsError::NoResources)) } else { Ok(()) };
        for (done, wr) in fitting.iter().enumerate() {
            if let Err(error) = store_receive(wr.scatter, check, rings.receive_entry(index)) {
                credit.give((fitting.len() - done) as u32);
                outcome = Err((done, error));
                break;
            }
            rings.receives.note(index, wr.id);
            index = index.wrapping_add(1);
        }
        rings.receives.advance(index);
        rings.publish_receives();
        outcome
    }
}
