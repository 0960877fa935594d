//! Scopes: everything that is made within a scope, such as a job, ends with it.

use crate::lock::Mutex;
use crate::node::Node;
use crate::rpc::{Ask, FunctionId, Service};
use crate::sync::Place;
use crate::{Error, Lite, Lmr};
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::time::Duration;
use platform::Platform;

impl Lite {
    /// Returns a handle and its scope. Everything that is made through this handle, through handles derived
    /// from it, and through regions made by them ends with the [`Scope`]: published regions and counters,
    /// on any node; locks; events; functions and mailboxes. (A region that is not published ends with its
    /// last handle anyway.)
    ///
    /// The handle's [`platform`](Self::platform) is `platform`, so that the caller can end the tasks of the
    /// scope.
    #[must_use]
    pub fn scoped(&self, platform: Arc<dyn Platform>) -> (Self, Scope) {
        let made = Arc::new(Mutex::new(Some(Made::default())));
        let by = self.by.scoped(Scoped(Some(Arc::downgrade(&made))), platform);
        (Self { by }, Scope { node: self.by.node.clone(), made })
    }
}

/// The objects made through a handle of [`Lite::scoped`]. Call [`end`](Self::end) to end them; dropping the
/// scope leaves them.
pub struct Scope {
    node: Arc<Node>,
    /// `None` once the scope has ended.
    made: Arc<Mutex<Option<Made>>>,
}

/// The objects that end with a scope.
#[derive(Default)]
struct Made {
    /// Published regions, by name and number of the mapping.
    regions: BTreeMap<(String, u64), Lmr>,
    /// Locks and events, by secret.
    objects: BTreeMap<u64, Place>,
    services: Vec<(FunctionId, Weak<Service>)>,
}

impl Scope {
    /// Ends all objects that were made in the scope and still exist. Nothing can be made in it afterwards
    /// ([`Error::Refused`]). Each object may take `patience`; LITE goes on telling nodes that could not be
    /// reached by then.
    pub async fn end(&self, patience: Duration) {
        let Some(made) = self.made.lock().take() else { return };
        let node = &self.node;
        for (function, service) in made.services {
            if let Some(service) = service.upgrade() {
                node.services.remove(function, &service);
            }
        }
        for place in made.objects.into_values() {
            match node.end_object(&place, node.platform.now() + patience).await {
                Ok(()) | Err(Error::NodeDown(_)) => {}
                Err(error) => log::debug!("lite: ending an object on {}: {error}", place.home),
            }
        }
        for ((name, _), region) in made.regions {
            match region.with_deadline(patience).free().await {
                Ok(()) | Err(Error::Freed) => {}
                Err(error) => log::debug!("lite: freeing the region `{name}`: {error}"),
            }
        }
    }
}

/// The scope that a handle belongs to, if any.
#[derive(Clone, Default)]
pub(crate) struct Scoped(Option<Weak<Mutex<Option<Made>>>>);

impl Scoped {
    /// Calls `f` with the objects of the scope; returns `None` without a scope.
    fn with<T>(&self, f: impl FnOnce(&mut Made) -> T) -> Option<Result<T, Error>> {
        let made = self.0.as_ref()?.upgrade();
        let done = made.and_then(|made| made.lock().as_mut().map(f));
        Some(done.ok_or_else(|| Error::Refused("the job that this handle was made for has ended".into())))
    }

    /// Fails if the scope has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.with(|_| ()).unwrap_or(Ok(()))
    }

    /// Notes a region that is about to be published; returns true if it must be
    /// [forgotten](Self::forget_name) if that fails.
    pub(crate) fn keep_region(&self, name: &str, mapping: u64, region: &Lmr) -> Result<bool, Error> {
        let note = |made: &mut Made| match made.regions.entry((name.into(), mapping)) {
            Entry::Vacant(place) => {
                place.insert(region.clone());
                true
            }
            Entry::Occupied(_) => false,
        };
        self.with(note).unwrap_or(Ok(false))
    }

    /// Forgets a name that a region does not have.
    pub(crate) fn forget_name(&self, name: &str) {
        self.forget_regions(|(of, _)| of == name);
    }

    /// Forgets a region that is freed.
    pub(crate) fn forget_region(&self, mapping: u64) {
        self.forget_regions(|(_, of)| *of == mapping);
    }

    fn forget_regions(&self, which: impl Fn(&(String, u64)) -> bool) {
        let take = |made: &mut Made| -> Vec<_> { made.regions.extract_if(.., |key, _| which(key)).collect() };
        // Handles are dropped without the lock, because dropping them takes other locks.
        drop(self.with(take));
    }

    /// Notes a lock or event that was made.
    pub(crate) fn keep_object(&self, node: &Arc<Node>, place: Place) -> Result<(), Error> {
        let kept = self.with(|made| made.objects.insert(place.secret, place)).unwrap_or(Ok(None));
        if kept.is_err() {
            node.spawn_insist(place.home(), Ask::Destroy { secret: place.secret });
        }
        kept.map(|_| ())
    }

    /// Forgets a lock or event that is being destroyed.
    pub(crate) fn forget_object(&self, secret: u64) {
        drop(self.with(|made| made.objects.remove(&secret)));
    }

    /// Notes a function or mailbox that was made.
    pub(crate) fn keep_service(&self, function: FunctionId, service: &Arc<Service>) {
        let service = Arc::downgrade(service);
        drop(self.with(|made| {
            made.services.retain(|(_, service)| service.strong_count() > 0);
            made.services.push((function, service));
        }));
    }
}
