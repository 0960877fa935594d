//! Waiting: wakers of all who wait, lines, and gates that close.

mod gate;
mod line;
mod waiters;

pub(crate) use gate::{Epoch, Gate, Shut};
pub(crate) use line::Line;
pub(crate) use waiters::Waiters;
