//! A request at the server, from its arrival to its reply.

use super::Rpc;
use super::local::LocalReply;
use super::service::Service;
use crate::Error;
use crate::channel::slots::Channel;
use crate::channel::wire::{Piece, ReplyHeader, ReplyStatus};
use crate::transport::conn::Conn;
use crate::transport::transfer::Data;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use proto::{Incarnation, NodeId};

/// A request that waits for its reply. If it is dropped without one, the caller's call fails with
/// [`Error::Refused`].
pub struct Call {
    /// The request; `None` only while the call is being dropped.
    record: Option<Box<Record>>,
}

/// The data of one request. Its function keeps the record for a later request.
#[derive(Default)]
pub(crate) struct Record {
    /// The caller.
    from: Option<(NodeId, Incarnation)>,
    pub(crate) request: Vec<u8>,
    /// The caller's memory that contains the request, if the request is not here.
    pieces: Vec<Piece>,
    one_way: bool,
    to: Option<ReplyTo>,
    /// The charge of a one-way message, which lasts longer than `to`.
    charge: Option<Charge>,
    /// The function that the request is for, once a task has received the call.
    service: Option<Arc<Service>>,
}

/// The charge of a one-way message on the backlog of its connection, until a task receives the message.
struct Charge {
    caller: Arc<Caller>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.caller.channel.discharge(self.bytes);
    }
}

/// The receiver of the reply.
pub(crate) enum ReplyTo {
    Here { reply: Arc<LocalReply>, max: usize },
    There(RemoteReply),
}

/// A peer that calls functions of this node over one shard. The poller of the shard makes it and clones only
/// that: the references that a call keeps are counted by no other core.
// Two cache lines: the count of a core's references is beside no other core's.
#[repr(align(128))]
pub(crate) struct Caller {
    pub(crate) node: Arc<Rpc>,
    pub(crate) conn: Arc<Conn>,
    pub(crate) channel: Arc<Channel>,
}

impl Caller {
    /// Returns the peer of a connection as a shard sees it; `None` if the connection has no channel for it.
    pub(crate) fn new(node: &Arc<Rpc>, conn: Arc<Conn>, shard: usize) -> Option<Self> {
        let channel = conn.channels.as_ref()?.get(shard)?.clone();
        Some(Self { node: node.clone(), conn, channel })
    }
}

/// A caller on another node.
pub(crate) struct RemoteReply {
    pub(crate) caller: Arc<Caller>,
    pub(crate) slot: u32,
    pub(crate) call: u64,
    pub(crate) max: u64,
    /// The memory for a reply that is too long for the slot.
    pub(crate) pieces: Vec<Piece>,
    /// The request's charge on the backlog of the connection, until a task receives the request.
    pub(crate) charge: usize,
}

impl Drop for RemoteReply {
    fn drop(&mut self) {
        self.discharge();
    }
}

impl Record {
    /// Clears all fields but the bytes of the request: the next one replaces them.
    pub(crate) fn clear(&mut self) {
        (self.from, self.one_way) = (None, false);
        (self.to, self.charge, self.service) = (None, None, None);
        self.pieces.clear();
    }

    /// Makes room for a request of `len` bytes, which the caller must fill. Returns false if there is not
    /// enough memory.
    #[inline(always)]
    pub(crate) fn try_resize(&mut self, len: usize) -> bool {
        if len <= self.request.len() {
            self.request.truncate(len);
            return true;
        }
        let has_room = self.request.try_reserve(len - self.request.len()).is_ok();
        if has_room {
            self.request.resize(len, 0);
        }
        has_room
    }
}

impl Call {
    /// Makes a call from another node; `record` contains the request, if it is here.
    #[inline(always)]
    pub(crate) fn there(mut record: Box<Record>, to: RemoteReply, pieces: Vec<Piece>, one_way: bool) -> Self {
        record.from = Some((to.caller.conn.peer, to.caller.conn.incarnation));
        record.to = Some(ReplyTo::There(to));
        record.pieces = pieces;
        record.one_way = one_way;
        Self { record: Some(record) }
    }

    /// Makes a call of the node to itself.
    pub(crate) fn here(
        mut record: Box<Record>,
        node: &Rpc,
        reply: Arc<LocalReply>,
        max: usize,
        one_way: bool,
    ) -> Self {
        record.from = Some((node.me, node.incarnation));
        record.to = Some(ReplyTo::Here { reply, max });
        record.one_way = one_way;
        Self { record: Some(record) }
    }

    fn peer(&self) -> (NodeId, Incarnation) {
        self.record.as_ref().and_then(|r| r.from).unwrap_or((NodeId(0), Incarnation(0)))
    }

    /// Returns the caller.
    #[must_use]
    pub fn from(&self) -> NodeId {
        self.peer().0
    }

    /// Returns the incarnation of the caller.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.peer().1
    }

    /// Returns the request, which is this node's own copy.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        self.record.as_ref().map_or(&[], |r| &r.request)
    }

    /// Takes the request out of the call and leaves an empty one. The buffer is not used for later requests.
    #[must_use]
    pub fn take_request(&mut self) -> Vec<u8> {
        self.record.as_mut().map_or_else(Vec::new, |r| core::mem::take(&mut r.request))
    }

    /// Returns true if the caller waits for no reply: a message of [`Lite::send`](crate::Lite::send). A
    /// reply to it is discarded.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.record.as_ref().is_some_and(|r| r.one_way)
    }

    /// Notes that a task has received the call from that function, or has given it back.
    #[inline]
    pub(crate) fn set_taken(&mut self, service: Option<Arc<Service>>) {
        if let Some(record) = &mut self.record {
            match &mut record.to {
                Some(ReplyTo::There(to)) => to.discharge(),
                _ => record.charge = None,
            }
            record.service = service;
        }
    }

    fn to(&self) -> Option<&ReplyTo> {
        self.record.as_ref()?.to.as_ref()
    }

    fn take_to(&mut self) -> Option<ReplyTo> {
        self.record.as_mut()?.to.take()
    }

    /// Returns true if the request is still in the caller's memory.
    pub(crate) fn is_remote(&self) -> bool {
        self.record.as_ref().is_some_and(|r| !r.pieces.is_empty())
    }

    /// Reads a long request from the caller's memory. After an error the call has been answered, or its
    /// caller has departed.
    #[inline]
    pub(crate) async fn fetch(&mut self) -> Result<(), Error> {
        if self.is_remote() { self.fetch_pieces().await } else { Ok(()) }
    }

    async fn fetch_pieces(&mut self) -> Result<(), Error> {
        let Some(Record { pieces, to: Some(ReplyTo::There(to)), .. }) = self.record.as_deref() else {
            return Ok(());
        };
        // The pieces are as long as the request, which is within the function's limit.
        let len = pieces.iter().map(|p| p.len as usize).sum();
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(len).is_err() {
            let asked = len as u64;
            if let Some(to) = self.take_to() {
                to.answer(ReplyStatus::NoMemory, asked);
            }
            return Err(Error::NoMemory { asked, free: 0 });
        }
        bytes.resize(len, 0);
        let mut into = &mut bytes[..];
        for piece in pieces {
            let (now, rest) = into.split_at_mut(into.len().min(piece.len as usize));
            let data = Data::Read(now);
            to.caller.transfer(piece.addr, data).await?;
            into = rest;
        }
        if let Some(record) = &mut self.record {
            record.request = bytes;
            record.pieces.clear();
        }
        if let Some(to) = self.accepted() {
            to.answer(ReplyStatus::Accepted, 0);
        }
        Ok(())
    }

    /// Returns the sender of a one-way message, which must be told that the message has arrived. The charge
    /// of the message lasts on.
    #[inline(always)]
    pub(crate) fn accepted(&mut self) -> Option<ReplyTo> {
        if self.is_one_way() { self.accepted_message() } else { None }
    }

    /// Does the work of [`accepted`](Self::accepted) for a one-way message.
    #[inline(never)]
    fn accepted_message(&mut self) -> Option<ReplyTo> {
        if self.is_remote() {
            return None;
        }
        let mut to = self.take_to();
        if let (Some(record), Some(ReplyTo::There(to))) = (&mut self.record, &mut to) {
            record.charge = to.take_charge();
        }
        to
    }

    /// Sends the reply. `Ok` means that the reply has been sent; the caller may have stopped waiting.
    ///
    /// # Errors
    /// `TooLarge` if the caller accepts less (the caller is told so), `Unknown` if the connection has
    /// ended.
    pub async fn reply(self, data: &[u8]) -> Result<(), Error> {
        if self.fits_slot(data) { self.reply_now(data) } else { self.reply_long(data).await }
    }

    /// Does the work of [`reply`](Self::reply) for a reply that does not fit the slot, or that nobody waits
    /// for.
    pub(crate) async fn reply_long(mut self, data: &[u8]) -> Result<(), Error> {
        let len = data.len() as u64;
        let Some(max) = self.to().map(ReplyTo::max) else { return Ok(()) };
        if len > max {
            self.refuse(None, ReplyStatus::ReplyTooLarge, max);
            return Err(Error::TooLarge { max });
        }
        let Some(ReplyTo::There(to)) = self.to().filter(|to| to.has_pieces()) else {
            return Err(Error::TooLarge { max });
        };
        let mut left = data;
        for piece in &to.pieces {
            let (now, rest) = left.split_at(left.len().min(piece.len as usize));
            // If this is dropped midway, dropping `self` tells the caller that there is no reply, after
            // everything on the wire.
            let data = Data::Write(now);
            to.caller.transfer(piece.addr, data).await?;
            left = rest;
        }
        let Some(ReplyTo::There(to)) = self.take_to() else { return Ok(()) };
        to.send(ReplyStatus::InBuffer, len, &[])
    }

    /// Returns true if the caller accepts a reply of `data` in its slot, or as it is on this node.
    #[inline(always)]
    pub(crate) fn fits_slot(&self, data: &[u8]) -> bool {
        self.to().is_some_and(|to| {
            let slot = match to {
                ReplyTo::Here { .. } => usize::MAX,
                ReplyTo::There(to) => Channel::longest_in_slot(&to.caller.channel.remote),
            };
            data.len() <= slot && data.len() as u64 <= to.max()
        })
    }

    /// Replies without waiting; `data` must fit a slot, whose least size is 256 bytes. Not inlined, because
    /// the callers are many and the image would grow.
    #[inline(never)]
    pub(crate) fn reply_now(mut self, data: &[u8]) -> Result<(), Error> {
        let len = data.len() as u64;
        let sent = match self.to() {
            Some(ReplyTo::There(to)) => to.send(ReplyStatus::InSlot, len, data),
            Some(ReplyTo::Here { reply, .. }) => {
                reply.set(ReplyStatus::InSlot, data, len);
                Ok(())
            }
            None => Ok(()),
        };
        if let Some(record) = &mut self.record {
            record.to = None;
        }
        sent
    }

    /// Ends the call without a reply; `to` is the sender that [`accepted`](Self::accepted) returned.
    pub(crate) fn refuse(mut self, to: Option<ReplyTo>, status: ReplyStatus, len: u64) {
        if let Some(to) = to.or_else(|| self.take_to()) {
            to.answer(status, len);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call from {} with {} bytes", self.from(), self.request().len())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(mut record) = self.record.take() else { return };
        if record.to.is_some()
            && let Some(to) = record.to.take()
        {
            to.answer(ReplyStatus::Dropped, 0);
        }
        if let Some(service) = record.service.take() {
            service.ended(record);
        }
    }
}

impl ReplyTo {
    fn max(&self) -> u64 {
        match self {
            Self::Here { max, .. } => *max as u64,
            Self::There(to) => to.max,
        }
    }

    /// Returns true if the caller has memory for a reply that is too long for the slot.
    fn has_pieces(&self) -> bool {
        matches!(self, Self::There(to) if !to.pieces.is_empty())
    }

    pub(crate) fn answer(self, status: ReplyStatus, len: u64) {
        match self {
            Self::Here { reply, .. } => reply.set(status, &[], len),
            Self::There(to) => {
                // A connection that has ended has no caller any more.
                let _ = to.send(status, len, &[]);
            }
        }
    }
}

impl RemoteReply {
    /// Ends the request's charge on the backlog.
    #[inline]
    fn discharge(&mut self) {
        if self.charge > 0 {
            self.caller.channel.discharge(core::mem::take(&mut self.charge));
        }
    }

    /// Returns the request's charge on the backlog as one of its own.
    fn take_charge(&mut self) -> Option<Charge> {
        let bytes = core::mem::take(&mut self.charge);
        (bytes > 0).then(|| Charge { caller: self.caller.clone(), bytes })
    }

    #[inline(always)]
    fn send(&self, status: ReplyStatus, len: u64, data: &[u8]) -> Result<(), Error> {
        let header = ReplyHeader { call: self.call, status, len };
        self.caller.send_reply(self.slot, &header, data)
    }
}
