//! Waiting: wakers of all who wait, lines, gates that close, and lists that the poller looks at.

mod gate;
mod line;
mod tray;
mod waiters;

pub(crate) use gate::{Epoch, Gate, Shut};
pub(crate) use line::Line;
pub(crate) use tray::Tray;
pub(crate) use waiters::Waiters;
