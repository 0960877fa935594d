//! The name directory, and the free memory of the members, as the manager keeps them.

use super::control::{Asked, Control};
use super::local::Local;
use super::member::MemberId;
use super::names::{Bearer, Named};
use crate::Error;
use crate::sometimes::sometimes;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use core::time::Duration;
use platform::Instant;
use proto::{NameError, NodeId, ToManager};

/// The time that the directory may take to unbind a name before it is asked again.
const UNBIND_DEADLINE: Duration = Duration::from_secs(5);
/// The pause before a name is unbound or passed on again after the manager's disk was slow.
const UNSAVED_PAUSE: Duration = Duration::from_millis(20);

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

    /// Asks the directory. The outer result is `after` if there is no answer by the deadline.
    async fn answer_of_directory(
        &self,
        message: impl FnOnce(u32) -> ToManager,
        deadline: Instant,
        after: Error,
    ) -> Result<Result<(NodeId, Vec<u8>), NameError>, Error> {
        self.answered_by(deadline).await?;
        let request = self.control.next_request.fetch_add(1, Ordering::Relaxed);
        let message = message(request);
        self.control.names.lock().insert(request, Asked::new(message.clone()));
        let waiting = NameRequest { control: &self.control, request };
        self.control.post(&message);
        let answer = || {
            let answered = self.control.names.lock().get_mut(&request).and_then(|asked| asked.answer.take());
            match answered {
                Some(result) => Some(Ok(result)),
                None if self.control.has_ended() => Some(Err(Error::LinkDown)),
                None => None,
            }
        };
        let result = self.timers.before(deadline, self.control.names_change.until(answer)).await;
        drop(waiting);
        result.unwrap_or(Err(after))
    }

    async fn ask_directory(
        &self,
        message: impl FnOnce(u32) -> ToManager,
        deadline: Instant,
        after: Error,
    ) -> Result<(NodeId, Vec<u8>), Error> {
        let answer = self.answer_of_directory(message, deadline, after).await?;
        answer.map_err(|error| match error {
            NameError::NotFound => Error::NoSuchName,
            NameError::Taken => Error::NameTaken,
            NameError::NotOwner => Error::Permission,
            NameError::Length | NameError::Quota | NameError::Unsaved => {
                Error::Refused(alloc::format!("{error}"))
            }
        })
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
            // The manager's disk is slow: no other reason makes it refuse this.
            if matches!(result, Err(Error::Refused(_))) {
                sometimes!("a name could not be unbound because of the manager's disk");
                self.timers.until(self.platform.now() + UNSAVED_PAUSE).await;
                result = Err(Error::Unknown);
            }
        }
        if let Err(error) = result
            && error != Error::NoSuchName
        {
            log::debug!("lite: the name `{name}` ends with this node: {error}");
        }
    }

    /// Passes a name of this node's `bearer` to another member, for an object there. Returns false if that
    /// member does not get it. There is no time limit, as for [`unbind_at_last`](Self::unbind_at_last).
    pub(crate) async fn give_name(&self, name: &str, bearer: Bearer, to: MemberId, named: &Named) -> bool {
        let Ok(mut pending) = self.control.bindings.unbind(name, bearer).await else { return false };
        let result = loop {
            let (name, value) = (String::from(name), proto::encode(named));
            let message = |request| ToManager::NameGive { request, name, to: to.0, incarnation: to.1, value };
            let deadline = self.platform.now() + UNBIND_DEADLINE;
            match self.answer_of_directory(message, deadline, Error::Unknown).await {
                Ok(Err(NameError::Unsaved)) => {
                    sometimes!("a name could not be passed on because of the manager's disk");
                    self.timers.until(self.platform.now() + UNSAVED_PAUSE).await;
                }
                Ok(answer) => break answer.map_err(|error| alloc::format!("{error}")),
                Err(Error::Deadline | Error::Unknown) => {}
                Err(error) => break Err(alloc::format!("{error}")),
            }
        };
        // A name that stays behind ends with the region here.
        pending.ends_unbound = result.is_ok();
        drop(pending);
        if let Err(error) = &result {
            log::warn!("lite: the name `{name}` does not go to {}: {error}", to.0);
            self.unbind_at_last(name, bearer).await;
        }
        result.is_ok()
    }

    /// Returns the object that a name is bound to.
    pub(crate) async fn find_named(&self, name: &str, deadline: Instant) -> Result<Named, Error> {
        let (_, value) = self.lookup(name, deadline).await?;
        proto::decode(&value)
            .map_err(|_| Error::Refused(alloc::format!("`{name}` is not bound to an object of LITE")))
    }
}
