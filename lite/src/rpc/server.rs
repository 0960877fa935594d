//! Functions and mailboxes as their servers hold them.

use super::call::Call;
use super::service::{Service, Takes};
use crate::node::Node;
use crate::{Error, Lite};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use proto::{Incarnation, NodeId};

/// Names a function or mailbox on a node. Those from `0xffff_0000` on are LITE's own.
pub type FunctionId = u32;

/// What a function or mailbox takes.
#[derive(Clone, Copy, Debug)]
pub struct RpcOptions {
    /// The longest request or message in bytes.
    pub max_request: usize,
    /// Requests that wait for [`RpcServer::receive`]; while there are that many, callers back off.
    pub queue: usize,
}

impl Default for RpcOptions {
    fn default() -> Self {
        Self { max_request: 1 << 20, queue: 256 }
    }
}

/// A registered function or mailbox. Dropped, it is registered no more.
struct Registration {
    node: Arc<Node>,
    function: FunctionId,
    service: Arc<Service>,
    patience: Duration,
}

impl Registration {
    fn new(lite: &Lite, function: FunctionId, options: RpcOptions, takes: Takes) -> Result<Self, Error> {
        if function >= super::INTERNAL {
            return Err(Error::Permission);
        }
        let service = Arc::new(Service::new(options, takes));
        if !lite.by.node.services.add(function, service.clone()) {
            return Err(Error::NameTaken);
        }
        lite.by.scope.keep_service(function, &service);
        Ok(Self { node: lite.by.node.clone(), function, service, patience: lite.by.patience() })
    }

    async fn receive(&self) -> Result<Call, Error> {
        let call = self.service.next(&self.node).await?;
        self.node.counters.served.add(1);
        Ok(call)
    }

    async fn within(&self, limit: Duration) -> Result<Call, Error> {
        let deadline = self.node.platform.now() + limit;
        self.node.timers.before(deadline, self.receive()).await.unwrap_or(Err(Error::Deadline))
    }

    async fn close(&self) -> Result<(), Error> {
        self.node.services.remove(self.function, &self.service);
        let deadline = self.node.platform.now() + self.patience;
        self.node.timers.before(deadline, self.service.idle()).await.ok_or(Error::Deadline)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.node.services.remove(self.function, &self.service);
    }
}

impl Lite {
    /// Serves function `f` on this node, for all nodes and for this one. Any number of tasks may
    /// [`receive`](RpcServer::receive) from it.
    ///
    /// Fails with `NameTaken` if `f` is registered, `Permission` for LITE's own ids.
    ///
    /// ```
    /// # use lite::{Error, Lite, RpcOptions};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// let server = lite.register(7, RpcOptions::default())?;
    /// let mut call = server.receive().await?;
    /// loop {
    ///     let reply = call.request().to_ascii_uppercase();
    ///     call = server.reply_and_receive(call, &reply).await?;
    /// }
    /// # }
    /// ```
    pub fn register(&self, f: FunctionId, options: RpcOptions) -> Result<RpcServer, Error> {
        Registration::new(self, f, options, Takes::Calls).map(RpcServer)
    }

    /// Opens mailbox `port` on this node, for messages of all nodes and of this one. Ports and functions are one set of ids.
    ///
    /// Fails with `NameTaken` if `port` is in use, `Permission` for LITE's own ids.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId, RpcOptions};
    /// # async fn example(lite: &Lite, other: &Lite) -> Result<(), Error> {
    /// let mailbox = lite.open_mailbox(7, RpcOptions::default())?;
    /// other.send(lite.node_id(), 7, b"hello").await?;
    /// let message = mailbox.receive().await?;
    /// assert_eq!((message.from(), message.data()), (other.node_id(), &b"hello"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_mailbox(&self, port: FunctionId, options: RpcOptions) -> Result<Mailbox, Error> {
        Registration::new(self, port, options, Takes::Messages).map(Mailbox)
    }
}

/// A registered function. Dropped, it is unregistered at once; see [`unregister`](Self::unregister).
pub struct RpcServer(Registration);

impl RpcServer {
    /// The next request. Several tasks may receive; each request goes to one of them, once. Waits for as long as the
    /// function is registered and the node is a member: the absence of work is no error. `NoSuchFunction` and `LinkDown`
    /// say that these have ended.
    ///
    /// A long request stays with its caller until a task receives it. A request whose future is dropped before it is
    /// ready goes to another task. Does not allocate, but for requests longer than all before.
    pub async fn receive(&self) -> Result<Call, Error> {
        self.0.receive().await
    }

    /// As [`receive`](Self::receive), with `Deadline` if none comes for so long.
    pub async fn receive_within(&self, limit: Duration) -> Result<Call, Error> {
        self.0.within(limit).await
    }

    /// Replies to `call`, then receives the next. That a caller is gone is no error; that the reply is too large for it is
    /// one, and nothing is received.
    pub async fn reply_and_receive(&self, call: Call, reply: &[u8]) -> Result<Call, Error> {
        match call.reply(reply).await {
            Err(too_large @ Error::TooLarge { .. }) => Err(too_large),
            _ => self.0.receive().await,
        }
    }

    /// Ends the function, and waits until each call that a task has received is answered or dropped. What waits in the
    /// queue and later calls get [`Error::NoSuchFunction`], as do tasks that receive; the id is free at once. `Deadline`:
    /// a task still has a call.
    pub async fn unregister(&self) -> Result<(), Error> {
        self.0.close().await
    }
}

impl fmt::Debug for RpcServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {} of {}", self.0.function, self.0.node.me)
    }
}

/// An open mailbox. Dropped, it is closed, and the messages in it are lost.
pub struct Mailbox(Registration);

impl Mailbox {
    /// The next message; as [`RpcServer::receive`].
    pub async fn receive(&self) -> Result<Message, Error> {
        self.0.receive().await.map(Message)
    }

    /// As [`receive`](Self::receive), with `Deadline` if none comes for so long.
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
    /// The sender.
    #[must_use]
    pub fn from(&self) -> NodeId {
        self.0.from()
    }

    /// Which life of the sender.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation()
    }

    /// What it says.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.0.request()
    }

    /// The data on their own.
    #[must_use]
    pub fn into_data(mut self) -> Vec<u8> {
        self.0.take_request()
    }
}
