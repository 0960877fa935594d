//! Waiting: wakers in line, and gates that close.

mod gate;
mod waiters;

pub(crate) use gate::Gate;
pub(crate) use waiters::Waiters;
