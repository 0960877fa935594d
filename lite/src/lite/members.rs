//! The membership of this node, and the control connection.

use super::Lite;
use crate::Error;
use crate::base::control::SEND_QUEUE;
use crate::membership::{ControlMessages, Watcher, Watchers};
use crate::transport::conn::peers::PeerLink;
use crate::transport::op::Moment;
use alloc::vec::Vec;
use proto::{Member, RnicOffer, ToManager};

impl Lite {
    /// Returns true if this node is a member. Returns false for ever once it has left, the manager has
    /// ended its membership, or the manager was silent for too long.
    #[must_use]
    pub fn is_member(&self) -> bool {
        !self.node.is_fenced()
    }

    /// Returns true if this node is suspended: its lease has passed while the manager is silent. The node
    /// keeps all that it has, and operations wait until the manager answers, or end at their deadlines.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.node.lease.is_suspended()
    }

    /// Returns the live members, this node included, by number. This node's own entry has the name of its
    /// [`Config`](crate::Config), and its `physical` is always `false`.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let node = &self.node;
        let attributes = node.rnic.attributes();
        let own = Member {
            node: node.me,
            incarnation: node.incarnation,
            name: node.config.name.clone(),
            gid: node.gid,
            rnic: RnicOffer {
                driver: attributes.driver.into(),
                links: attributes.links.to_vec(),
                mac: attributes.port.mac,
                gid: Some(node.gid),
                lid: attributes.port.lid,
                mtu: attributes.max_mtu,
                max_rd_atomic: attributes.max_rd_atomic,
                key: node.key,
                physical: false,
            },
        };
        let mut all = alloc::vec![own];
        {
            let peers = node.peers.lock();
            let live = peers.values().filter(|p| !matches!(p.link, PeerLink::Gone));
            all.extend(live.map(|p| p.member.clone()));
        }
        all.sort_by_key(|m| m.node);
        all
    }

    /// Returns a watcher of the membership, from now on.
    #[must_use]
    pub fn watch(&self) -> Watcher {
        Watchers::watch(&self.node)
    }

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
        self.node.leave(self.deadline()).await
    }

    /// Returns the manager's messages that are not for LITE. One task should take them, because each message
    /// goes to the first task that asks.
    #[must_use]
    pub fn control_messages(&self) -> ControlMessages {
        ControlMessages { node: self.node.membership.clone() }
    }

    /// Returns true if the manager knows the messages of a version of the protocol.
    #[must_use]
    pub fn manager_knows(&self, version: u16) -> bool {
        self.node.control.check_known(version).is_ok()
    }

    /// Sends a message to the manager; waits while many messages are queued.
    ///
    /// # Errors
    /// `Refused` if the manager is of a former release, which does not know the message.
    pub async fn send_control(&self, message: &ToManager) -> Result<(), Error> {
        let control = &self.node.control;
        control.check_known(message.since())?;
        let room = || {
            if control.has_ended() {
                return Some(Err(Error::LinkDown));
            }
            let mut out = control.out.lock();
            (out.len() < SEND_QUEUE).then(|| {
                out.push_back(proto::encode(message));
                Ok(())
            })
        };
        let sent = self.node.timers.before(self.deadline(), control.out_change.until(room)).await;
        sent.unwrap_or(Err(Error::Deadline))?;
        control.out_change.wake_all();
        Ok(())
    }

    /// Waits until no write or atomic of this node that ended with [`Error::Unknown`], or whose future was
    /// dropped, can happen any more: each has reached its memory, or never will. Returns at once if there
    /// is none. The release of a [`LockGuard`](crate::LockGuard) waits by itself for the operations of its
    /// time.
    ///
    /// ```
    /// # use lite::{Error, Lite, Lmr};
    /// # async fn example(lite: &Lite, lmr: &Lmr) -> Result<(), Error> {
    /// if lmr.write(0, b"new").await == Err(Error::Unknown) {
    ///     lite.settled().await?;
    ///     // The present content is final.
    ///     lmr.read(0, &mut [0; 3]).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settled(&self) -> Result<(), Error> {
        let node = &self.node;
        let settled = async {
            node.settled(Moment::FIRST).await;
            Ok(())
        };
        node.timers.before(self.deadline(), settled).await.unwrap_or(Err(Error::Deadline))
    }

    /// Returns the resources that are still held, by kind and count; empty if there are none.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn audit(&self) -> Vec<(&'static str, usize)> {
        crate::testing::audit::audit(self)
    }

    /// Returns the number of queue pairs of open connections, including the loop-back connection.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        crate::testing::audit::queue_pairs(self)
    }

    /// Returns the incarnations that have ended and whose end all members have seen, as far as this node
    /// knows.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn settled_lives(&self) -> Vec<(proto::NodeId, proto::Incarnation)> {
        crate::testing::audit::settled_lives(self)
    }

    /// Returns the names of the regions of this owner whose masters have left.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn orphans(&self) -> Vec<alloc::string::String> {
        crate::testing::audit::orphans(self)
    }

    /// Returns one line for each region whose owner this node is.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn describe_regions(&self) -> Vec<alloc::string::String> {
        crate::testing::audit::describe_regions(self)
    }
}
