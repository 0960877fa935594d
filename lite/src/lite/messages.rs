//! The methods of [`Lite`] for calls and messages.

use super::Lite;
use crate::base::wait::all;
use crate::rpc::{INTERNAL, RawRequest, Registration, ReplyTarget, Takes, Whom};
use crate::{Error, FunctionId, Mailbox, RpcOptions, RpcServer};
use alloc::boxed::Box;
use alloc::vec::Vec;
use proto::NodeId;

impl Lite {
    #[allow(
        clippy::manual_async_fn,
        reason = "an async fn moves its arguments before it begins, a block uses them where they lie"
    )]
    fn call_to<'a>(
        &'a self,
        node: NodeId,
        function: FunctionId,
        data: &'a [u8],
        mut target: ReplyTarget<'a>,
    ) -> impl Future<Output = Result<usize, Error>> + Send + 'a {
        async move {
            if function >= INTERNAL {
                return Err(Error::Permission);
            }
            let request = RawRequest { whom: Whom::Node(node), function, data, deadline: self.deadline() };
            if self.by.class.is_rated(&self.by.local.qos) {
                return self.call_rated(request, &mut target).await;
            }
            self.node.rpc.call(&request, &mut target).await
        }
    }

    /// Makes a call of an application whose rate is limited.
    async fn call_rated(
        &self,
        request: RawRequest<'_>,
        target: &mut ReplyTarget<'_>,
    ) -> Result<usize, Error> {
        let len = request.data.len() as u64;
        let (_ticket, deadline) = self.node.admit(&self.by.class, len, request.deadline, false).await?;
        self.node.rpc.call(&RawRequest { deadline, ..request }, target).await
    }

    /// Calls function `f` of `node`, which may be this one, and returns the reply.
    ///
    /// A request or reply may be as long as memory is free on both sides. A request that is too long for
    /// the ring (a quarter of [`Config::ring`](crate::Config::ring)), or a `max_reply` beyond the slot
    /// ([`Config::reply_slot`](crate::Config)), needs memory of that size for the duration of the call. Any
    /// number of calls may be made at once: those beyond [`Config::calls`](crate::Config::calls) to one
    /// node wait here in order, until their deadlines. A handler that calls back needs a slot at its own
    /// node; if callers and handlers wait for each other in a circle of full queues, their deadlines end
    /// it.
    ///
    /// # Errors
    /// The handler runs at most once. `Unknown`, `NodeDown`: it may have run. `TooLarge` (the reply is too
    /// large), `Refused` (the handler sent no reply): it ran. Any other error: it did not run.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// let reply: Vec<u8> = lite.call(NodeId(2), 7, b"question", 100).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn call(
        &self,
        node: NodeId,
        f: FunctionId,
        request: &[u8],
        max_reply: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut reply = Vec::new();
        let target = ReplyTarget::Vec { into: &mut reply, max: max_reply };
        self.call_to(node, f, request, target).await?;
        Ok(reply)
    }

    /// Does the same as [`call`](Self::call), but writes the reply to the start of `reply`, which it may
    /// fill, and returns the reply's length. Does not allocate if request and reply fit the ring and the
    /// slot.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId};
    /// # async fn example(lite: &Lite) -> Result<(), Error> {
    /// let mut reply = [0; 100];
    /// let len = lite.call_into(NodeId(2), 7, b"question", &mut reply).await?;
    /// println!("{:?}", &reply[..len]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn call_into<'a>(
        &'a self,
        node: NodeId,
        f: FunctionId,
        request: &'a [u8],
        reply: &'a mut [u8],
    ) -> impl Future<Output = Result<usize, Error>> + Send + 'a {
        self.call_to(node, f, request, ReplyTarget::Slice(reply))
    }

    /// Calls function `f` of each of `nodes` with the same request, all at once, and returns each node's
    /// reply, in the order of `nodes`. A node that is dead or late does not delay the replies of the
    /// others; all results are there by the deadline.
    ///
    /// ```
    /// # use lite::{Error, Lite, NodeId};
    /// # async fn example(lite: &Lite) {
    /// let nodes = [NodeId(1), NodeId(2), NodeId(3)];
    /// for (node, reply) in nodes.iter().zip(lite.call_each(&nodes, 7, b"status", 100).await) {
    ///     println!("{node}: {reply:?}");
    /// }
    /// # }
    /// ```
    pub async fn call_each(
        &self,
        nodes: &[NodeId],
        f: FunctionId,
        request: &[u8],
        max_reply: usize,
    ) -> Vec<Result<Vec<u8>, Error>> {
        all(nodes.iter().map(|node| Box::pin(self.call(*node, f, request, max_reply))).collect()).await
    }

    /// Sends a message to mailbox or function `port` of `node`, which may be this one. While the queue
    /// there is full this waits, until the deadline. A message that is too long for the ring counts as
    /// queued only when a task has received it.
    ///
    /// The messages of one task, each sent after the one before returned `Ok`, are received in that order.
    ///
    /// # Errors
    /// `Ok`: the message is in the queue, once. `Unknown`, `NodeDown`: it may be in the queue. Any other
    /// error: it is not.
    pub async fn send(&self, node: NodeId, port: FunctionId, message: &[u8]) -> Result<(), Error> {
        self.node.counters.sends.add(1);
        self.call_to(node, port, message, ReplyTarget::Nowhere).await.map(drop)
    }

    /// Registers function `f` of this node, for callers on all nodes. Any number of tasks may
    /// [`receive`](RpcServer::receive) from it.
    ///
    /// # Errors
    /// `NameTaken` if `f` is registered, `Permission` for numbers that LITE uses.
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
        let of = (&self.by.scope, self.by.timeout());
        Registration::new(&self.node, of, f, options, Takes::Calls).map(RpcServer)
    }

    /// Opens mailbox `port` on this node, for senders on all nodes. Ports and functions share one range of
    /// numbers.
    ///
    /// # Errors
    /// `NameTaken` if `port` is in use, `Permission` for numbers that LITE uses.
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
        let of = (&self.by.scope, self.by.timeout());
        Registration::new(&self.node, of, port, options, Takes::Messages).map(Mailbox)
    }
}
