//! The members of the cluster, and changes of the membership.

use super::standing::Membership;
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::wait::Waiters;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::conn::peers::Peer;
use crate::transport::conn::peers::PeerLink;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use proto::{Incarnation, Member, NodeId, ToManager};

/// The delay of [`Bug::CutOffLate`].
const LATE: core::time::Duration = core::time::Duration::from_millis(50);

/// A change of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node has joined.
    Joined(Member),
    /// A member has left or is declared dead. Operations on it fail with [`Error::NodeDown`].
    Left {
        /// The node that has left.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
        /// The reason, for people.
        reason: String,
    },
    /// Every member that was present when an incarnation ended has seen its end: from now on no write,
    /// atomic or message of it reaches the memory of any member, however late it is. So what it has written
    /// is final. Comes after [`Left`](Self::Left), after the lease if the node has died.
    Settled {
        /// The node.
        node: NodeId,
        /// The incarnation that has ended.
        incarnation: Incarnation,
    },
}

#[derive(Default)]
struct Feed {
    changes: Mutex<VecDeque<Change>>,
    arrival: Waiters,
}

/// A receiver of membership changes. It returns all changes since it was made, so a task that has to know of
/// the end of a node makes its watcher before it begins to work with it.
///
/// ```
/// # use lite::{Change, Error, Lite, NodeId, Watcher};
/// # async fn example(watcher: &mut Watcher, dead: NodeId) -> Result<(), Error> {
/// // After `NodeDown(dead)`: waits until nothing of that node can change memory any more.
/// while !matches!(watcher.next().await?, Change::Settled { node, .. } if node == dead) {}
/// # Ok(())
/// # }
/// ```
pub struct Watcher {
    node: Arc<Membership>,
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
    /// Adds a watcher of the membership of `node`.
    pub(crate) fn watch(node: &Arc<Membership>) -> Watcher {
        let feed = Arc::new(Feed::default());
        node.watchers.0.lock().push(Arc::downgrade(&feed));
        Watcher { node: node.clone(), feed }
    }

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

impl Membership {
    pub(crate) fn on_joined(self: &Arc<Self>, member: Member) {
        let node = member.node;
        if node == self.me {
            return;
        }
        let former = self.incarnation_of(node).filter(|former| *former != member.incarnation);
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
                drop(peers);
                // It, or this node, has resumed: messages between them may have been lost.
                return self.repeat(node);
            }
            peers.insert(node, Peer::new(member.clone()));
        }
        self.peer_change.wake_all();
        self.watchers.tell(&Change::Joined(member));
    }

    /// Handles the end of a member's incarnation. Its queue pairs here are destroyed before memory that it
    /// could reach is reused.
    pub(crate) fn on_left(self: &Arc<Self>, node: NodeId, incarnation: Incarnation, reason: String) {
        let member = (node, incarnation);
        if let Some(&confirmed) = self.departed.lock().get(&member) {
            // The manager repeats itself after a break of the connection.
            if confirmed {
                self.control.post(&ToManager::LeftSeen { node, incarnation });
            }
            return;
        }
        let link = {
            let mut peers = self.peers.lock();
            let peer = peers.get_mut(&node).filter(|p| p.member.incarnation == incarnation);
            let live = peer.filter(|peer| !matches!(peer.link, PeerLink::Gone));
            self.departed.lock().insert(member, false);
            live.map(|peer| core::mem::replace(&mut peer.link, PeerLink::Gone))
        };
        // This node has nothing of an incarnation that it does not know, and of one that is settled.
        let Some(link) = link else { return self.confirm(member) };
        if planted(Bug::CutOffLate) {
            let (me, at) = (self.clone(), self.platform.now() + LATE);
            let late = async move {
                me.timers.until(at).await;
                me.retire(link);
            };
            self.platform.spawn("lite-late", alloc::boxed::Box::pin(late));
        } else if !planted(Bug::QueuePairsKept) {
            self.retire(link);
        }
        self.forget_lost(member);
        let unused = self.mappings.forget(member);
        for region in self.regions.forget(member) {
            self.spawn_fence(region);
        }
        self.sync.waits.forget(member);
        self.sync.end_waits_of(member);
        if planted(Bug::FreedBeforeSettled) {
            self.free_memory_of(member);
        }
        // The queue pairs to it are destroyed, and nothing is in flight through its regions or on its
        // behalf: the manager may rely on that.
        let early = planted(Bug::QueuePairsKept) || planted(Bug::CutOffLate);
        if unused.iter().all(|mapping| self.is_drained(mapping))
            && (early || !self.is_served(member))
            && self.errands.are_done(member)
        {
            self.confirm(member);
        } else {
            sometimes!("the end of a life waited for what was under way");
            let me = self.clone();
            let task = async move {
                for mapping in unused {
                    me.drained(&mapping).await;
                }
                me.peer_change.until(|| (early || !me.is_served(member)).then_some(())).await;
                me.errands.done(member).await;
                me.confirm(member);
            };
            self.platform.spawn("lite-left", alloc::boxed::Box::pin(task));
        }
        self.peer_change.wake_all();
        self.watchers.tell(&Change::Left { node, incarnation, reason });
    }

    /// Tells the manager that nothing of an ended incarnation reaches this node any more.
    fn confirm(&self, (node, incarnation): MemberId) {
        if let Some(confirmed) = self.departed.lock().get_mut(&(node, incarnation)) {
            *confirmed = true;
        }
        self.control.post(&ToManager::LeftSeen { node, incarnation });
    }

    /// Goes on after a break of the connection to the manager, possibly with another manager. All departures
    /// that this node has confirmed are settled, except `unsettled`.
    pub(super) fn on_resumed(self: &Arc<Self>, unsettled: &[MemberId]) {
        let settled: Vec<MemberId> = {
            let departed = self.departed.lock();
            let over = |(member, confirmed): &(&MemberId, &bool)| **confirmed && !unsettled.contains(member);
            departed.iter().filter(over).map(|(member, _)| *member).collect()
        };
        for member in settled {
            self.on_settled(member);
        }
        self.control.ask_again();
        self.report_memory();
        self.control.post(&ToManager::Datagrams { queue_pair: self.endpoint.queue_pair() });
    }

    /// Handles the news that all members have seen the end of an incarnation.
    pub(crate) fn on_settled(self: &Arc<Self>, member: MemberId) {
        #[cfg(feature = "testing")]
        self.settled.lock().push(member);
        self.departed.lock().remove(&member);
        self.sync.unblock_locks(member);
        self.free_memory_of(member);
        let (node, incarnation) = member;
        self.watchers.tell(&Change::Settled { node, incarnation });
    }

    /// Frees the memory of an incarnation that has ended, because no node accesses memory on its behalf any
    /// more.
    fn free_memory_of(self: &Arc<Self>, member: MemberId) {
        self.holdings.settle(member);
        for region in self.regions.settle(member) {
            self.spawn_fence(region);
        }
        self.report_memory();
    }
}
