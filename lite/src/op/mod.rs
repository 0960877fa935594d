//! One-sided operations: slots, posting, and transfers of any length.

mod copy;
mod ends;
mod fast_path;
mod flight;
mod links;
mod post;
mod queue;
mod slot;
mod transfer;
mod unfinished;
mod vector;

pub(crate) use copy::Loan;
pub(crate) use ends::{Ends, MOST_SLOTS, OpId};
pub(crate) use fast_path::FastRoute;
pub(crate) use flight::{Ended, Flight, Rest, TaskWaker};
pub(crate) use links::{Link, PlaceId};
pub(crate) use post::{NotPosted, Pass, Verb};
pub use queue::{Completed, CompletionQueue, Op, OpKind};
pub(crate) use slot::{FastPathCounts, OpTable, Touch, Waits};
pub(crate) use transfer::{Data, Lost, RECONNECT_PAUSE, Stop, judge};
pub(crate) use unfinished::Moment;
