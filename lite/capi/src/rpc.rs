//! Remote procedure calls: functions of this node, and calls of those of others.

use crate::boundary::{self as c, Place};
use crate::node::fl_node;
use crate::status::fl_status;
use futures_lite::future;
use lite::{Call, Error, Lite, NodeId, RpcOptions, RpcServer};
use lite_node::Node;
use std::ffi::c_void;
use std::sync::Arc;

/// A function that this node serves.
pub struct fl_function {
    server: RpcServer,
    /// Whose threads it needs.
    node: Arc<Node>,
}

/// A call of a function of this node that waits for its reply.
pub struct fl_request {
    call: Call,
    node: Arc<Node>,
}

/// `operation`, given up after a time; what that means to the other side is the operation's matter.
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

/// Calls `function` of the node `target` and waits for the reply, of which at most `capacity` bytes fit into `reply`; its
/// length goes to `reply_len`. The function runs at most once.
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
        // SAFETY: pointers that the caller vouches for.
        let (node, request, reply, reply_len) = unsafe {
            (
                c::handle(node, "node")?,
                c::slice(request.cast::<u8>(), request_len, "request")?,
                c::buffer(reply, capacity, "reply")?,
                Place::new(reply_len, "reply_len")?,
            )
        };
        let lite = node.lite(timeout_ms);
        let answer = c::wait(lite.call(NodeId(target), function, request, capacity))?;
        let (Some(room), len) = (reply.get_mut(..answer.len()), answer.len()) else {
            return Err(Error::TooLarge { max: capacity as u64 }.into());
        };
        room.copy_from_slice(&answer);
        reply_len.put(len);
        Ok(())
    })
}

/// Serves a function, whose number is below 0xffff0000, on this node: requests of at most `max_request` bytes, of which
/// `queue` may wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_register(
    node: *const fl_node,
    function: u32,
    max_request: usize,
    queue: usize,
    registered: *mut *mut fl_function,
) -> fl_status {
    c::run(|| {
        // SAFETY: pointers that the caller vouches for.
        let (node, place) = unsafe { (c::handle(node, "node")?, Place::new(registered, "registered")?) };
        let server = node.node.lite().register(function, RpcOptions { max_request, queue: queue.max(1) })?;
        place.give(fl_function { server, node: node.node.clone() });
        Ok(())
    })
}

/// Serves a function no more and gives the handle back. Requests that wait are answered with `FL_NO_SUCH_FUNCTION`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_unregister(function: *mut fl_function) -> fl_status {
    // SAFETY: a handle that the caller gives back.
    c::run(|| unsafe { c::take(function, "function") }.map(drop))
}

/// The next request for a function. Each is to be given back, by `fl_reply` or `fl_reject`. Several threads may wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_receive(
    function: *const fl_function,
    timeout_ms: u32,
    request: *mut *mut fl_request,
) -> fl_status {
    c::run(|| {
        // SAFETY: pointers that the caller vouches for.
        let (function, place) =
            unsafe { (c::handle(function, "function")?, Place::new(request, "request")?) };
        let lite = function.node.lite();
        let call = c::wait(within(lite, timeout_ms, function.server.receive()))?;
        place.give(fl_request { call, node: function.node.clone() });
        Ok(())
    })
}

/// The node that called, 0 for a null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_request_from(request: *const fl_request) -> u16 {
    // SAFETY: a handle that the caller vouches for.
    unsafe { c::handle(request, "request") }.map_or(0, |request| request.call.from().0)
}

/// The bytes of a request, which stay until it is given back; null for a null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_request_data(request: *const fl_request) -> *const c_void {
    // SAFETY: a handle that the caller vouches for.
    let request = unsafe { c::handle(request, "request") };
    request.map_or(std::ptr::null(), |request| request.call.request().as_ptr().cast())
}

/// How many bytes a request has, 0 for a null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_request_len(request: *const fl_request) -> usize {
    // SAFETY: a handle that the caller vouches for.
    unsafe { c::handle(request, "request") }.map_or(0, |request| request.call.request().len())
}

/// Sends the reply and gives the request back, also if it fails. `FL_OK` means that the reply is on its way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_reply(
    request: *mut fl_request,
    data: *const c_void,
    len: usize,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        // SAFETY: a handle that the caller gives back, and bytes that it vouches for.
        let (request, data) =
            unsafe { (c::take(request, "request")?, c::slice(data.cast::<u8>(), len, "data")?) };
        let fl_request { call, node } = *request;
        c::wait(within(node.lite(), timeout_ms, call.reply(data)))
    })
}

/// Gives a request back without a reply: the caller gets `FL_REFUSED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_reject(request: *mut fl_request) -> fl_status {
    // SAFETY: a handle that the caller gives back.
    c::run(|| unsafe { c::take(request, "request") }.map(drop))
}
