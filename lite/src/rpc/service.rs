//! A function's queue: the requests that wait for a task, and the buffers that requests are read into.

use super::Rpc;
use super::call::{Call, Record};
use super::internal::INTERNAL;
use super::server::{FunctionId, RpcOptions};
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::wait::{FairQueue, Waiters, Woken, take_in_turn};
use crate::base::writers::{AtomicU64, Ordering};
use crate::channel::wire::{LONGEST, ReplyStatus};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;

/// The number of records that a function keeps for its next requests, each with a buffer of at most
/// [`LONGEST`] bytes.
const SPARES: usize = 16;

/// The kinds of requests that a function serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Takes {
    /// Calls; messages are calls without a waiting caller.
    Calls,
    /// The mailbox accepts messages only.
    Messages,
}

/// A function's queue.
pub(crate) struct Service {
    options: RpcOptions,
    takes: Takes,
    queue: Mutex<Queue>,
    idle: Waiters,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Call>,
    /// Tasks that wait for a call.
    arrival: FairQueue,
    /// Callers on this node that wait for room in the queue.
    room: FairQueue,
    closed: bool,
    /// The number of entries that are in use or reserved.
    reserved: usize,
    /// The number of requests that tasks have received and not answered.
    under_way: usize,
    /// The number of requests that tasks have received, without the long ones, which the node counts.
    served: u64,
    /// Records for the next requests.
    #[allow(clippy::vec_box, reason = "a record moves as a pointer, here and in its call")]
    spares: Vec<Box<Record>>,
}

impl Queue {
    /// Reserves one of `most` entries, if one is free; returns a spare record, if there is one.
    fn reserve(&mut self, most: usize) -> Option<Option<Box<Record>>> {
        (self.reserved < most).then_some(())?;
        self.reserved += 1;
        Some(self.spares.pop())
    }

    /// Ends a reservation. The caller wakes the tasks that this returns.
    fn unreserve(&mut self) -> Woken {
        self.reserved -= 1;
        self.room.wake()
    }

    /// Returns the next call for a task.
    #[inline(always)]
    fn take(&mut self) -> Option<Call> {
        let call = self.calls.pop_front()?;
        self.under_way += 1;
        self.served += u64::from(!call.is_remote());
        self.reserved -= 1;
        Some(call)
    }
}

impl Service {
    pub(crate) fn new(options: RpcOptions, takes: Takes) -> Self {
        Self { options, takes, queue: Mutex::default(), idle: Waiters::default() }
    }

    pub(crate) fn max_request(&self) -> usize {
        self.options.max_request
    }

    /// Returns true if the function serves calls, or with `one_way` messages.
    pub(crate) fn takes(&self, one_way: bool) -> bool {
        one_way || self.takes == Takes::Calls
    }

    /// Reserves an entry of the queue, if one is free. [`enqueue`](Self::enqueue) or
    /// [`unreserve`](Self::unreserve) must follow. Returns a record with a buffer for `len` bytes, or the
    /// status for the caller: the caller chooses `len`, and there may not be enough memory.
    #[inline(always)]
    pub(crate) fn reserve(&self, len: usize) -> Result<Box<Record>, ReplyStatus> {
        let spare = self.queue.lock().reserve(self.options.queue).ok_or(ReplyStatus::Busy)?;
        let mut record = spare.unwrap_or_default();
        if !record.try_resize(len) {
            self.unreserve();
            return Err(ReplyStatus::NoMemory);
        }
        Ok(record)
    }

    /// Does the work of [`reserve`](Self::reserve) once an entry is free. [`enqueue`](Self::enqueue)
    /// handles the end of the function.
    pub(crate) async fn reserve_later(&self, len: usize) -> Box<Record> {
        let free = |queue: &mut Queue| {
            let most = if queue.closed { usize::MAX } else { self.options.queue };
            queue.reserve(most)
        };
        let mut record = take_in_turn(&self.queue, |queue| &mut queue.room, free).await.unwrap_or_default();
        record.request.resize(len, 0);
        record
    }

    pub(crate) fn unreserve(&self) {
        let woken = self.queue.lock().unreserve();
        woken.wake();
    }

    /// Puts a call into the reserved entry.
    #[inline(always)]
    pub(crate) fn enqueue(&self, mut call: Call) {
        let sender = call.accepted();
        let mut queue = self.queue.lock();
        if queue.closed {
            let woken = queue.unreserve();
            drop(queue);
            woken.wake();
            return call.refuse(sender, ReplyStatus::NoSuchFunction, 0);
        }
        queue.calls.push_back(call);
        let woken = queue.arrival.wake();
        drop(queue);
        woken.wake();
        if let Some(sender) = sender {
            sender.answer(ReplyStatus::Accepted, 0);
        }
    }

    /// Puts a call back that a task received and did not use.
    fn put_back(&self, mut call: Call) {
        call.set_taken(None);
        let mut queue = self.queue.lock();
        queue.under_way -= 1;
        let idle = queue.under_way == 0;
        let (refused, woken) = if queue.closed {
            (Some(call), Woken::default())
        } else {
            queue.reserved += 1;
            queue.calls.push_front(call);
            (None, queue.arrival.wake())
        };
        drop(queue);
        if idle {
            self.idle.wake_all();
        }
        woken.wake();
        if let Some(call) = refused {
            call.refuse(None, ReplyStatus::NoSuchFunction, 0);
        }
    }

    /// Returns the next call unfetched: the request may still be in its caller's memory.
    #[inline(always)]
    pub(crate) async fn next_as_is(self: &Arc<Self>, node: &Rpc) -> Result<Call, Error> {
        let mut is_awaited = false;
        let take = |queue: &mut Queue| match queue.take() {
            None => (queue.closed || node.local.is_fenced()).then_some(None),
            taken => {
                is_awaited = !queue.room.is_empty();
                Some(taken)
            }
        };
        let Some(mut call) = take_in_turn(&self.queue, |queue| &mut queue.arrival, take).await else {
            return Err(if node.local.is_fenced() { Error::LinkDown } else { Error::NoSuchFunction });
        };
        if is_awaited {
            self.wake_for_room();
        }
        call.set_taken(Some(self.clone()));
        Ok(call)
    }

    /// Wakes the callers of this node that have waited for an entry of the queue.
    #[cold]
    fn wake_for_room(&self) {
        let woken = self.queue.lock().room.wake();
        woken.wake();
    }

    /// Returns the next call. If this is dropped before it is ready, another task gets the call.
    pub(crate) async fn next(self: &Arc<Self>, node: &Rpc) -> Result<Call, Error> {
        loop {
            let call = self.next_as_is(node).await?;
            if !call.is_remote() {
                return Ok(call);
            }
            let mut held = Held { service: self, call: Some(call) };
            let Some(call) = &mut held.call else { continue };
            let fetched = call.fetch().await;
            let call = held.call.take();
            // Without its request, the call has been answered or its caller has departed.
            if let (Ok(()), Some(call)) = (fetched, call) {
                node.local.counters.served.add(1);
                return Ok(call);
            }
        }
    }

    /// Handles the end of a received call, and keeps the memory of its record for a later one.
    pub(crate) fn ended(&self, mut record: Box<Record>) {
        record.clear();
        let mut queue = self.queue.lock();
        let keeps = !queue.closed && queue.spares.len() < SPARES;
        let dropped = if keeps && record.request.capacity() <= LONGEST as usize {
            queue.spares.push(record);
            None
        } else {
            Some(record)
        };
        queue.under_way -= 1;
        let idle = queue.under_way == 0;
        drop(queue);
        drop(dropped);
        if idle {
            self.idle.wake_all();
        }
    }

    /// Closes the queue, and tells the callers and tasks that wait.
    pub(crate) fn close(&self) {
        // Pollers may know the function for a while yet, which keeps its memory.
        let (calls, spares, woken) = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            let calls = core::mem::take(&mut queue.calls);
            queue.reserved -= calls.len();
            let woken = [queue.arrival.wake_all(), queue.room.wake_all()];
            (calls, core::mem::take(&mut queue.spares), woken)
        };
        drop(spares);
        for call in calls {
            call.refuse(None, ReplyStatus::NoSuchFunction, 0);
        }
        woken.into_iter().flatten().for_each(Waker::wake);
    }

    /// Returns the number of requests that tasks have received, without the long ones.
    fn served(&self) -> u64 {
        self.queue.lock().served
    }

    /// Waits until no task has a call of the function.
    pub(crate) async fn idle(&self) {
        self.idle.until(|| (self.queue.lock().under_way == 0).then_some(())).await;
    }
}

/// A call whose request is being fetched.
struct Held<'a> {
    service: &'a Service,
    call: Option<Call>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.service.put_back(call);
        }
    }
}

/// The functions of a node.
#[derive(Default)]
pub(crate) struct ServiceTable {
    functions: Mutex<Functions>,
    /// The number of changes of the table. Written only under its lock.
    version: AtomicU64,
}

#[derive(Default)]
struct Functions {
    services: BTreeMap<FunctionId, Arc<Service>>,
    /// The number of requests that tasks have received from functions of applications that have ended,
    /// without the long ones.
    served_before: u64,
}

/// The functions of a node, as one poller knows them. A request finds its function without a lock, and
/// without a change of a count of references.
#[derive(Default)]
pub(crate) struct KnownServices {
    version: u64,
    /// The functions, in the order of their numbers.
    services: Vec<(FunctionId, Arc<Service>)>,
    /// The index of the function of the last request, which mostly is that of the next one.
    recent: usize,
}

impl KnownServices {
    /// Returns a function of `table`. It may have been removed a moment ago; then its queue is closed.
    #[inline(always)]
    pub(crate) fn get(&mut self, table: &ServiceTable, function: FunctionId) -> Option<&Arc<Service>> {
        if table.version.load(Ordering::Acquire) != self.version {
            self.renew(table);
        }
        if self.services.get(self.recent).is_none_or(|(recent, _)| *recent != function) {
            self.recent = self.find(function)?;
        }
        self.services.get(self.recent).map(|(_, service)| service)
    }

    /// Returns the index of a function. Not inlined, because few requests are for another function than the
    /// one before.
    #[inline(never)]
    fn find(&self, function: FunctionId) -> Option<usize> {
        self.services.binary_search_by_key(&function, |(number, _)| *number).ok()
    }

    #[cold]
    fn renew(&mut self, table: &ServiceTable) {
        let functions = table.functions.lock();
        let known = functions.services.iter().map(|(number, service)| (*number, service.clone())).collect();
        let former = core::mem::replace(&mut self.services, known);
        self.version = table.version.load(Ordering::Relaxed);
        drop(functions);
        drop(former);
    }
}

impl ServiceTable {
    /// Returns a function.
    pub(crate) fn get(&self, function: FunctionId) -> Option<Arc<Service>> {
        self.functions.lock().services.get(&function).cloned()
    }

    /// Adds a function; returns `false` if the number is in use.
    pub(crate) fn add(&self, function: FunctionId, service: Arc<Service>) -> bool {
        let mut functions = self.functions.lock();
        if functions.services.contains_key(&function) {
            return false;
        }
        functions.services.insert(function, service);
        self.changed();
        true
    }

    /// Removes `service`, if it still serves `function`.
    pub(crate) fn remove(&self, function: FunctionId, service: &Arc<Service>) {
        service.close();
        // No task receives a request of a closed function any more.
        let served = if function < INTERNAL { service.served() } else { 0 };
        let mut functions = self.functions.lock();
        if functions.services.get(&function).is_some_and(|s| Arc::ptr_eq(s, service)) {
            let removed = functions.services.remove(&function);
            functions.served_before += served;
            self.changed();
            drop(functions);
            drop(removed);
        }
    }

    /// Tells the pollers that the table has changed. The caller has its lock.
    fn changed(&self) {
        self.version.store(self.version.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Returns the number of requests that tasks have received from functions of applications, without the
    /// long ones.
    pub(crate) fn served(&self) -> u64 {
        let functions = self.functions.lock();
        let services = functions.services.range(..INTERNAL);
        functions.served_before + services.map(|(_, service)| service.served()).sum::<u64>()
    }

    /// Ends all functions and drops the calls in their queues, which would keep the node alive.
    pub(crate) fn close_all(&self) {
        self.all(FunctionId::MAX).iter().for_each(|service| service.close());
    }

    /// Returns the functions with numbers up to `last`.
    fn all(&self, last: FunctionId) -> Vec<Arc<Service>> {
        self.functions.lock().services.range(..=last).map(|(_, service)| service.clone()).collect()
    }

    /// Ends the functions of applications, and waits until no task holds one of their calls.
    pub(crate) async fn end_all(&self) {
        let all = self.all(INTERNAL - 1);
        all.iter().for_each(|service| service.close());
        for service in all {
            service.idle().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_memory_does_not_suffice_for_is_refused_and_takes_no_place() {
        let options = RpcOptions { max_request: usize::MAX, queue: 2 };
        let service = Service::new(options, Takes::Calls);
        for _ in 0..3 {
            assert_eq!(service.reserve(usize::MAX).err(), Some(ReplyStatus::NoMemory));
        }
        let held: Vec<_> = (0..2).map(|_| service.reserve(100).ok()).collect();
        assert!(held.iter().flatten().all(|record| record.request.len() == 100) && held.len() == 2);
        assert_eq!(service.reserve(0).err(), Some(ReplyStatus::Busy));
    }
}
