//! Peers that wait for a place: connections that are to be opened when another has been closed.

use super::broker::{Peer, PeerLink};
use super::wire::{End, Message};
use super::{STAY, Seat};
use crate::node::Node;
use crate::sometimes::sometimes;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use core::time::Duration;
use platform::Instant;
use proto::{Member, NodeId};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);
/// How long a peer that has asked is let wait before it is told that there is no place. It then gives up the place that it
/// holds for its question, which another may wait for.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a peer is wanted. Whoever still waits for it then, wants it anew.
const WANTED: Duration = Duration::from_secs(1);
/// How soon a proposal to close is answered by a peer that is well; after that, another one is made.
const ANSWERED: Duration = Duration::from_millis(20);
/// After a peer had no place, it is asked again within so many microseconds, at random.
const AGAIN_US: u64 = 16_000;

/// One that waits for a place here, and may have it now.
enum Next {
    /// It has asked.
    Asked { attempt: u64, end: End },
    /// It is to be asked.
    Wanted,
}

impl Node {
    /// Whether a link waits for a place.
    fn waits(peer: &Peer) -> bool {
        matches!(peer.link, PeerLink::Wanted { .. } | PeerLink::Asked { .. })
    }

    /// There is no place for a connection that is wanted.
    pub(super) fn crowded(self: &Arc<Self>) {
        self.counters.crowded.add(1);
        log::debug!("lite: all {} places for peers are taken", self.config.peers);
        self.find_room();
    }

    /// Sees to it that those that wait get a place, in a task that runs while there are any.
    fn find_room(self: &Arc<Self>) {
        if self.finding_room.swap(true, Ordering::SeqCst) {
            return;
        }
        let node = self.clone();
        let task = async move {
            loop {
                let waiting = node.give_places();
                if waiting > 0 {
                    node.make_room(waiting);
                    node.timers.until(node.platform.now() + PAUSE).await;
                    continue;
                }
                node.finding_room.store(false, Ordering::SeqCst);
                let more = node.peers.lock().values().any(Self::waits);
                if !more || node.finding_room.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        };
        self.platform.spawn("lite-room", Box::pin(task));
    }

    /// Serves those that wait while there are places; gives how many are left.
    fn give_places(self: &Arc<Self>) -> usize {
        let now = self.platform.now();
        self.give_up(now);
        while Seat::taken(&self.seats) < self.config.peers {
            let Some((member, attempt, next, since)) = self.next_waiting(now) else { break };
            sometimes!("a connection got a place that it waited for");
            let served = match next {
                Next::Asked { attempt, end } => self.answer_request(&member, attempt, end, since),
                // An error is told to those who then ask themselves.
                Next::Wanted => self.ask(attempt, &member, since).unwrap_or(true),
            };
            self.peer_change.wake_all();
            if !served {
                break;
            }
        }
        self.peers.lock().values().filter(|p| Self::waits(p)).count()
    }

    /// The one that has waited longest, those first that have asked; its link is being prepared as attempt.
    fn next_waiting(&self, now: Instant) -> Option<(Member, u64, Next, Instant)> {
        let own = self.random();
        let mut peers = self.peers.lock();
        let place = |peer: &Peer| match peer.link {
            PeerLink::Asked { since, .. } => Some((0, since)),
            PeerLink::Wanted { from, since } if from <= now => Some((1, since)),
            _ => None,
        };
        let (_, peer) =
            peers.values_mut().filter_map(|p| Some((place(p)?, p))).min_by_key(|(place, _)| *place)?;
        let attempt = match &peer.link {
            PeerLink::Asked { attempt, .. } => *attempt,
            _ => own,
        };
        let member = peer.member.clone();
        match core::mem::replace(&mut peer.link, PeerLink::Preparing { attempt }) {
            PeerLink::Asked { attempt, end, since } => {
                Some((member, attempt, Next::Asked { attempt, end }, since))
            }
            PeerLink::Wanted { since, .. } => Some((member, attempt, Next::Wanted, since)),
            _ => None,
        }
    }

    /// Ends the wait of those whose time is over.
    fn give_up(self: &Arc<Self>, now: Instant) {
        let mut any = false;
        let mut peers = self.peers.lock();
        for Peer { member, link } in peers.values_mut() {
            match link {
                PeerLink::Asked { attempt, since, .. } if *since + PATIENCE <= now => {
                    self.tell(member, *attempt, Message::Full);
                }
                PeerLink::Wanted { since, .. } if *since + WANTED <= now => {}
                _ => continue,
            }
            *link = PeerLink::Idle;
            any = true;
            sometimes!("a wait for a place was given up");
        }
        drop(peers);
        if any {
            self.peer_change.wake_all();
        }
    }

    /// Proposes to close those connections that have not been used for longest, until as many may come free as are wanted.
    fn make_room(self: &Arc<Self>, wanted: usize) {
        let now = self.platform.now();
        let coming = {
            let peers = self.peers.lock();
            let closing =
                |p: &&Peer| matches!(p.link, PeerLink::Closing { since, .. } if since + ANSWERED > now);
            peers.values().filter(closing).count()
        };
        let missing = wanted.saturating_sub(coming);
        if missing == 0 {
            return;
        }
        let old = self.by_age(now).into_iter().take_while(|(unused, _)| *unused >= STAY);
        old.filter(|(_, conn)| conn.may_ask(now) && self.propose(conn, Duration::ZERO))
            .take(missing)
            .for_each(drop);
    }

    /// A peer has no place for the connection that it was asked for.
    pub(super) fn on_full(self: &Arc<Self>, node: NodeId, attempt: u64) {
        let now = self.platform.now();
        let from = now + Duration::from_micros(1 + self.random() % AGAIN_US);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return };
        if !matches!(&peer.link, PeerLink::Asking { attempt: a, .. } if *a == attempt) {
            return;
        }
        sometimes!("a peer had no place for a connection");
        let old = core::mem::replace(&mut peer.link, PeerLink::Wanted { from, since: now });
        drop(peers);
        self.retire(old);
        self.find_room();
    }

    /// Peers that wait for a place, and connections whose closing has been proposed.
    #[cfg(feature = "testing")]
    pub(crate) fn links_in_change(&self) -> usize {
        let in_change = |p: &&Peer| Self::waits(p) || matches!(p.link, PeerLink::Closing { .. });
        self.peers.lock().values().filter(in_change).count()
    }
}
