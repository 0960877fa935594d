//! The name directory, and the free memory of the members, as the manager keeps them.

use super::control::{Asked, Control};
use super::local::Local;
use super::member::MemberId;
use super::names::{Bearer, Named};
use crate::Error;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use platform::Instant;
use proto::{NameError, NodeId, ToManager};

/// The time that the directory may take to unbind a name before it is asked again.
const UNBIND_DEADLINE: Duration = Duration::from_secs(5);

/// A request to the directory whose answer is awaited.
struct NameRequest<'a> {
    control: &'a Control,
    request: u32,
}

impl Drop for NameRequest<'_> {
    fn drop(&mut self) {
        self.control.names.lock().remove(&self.request);
    }
}

impl Local {
    /// Waits until the manager answers, if it is silent, or until `deadline`. Nothing is sent to a silent
    /// manager, so that requests without a waiter do not pile up.
    async fn answered_by(&self, deadline: Instant) -> Result<(), Error> {
        if self.lease.may_begin() {
            return Ok(());
        }
        self.timers.before(deadline, self.resumed()).await.unwrap_or(Err(Error::Deadline))
    }

    async fn ask_directory(
        &self,
        message: impl FnOnce(u32) -> ToManager,
        deadline: Instant,
        after: Error,
    ) -> Result<(NodeId, Vec<u8>), Error> {
        self.answered_by(deadline).await?;
        let request = self.control.next_request.fetch_add(1, Ordering::Relaxed);
        let message = message(request);
        self.control.names.lock().insert(request, Asked::new(message.clone()));
        let waiting = NameRequest { control: &self.control, request };
        self.control.post(&message);
        let answer = || {
            let answered = self.control.names.lock().get_mut(&request).and_then(|asked| asked.answer.take());
            match answered {
                Some(result) => Some(result.map_err(|e| match e {
                    NameError::NotFound => Error::NoSuchName,
                    NameError::Taken => Error::NameTaken,
                    NameError::NotOwner => Error::Permission,
                    NameError::Length | NameError::Quota | NameError::Unsaved => {
                        Error::Refused(alloc::format!("{e}"))
                    }
                })),
                None if self.control.has_ended() => Some(Err(Error::LinkDown)),
                None => None,
            }
        };
        let result = self.timers.before(deadline, self.control.names_change.until(answer)).await;
        drop(waiting);
        result.unwrap_or(Err(after))
    }

    /// Returns the free memory of the members, the most first, as far as they have reported it.
    pub(crate) async fn free_memory(&self, deadline: Instant) -> Result<Vec<(NodeId, u64)>, Error> {
        self.answered_by(deadline).await?;
        let request = self.control.next_request.fetch_add(1, Ordering::Relaxed);
        self.control.asked_free.fetch_max(request, Ordering::SeqCst);
        self.control.post(&ToManager::AskMemoryFree { request });
        let told = || {
            let free = self.control.free.lock();
            if free.0 >= request {
                return Some(Ok(free.1.clone()));
            }
            self.control.has_ended().then_some(Err(Error::LinkDown))
        };
        let result = self.timers.before(deadline, self.control.names_change.until(told)).await;
        result.unwrap_or(Err(Error::Deadline))
    }

    /// Binds a name and returns the number of the binding.
    pub(crate) async fn bind(&self, name: &str, value: Vec<u8>, deadline: Instant) -> Result<u64, Error> {
        let name: String = name.into();
        let message = |request| ToManager::NameBind { request, name, value };
        let (_, number) = self.ask_directory(message, deadline, Error::Unknown).await?;
        let number = number.try_into().map(u64::from_le_bytes);
        number.map_err(|_| Error::Refused("the manager returned no number for the binding".into()))
    }

    pub(crate) async fn unbind(&self, name: &str, deadline: Instant) -> Result<(), Error> {
        let name: String = name.into();
        let message = |request| ToManager::NameUnbind { request, name };
        self.ask_directory(message, deadline, Error::Unknown).await.map(drop)
    }

    pub(crate) async fn lookup(&self, name: &str, deadline: Instant) -> Result<(NodeId, Vec<u8>), Error> {
        let name: String = name.into();
        let message = |request| ToManager::NameLookup { request, name };
        self.ask_directory(message, deadline, Error::Deadline).await
    }

    /// Binds a name and returns the number of the binding, which is larger than those of all earlier
    /// bindings. After `Unknown` the name may be bound.
    pub(crate) async fn bind_named(&self, name: &str, to: &Named, deadline: Instant) -> Result<u64, Error> {
        let begun = self.control.bindings.bind(name, to.bearer());
        let mut pending = self.timers.before(deadline, begun).await.ok_or(Error::Deadline)??;
        let bound = self.bind(name, proto::encode(to), deadline).await;
        pending.ends_unbound = !matches!(bound, Ok(_) | Err(Error::Unknown));
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
        let begun = self.control.bindings.unbind(name, bearer);
        let mut pending = self.timers.before(deadline, begun).await.ok_or(Error::Deadline)??;
        let unbound = self.unbind(name, deadline).await;
        pending.ends_unbound = matches!(unbound, Ok(()) | Err(Error::NoSuchName | Error::Permission));
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

    /// Gives a name of this node's `bearer` to another member, for an object there. There is no time limit, as
    /// for [`unbind_at_last`](Self::unbind_at_last).
    pub(crate) async fn give_name(&self, name: &str, bearer: Bearer, to: MemberId, named: &Named) {
        let Ok(mut pending) = self.control.bindings.unbind(name, bearer).await else { return };
        let mut result = Err(Error::Deadline);
        while matches!(result, Err(Error::Deadline | Error::Unknown)) {
            let (name, value) = (String::from(name), proto::encode(named));
            let message = |request| ToManager::NameGive { request, name, to: to.0, incarnation: to.1, value };
            let deadline = self.platform.now() + UNBIND_DEADLINE;
            result = self.ask_directory(message, deadline, Error::Unknown).await;
        }
        pending.ends_unbound = true;
        if let Err(error) = result {
            log::warn!("lite: the name `{name}` does not go to {}: {error}", to.0);
        }
    }

    /// Returns the object that a name is bound to.
    pub(crate) async fn find_named(&self, name: &str, deadline: Instant) -> Result<Named, Error> {
        let (_, value) = self.lookup(name, deadline).await?;
        proto::decode(&value)
            .map_err(|_| Error::Refused(alloc::format!("`{name}` is not bound to an object of LITE")))
    }
}
