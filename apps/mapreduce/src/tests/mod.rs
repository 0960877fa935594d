//! Tests of whole jobs over several nodes in one process, with runs in plain memory instead of LITE regions.

mod cluster;
mod runs;

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

/// Polls a future to its end. Everything that these tests wait for makes progress when polled.
fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
    }
}
