//! A request on the server's side, from its arrival to its reply.

use super::calls::ConnRpc;
use super::local::LocalReply;
use super::service::Service;
use super::wire::{Piece, ReplyHeader, ReplyStatus};
use crate::Error;
use crate::conn::Conn;
use crate::node::Node;
use crate::op::Data;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicBool;
use proto::{Incarnation, NodeId};

/// A request that waits for its reply. Dropped without one, it tells the caller so ([`Error::Refused`]).
pub struct Call {
    from: NodeId,
    incarnation: Incarnation,
    request: Vec<u8>,
    /// Where the request lies with the caller, if it is not here.
    pieces: Vec<Piece>,
    one_way: bool,
    to: Option<ReplyTo>,
    charge: Option<Charge>,
    /// Whose task has taken it.
    service: Option<Arc<Service>>,
}

/// What a request that no task has taken counts for in its connection's backlog.
pub(crate) struct Charge {
    pub(crate) conn: Arc<Conn>,
    pub(crate) bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(rpc) = &self.conn.rpc {
            rpc.discharge(self.bytes);
        }
    }
}

/// Where the reply goes.
pub(crate) enum ReplyTo {
    Here { reply: Arc<LocalReply>, max: usize },
    There(RemoteReply),
}

/// A caller on another node.
pub(crate) struct RemoteReply {
    pub(crate) node: Arc<Node>,
    pub(crate) conn: Arc<Conn>,
    pub(crate) slot: u32,
    pub(crate) call: u64,
    pub(crate) max: u64,
    /// Where a reply goes that is too long for the slot.
    pub(crate) pieces: Vec<Piece>,
}

impl Call {
    /// A call from another node.
    pub(crate) fn there(
        to: RemoteReply,
        request: Vec<u8>,
        pieces: Vec<Piece>,
        one_way: bool,
        charge: Option<Charge>,
    ) -> Self {
        let (from, incarnation) = (to.conn.peer, to.conn.incarnation);
        let to = Some(ReplyTo::There(to));
        Self { from, incarnation, request, pieces, one_way, to, charge, service: None }
    }

    /// A call of the node to itself.
    pub(crate) fn here(
        node: &Node,
        request: Vec<u8>,
        reply: Arc<LocalReply>,
        max: usize,
        one_way: bool,
    ) -> Self {
        Self {
            from: node.me,
            incarnation: node.incarnation,
            request,
            pieces: Vec::new(),
            one_way,
            to: Some(ReplyTo::Here { reply, max }),
            charge: None,
            service: None,
        }
    }

    /// The caller.
    #[must_use]
    pub fn from(&self) -> NodeId {
        self.from
    }

    /// Which life of the caller.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The request. It is this node's own copy.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes the request out, leaving an empty one. Its buffer then does not serve the function's next requests.
    #[must_use]
    pub fn take_request(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.request)
    }

    /// Whether nobody waits for a reply: a message of [`Lite::send`](crate::Lite::send). A reply to it goes nowhere.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.one_way
    }

    /// A task of `service` has it.
    pub(crate) fn taken_by(&mut self, service: Arc<Service>) {
        self.charge = None;
        self.service = Some(service);
    }

    /// It goes back into the queue.
    pub(crate) fn not_taken(&mut self) {
        self.service = None;
    }

    /// Whether the request lies with the caller.
    pub(crate) fn is_remote(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Reads a long request out of the caller's memory. On an error the call has been answered, or its caller is gone.
    pub(crate) async fn fetch(&mut self) -> Result<(), Error> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        let Some(ReplyTo::There(to)) = &self.to else { return Ok(()) };
        // The pieces are as long as the request, which is within the function's limit.
        let len = self.pieces.iter().map(|p| p.len as usize).sum();
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(len).is_err() {
            let asked = len as u64;
            if let Some(to) = self.to.take() {
                to.answer(ReplyStatus::NoMemory, asked);
            }
            return Err(Error::NoMemory { asked, free: 0 });
        }
        bytes.resize(len, 0);
        let issued = AtomicBool::new(false);
        let mut into = &mut bytes[..];
        for piece in &self.pieces {
            let (now, rest) = into.split_at_mut(into.len().min(piece.len as usize));
            let data = Data::Read(now);
            to.node.transfer_lent(&to.conn, piece.addr, data, &issued).await?;
            into = rest;
        }
        self.request = bytes;
        self.pieces.clear();
        if let Some(to) = self.accepted() {
            to.answer(ReplyStatus::Accepted, 0);
        }
        Ok(())
    }

    /// Whom to tell that a message is here, if it is.
    pub(crate) fn accepted(&mut self) -> Option<ReplyTo> {
        if self.one_way && self.pieces.is_empty() { self.to.take() } else { None }
    }

    /// Sends the reply. `Ok` means that it is on its way; whether the caller still waits is not known.
    ///
    /// Fails with `TooLarge` if the caller takes less (it is told so), `Unknown` if the connection has ended.
    pub async fn reply(mut self, data: &[u8]) -> Result<(), Error> {
        let len = data.len() as u64;
        let Some(max) = self.to.as_ref().map(ReplyTo::max) else { return Ok(()) };
        if len > max {
            self.refuse(None, ReplyStatus::ReplyTooLarge, max);
            return Err(Error::TooLarge { max });
        }
        if let Some(ReplyTo::There(to)) = &self.to
            && data.len() > ConnRpc::longest_in_slot(to.area()?)
        {
            if to.pieces.is_empty() {
                return Err(Error::TooLarge { max });
            }
            let issued = AtomicBool::new(false);
            let mut left = data;
            for piece in &to.pieces {
                let (now, rest) = left.split_at(left.len().min(piece.len as usize));
                // If this is dropped midway, `self` tells the caller that there is no reply, behind what is on the wire.
                let data = Data::Write(now);
                to.node.transfer_lent(&to.conn, piece.addr, data, &issued).await?;
                left = rest;
            }
            let Some(ReplyTo::There(to)) = self.to.take() else { return Ok(()) };
            return to.send(ReplyStatus::InBuffer, len, &[]);
        }
        self.reply_now(data)
    }

    /// Replies without waiting; `data` must fit a slot, whose least size is 256.
    pub(crate) fn reply_now(mut self, data: &[u8]) -> Result<(), Error> {
        let len = data.len() as u64;
        match self.to.take() {
            Some(ReplyTo::There(to)) => to.send(ReplyStatus::InSlot, len, data),
            Some(ReplyTo::Here { reply, .. }) => {
                reply.set(ReplyStatus::InSlot, data, len);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Ends the call without a reply; `to` is whom [`accepted`](Self::accepted) gave.
    pub(crate) fn refuse(mut self, to: Option<ReplyTo>, status: ReplyStatus, len: u64) {
        if let Some(to) = to.or_else(|| self.to.take()) {
            to.answer(status, len);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call from {} with {} bytes", self.from, self.request.len())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            to.answer(ReplyStatus::Dropped, 0);
        }
        if let Some(service) = self.service.take() {
            service.ended(core::mem::take(&mut self.request));
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

    pub(crate) fn answer(self, status: ReplyStatus, len: u64) {
        match self {
            Self::Here { reply, .. } => reply.set(status, &[], len),
            Self::There(to) => {
                // A connection that has ended has no caller.
                let _ = to.send(status, len, &[]);
            }
        }
    }
}

impl RemoteReply {
    fn area(&self) -> Result<&crate::conn::RpcArea, Error> {
        self.conn.rpc.as_ref().map(|rpc| &rpc.remote).ok_or(Error::Unknown)
    }

    fn send(self, status: ReplyStatus, len: u64, data: &[u8]) -> Result<(), Error> {
        let header = ReplyHeader { call: self.call, status, len };
        self.node.send_reply(&self.conn, self.slot, &header, data)
    }
}
