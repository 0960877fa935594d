//! One-sided operations: slots, posting, and transfers of any length.

mod copy;
mod flight;
mod post;
mod queue;
mod quick;
mod slot;
mod transfer;
mod vector;

pub(crate) use copy::Loan;
pub(crate) use flight::{Flight, Lent};
pub(crate) use post::{NotPosted, Pass, Verb};
pub use queue::{Completed, CompletionQueue, Op, OpKind};
pub(crate) use quick::Outcome;
pub(crate) use slot::{Finished, Link, OpId, OpTable, Quick, Stands, Waits};
pub(crate) use transfer::{Data, RECONNECT_PAUSE};
