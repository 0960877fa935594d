//! Operations in flight: the table of slots, posting, and the fast path.

mod completion;
mod fast_path;
mod links;
mod post;
mod status;
mod survey;
mod table;
mod transport;
mod unfinished;
mod validity;
mod work;

pub(crate) use completion::BATCH;
pub(crate) use fast_path::{Ended, FastRoute, InFlight, TaskWaker};
pub(crate) use links::MemberIndex;
pub(crate) use post::posted;
pub(crate) use status::{OpId, receive_of};
#[cfg(feature = "testing")]
pub(crate) use table::OpTable;
pub(crate) use table::{Shard, WaitMode};
pub(crate) use transport::Transport;
pub(crate) use unfinished::Moment;
pub(crate) use validity::{STAMP_BITS, Stamp, StampId};
pub(crate) use work::{Access, MAX_INLINE, NotPosted, Verb};
