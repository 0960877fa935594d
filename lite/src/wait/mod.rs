//! Waiting: wakers of all waiters, fair queues, gates, and lists for the poller.

mod gate;
mod line;
mod tray;
mod waiters;

pub(crate) use gate::{Epoch, Gate, Shut};
pub(crate) use line::Line;
pub(crate) use tray::Tray;
pub(crate) use waiters::Waiters;
