//! What the name directory holds: names of regions and of objects.

use crate::Error;
use crate::node::Node;
use crate::sync::Place;
use platform::Instant;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// What a name is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Named {
    /// A region of that owner, and the key that it asks for.
    Region { owner: NodeId, region: u64, key: u64 },
    /// A lock or event.
    Object(Place),
}

impl Named {
    /// What it is, for people.
    pub(crate) const fn what(&self) -> &'static str {
        match self {
            Self::Region { .. } => "a region",
            Self::Object(place) => place.kind.name(),
        }
    }
}

impl Node {
    /// Binds a name; gives the number of the binding, larger than those of all bindings before.
    pub(crate) async fn bind_named(&self, name: &str, to: &Named, deadline: Instant) -> Result<u64, Error> {
        self.bind(name, proto::encode(to), deadline).await
    }

    /// What a name is bound to.
    pub(crate) async fn find_named(&self, name: &str, deadline: Instant) -> Result<Named, Error> {
        let (_, value) = self.lookup(name, deadline).await?;
        proto::decode(&value).map_err(|_| Error::Refused(alloc::format!("`{name}` is nothing of LITE's")))
    }
}
