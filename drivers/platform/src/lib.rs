//! What a host gives to the code above it: time, randomness, tasks, memory, a control connection, and TCP.
//!
//! Protocol code takes all of these as inputs, so that the same `lite` and `roce` run in the kernel, in the simulator
//! under virtual time and one seed, and on a Linux host. Implemented by `kernel`, `tests/sim` and `lite/node`.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

#[cfg(feature = "arena")]
mod arena;
pub mod coverage;
mod lent;
mod link;
mod memory;
mod network;
#[cfg(feature = "arena")]
pub mod runs;
mod time;

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;

#[cfg(feature = "arena")]
pub use arena::Arena;
#[cfg(feature = "arena")]
pub use lent::HostLent;
pub use lent::{Lent, check_bounds};
pub use link::{ControlLink, LinkDown};
pub use memory::{IoAddr, Memory, MemoryError, MemoryStats};
pub use network::{Connection, Listener, Network, NetworkError, NetworkFuture};
pub use time::{Instant, NoTimeLimit, TIME_UNITS, TimeLimit, parse_time};

/// A task: a future that is polled until it ends and gives nothing back.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The machine as protocol code sees it: a clock, randomness, an executor and its memory.
pub trait Platform: Send + Sync {
    /// Monotonic time since this node's start.
    fn now(&self) -> Instant;

    /// Fills `buf` with unpredictable bytes (in the simulator: with bytes that the seed decides).
    fn fill_random(&self, buf: &mut [u8]);

    /// Number of processors that run tasks, at least 1.
    fn cpus(&self) -> usize;

    /// The processor that runs this, below [`cpus`](Self::cpus); 0 where that is not known. For statistics.
    fn cpu(&self) -> usize {
        0
    }

    /// Starts a task on a processor that the platform chooses; `name` is for diagnosis. Names that begin with `lite-`
    /// are LITE's own tasks, which never compute for long: a platform with threads may keep them apart from applications.
    fn spawn(&self, name: &'static str, task: Task);

    /// There is something new for whoever polls the RNIC and LITE: posted work, or an earlier deadline. A processor that
    /// polls and sleeps must look again; nothing to do where polling is not done by a processor of its own.
    fn wake_poller(&self) {}

    /// The node's memory as devices and peers address it.
    fn memory(&self) -> &dyn Memory;
}

/// Gives other tasks of this processor a turn: pending once, then ready.
pub async fn yield_now() {
    let mut yielded = false;
    core::future::poll_fn(|cx| {
        if yielded {
            return core::task::Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        core::task::Poll::Pending
    })
    .await;
}
