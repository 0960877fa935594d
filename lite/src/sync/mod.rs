//! What nodes wait for each other with: locks, barriers, events, counters.
//!
//! Each object lives on a home node, which alone decides: who is next, who is let go. Who waits holds nothing at the home but a
//! line in a queue: the home answers at once, and tells later ([`Ask::Woken`](crate::rpc::Ask)) how the wait has ended. So any
//! number of tasks can wait, and none of them keeps another one's message from being sent.
//!
//! An object ends when it is destroyed or its home leaves; whoever waits then is told so. A waiter that gives up, is dropped
//! or dies leaves its queue.

mod barrier;
mod counter;
mod event;
mod fencing;
mod lock;
mod object;
mod queue;
mod waiting;

pub use counter::Counter;
pub use event::Event;
pub use fencing::FencingToken;
pub use lock::{Lock, LockGuard};
pub(crate) use object::{Kind, Objects, Place};
pub(crate) use queue::Mode;
pub(crate) use waiting::{Outcome, Waits};

/// Bytes of the longest name of an object or barrier.
const LONGEST_NAME: usize = 256;
