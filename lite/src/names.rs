//! The entries of the name directory: names of regions and of objects.

use crate::Error;
use crate::node::Node;
use crate::sync::Place;
use platform::Instant;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// The object that a name is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Named {
    /// A region of that owner, and the key for map requests.
    Region { owner: NodeId, region: u64, key: u64 },
    /// A lock or event.
    Object(Place),
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

impl Node {
    /// Binds a name and returns the number of the binding, which is larger than those of all earlier
    /// bindings.
    pub(crate) async fn bind_named(&self, name: &str, to: &Named, deadline: Instant) -> Result<u64, Error> {
        self.bind(name, proto::encode(to), deadline).await
    }

    /// Returns the object that a name is bound to.
    pub(crate) async fn find_named(&self, name: &str, deadline: Instant) -> Result<Named, Error> {
        let (_, value) = self.lookup(name, deadline).await?;
        proto::decode(&value)
            .map_err(|_| Error::Refused(alloc::format!("`{name}` is not bound to an object of LITE")))
    }
}
