//! Remote procedure calls: the functions of this node, and calls of other nodes' functions.

use crate::boundary::{self as c, OutParam};
use crate::handle::{self, Handle, Table};
use crate::node::{fl_node, lite};
use crate::status::{Failure, fl_status};
use futures_lite::future;
use lite::{Call, Error, Lite, NodeId, RpcOptions, RpcServer};
use lite_node::Node;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

/// A function that this node serves.
pub struct fl_function(());

/// The object of an [`fl_function`].
pub(crate) struct Function {
    server: RpcServer,
    /// The node whose threads the server needs.
    node: Arc<Node>,
}

impl Handle for fl_function {
    const KIND: u64 = 3;
    const NAME: &'static str = "fl_function";
    type Held = Function;

    fn table() -> &'static Table<Function> {
        static TABLE: Table<Function> = Table::new();
        &TABLE
    }
}

/// A call of a function of this node that waits for its reply.
pub struct fl_request(());

/// The object of an [`fl_request`].
pub(crate) struct Request {
    /// The call; `None` once the reply has begun.
    call: Mutex<Option<Call>>,
    node: Arc<Node>,
}

impl Handle for fl_request {
    const KIND: u64 = 4;
    const NAME: &'static str = "fl_request";
    type Held = Request;

    fn table() -> &'static Table<Request> {
        static TABLE: Table<Request> = Table::new();
        &TABLE
    }
}

impl Request {
    /// Calls `look` with the call; fails with `FL_CLOSED` if it has been replied to.
    fn with<T>(&self, look: impl FnOnce(&Call) -> T) -> Result<T, Failure> {
        let call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        call.as_ref().map(look).ok_or_else(closed)
    }

    /// Takes the call, to reply to it or to reject it.
    fn take(&self) -> Option<Call> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn closed() -> Failure {
    Failure::new(fl_status::FL_CLOSED, "request: another thread gives it back")
}

/// Drops `operation` after a time; the operation defines the effect on the other node.
async fn within<T>(
    lite: &Lite,
    timeout_ms: u32,
    operation: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = async {
        lite.sleep(c::milliseconds(timeout_ms)).await;
        Err(Error::Deadline)
    };
    future::or(operation, late).await
}

/// Calls `function` of the node `target` and waits for the reply, of which at most `capacity` bytes fit
/// into `reply`. Stores its length in `reply_len`. The function runs at most once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_call(
    node: *const fl_node,
    target: u16,
    function: u32,
    request: *const c_void,
    request_len: usize,
    reply: *mut c_void,
    capacity: usize,
    reply_len: *mut usize,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the pointers.
        let (request, reply, reply_len) = unsafe {
            (
                c::slice(request.cast::<u8>(), request_len, "request")?,
                c::buffer(reply, capacity, "reply")?,
                OutParam::new(reply_len, "reply_len")?,
            )
        };
        let lite = lite(&node, timeout_ms);
        let answer = c::wait(&node, lite.call(NodeId(target), function, request, capacity))?;
        let (Some(room), len) = (reply.get_mut(..answer.len()), answer.len()) else {
            return Err(Error::TooLarge { max: capacity as u64 }.into());
        };
        room.copy_from_slice(&answer);
        reply_len.put(len);
        Ok(())
    })
}

/// Registers a function of this node, whose number must be below 0xffff0000. A request may have at most
/// `max_request` bytes, and at most `queue` requests may wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_register(
    node: *const fl_node,
    function: u32,
    max_request: usize,
    queue: usize,
    registered: *mut *mut fl_function,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the pointer.
        let out = unsafe { OutParam::new(registered, "registered")? };
        let server = node.lite().register(function, RpcOptions { max_request, queue: queue.max(1) })?;
        out.give(Function { server, node })
    })
}

/// Ends a function and gives the handle back. Requests that wait, and threads that wait in `fl_receive`,
/// end with `FL_NO_SUCH_FUNCTION`; requests that were received can still be replied to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_unregister(function: *mut fl_function) -> fl_status {
    c::run(|| {
        let function = handle::take(function, "function")?;
        // The first poll ends the function. The rest would wait for requests that were received, which is
        // not wanted.
        let _ = future::block_on(future::poll_once(function.server.unregister()));
        Ok(())
    })
}

/// Waits for the next request for a function. Each request must be given back, by `fl_reply` or
/// `fl_reject`. Several threads may wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_receive(
    function: *const fl_function,
    timeout_ms: u32,
    request: *mut *mut fl_request,
) -> fl_status {
    c::run(|| {
        let function = handle::get(function, "function")?;
        // SAFETY: the caller vouches for the pointer.
        let out = unsafe { OutParam::new(request, "request")? };
        let call =
            c::wait(&function.node, within(function.node.lite(), timeout_ms, function.server.receive()))?;
        out.give(Request { call: Mutex::new(Some(call)), node: function.node.clone() })
    })
}

/// Returns the node that called; 0 for a handle that is null or was given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_request_from(request: *const fl_request) -> u16 {
    handle::get(request, "request").and_then(|request| request.with(|call| call.from().0)).unwrap_or(0)
}

/// Returns the bytes of a request; null for a handle that is null or was given back. They stay valid until
/// the request is given back: use `fl_request_copy` where another thread may do that meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_request_data(request: *const fl_request) -> *const c_void {
    let data = handle::get(request, "request")
        .and_then(|request| request.with(|call| call.request().as_ptr().cast::<c_void>()));
    data.unwrap_or(std::ptr::null())
}

/// Returns the number of bytes of a request; 0 for a handle that is null or was given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_request_len(request: *const fl_request) -> usize {
    handle::get(request, "request").and_then(|request| request.with(|call| call.request().len())).unwrap_or(0)
}

/// Copies the bytes of a request, at most `capacity` of them, to `into`, and stores its full length in
/// `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_request_copy(
    request: *const fl_request,
    into: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> fl_status {
    c::run(|| {
        let request = handle::get(request, "request")?;
        // SAFETY: the caller vouches for the buffer and the pointer.
        let (into, out) = unsafe { (c::buffer(into, capacity, "into")?, OutParam::new(len, "len")?) };
        let len = request.with(|call| {
            let bytes = call.request();
            into.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            bytes.len()
        })?;
        out.put(len);
        Ok(())
    })
}

/// Sends the reply and gives the request back, also if it fails. `FL_OK` means that the reply has been
/// sent, not that it has arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_reply(
    request: *mut fl_request,
    data: *const c_void,
    len: usize,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let request = handle::take(request, "request")?;
        let call = request.take().ok_or_else(closed)?;
        // SAFETY: the caller vouches for the bytes.
        let data = unsafe { c::slice(data.cast::<u8>(), len, "data")? };
        c::wait(&request.node, within(request.node.lite(), timeout_ms, call.reply(data)))
    })
}

/// Rejects a request and gives it back: the caller's call ends with `FL_REFUSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_reject(request: *mut fl_request) -> fl_status {
    c::run(|| {
        drop(handle::take(request, "request")?.take());
        Ok(())
    })
}
