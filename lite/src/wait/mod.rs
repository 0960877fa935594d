//! Waiting: wakers of all waiters, fair queues, gates, and lists for the poller.

mod fair_queue;
mod gate;
mod tray;
mod waiters;

pub(crate) use fair_queue::FairQueue;
pub(crate) use gate::{Epoch, Gate, Shut};
pub(crate) use tray::Tray;
pub(crate) use waiters::Waiters;
