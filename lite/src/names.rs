//! The entries of the name directory: names of regions and of objects.
//!
//! The directory knows the node that has bound a name, and not the object. Only the node knows that, so it
//! keeps a list: a name is unbound only for the object that has it, and a second object of the same node is
//! refused without a question to the directory.

use crate::Error;
use crate::lock::Mutex;
use crate::node::Node;
use crate::sync::Place;
use alloc::collections::BTreeMap;
use alloc::string::String;
use core::time::Duration;
use platform::Instant;
use proto::NodeId;
use serde::{Deserialize, Serialize};

/// The time that the directory may take to unbind a name before it is asked again.
const UNBIND_DEADLINE: Duration = Duration::from_secs(5);

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

/// The region or object of this node that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bearer {
    Region(u64),
    Object(u64),
}

impl Named {
    /// Returns the bearer at its node.
    const fn bearer(&self) -> Bearer {
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
    fn begin<'a>(&'a self, name: &'a str, bearer: Bearer) -> Result<Attempt<'a>, Error> {
        let mut bindings = self.0.lock();
        if bindings.contains_key(name) {
            return Err(Error::NameTaken);
        }
        bindings.insert(name.into(), Binding { bearer, pending: true });
        Ok(Attempt { bindings: self, name, refused: false })
    }

    /// Returns true if the bearer has the name or may have it, false if it has not; `None` as long as the
    /// directory has not answered.
    fn has(&self, name: &str, bearer: Bearer) -> Option<bool> {
        match self.0.lock().get(name).filter(|binding| binding.bearer == bearer) {
            Some(binding) if binding.pending => None,
            binding => Some(binding.is_some()),
        }
    }

    /// Records that the bearer does not have the name any more.
    fn end(&self, name: &str, bearer: Bearer) {
        let mut bindings = self.0.lock();
        if bindings.get(name).is_some_and(|binding| binding.bearer == bearer && !binding.pending) {
            bindings.remove(name);
        }
    }
}

/// A name that is being bound. Dropping this without an answer leaves a name that may be bound.
struct Attempt<'a> {
    bindings: &'a Bindings,
    name: &'a str,
    refused: bool,
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

impl Node {
    /// Binds a name and returns the number of the binding, which is larger than those of all earlier
    /// bindings. After `Unknown` the name may be bound.
    pub(crate) async fn bind_named(&self, name: &str, to: &Named, deadline: Instant) -> Result<u64, Error> {
        let mut attempt = self.control.bindings.begin(name, to.bearer())?;
        let bound = self.bind(name, proto::encode(to), deadline).await;
        attempt.refused = !matches!(bound, Ok(_) | Err(Error::Unknown));
        drop(attempt);
        self.control.names_changed();
        bound
    }

    /// Unbinds a name if the region or object of this node has it.
    ///
    /// # Errors
    /// `NoSuchName` if it has not.
    pub(crate) async fn unbind_from(
        &self,
        name: &str,
        bearer: Bearer,
        deadline: Instant,
    ) -> Result<(), Error> {
        let answered = self.control.until_names(|| self.control.bindings.has(name, bearer));
        if !self.timers.before(deadline, answered).await.ok_or(Error::Deadline)? {
            return Err(Error::NoSuchName);
        }
        let unbound = self.unbind(name, deadline).await;
        if matches!(unbound, Ok(()) | Err(Error::NoSuchName | Error::Permission)) {
            self.control.bindings.end(name, bearer);
        }
        unbound
    }

    /// Unbinds a name of a region or object that ends. There is no time limit: the name must not stay bound,
    /// so this asks again until the directory answers or this node has lost its membership.
    pub(crate) async fn unbind_at_last(&self, name: &str, bearer: Bearer) {
        let mut result = Err(Error::Deadline);
        while matches!(result, Err(Error::Deadline | Error::Unknown)) {
            result = self.unbind_from(name, bearer, self.platform.now() + UNBIND_DEADLINE).await;
        }
        if let Err(error) = result
            && error != Error::NoSuchName
        {
            log::debug!("lite: the name `{name}` ends with this node: {error}");
        }
    }

    /// Returns the object that a name is bound to.
    pub(crate) async fn find_named(&self, name: &str, deadline: Instant) -> Result<Named, Error> {
        let (_, value) = self.lookup(name, deadline).await?;
        proto::decode(&value)
            .map_err(|_| Error::Refused(alloc::format!("`{name}` is not bound to an object of LITE")))
    }
}
