//! Orderly leaving of the cluster.

use crate::node::Node;
use crate::{Error, Lite};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;
use proto::ToManager;

/// The interval at which work in flight is checked.
const PAUSE: Duration = Duration::from_micros(200);
/// The time that the manager may take to end the connection of a node that has sent that it leaves.
const FAREWELL: Duration = Duration::from_secs(2);

impl Lite {
    /// Leaves the cluster. The other nodes go on at once, without waiting for a lease.
    ///
    /// From the call on nothing new begins here ([`Error::LinkDown`]), and functions and mailboxes are
    /// closed. Then this waits, until the deadline of the handle, for handlers that have a call and for
    /// operations of this node in flight. Then the manager tells the other nodes, which end what this node
    /// held: its memory with all regions in it, its regions on other nodes, its names, its entries in
    /// queues. A lock that it still holds passes on as after a death, because the data that it protects may
    /// be half changed. Operations of peers on this node's memory fail with [`Error::NodeDown`].
    ///
    /// The memory of this LITE is free again, and its completion queue in the RNIC destroyed, once all
    /// handles of it are dropped. The node may join again, as another incarnation.
    ///
    /// # Errors
    /// `Deadline` if work was still in flight and was cut off; the node has left all the same, also if the
    /// future is dropped.
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

/// Ends the membership of a leaving node when it is dropped, which may be before the end of the waits.
struct Leaving<'a> {
    node: &'a Node,
    /// True once the manager has been told.
    told: bool,
}

impl Leaving<'_> {
    /// Tells the manager once that the node leaves.
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
    /// Closes functions, and waits until nothing is in flight.
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
