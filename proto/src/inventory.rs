//! The inventory of the manager against the nodes that are there.

use crate::{NodeStanding, Reason};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The presence of a node that the inventory lists, or of a member that it does not list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    /// The node is a member, and is as the inventory says.
    Present,
    /// The node is a member, and differs from the inventory in these points, for people.
    Differs(Vec<Reason>),
    /// The inventory lists the node, and it is no member.
    Absent,
    /// The node is a member, and the inventory does not list it.
    Unlisted,
}

impl Presence {
    /// Returns the presence as one word, for people.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Differs(_) => "differs",
            Self::Absent => "absent",
            Self::Unlisted => "unlisted",
        }
    }
}

/// A node of the inventory, or a member that it does not list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryNode {
    /// The node's name.
    pub name: String,
    /// The presence.
    pub presence: Presence,
    /// The state.
    pub standing: NodeStanding,
    /// The kind of its power controller, if the inventory names one.
    pub bmc: Option<String>,
}
