//! The services of a host for the code above it: time, randomness, tasks, memory, a control connection, and
//! TCP.
//!
//! Protocol code receives all of these as arguments, so that the same `lite` and `roce` run in the kernel, in
//! the simulator under virtual time and one seed, and on a Linux host. `kernel`, `tests/sim` and `host/node`
//! implement them.
//!
//! # Neighbours
//! `verbs` is the interface of the RNIC beside it; `lite` and the drivers are above both.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

#[cfg(feature = "arena")]
mod arena;
pub mod bitmaps;
pub mod coverage;
mod lent;
mod link;
mod log_ring;
mod memory;
mod network;
mod pages;
mod planted;
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
pub use log_ring::LogRing;
pub use memory::{IoAddr, Memory, MemoryError, MemoryStats};
pub use network::{Connection, Listener, Network, NetworkError, NetworkFuture};
pub use pages::{OwnRun, Pages};
pub use time::{Instant, NoTimeLimit, TIME_UNITS, TimeLimit, parse_time};

/// A task: a future without a result, polled until it ends.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock, randomness, an executor and memory: the machine as protocol code sees it.
///
/// # Examples
///
/// A platform on a host, which starts each task on a thread:
///
#[cfg_attr(feature = "arena", doc = "```")]
#[cfg_attr(not(feature = "arena"), doc = "```ignore")]
/// use platform::{Arena, Instant, IoAddr, Memory, Platform, Task};
/// use std::task::{Context, Poll, Waker};
///
/// struct Host {
///     start: std::time::Instant,
///     memory: Arena,
/// }
///
/// impl Platform for Host {
///     fn now(&self) -> Instant {
///         Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
///     }
///     fn fill_random(&self, buf: &mut [u8]) {
///         buf.fill(4); // A real platform asks its system.
///     }
///     fn cpus(&self) -> usize {
///         1
///     }
///     fn spawn(&self, name: &'static str, mut task: Task) {
///         let run = move || {
///             let mut cx = Context::from_waker(Waker::noop());
///             while task.as_mut().poll(&mut cx) == Poll::Pending {
///                 std::thread::yield_now();
///             }
///         };
///         std::thread::Builder::new().name(name.into()).spawn(run).expect("no thread");
///     }
///     fn memory(&self) -> &dyn Memory {
///         &self.memory
///     }
/// }
///
/// let host = Host { start: std::time::Instant::now(), memory: Arena::new(IoAddr(4096), 65536) };
/// let (done, result) = std::sync::mpsc::channel();
/// let task = async move {
///     platform::yield_now().await;
///     done.send("done").expect("nobody waits");
/// };
/// host.spawn("example", Box::pin(task));
/// assert_eq!(result.recv(), Ok("done"));
///
/// let buffer = host.memory().lend(100).expect("64 KiB are free");
/// buffer.write(0, b"hello")?;
/// assert!(host.now() > Instant::ZERO);
/// # Ok::<(), platform::MemoryError>(())
/// ```
pub trait Platform: Send + Sync {
    /// Returns the monotonic time since this node's start.
    fn now(&self) -> Instant;

    /// Fills `buf` with unpredictable bytes (in the simulator: with bytes that the seed determines).
    fn fill_random(&self, buf: &mut [u8]);

    /// Returns the number of processors that run tasks, at least 1.
    fn cpus(&self) -> usize;

    /// Returns the processor that runs the caller, below [`cpus`](Self::cpus), or 0 if it is not known. LITE
    /// posts the work of each processor to queue pairs of its own.
    fn cpu(&self) -> usize {
        0
    }

    /// Starts a task on a processor that the platform chooses; `name` appears in diagnostics. Names that
    /// begin with `lite-` are LITE's own tasks, which never compute for long: a platform with threads may
    /// separate them from applications.
    fn spawn(&self, name: &'static str, task: Task);

    /// Wakes the poller of the RNIC and of LITE, which has something new: posted work, or an earlier
    /// deadline. A processor that polls and sleeps must look again. A platform that polls in no loop of its
    /// own does nothing.
    fn wake_poller(&self) {}

    /// Polls the RNIC and LITE once, on behalf of a task that looks at memory again and again, if
    /// nothing else waits for the task's processor. Returns what the task must do before its next
    /// look but one. Call it only in task context, without a lock.
    fn poll_in_task(&self) -> Look {
        Look::Later
    }

    /// Returns the node's memory, as devices and peers address it.
    fn memory(&self) -> &dyn Memory;

    /// Moves whole lines of the node's log, the oldest first, to the beginning of `into`. Returns the number
    /// of bytes, and the number of all lines that were lost because too many waited. A platform that keeps no
    /// lines returns zeros.
    fn take_log(&self, into: &mut [u8]) -> (usize, u64) {
        let _ = into;
        (0, 0)
    }
}

/// The next step of a task that looks at memory again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Look again at once: nothing else waits for the processor.
    Again,
    /// Look once more and then [yield](yield_now): other work waits for the processor, or has come.
    Yield,
    /// Look once more and then sleep for a while: this platform does not poll in tasks.
    Later,
}

/// Lets other tasks of this processor run: the future is pending once, then ready.
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
