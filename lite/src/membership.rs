//! The members of the cluster, and changes of the membership.

use crate::conn::{Peer, PeerLink};
use crate::lock::Mutex;
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::wait::Waiters;
use crate::{Error, Lite};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use proto::{Incarnation, Member, NodeId, RnicOffer, ToManager};

/// A node in one incarnation.
pub(crate) type Life = (NodeId, Incarnation);

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new member.
    Joined(Member),
    /// A member has left or is declared dead. Operations on it fail with [`Error::NodeDown`].
    Left {
        /// The node.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
        /// The reason, for people.
        reason: String,
    },
}

#[derive(Default)]
struct Feed {
    changes: Mutex<VecDeque<Change>>,
    arrival: Waiters,
}

/// Returns the changes of the membership since it was made.
pub struct Watcher {
    node: Arc<Node>,
    feed: Arc<Feed>,
}

impl Watcher {
    /// Waits for the next change and returns it.
    ///
    /// # Errors
    /// `LinkDown` once this node itself is no longer a member.
    pub async fn next(&mut self) -> Result<Change, Error> {
        let take = || match self.feed.changes.lock().pop_front() {
            Some(change) => Some(Ok(change)),
            None if self.node.is_fenced() => Some(Err(Error::LinkDown)),
            None => None,
        };
        self.feed.arrival.until(take).await
    }
}

/// All watchers of a node.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<Weak<Feed>>>);

impl Watchers {
    fn tell(&self, change: &Change) {
        for feed in self.live() {
            feed.changes.lock().push_back(change.clone());
            feed.arrival.wake_all();
        }
    }

    pub(crate) fn wake_all(&self) {
        self.live().iter().for_each(|f| f.arrival.wake_all());
    }

    fn live(&self) -> Vec<Arc<Feed>> {
        let mut all = self.0.lock();
        all.retain(|f| f.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Node {
    pub(crate) fn on_joined(self: &Arc<Self>, member: Member) {
        let node = member.node;
        if node == self.me {
            return;
        }
        let former = self.peer_life(node).filter(|life| *life != member.incarnation);
        if let Some(former) = former {
            self.on_left(node, former, "joined again".into());
        }
        {
            let mut peers = self.peers.lock();
            // The code that ends this node's membership marks all peers as departed under this lock.
            if self.is_fenced() {
                return;
            }
            let known =
                |p: &Peer| p.member.incarnation == member.incarnation && !matches!(p.link, PeerLink::Gone);
            if peers.get(&node).is_some_and(known) {
                return;
            }
            peers.insert(node, Peer { member: member.clone(), link: PeerLink::Idle });
        }
        self.peer_change.wake_all();
        self.watchers.tell(&Change::Joined(member));
    }

    /// Handles the end of a member's incarnation. Its queue pairs here are destroyed before memory that it
    /// could reach is reused.
    pub(crate) fn on_left(self: &Arc<Self>, node: NodeId, incarnation: Incarnation, reason: String) {
        let link = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node).filter(|p| p.member.incarnation == incarnation) else {
                return;
            };
            if matches!(peer.link, PeerLink::Gone) {
                return;
            }
            core::mem::replace(&mut peer.link, PeerLink::Gone)
        };
        if !planted(Bug::QueuePairsKept) {
            self.retire(link);
        }
        let life = (node, incarnation);
        self.forget_lost(life);
        let unused = self.mappings.forget(life);
        for region in self.regions.forget(life) {
            self.spawn_fence(region);
        }
        self.waits.forget(life);
        self.end_waits_of(life);
        if planted(Bug::FreedBeforeSettled) {
            self.free_memory_of(life);
        }
        // The queue pairs to it are destroyed, and nothing is in flight through its regions or on its
        // behalf: the manager may rely on that.
        let seen = ToManager::LeftSeen { node, incarnation };
        if unused.iter().all(|mapping| self.is_drained(mapping))
            && (!self.is_served(life) || planted(Bug::QueuePairsKept))
            && self.has_no_errand(life)
        {
            self.control.post(&seen);
        } else {
            sometimes!("the end of a life waited for what was under way");
            let me = self.clone();
            let task = async move {
                for mapping in unused {
                    me.drained(&mapping).await;
                }
                me.peer_change.until(|| (!me.is_served(life)).then_some(())).await;
                me.errands_done(life).await;
                me.control.post(&seen);
            };
            self.platform.spawn("lite-left", alloc::boxed::Box::pin(task));
        }
        self.peer_change.wake_all();
        self.watchers.tell(&Change::Left { node, incarnation, reason });
    }

    /// Handles the news that all members have seen the end of an incarnation.
    pub(crate) fn on_settled(self: &Arc<Self>, life: Life) {
        #[cfg(feature = "testing")]
        self.settled.lock().push(life);
        self.unblock_locks(life);
        self.free_memory_of(life);
    }

    /// Frees the memory of an incarnation that has ended, because no node accesses memory on its behalf any
    /// more.
    fn free_memory_of(self: &Arc<Self>, life: Life) {
        self.holdings.settle(life);
        for region in self.regions.settle(life) {
            self.spawn_fence(region);
        }
        self.report_memory();
    }

    /// Returns true if a node was a member and is none any more. An unknown node may just have joined.
    pub(crate) fn has_left(&self, node: NodeId) -> bool {
        self.peers.lock().get(&node).is_some_and(|p| matches!(p.link, PeerLink::Gone))
    }

    /// Returns the present incarnation of a peer, if it is a live member.
    pub(crate) fn peer_life(&self, node: NodeId) -> Option<Incarnation> {
        let peers = self.peers.lock();
        peers.get(&node).filter(|p| !matches!(p.link, PeerLink::Gone)).map(|p| p.member.incarnation)
    }

    /// Returns the error for operations on that incarnation of a node, if it has ended.
    pub(crate) fn gone(&self, node: NodeId, life: Incarnation) -> Option<Error> {
        if self.is_fenced() {
            return Some(Error::LinkDown);
        }
        (node != self.me && self.peer_life(node) != Some(life)).then_some(Error::NodeDown(node))
    }
}

impl Lite {
    /// Returns true if this node is a member. Returns false for ever once it has left, the manager has
    /// ended its membership, or the connection to the manager has broken.
    #[must_use]
    pub fn is_member(&self) -> bool {
        !self.by.node.is_fenced()
    }

    /// Returns true if this node is suspended: its lease has passed while the manager is silent. The node
    /// keeps all that it has, and operations wait until the manager answers, or end at their deadlines.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.by.node.lease.is_suspended()
    }

    /// Returns the live members, this node included, by number. This node's own entry has the name of its
    /// [`Config`](crate::Config), and its `physical` is always `false`.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let node = &self.by.node;
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
        let feed = Arc::new(Feed::default());
        self.by.node.watchers.0.lock().push(Arc::downgrade(&feed));
        Watcher { node: self.by.node.clone(), feed }
    }
}
