//! The server's side: functions, their queues, and calls waiting for a reply.

use super::calls::{ConnRpc, Out};
use super::wire::{ReplyHeader, ReplyStatus};
use crate::Error;
use crate::conn::Conn;
use crate::node::Node;
use crate::op::{Data, Route};
use crate::wait::Waiters;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use platform::IoAddr;
use proto::{Incarnation, NodeId};
use spin::Mutex;

/// Names a function on a node. Those from `0xffff_0000` on are LITE's own.
pub type FunctionId = u32;

/// What a function takes.
#[derive(Clone, Copy, Debug)]
pub struct RpcOptions {
    /// The longest request in bytes.
    pub max_request: usize,
    /// Requests that wait for [`RpcServer::receive`]; while there are that many, callers back off.
    pub queue: usize,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self { max_request: 1 << 20, queue: 256 }
    }
}

/// A function's queue.
pub(crate) struct Service {
    options: RpcOptions,
    queue: Mutex<VecDeque<Call>>,
    /// Requests in the queue or being fetched for it.
    reserved: AtomicUsize,
    closed: AtomicBool,
    arrival: Waiters,
}

impl Service {
    pub(crate) fn new(options: RpcOptions) -> Self {
        Self {
            options,
            queue: Mutex::default(),
            reserved: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            arrival: Waiters::default(),
        }
    }

    pub(crate) fn max_request(&self) -> usize {
        self.options.max_request
    }

    /// Takes a place in the queue, if there is one. [`enqueue`](Self::enqueue) or [`unreserve`](Self::unreserve) follows.
    #[must_use]
    pub(crate) fn reserve(&self) -> bool {
        if self.reserved.fetch_add(1, Ordering::AcqRel) < self.options.queue {
            return true;
        }
        self.unreserve();
        false
    }

    pub(crate) fn unreserve(&self) {
        self.reserved.fetch_sub(1, Ordering::AcqRel);
    }

    /// Puts a call into the place that was reserved.
    pub(crate) fn enqueue(&self, call: Call) {
        if self.closed.load(Ordering::SeqCst) {
            self.unreserve();
            return call.answer(ReplyStatus::NoSuchFunction, 0);
        }
        self.queue.lock().push_back(call);
        self.arrival.wake_all();
    }

    fn take(&self) -> Option<Call> {
        let call = self.queue.lock().pop_front()?;
        self.unreserve();
        Some(call)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let waiting = core::mem::take(&mut *self.queue.lock());
        for call in waiting {
            call.answer(ReplyStatus::NoSuchFunction, 0);
        }
        self.arrival.wake_all();
    }

    pub(crate) fn wake_all(&self) {
        self.arrival.wake_all();
    }

    pub(crate) async fn next(&self, node: &Node) -> Result<Call, Error> {
        self.arrival
            .until(|| match self.take() {
                Some(call) => Some(Ok(call)),
                None if node.is_fenced() => Some(Err(Error::LinkDown)),
                None => None,
            })
            .await
    }
}

/// The functions of a node.
#[derive(Default)]
pub(crate) struct ServiceTable(Mutex<BTreeMap<FunctionId, Arc<Service>>>);

impl ServiceTable {
    pub(crate) fn get(&self, function: FunctionId) -> Option<Arc<Service>> {
        self.0.lock().get(&function).cloned()
    }

    /// Adds a function; `false` if it is there already.
    pub(crate) fn add(&self, function: FunctionId, service: Arc<Service>) -> bool {
        let mut table = self.0.lock();
        if table.contains_key(&function) {
            return false;
        }
        table.insert(function, service);
        true
    }

    fn remove(&self, function: FunctionId) {
        let service = self.0.lock().remove(&function);
        if let Some(service) = service {
            service.close();
        }
    }

    pub(crate) fn wake_all(&self) {
        let all: Vec<_> = self.0.lock().values().cloned().collect();
        all.iter().for_each(|s| s.wake_all());
    }
}

/// A registered function. Dropped, it is unregistered: what waits in its queue, and later calls, get
/// [`Error::NoSuchFunction`].
pub struct RpcServer {
    node: Arc<Node>,
    function: FunctionId,
    service: Arc<Service>,
}

impl RpcServer {
    pub(crate) fn new(node: Arc<Node>, function: FunctionId, service: Arc<Service>) -> Self {
        Self { node, function, service }
    }

    /// The next request. Several tasks may receive; each request goes to one of them, once. Waits for as long as the node
    /// is a member: the absence of work is no error.
    pub async fn receive(&self) -> Result<Call, Error> {
        let call = self.service.next(&self.node).await?;
        self.node.counters.served.add(1);
        Ok(call)
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.node.services.remove(self.function);
    }
}

/// A request that waits for its reply. Dropped without one, it tells the caller so ([`Error::Refused`]).
pub struct Call {
    from: NodeId,
    incarnation: Incarnation,
    request: Vec<u8>,
    to: Option<ReplyTo>,
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
    pub(crate) buffer: Option<IoAddr>,
}

impl Call {
    pub(crate) fn new(from: NodeId, incarnation: Incarnation, request: Vec<u8>, to: ReplyTo) -> Self {
        Self { from, incarnation, request, to: Some(to) }
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

    /// Takes the request out, leaving an empty one.
    #[must_use]
    pub fn take_request(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.request)
    }

    pub(crate) fn set_request(&mut self, request: Vec<u8>) {
        self.request = request;
    }

    /// Sends the reply. `Ok` means that it is on its way; whether the caller still waits is not known.
    ///
    /// Fails with `TooLarge` if the caller takes less (it is told so), `Unknown` if the connection has ended.
    pub async fn reply(mut self, data: &[u8]) -> Result<(), Error> {
        let len = data.len() as u64;
        let Some(max) = self.to.as_ref().map(ReplyTo::max) else { return Ok(()) };
        if len > max {
            self.answer(ReplyStatus::ReplyTooLarge, max);
            return Err(Error::TooLarge { max });
        }
        if let Some(ReplyTo::There(to)) = &self.to
            && data.len() > ConnRpc::longest_in_slot(to.area()?)
        {
            let buffer = to.buffer.ok_or(Error::TooLarge { max })?;
            let issued = AtomicBool::new(false);
            // If this is dropped midway, `self` tells the caller that there is no reply.
            to.node.transfer(Route::Conn(&to.conn), buffer, Data::Write(data), None, &issued).await?;
            let Some(ReplyTo::There(to)) = self.to.take() else { return Ok(()) };
            return to.send(ReplyStatus::InBuffer, len, Vec::new());
        }
        match self.to.take() {
            Some(ReplyTo::There(to)) => to.send(ReplyStatus::InSlot, len, data.to_vec()),
            Some(ReplyTo::Here { reply, .. }) => {
                reply.set(ReplyStatus::InSlot, data.to_vec(), len);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Replies without waiting; `data` must fit a slot, whose least size is 256.
    pub(crate) fn reply_now(mut self, data: Vec<u8>) {
        let len = data.len() as u64;
        match self.to.take() {
            Some(ReplyTo::There(to)) => {
                // A connection that has ended has no caller.
                let _ = to.send(ReplyStatus::InSlot, len, data);
            }
            Some(ReplyTo::Here { reply, .. }) => reply.set(ReplyStatus::InSlot, data, len),
            None => {}
        }
    }

    /// Ends the call without a reply.
    pub(crate) fn answer(mut self, status: ReplyStatus, len: u64) {
        if let Some(to) = self.to.take() {
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
            Self::Here { reply, .. } => reply.set(status, Vec::new(), len),
            Self::There(to) => {
                // A connection that has ended has no caller.
                let _ = to.send(status, len, Vec::new());
            }
        }
    }
}

impl RemoteReply {
    fn area(&self) -> Result<&crate::conn::RpcArea, Error> {
        self.conn.rpc.as_ref().map(|rpc| &rpc.remote).ok_or(Error::Unknown)
    }

    fn send(self, status: ReplyStatus, len: u64, data: Vec<u8>) -> Result<(), Error> {
        if self.conn.is_shut() {
            return Err(Error::Unknown);
        }
        let header = ReplyHeader { call: self.call, status, len };
        self.node.send_out(&self.conn, Out::Reply(self.slot, header, data));
        Ok(())
    }
}

/// Where a caller on the same node waits.
#[derive(Default)]
pub(crate) struct LocalReply {
    reply: Mutex<Option<(ReplyStatus, Vec<u8>, u64)>>,
    arrival: Waiters,
}

impl LocalReply {
    fn set(&self, status: ReplyStatus, bytes: Vec<u8>, len: u64) {
        *self.reply.lock() = Some((status, bytes, len));
        self.arrival.wake_all();
    }

    pub(crate) async fn wait(&self) -> (ReplyStatus, Vec<u8>, u64) {
        self.arrival.until(|| self.reply.lock().take()).await
    }
}
