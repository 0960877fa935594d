//! The function of a writer that tells its low mark, and the caller's side.

use crate::layout::{Contact, FUNCTION_BITS, Position};
use crate::pending::Pending;
use alloc::sync::Arc;
use core::future::poll_fn;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use lite::{Error, FunctionId, Lite, RpcOptions, RpcServer};
use spin::Mutex;

/// The least function number of a writer.
pub(crate) const FUNCTIONS: FunctionId = 0x4c47_0000;
/// The length of a request: the key of the log, and the number of the writer.
const REQUEST_LEN: usize = 16;

/// The signal by which a writer stops the task of its service.
#[derive(Default)]
pub(crate) struct Stop {
    stopped: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Stop {
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the result of `future`, or `None` once the service is stopped.
    async fn or_stop<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            *self.waker.lock() = Some(cx.waker().clone());
            if self.stopped.load(Ordering::SeqCst) {
                return Poll::Ready(None);
            }
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

fn request(key: u64, writer: usize) -> [u8; REQUEST_LEN] {
    let mut request = [0; REQUEST_LEN];
    request[..8].copy_from_slice(&key.to_le_bytes());
    request[8..].copy_from_slice(&(writer as u64).to_le_bytes());
    request
}

/// Registers a function for a writer of this node, under any free number.
pub(crate) fn register(lite: &Lite) -> Result<(u16, RpcServer), Error> {
    let options = RpcOptions { max_request: REQUEST_LEN, queue: 64 };
    let mut result = Err(Error::NameTaken);
    for number in 0..1u16 << FUNCTION_BITS {
        result = lite.register(FUNCTIONS + u32::from(number), options).map(|server| (number, server));
        if !matches!(result, Err(Error::NameTaken)) {
            break;
        }
    }
    result
}

/// Answers with the low mark until the service is stopped.
pub(crate) async fn serve<D>(
    server: RpcServer,
    stop: Arc<Stop>,
    pending: Arc<Pending<D>>,
    (key, writer): (u64, usize),
) {
    while let Some(Ok(call)) = stop.or_stop(server.receive()).await {
        // The request may be for a former writer whose function had the same number. It gets an empty reply.
        let known = call.request() == request(key, writer);
        let mark = known.then(|| pending.low_mark().slot().to_le_bytes());
        let reply: &[u8] = mark.as_ref().map_or(&[], |mark| mark);
        // A reply that gets lost does no harm, because the caller then asks again.
        drop(call.reply(reply).await);
    }
}

/// Asks a writer for its low mark. Returns `None` if the function there is that of another writer.
pub(crate) async fn ask(
    lite: &Lite,
    contact: Contact,
    (key, writer): (u64, usize),
) -> Result<Option<Position>, Error> {
    let function = FUNCTIONS + u32::from(contact.function);
    let reply = lite.call(contact.node, function, &request(key, writer), 8).await?;
    Ok(reply.try_into().ok().map(|mark| Position::from_slot(u64::from_le_bytes(mark))))
}
