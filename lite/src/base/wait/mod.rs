//! Waiting: wakers of all waiters, fair queues, gates, and lists for the poller.

mod deferred_list;
mod fair_queue;
mod gate;
mod waiters;

pub(crate) use deferred_list::DeferredList;
pub(crate) use fair_queue::FairQueue;
pub(crate) use gate::{Epoch, Gate, Shut};
pub(crate) use waiters::Waiters;
