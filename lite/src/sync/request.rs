//! The requests of nodes to each other about locks, events and barriers.

use super::queue::Mode;
use super::waiting::Outcome;
use crate::Error;
use crate::base::names::{Kind, ObjectAddress};
use crate::rpc::{FunctionId, INTERNAL, InternalRequest};
use alloc::string::String;
use alloc::vec::Vec;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// A request of one node to another about locks, events and barriers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Wait at a barrier under the number `token` of the requester's choice. Numbers ascend; `oldest` is the
    /// lowest one under which the requester waits at a barrier of this home.
    BarrierEnter { name: String, group: Vec<NodeId>, token: u64, oldest: u64 },
    /// Stop waiting at a barrier: all others that wait there fail.
    BarrierLeave { name: String, token: u64 },
    /// Make a lock or event. `secret` is the requester's choice.
    Create { kind: Kind, secret: u64, name: String },
    /// End the object that was made under `secret`, if it exists.
    Destroy { secret: u64 },
    /// Claim a lock; if it is not free, `wait` for it.
    Claim { address: ObjectAddress, mode: Mode, token: u64, wait: bool },
    /// Increment an event's count.
    Signal { address: ObjectAddress },
    /// Wait until an event's count is above `past`.
    Await { address: ObjectAddress, past: u64, token: u64 },
    /// Stop waiting or holding. `held`: the requester's task has had the lock.
    Leave { address: ObjectAddress, token: u64, held: bool },
    /// Sent by a home: a wait of the called node has ended.
    Woken { token: u64, outcome: Result<Outcome, Error> },
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    /// The request was carried out, and nothing is returned.
    Done,
    /// An object was made.
    Created(ObjectAddress),
    /// Queued: [`Request::Woken`] follows.
    Queued,
    /// The wait has ended at once.
    Ended(Outcome),
}

impl InternalRequest for Request {
    type Response = Response;
    const FUNCTION: FunctionId = INTERNAL + 1;
}
