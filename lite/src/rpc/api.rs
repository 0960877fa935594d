//! Calls and messages as applications make them.

use super::INTERNAL;
use super::client::{Request, Sink, Whom};
use super::many::all;
use super::server::FunctionId;
use crate::{Error, Lite};
use alloc::boxed::Box;
use alloc::vec::Vec;
use proto::NodeId;

impl Lite {
    async fn call_to(
        &self,
        node: NodeId,
        function: FunctionId,
        data: &[u8],
        sink: Sink<'_>,
    ) -> Result<usize, Error> {
        if function >= INTERNAL {
            return Err(Error::Permission);
        }
        let deadline = self.deadline();
        let _ticket = if self.by.class.is_rated(&self.by.node) {
            Some(self.by.node.admit(&self.by.class, data.len() as u64, deadline, false).await?)
        } else {
            None
        };
        self.by.node.call(Whom::Node(node), Request { function, data }, sink, deadline).await
    }

    /// Calls function `f` of `node`, which may be this one, and waits for the reply. The handler runs at most once: on
    /// `Unknown` (and `NodeDown`) it may have run, on all other errors but `TooLarge` for the reply and `Refused` by a
    /// handler that gave none it has not.
    ///
    /// A request or reply may be as long as memory is free on both sides. One that is too long for the ring (a quarter of
    /// [`Config::ring`](crate::Config::ring)), or a `max_reply` beyond the slot ([`Config::reply_slot`](crate::Config)), takes
    /// memory of that size for the call. Any number of calls may be made at once: those beyond
    /// [`Config::calls`](crate::Config::calls) to one node wait here in line, within their deadlines. A handler that calls
    /// back takes a place at its own node; when callers and handlers wait for each other in a circle of full lines, their
    /// deadlines end it.
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
        self.call_to(node, f, request, Sink::Vec { into: &mut reply, max: max_reply }).await?;
        Ok(reply)
    }

    /// As [`call`](Self::call), but the reply is put at the start of `reply`, of which it may have all; gives its length.
    /// Does not allocate if request and reply are short enough for ring and slot.
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
    pub async fn call_into(
        &self,
        node: NodeId,
        f: FunctionId,
        request: &[u8],
        reply: &mut [u8],
    ) -> Result<usize, Error> {
        self.call_to(node, f, request, Sink::Slice(reply)).await
    }

    /// Calls function `f` of each of `nodes` with the same request, all at once, and gives what each replied, in their
    /// order. One that is dead or late keeps no other from being heard; all results are there by the deadline.
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

    /// Sends a message to mailbox or function `port` of `node`, which may be this one. `Ok`: it is in the queue there,
    /// once. `Unknown` and `NodeDown`: it may be. All other errors: it is not. While the queue is full this waits, within
    /// the deadline; a message that is too long for the ring is in the queue when a task has received it.
    ///
    /// Messages of one task, each sent when the one before was `Ok`, are received in that order.
    pub async fn send(&self, node: NodeId, port: FunctionId, message: &[u8]) -> Result<(), Error> {
        self.by.node.counters.sends.add(1);
        self.call_to(node, port, message, Sink::Nowhere).await.map(drop)
    }
}
