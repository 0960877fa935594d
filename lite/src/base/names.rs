//! The entries of the name directory: names of regions and of objects.

use super::member::MemberId;
use proto::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// The object that a name is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Named {
    /// A region of that owner, and the key for map requests.
    Region { owner: NodeId, region: u64, key: u64 },
    /// A lock or event.
    Object(ObjectAddress),
}

impl Named {
    /// Returns the kind of the object, for people.
    pub(crate) const fn what(&self) -> &'static str {
        match self {
            Self::Region { .. } => "a region",
            Self::Object(place) => place.kind.name(),
        }
    }
}

/// The kind of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    Lock,
    Event,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Lock => "a lock",
            Self::Event => "an event",
        }
    }
}

/// The home of an object and the secret that each request for it must carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ObjectAddress {
    pub(crate) kind: Kind,
    pub(crate) home: NodeId,
    pub(crate) life: Incarnation,
    pub(crate) number: u64,
    pub(crate) secret: u64,
}

impl ObjectAddress {
    pub(crate) fn home(&self) -> MemberId {
        (self.home, self.life)
    }
}
