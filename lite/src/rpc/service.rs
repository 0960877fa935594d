//! A function's queue: requests that wait for a task, and buffers that requests are read into.

use super::call::Call;
use super::server::{FunctionId, RpcOptions};
use super::wire::{LONGEST, ReplyStatus};
use crate::Error;
use crate::node::Node;
use crate::wait::{Line, Waiters};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use spin::Mutex;

/// Buffers that a function keeps for its next requests, each at most [`LONGEST`] bytes.
const SPARES: usize = 16;

/// What a function serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    /// Calls, and messages as calls whose reply nobody waits for.
    Calls,
    /// Messages only.
    Messages,
}

/// A function's queue.
pub(crate) struct Service {
    options: RpcOptions,
    takes: Takes,
    queue: Mutex<Queue>,
    /// Places in the queue that are taken or about to be.
    reserved: AtomicUsize,
    /// Callers of this node that wait for a place.
    room: Line,
    arrival: Line,
    /// Requests that tasks have taken and not answered.
    under_way: AtomicUsize,
    idle: Waiters,
    spares: Mutex<Vec<Vec<u8>>>,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    closed: bool,
}

impl Service {
    pub(crate) fn new(options: RpcOptions, takes: Takes) -> Self {
        Self {
            options,
            takes,
            queue: Mutex::default(),
            reserved: AtomicUsize::new(0),
            room: Line::default(),
            arrival: Line::default(),
            under_way: AtomicUsize::new(0),
            idle: Waiters::default(),
            spares: Mutex::default(),
        }
    }

    pub(crate) fn max_request(&self) -> usize {
        self.options.max_request
    }

    /// Whether it serves such a request.
    pub(crate) fn takes(&self, one_way: bool) -> bool {
        one_way || self.takes == Takes::Calls
    }

    /// Takes a place in the queue, if there is one. [`enqueue`](Self::enqueue) or [`unreserve`](Self::unreserve) follows.
    #[must_use]
    pub(crate) fn reserve(&self) -> bool {
        let one_more = |taken: usize| (taken < self.options.queue).then_some(taken + 1);
        self.reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok()
    }

    /// Waits for a place in the queue. [`enqueue`](Self::enqueue) follows; it finds out if the function has ended.
    pub(crate) async fn place(&self) {
        let free = || {
            let closed = || {
                let closed = self.queue.lock().closed;
                closed.then(|| self.reserved.fetch_add(1, Ordering::AcqRel)).is_some()
            };
            (self.reserve() || closed()).then_some(())
        };
        self.room.until(free).await;
    }

    pub(crate) fn unreserve(&self) {
        self.reserved.fetch_sub(1, Ordering::AcqRel);
        self.room.wake();
    }

    /// Puts a call into the place that was reserved.
    pub(crate) fn enqueue(&self, mut call: Call) {
        let sender = call.accepted();
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            self.unreserve();
            return call.refuse(sender, ReplyStatus::NoSuchFunction, 0);
        }
        queue.calls.push_back(call);
        drop(queue);
        self.arrival.wake();
        if let Some(sender) = sender {
            sender.answer(ReplyStatus::Accepted, 0);
        }
    }

    /// Gives a call back that was taken and not looked at.
    fn put_back(&self, call: Call) {
        self.reserved.fetch_add(1, Ordering::AcqRel);
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            self.unreserve();
            return call.refuse(None, ReplyStatus::NoSuchFunction, 0);
        }
        queue.calls.push_front(call);
        drop(queue);
        self.arrival.wake();
    }

    fn take(self: &Arc<Self>, node: &Node) -> Option<Result<Call, Error>> {
        let mut queue = self.queue.lock();
        let Some(mut call) = queue.calls.pop_front() else {
            let closed = queue.closed;
            drop(queue);
            return match closed {
                _ if node.is_fenced() => Some(Err(Error::LinkDown)),
                true => Some(Err(Error::NoSuchFunction)),
                false => None,
            };
        };
        drop(queue);
        self.unreserve();
        self.under_way.fetch_add(1, Ordering::AcqRel);
        call.taken_by(self.clone());
        Some(Ok(call))
    }

    /// The next call as it has come: the request may still lie with its caller.
    pub(crate) async fn next_as_is(self: &Arc<Self>, node: &Node) -> Result<Call, Error> {
        self.arrival.until(|| self.take(node)).await
    }

    /// The next call. Dropped before it is ready, it leaves the call to others.
    pub(crate) async fn next(self: &Arc<Self>, node: &Node) -> Result<Call, Error> {
        loop {
            let mut held = Held { service: self, call: Some(self.next_as_is(node).await?) };
            let Some(call) = &mut held.call else { continue };
            let fetched = call.fetch().await;
            let call = held.call.take();
            // Without its request, the call has been answered or its caller is gone.
            if let (Ok(()), Some(call)) = (fetched, call) {
                return Ok(call);
            }
        }
    }

    /// A call that a task had taken is no more; its buffer is.
    pub(crate) fn ended(&self, buffer: Vec<u8>) {
        if (1..=LONGEST as usize).contains(&buffer.capacity()) {
            let mut spares = self.spares.lock();
            if spares.len() < SPARES {
                spares.push(buffer);
            }
        }
        if self.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.wake_all();
        }
    }

    /// A buffer of `len` bytes; of no use for long ones.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.spares.lock().pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(len, 0);
        buffer
    }

    /// Nothing is taken any more: what waits, and who waits, is told.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            core::mem::take(&mut queue.calls)
        };
        for call in waiting {
            self.unreserve();
            call.refuse(None, ReplyStatus::NoSuchFunction, 0);
        }
        self.arrival.wake_all();
        self.room.wake_all();
    }

    /// Waits until no task has a call of it.
    pub(crate) async fn idle(&self) {
        self.idle.until(|| (self.under_way.load(Ordering::Acquire) == 0).then_some(())).await;
    }
}

/// A call whose request is being fetched.
struct Held<'a> {
    service: &'a Arc<Service>,
    call: Option<Call>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(mut call) = self.call.take() {
            call.not_taken();
            self.service.ended(Vec::new());
            self.service.put_back(call);
        }
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

    /// Removes `service`, if it still serves `function`.
    pub(crate) fn remove(&self, function: FunctionId, service: &Arc<Service>) {
        let mut table = self.0.lock();
        if table.get(&function).is_some_and(|s| Arc::ptr_eq(s, service)) {
            table.remove(&function);
        }
        drop(table);
        service.close();
    }

    /// Ends all functions: what waits in their queues, and would keep the node, goes.
    pub(crate) fn close_all(&self) {
        self.all(FunctionId::MAX).iter().for_each(|service| service.close());
    }

    /// Those with ids up to `last`.
    fn all(&self, last: FunctionId) -> Vec<Arc<Service>> {
        self.0.lock().range(..=last).map(|(_, service)| service.clone()).collect()
    }

    /// Ends the functions of applications, and waits until no task has a call of theirs.
    pub(crate) async fn end_all(&self) {
        let all = self.all(super::INTERNAL - 1);
        all.iter().for_each(|service| service.close());
        for service in all {
            service.idle().await;
        }
    }
}
