//! Leaving the cluster in good order.

use crate::node::Node;
use crate::{Error, Lite};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use proto::ToManager;

/// Between two looks at what is still under way.
const PAUSE: Duration = Duration::from_micros(200);
/// How long the manager may take to end the connection of a node that has said that it leaves.
const FAREWELL: Duration = Duration::from_secs(2);

impl Lite {
    /// Leaves the cluster: the others go on at once, without waiting for a lease.
    ///
    /// From the call on nothing new is begun here ([`Error::LinkDown`]), and functions and mailboxes are closed. Then this
    /// waits, until the deadline of the handle, for handlers that have a call and for what tasks of this node have under way.
    /// Then the manager tells the others, who end what this node held: its memory and what lies in it, its regions elsewhere,
    /// its names, its places in lines. A lock that is still held passes on as after a death, for what it protects may be half
    /// changed. Peers that use this node's memory find it gone ([`Error::NodeDown`]).
    ///
    /// `Deadline`: something was still under way, and was cut off; the node has left all the same. So it has if the future is
    /// dropped. The memory of this
    /// LITE is free again, and its completion queue in the RNIC destroyed, once all handles of it are dropped. To join
    /// again, join anew: it is another life of the node.
    ///
    /// ```
    /// # use lite::{Error, Lite};
    /// # use std::time::Duration;
    /// # async fn example(lite: Lite) -> Result<(), Error> {
    /// lite.with_deadline(Duration::from_secs(1)).leave().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leave(&self) -> Result<(), Error> {
        let node = &self.by.node;
        if !node.lease.leave() {
            return Err(Error::LinkDown);
        }
        let mut leaving = Leaving { node, told: false };
        let done = node.timers.before(self.deadline(), node.end_all_work()).await;
        leaving.tell();
        // The manager ends the connection, which ends the membership here.
        let until = node.platform.now() + FAREWELL;
        while !node.lease.is_over() && node.platform.now() < until {
            node.timers.until(node.platform.now() + PAUSE).await;
        }
        drop(leaving);
        done.ok_or(Error::Deadline)
    }
}

/// Ends the membership of a node that leaves when this is dropped, which may be before the node has waited for what it wanted to.
struct Leaving<'a> {
    node: &'a Node,
    /// The manager knows it.
    told: bool,
}

impl Leaving<'_> {
    /// Says to the manager that the node leaves, once.
    fn tell(&mut self) {
        if !core::mem::replace(&mut self.told, true) {
            self.node.control.post(&ToManager::Leave);
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.tell();
        self.node.fence();
    }
}

impl Node {
    /// Ends functions, and waits for what is under way.
    async fn end_all_work(self: &Arc<Self>) {
        self.services.end_all().await;
        while !self.is_idle() {
            self.timers.until(self.platform.now() + PAUSE).await;
        }
    }

    fn is_idle(&self) -> bool {
        let conns: Vec<_> = self.by_qp.lock().values().cloned().collect();
        conns.iter().all(|c| c.rpc.as_ref().is_none_or(|rpc| rpc.is_quiet())) && self.ops.lock().is_idle()
    }
}
