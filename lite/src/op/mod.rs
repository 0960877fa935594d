//! One-sided operations: slots, posting, and transfers of any length.

mod flight;
mod post;
mod slot;
mod transfer;

pub(crate) use flight::Flight;
pub(crate) use post::{NotPosted, Verb};
pub(crate) use slot::{Finished, Holds, OpId, OpTable};
pub(crate) use transfer::{Data, RECONNECT_PAUSE, Route};
