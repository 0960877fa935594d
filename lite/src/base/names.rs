//! The entries of the name directory: names of regions and of objects.
//!
//! The directory knows the node that has bound a name, and not the object. Only the node knows that, so it
//! keeps a list: a name is unbound only for the object that has it, and a second object of the same node is
//! refused without a question to the directory. While the directory has not answered about a name, other
//! requests of this node about it wait.

use super::lock::Mutex;
use super::member::MemberId;
use super::wait::Waiters;
use crate::Error;
use alloc::collections::BTreeMap;
use alloc::string::String;
use proto::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// The object that a name is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Named {
    /// A region on the given owner, and the key for map requests.
    Region { owner: NodeId, region: u64, key: u64 },
    /// A lock or an event, by its address.
    Object(ObjectAddress),
}

impl Named {
    /// Returns the kind of the object, for people.
    pub(crate) const fn what(&self) -> &'static str {
        match self {
            Self::Region { .. } => "a region",
            Self::Object(address) => address.kind.name(),
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
    pub(crate) incarnation: Incarnation,
    pub(crate) number: u64,
    pub(crate) secret: u64,
}

impl ObjectAddress {
    pub(crate) fn home(&self) -> MemberId {
        (self.home, self.incarnation)
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
            Self::Object(address) => Bearer::Object(address.number),
        }
    }
}

/// A name that this node has bound, or may have bound.
struct Binding {
    bearer: Bearer,
    /// True while the node waits for the directory's answer to a request to bind or unbind it.
    pending: bool,
}

/// The names that this node has bound, or may have bound.
#[derive(Default)]
pub(crate) struct Bindings {
    table: Mutex<BTreeMap<String, Binding>>,
    /// Tasks that wait for the end of a request about a name.
    ended: Waiters,
}

impl Bindings {
    /// Begins to bind a name. Refuses a name that another object of this node has; waits while another
    /// request about the name is pending.
    pub(super) async fn bind<'a>(&'a self, name: &'a str, bearer: Bearer) -> Result<Pending<'a>, Error> {
        let begin = || {
            let mut table = self.table.lock();
            match table.get(name) {
                Some(binding) if binding.pending => return None,
                Some(_) => return Some(Err(Error::NameTaken)),
                None => table.insert(name.into(), Binding { bearer, pending: true }),
            };
            Some(Ok(Pending { bindings: self, name, ends_unbound: false }))
        };
        self.ended.until(begin).await
    }

    /// Adds a name that another node has given to an object of this node.
    pub(crate) fn adopt(&self, name: &str, bearer: Bearer) {
        self.table.lock().insert(name.into(), Binding { bearer, pending: false });
    }

    /// Removes a name that the directory has not passed on to an object of this node.
    pub(crate) fn disown(&self, name: &str, bearer: Bearer) {
        let mut table = self.table.lock();
        if table.get(name).is_some_and(|binding| binding.bearer == bearer) {
            table.remove(name);
        }
        drop(table);
        self.ended.wake_all();
    }

    /// Begins to unbind a name. Fails with `NoSuchName` if the bearer does not have it; waits while another
    /// request about the name is pending.
    pub(super) async fn unbind<'a>(&'a self, name: &'a str, bearer: Bearer) -> Result<Pending<'a>, Error> {
        let begin = || {
            let mut table = self.table.lock();
            match table.get_mut(name).filter(|binding| binding.bearer == bearer) {
                Some(binding) if binding.pending => return None,
                Some(binding) => binding.pending = true,
                None => return Some(Err(Error::NoSuchName)),
            }
            Some(Ok(Pending { bindings: self, name, ends_unbound: false }))
        };
        self.ended.until(begin).await
    }
}

/// A name about which a request is pending. Dropping this without an answer leaves a name that may be bound.
pub(super) struct Pending<'a> {
    bindings: &'a Bindings,
    name: &'a str,
    /// True if the directory has answered that this node does not have the name.
    pub(super) ends_unbound: bool,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut table = self.bindings.table.lock();
        if self.ends_unbound {
            table.remove(self.name);
        } else if let Some(binding) = table.get_mut(self.name) {
            binding.pending = false;
        }
        drop(table);
        self.bindings.ended.wake_all();
    }
}
