//! Functions and mailboxes, from the view of their servers.

use super::Rpc;
use super::call::Call;
use super::internal::INTERNAL;
use super::service::{Service, Takes};
use crate::Error;
use crate::base::scope::{End, Kept, Scoped};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use proto::{Incarnation, NodeId};

/// The number of a function or mailbox on a node. LITE uses the numbers from `0xffff_0000`.
pub type FunctionId = u32;

/// The limits of a function or mailbox.
#[derive(Clone, Copy, Debug)]
pub struct RpcOptions {
    /// The length of the longest request or message, in bytes.
    pub max_request: usize,
    /// The number of requests that may wait for [`RpcServer::receive`]; beyond it, callers try again later.
    pub queue: usize,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self { max_request: 1 << 20, queue: 256 }
    }
}

/// A registered function or mailbox. Dropping it unregisters it.
pub(crate) struct Registration {
    node: Arc<Rpc>,
    function: FunctionId,
    service: Arc<Service>,
    timeout: Duration,
    kept: Kept,
    scope: Scoped,
}

impl Registration {
    /// Registers a function. `timeout` is the time limit of its end; `scope` ends it.
    pub(crate) fn new(
        node: &Arc<Rpc>,
        (scope, timeout): (&Scoped, Duration),
        function: FunctionId,
        options: RpcOptions,
        takes: Takes,
    ) -> Result<Self, Error> {
        if function >= INTERNAL {
            return Err(Error::Permission);
        }
        let service = Arc::new(Service::new(options, takes));
        if !node.services.add(function, service.clone()) {
            return Err(Error::NameTaken);
        }
        let kept = Kept::Service(function, Arc::as_ptr(&service) as usize);
        let end = || -> End {
            let (node, service) = (node.clone(), Arc::downgrade(&service));
            Box::new(move |_| {
                if let Some(service) = service.upgrade() {
                    node.services.remove(function, &service);
                }
                Box::pin(core::future::ready(()))
            })
        };
        // In a scope that has ended, the function ends with its handle.
        drop(scope.keep(kept.clone(), end));
        Ok(Self { node: node.clone(), function, service, timeout, kept, scope: scope.clone() })
    }

    async fn receive(&self) -> Result<Call, Error> {
        self.service.next(&self.node).await
    }

    async fn within(&self, limit: Duration) -> Result<Call, Error> {
        let deadline = self.node.platform.now() + limit;
        self.node.timers.before(deadline, self.receive()).await.unwrap_or(Err(Error::Deadline))
    }

    async fn close(&self) -> Result<(), Error> {
        self.node.services.remove(self.function, &self.service);
        let deadline = self.node.platform.now() + self.timeout;
        self.node.timers.before(deadline, self.service.idle()).await.ok_or(Error::Deadline)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.scope.forget(|kept| *kept == self.kept);
        self.node.services.remove(self.function, &self.service);
    }
}

/// A registered function. Dropping it unregisters it at once; see [`unregister`](Self::unregister).
pub struct RpcServer(pub(crate) Registration);

impl RpcServer {
    /// Returns the next request. Several tasks may receive; each request goes to one of them, once. Waits
    /// without a deadline, because the absence of requests is no error.
    ///
    /// A long request stays in its caller's memory until a task receives it. If the future is dropped
    /// before it is ready, another task gets the request. Does not allocate unless a request is longer than
    /// all before.
    ///
    /// # Errors
    /// `NoSuchFunction` once the function is unregistered, `LinkDown` once this node is no longer a member.
    pub async fn receive(&self) -> Result<Call, Error> {
        self.0.receive().await
    }

    /// Does the same as [`receive`](Self::receive), but fails with `Deadline` if no request comes within
    /// `limit`.
    pub async fn receive_within(&self, limit: Duration) -> Result<Call, Error> {
        self.0.within(limit).await
    }

    /// Replies to `call`, then receives the next request. The departure of the caller is no error. If the
    /// reply is too large for the caller, this fails and receives nothing.
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn moves its arguments before it begins, a block uses them where they lie"
    )]
    pub fn reply_and_receive<'a>(
        &'a self,
        call: Call,
        reply: &'a [u8],
    ) -> impl Future<Output = Result<Call, Error>> + Send + 'a {
        async move {
            if call.fits_slot(reply) {
                let _departed = call.reply_now(reply);
            } else if let Err(too_large @ Error::TooLarge { .. }) = call.reply_long(reply).await {
                return Err(too_large);
            }
            self.0.receive().await
        }
    }

    /// Unregisters the function, and waits until each call that a task has received is answered or dropped.
    /// Requests in the queue, later calls, and tasks that receive fail with [`Error::NoSuchFunction`]; the
    /// number is free at once.
    ///
    /// # Errors
    /// `Deadline` if a task still has a call.
    pub async fn unregister(&self) -> Result<(), Error> {
        self.0.close().await
    }
}

impl fmt::Debug for RpcServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {} of {}", self.0.function, self.0.node.me)
    }
}

/// An open mailbox. Dropping it closes it; the messages in it are lost.
pub struct Mailbox(pub(crate) Registration);

impl Mailbox {
    /// Returns the next message, as [`RpcServer::receive`] does.
    pub async fn receive(&self) -> Result<Message, Error> {
        self.0.receive().await.map(Message)
    }

    /// Does the same as [`receive`](Self::receive), but fails with `Deadline` if no message comes within
    /// `limit`.
    pub async fn receive_within(&self, limit: Duration) -> Result<Message, Error> {
        self.0.within(limit).await.map(Message)
    }

    /// Closes the mailbox. The messages in it are lost; later ones fail with [`Error::NoSuchFunction`].
    pub fn close(self) {}
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mailbox {} of {}", self.0.function, self.0.node.me)
    }
}

/// A message from a mailbox.
#[derive(Debug)]
pub struct Message(Call);

impl Message {
    /// Returns the sender.
    #[must_use]
    pub fn from(&self) -> NodeId {
        self.0.from()
    }

    /// Returns the incarnation of the sender.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation()
    }

    /// Returns the data of the message.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.0.request()
    }

    /// Returns the data without the message.
    #[must_use]
    pub fn into_data(mut self) -> Vec<u8> {
        self.0.take_request()
    }
}
