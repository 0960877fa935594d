//! One-sided operations: slots, posting, and transfers of any length.

mod flight;
mod post;
mod quick;
mod slot;
mod transfer;

pub(crate) use flight::{Flight, Lent};
pub(crate) use post::{NotPosted, Pass, Verb};
pub(crate) use quick::Outcome;
pub(crate) use slot::{Finished, Holds, OpId, OpTable, Quick, Stands, Waits};
pub(crate) use transfer::{Data, RECONNECT_PAUSE};
