//! Calls, at the caller's side.

use super::Rpc;
use super::call::Call;
use super::server::FunctionId;
use crate::Error;
use crate::base::member::MemberId;
use crate::base::trace::Event;
use crate::channel::lent::Lent;
use crate::channel::slots::{Buffers, CallEnd, CallSlot, Channel, verdict};
use crate::channel::wire::{GRAIN, Imm, Piece, ReplyHeader, ReplyStatus, RequestHeader};
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::conn::Conn;
use crate::transport::op::NotPosted;
use crate::transport::transfer::RECONNECT_PAUSE;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use platform::Instant;
use proto::{Incarnation, NodeId};

/// The first pause after a server's queue was full; doubles up to [`LONGEST_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_micros(50);
/// The longest pause; see [`FIRST_BACKOFF`].
const LONGEST_BACKOFF: Duration = Duration::from_millis(5);

/// The destination of a reply.
pub(crate) enum ReplyTarget<'a> {
    /// The reply is written to the start of this slice.
    Slice(&'a mut [u8]),
    /// Appended to `into`, at most `max` bytes.
    Vec { into: &'a mut Vec<u8>, max: usize },
    /// No reply is wanted: the request is a one-way message.
    Nowhere,
}

impl ReplyTarget<'_> {
    fn max(&self) -> usize {
        match self {
            Self::Slice(slice) => slice.len(),
            Self::Vec { max, .. } => *max,
            Self::Nowhere => 0,
        }
    }

    fn is_one_way(&self) -> bool {
        matches!(self, Self::Nowhere)
    }

    /// Returns the memory for a reply of `len` bytes, if the destination accepts that many.
    fn buffer(&mut self, len: usize) -> Option<&mut [u8]> {
        match self {
            Self::Slice(slice) => slice.get_mut(..len),
            Self::Vec { into, max } => {
                (len <= *max).then_some(())?;
                into.clear();
                into.resize(len, 0);
                Some(into)
            }
            Self::Nowhere => (len == 0).then_some(&mut []),
        }
    }
}

/// The node to call.
#[derive(Clone, Copy)]
pub(crate) enum Whom {
    /// The node, in its incarnation at the time the call is sent.
    Node(NodeId),
    /// Exactly this incarnation of the node. A later incarnation would not know the identifiers in the
    /// request.
    Member(MemberId),
}

impl Whom {
    fn node(self) -> NodeId {
        match self {
            Self::Node(node) | Self::Member((node, _)) => node,
        }
    }

    /// Fails with `NodeDown` if `met`, the incarnation of the connected peer, is another one than requested.
    fn check(self, met: Incarnation) -> Result<(), Error> {
        match self {
            Self::Member((node, wanted)) if wanted != met => Err(Error::NodeDown(node)),
            _ => Ok(()),
        }
    }
}

/// A call: the node, the function to call, the request, and the time by which the call must end.
pub(crate) struct RawRequest<'a> {
    pub(crate) whom: Whom,
    pub(crate) function: FunctionId,
    pub(crate) data: &'a [u8],
    pub(crate) deadline: Instant,
}

/// The result of one attempt at a call, apart from errors.
pub(super) enum Attempt {
    /// The reply has been stored; the value is its length in bytes.
    Reply(usize),
    /// The server's queue is full; the handler has not run.
    Busy,
    /// The connection ended before the request was sent; the handler has not run.
    NotSent,
}

/// The state of a reply once its header has been read.
enum Taken {
    /// The reply has been stored; the value is its length in bytes.
    Stored(usize),
    /// The reply is in the buffer that the call has lent; the value is its length in bytes.
    InBuffer(usize),
    /// The server's queue is full.
    Busy,
}

#[cold]
fn malformed() -> Error {
    Error::Refused("the server's reply is malformed".into())
}

impl Rpc {
    /// Makes a call, which may be to this node. Stores the reply in `target` and returns its length.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn moves its arguments before it begins, a block uses them where they lie"
    )]
    pub(crate) fn call(
        self: &Arc<Self>,
        request: &RawRequest<'_>,
        target: &mut ReplyTarget<'_>,
    ) -> impl Future<Output = Result<usize, Error>> + Send {
        async move {
            let node = request.whom.node();
            self.local.trace(|| Event::Called { peer: node, function: request.function });
            let mut busy = false;
            let is_quick = node != self.local.me && self.local.lease.may_begin();
            let near = if is_quick { self.transport.near_for_call(node) } else { None };
            if near.is_none() {
                self.local.counters.calls.add(1);
            }
            if let Some(conn) = near
                && request.whom.check(conn.incarnation).is_ok()
            {
                let mut slot = None;
                let ended = core::future::poll_fn(|cx| match &mut slot {
                    Some(slot) => Self::poll_call(slot, cx, target).map(Some),
                    None => {
                        slot = self.begin_call(&conn, request, target, cx.waker());
                        if slot.is_some() { Poll::Pending } else { Poll::Ready(None) }
                    }
                });
                if let Some(ended) = ended.await {
                    match self.finish_call(&conn, ended, target)? {
                        Attempt::Reply(len) => return Ok(len),
                        Attempt::Busy | Attempt::NotSent => busy = true,
                    }
                }
            }
            self.call_long(request, target, busy).await
        }
    }

    /// Returns the channel of a connection for a call of the present core. LITE's internal calls to a node
    /// are all on the first one, because they arrive in the order in which they are sent.
    #[inline(always)]
    pub(super) fn channel<'c>(&self, conn: &'c Conn, function: FunctionId) -> Option<&'c Channel> {
        let channels = conn.channels.as_ref()?;
        if function < super::internal::INTERNAL && channels.count() > 1 {
            return conn.channel(conn.shard_for(self.transport.shards.here(&*self.local.platform).index));
        }
        Some(&*channels.first)
    }

    /// Posts a call that needs nothing but a slot, if it can be posted now.
    #[inline(always)]
    fn begin_call<'c>(
        &self,
        conn: &'c Arc<Conn>,
        request: &RawRequest<'_>,
        target: &ReplyTarget<'_>,
        waker: &Waker,
    ) -> Option<CallSlot<'c>> {
        let rpc = self.channel(conn, request.function)?;
        let (max_reply, len) = (target.max(), request.data.len());
        let short = max_reply <= Channel::longest_in_slot(&rpc.local)
            && RequestHeader::LEN + len <= rpc.longest_record();
        if !short {
            return None;
        }
        let own = request.function >= super::internal::INTERNAL;
        let mut slot =
            rpc.claim_now(own, waker, request.deadline, |deadline| self.note_deadline(deadline))?;
        let header = RequestHeader {
            function: request.function,
            slot: slot.index as u16,
            one_way: target.is_one_way(),
            request_pieces: 0,
            reply_pieces: 0,
            call: slot.number(),
            len: len as u64,
            max_reply: max_reply as u64,
        };
        self.send_request(conn, rpc, header.emit(), request.data).ok()?;
        slot.posted = true;
        Some(slot)
    }

    /// Polls for the reply to a call that was posted, and stores a reply that is in the slot.
    #[inline(always)]
    fn poll_call(
        slot: &mut CallSlot<'_>,
        cx: &Context<'_>,
        target: &mut ReplyTarget<'_>,
    ) -> Poll<CallEnd<Result<Taken, Error>>> {
        let (channel, index) = (slot.channel(), slot.index);
        slot.poll(cx, |reply| Self::take_reply(channel, index, reply, target))
    }

    /// Returns the result of a call that was posted.
    #[inline(always)]
    fn finish_call(
        &self,
        conn: &Conn,
        ended: CallEnd<Result<Taken, Error>>,
        target: &mut ReplyTarget<'_>,
    ) -> Result<Attempt, Error> {
        match ended {
            CallEnd::Replied(taken, buffers) => match taken? {
                Taken::Stored(len) => Ok(Attempt::Reply(len)),
                Taken::Busy => Ok(Attempt::Busy),
                Taken::InBuffer(len) => Self::take_long_reply(len, buffers, target).map(Attempt::Reply),
            },
            CallEnd::Lost if planted(Bug::CallTwice) => Ok(Attempt::NotSent),
            CallEnd::Lost => Err(self.gone(conn.peer, conn.incarnation).unwrap_or(Error::Unknown)),
            CallEnd::Late => {
                self.local.missed();
                Err(Error::Unknown)
            }
        }
    }

    /// Does the work of [`call`](Self::call) on the slow path. `busy`: the server's queue was full a moment
    /// ago.
    async fn call_long(
        self: &Arc<Self>,
        request: &RawRequest<'_>,
        target: &mut ReplyTarget<'_>,
        mut busy: bool,
    ) -> Result<usize, Error> {
        let issued = AtomicBool::new(false);
        let whom = request.whom;
        let node = whom.node();
        let work = async {
            let mut backoff = FIRST_BACKOFF;
            loop {
                if core::mem::take(&mut busy) {
                    issued.store(false, Ordering::Relaxed);
                    self.local.counters.busy.add(1);
                    self.local.timers.until(self.local.platform.now() + backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
                let attempt = if node == self.local.me {
                    whom.check(self.local.incarnation)?;
                    self.call_here(request, target, &issued).await?
                } else {
                    let conn = match self.connected(node) {
                        Some(conn) => conn,
                        None => {
                            if let Whom::Member(member) = whom
                                && !self.is_live(member)
                            {
                                return Err(Error::NodeDown(node));
                            }
                            self.connection(node).await?
                        }
                    };
                    whom.check(conn.incarnation)?;
                    self.call_there(&conn, request, target, &issued).await?
                };
                match attempt {
                    Attempt::Reply(len) => return Ok(len),
                    Attempt::NotSent => {
                        self.local.timers.until(self.local.platform.now() + RECONNECT_PAUSE).await;
                    }
                    Attempt::Busy => busy = true,
                }
            }
        };
        // Pinned here, because a move would copy the future.
        self.local.limit(request.deadline, &issued, pin!(work)).await
    }

    async fn call_there(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        request: &RawRequest<'_>,
        target: &mut ReplyTarget<'_>,
        issued: &AtomicBool,
    ) -> Result<Attempt, Error> {
        let Some(rpc) = self.channel(conn, request.function) else { return Err(Error::Unknown) };
        self.call_on(conn, rpc, request, target, issued).await
    }

    /// Makes a call over a channel of a connection.
    pub(super) async fn call_on(
        self: &Arc<Self>,
        conn: &Arc<Conn>,
        rpc: &Channel,
        request: &RawRequest<'_>,
        target: &mut ReplyTarget<'_>,
        issued: &AtomicBool,
    ) -> Result<Attempt, Error> {
        let Some(mut slot) = rpc.claim(request.function >= super::internal::INTERNAL).await else {
            self.fail(conn);
            return Ok(Attempt::NotSent);
        };
        let (lent, long_reply) = self.lend(rpc, request.data, target.max())?;
        let mut data = if lent.count() > 0 { &[] } else { request.data };
        let header = RequestHeader {
            function: request.function,
            slot: slot.index as u16,
            one_way: target.is_one_way(),
            request_pieces: lent.count(),
            reply_pieces: long_reply.count(),
            call: slot.number(),
            len: request.data.len() as u64,
            max_reply: target.max() as u64,
        };
        let head = header.emit();
        // The header is followed by the pieces, if there are any, and the request, if it is not in pieces.
        let mut joined = Vec::new();
        if header.pieces_len() > 0 {
            for piece in lent.pieces().chain(long_reply.pieces()) {
                joined.extend_from_slice(&piece.emit());
            }
            joined.extend_from_slice(data);
            data = &joined;
            slot.lend(Box::new((lent, long_reply)));
        }
        let mut post = || match self.send_request(conn, rpc, head, data) {
            Err(NotPosted::Busy) => {
                sometimes!("a request waited for room");
                None
            }
            other => Some(other),
        };
        // The call waits for room in the ring, or for a buffer, a slot, or an entry of the send queue.
        let sent = core::future::poll_fn(|cx| match rpc.room.poll_until(cx, &mut post) {
            Poll::Pending => self.transport.resources.poll_until(cx, &mut post),
            ready => ready,
        })
        .await;
        match sent {
            Ok(()) => {
                slot.posted = true;
                issued.store(true, Ordering::Relaxed);
            }
            Err(NotPosted::ConnectionLost | NotPosted::Busy | NotPosted::Revoked | NotPosted::Changed) => {
                self.fail(conn);
                return Ok(Attempt::NotSent);
            }
            Err(NotPosted::Invalid) => return Err(Error::Refused("the RNIC refused the request".into())),
        }
        let ended = core::future::poll_fn(|cx| Self::poll_call(&mut slot, cx, target)).await;
        self.finish_call(conn, ended, target)
    }

    /// Lends memory for a request that is too long for the ring, and copies the request there. Lends memory
    /// for a reply that may be too long for the slot.
    fn lend(&self, rpc: &Channel, data: &[u8], max_reply: usize) -> Result<(Lent, Lent), Error> {
        let platform = &self.local.platform;
        let (mut lent, mut long_reply) = (Lent::default(), Lent::default());
        if max_reply > Channel::longest_in_slot(&rpc.local) {
            long_reply = Lent::take(platform, max_reply as u64)?;
        }
        let head = RequestHeader::LEN + usize::from(long_reply.count()) * Piece::LEN;
        if head + data.len() > rpc.longest_record() {
            lent = Lent::take(platform, data.len() as u64)?;
            lent.write(data)?;
        }
        Ok((lent, long_reply))
    }

    /// Stores a reply that is in slot `index`, and returns what the header says of another.
    #[inline(always)]
    fn take_reply(
        rpc: &Channel,
        index: u32,
        reply: &ReplyHeader,
        target: &mut ReplyTarget<'_>,
    ) -> Result<Taken, Error> {
        if !matches!(reply.status, ReplyStatus::InSlot | ReplyStatus::InBuffer | ReplyStatus::Accepted) {
            return Self::without_reply(reply);
        }
        if (reply.status == ReplyStatus::Accepted) != target.is_one_way() {
            return Err(malformed());
        }
        let len = usize::try_from(reply.len).map_err(|_| malformed())?;
        match reply.status {
            ReplyStatus::Accepted if len == 0 => {}
            ReplyStatus::InBuffer => return Ok(Taken::InBuffer(len)),
            ReplyStatus::InSlot if len <= Channel::longest_in_slot(&rpc.local) => {
                let into = target.buffer(len).ok_or_else(malformed)?;
                let from = Channel::slot_offset(&rpc.local, index).ok_or_else(malformed)?;
                rpc.memory.1.read(from + ReplyHeader::LEN as u64, into).map_err(|_| malformed())?;
            }
            _ => return Err(malformed()),
        }
        Ok(Taken::Stored(len))
    }

    /// Returns the outcome of a call whose handler has sent no reply.
    #[cold]
    fn without_reply(reply: &ReplyHeader) -> Result<Taken, Error> {
        verdict(reply).map_or(Ok(Taken::Busy), Err)
    }

    /// Copies a long reply from the buffer that was lent for it; returns its length.
    fn take_long_reply(
        len: usize,
        buffers: Option<Buffers>,
        target: &mut ReplyTarget<'_>,
    ) -> Result<usize, Error> {
        let buffers = buffers.filter(|lent| lent.1.count() > 0).ok_or_else(malformed)?;
        buffers.1.read(target.buffer(len).ok_or_else(malformed)?)?;
        Ok(len)
    }

    #[inline(always)]
    fn send_request(
        &self,
        conn: &Arc<Conn>,
        rpc: &Channel,
        head: [u8; RequestHeader::LEN],
        data: &[u8],
    ) -> Result<(), NotPosted> {
        // Records are in the ring in the order in which they are posted.
        let mut tx = rpc.tx.lock();
        if conn.is_shut() {
            return Err(NotPosted::ConnectionLost);
        }
        let bytes = (head.len() + data.len()) as u32;
        let (offset, end) = tx.place(bytes).ok_or(NotPosted::Busy)?;
        let addr = rpc.remote.ring.checked_add(u64::from(offset)).ok_or(NotPosted::Invalid)?;
        self.transport.post_message(
            (conn, rpc.shard),
            (head, data),
            addr,
            Imm::Request(offset / GRAIN).emit(),
        )?;
        tx.commit(end);
        Ok(())
    }

    /// Does a call of this node to itself: puts it into the function's queue, or waits for room there.
    async fn call_here(
        self: &Arc<Self>,
        request: &RawRequest<'_>,
        target: &mut ReplyTarget<'_>,
        issued: &AtomicBool,
    ) -> Result<Attempt, Error> {
        let (one_way, max) = (target.is_one_way(), target.max());
        let service = self.services.get(request.function).filter(|s| s.takes(one_way));
        let service = service.ok_or(Error::NoSuchFunction)?;
        if request.data.len() > service.max_request() {
            return Err(Error::TooLarge { max: service.max_request() as u64 });
        }
        let mut record = service.reserve_later(request.data.len()).await;
        record.request.copy_from_slice(request.data);
        let reply = self.local_replies.take();
        service.enqueue(Call::here(record, self, reply.clone(), max, one_way));
        drop(service);
        issued.store(true, Ordering::Relaxed);
        let attempt = reply.wait(|status, len, bytes| match verdict(&ReplyHeader { call: 0, status, len }) {
            Some(error) => Err(error),
            None => match target.buffer(bytes.len()) {
                Some(into) => {
                    into.copy_from_slice(bytes);
                    Ok(Attempt::Reply(bytes.len()))
                }
                None => Err(Error::TooLarge { max: max as u64 }),
            },
        });
        let attempt = attempt.await;
        self.local_replies.give(reply);
        attempt
    }
}
