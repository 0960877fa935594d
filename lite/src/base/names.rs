//! The entries of the name directory: names of regions and of objects.
//!
//! The directory knows the node that has bound a name, and not the object. Only the node knows that, so it
//! keeps a list: a name is unbound only for the object that has it, and a second object of the same node is
//! refused without a question to the directory.

use super::lock::Mutex;
use super::member::MemberId;
use crate::Error;
use alloc::collections::BTreeMap;
use alloc::string::String;
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

/// The region or object of this node that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bearer {
    Region(u64),
    Object(u64),
}

impl Named {
    /// Returns the bearer at its node.
    pub(super) const fn bearer(&self) -> Bearer {
        match self {
            Self::Region { region, .. } => Bearer::Region(*region),
            Self::Object(place) => Bearer::Object(place.number),
        }
    }
}

/// A name that this node has bound, or may have bound.
struct Binding {
    bearer: Bearer,
    /// True while the node waits for the directory's answer.
    pending: bool,
}

/// The names that this node has bound, or may have bound.
#[derive(Default)]
pub(crate) struct Bindings(Mutex<BTreeMap<String, Binding>>);

impl Bindings {
    /// Begins to bind a name; refuses a name that another object of this node has.
    pub(super) fn begin<'a>(&'a self, name: &'a str, bearer: Bearer) -> Result<Attempt<'a>, Error> {
        let mut bindings = self.0.lock();
        if bindings.contains_key(name) {
            return Err(Error::NameTaken);
        }
        bindings.insert(name.into(), Binding { bearer, pending: true });
        Ok(Attempt { bindings: self, name, refused: false })
    }

    /// Returns true if the bearer has the name or may have it, false if it has not; `None` as long as the
    /// directory has not answered.
    pub(super) fn has(&self, name: &str, bearer: Bearer) -> Option<bool> {
        match self.0.lock().get(name).filter(|binding| binding.bearer == bearer) {
            Some(binding) if binding.pending => None,
            binding => Some(binding.is_some()),
        }
    }

    /// Records that the bearer does not have the name any more.
    pub(super) fn end(&self, name: &str, bearer: Bearer) {
        let mut bindings = self.0.lock();
        if bindings.get(name).is_some_and(|binding| binding.bearer == bearer && !binding.pending) {
            bindings.remove(name);
        }
    }
}

/// A name that is being bound. Dropping this without an answer leaves a name that may be bound.
pub(super) struct Attempt<'a> {
    bindings: &'a Bindings,
    name: &'a str,
    pub(super) refused: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut bindings = self.bindings.0.lock();
        if self.refused {
            bindings.remove(self.name);
        } else if let Some(binding) = bindings.get_mut(self.name) {
            binding.pending = false;
        }
    }
}
