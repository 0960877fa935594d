//! Synchronisation between nodes: locks, barriers, events, counters.
//!
//! Each object lives on a home node, which alone decides on its order. A waiter occupies one entry in the
//! home's queue and keeps no call open: the home acknowledges at once, and sends a second message
//! (`Request::Woken`) when the wait ends. So any number of tasks can wait, and none of them delays another
//! task's message.
//!
//! An object ends when it is destroyed or its home leaves; its waiters are told. A waiter that gives up, is
//! dropped or dies leaves the queue.

mod barrier;
mod counter;
mod event;
mod fencing;
mod home;
mod lock;
mod object;
mod queue;
pub(crate) mod request;
mod serve;
mod waiting;

pub use counter::Counter;
pub(crate) use counter::Unsure;
pub use event::Event;
pub use fencing::FencingToken;
pub(crate) use home::SyncHome;
pub use lock::{Lock, LockGuard};
#[cfg(feature = "testing")]
pub(crate) use {queue::Mode, waiting::Outcome};

/// The length of the longest name of an object or barrier, in bytes.
pub(crate) const LONGEST_NAME: usize = 256;
