//! Waiting: wakers of all waiters, fair queues, gates, futures in one task, and lists for the poller.

mod deferred_list;
mod fair_queue;
mod gate;
mod many;
mod waiters;

pub(crate) use deferred_list::DeferredList;
pub(crate) use fair_queue::{FairQueue, Woken, take_in_turn};
pub(crate) use gate::{Epoch, Gate, Shut};
pub(crate) use many::{all, in_window};
pub(crate) use waiters::Waiters;
