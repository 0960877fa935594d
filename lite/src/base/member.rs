//! The identity of a member.

use proto::{Incarnation, NodeId};

/// A node in one incarnation.
pub(crate) type MemberId = (NodeId, Incarnation);
