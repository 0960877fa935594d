//! Peers that wait for a permit: connections that are opened when another one has been closed.

use super::carrier::Letter;
use super::connections::Connections;
use super::wire::{Request, SetUp};
use crate::base::writers::Ordering;
use crate::sometimes::sometimes;
use crate::transport::conn::peers::{Peer, PeerLink};
use crate::transport::conn::{PeerPermit, STAY};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;
use platform::Instant;
use proto::{Member, NodeId};

/// The interval of the search for permits.
const PAUSE: Duration = Duration::from_millis(1);
/// The time for which a peer that has sent a request waits here before it is told that no permit is free.
/// It then gives up the permit that it holds for its request, which another peer may wait for.
const PERMIT_WAIT: Duration = Duration::from_millis(100);
/// The time for which a peer is wanted. A task that still waits for it then asks for it again.
const WANTED: Duration = Duration::from_secs(1);
/// The time in which a healthy peer answers a proposal to close a connection. After it, this node proposes
/// again.
const ANSWERED: Duration = Duration::from_millis(20);
/// The upper bound of the random pause, in µs, after which a peer without a free permit is asked again.
const AGAIN_US: u64 = 16_000;

/// The peer that is next in line for a free permit of this node.
enum Next {
    /// The peer has sent a request.
    Asked { attempt: u64, request: Request },
    /// A request will be sent to the peer.
    Wanted,
}

impl Connections {
    /// Returns true if a link waits for a permit.
    fn waits(peer: &Peer) -> bool {
        matches!(peer.link, PeerLink::Wanted { .. } | PeerLink::Asked { .. })
    }

    /// Notes that no permit is free for a wanted connection.
    pub(super) fn on_no_permit(self: &Arc<Self>) {
        self.counters.on_no_permit.add(1);
        log::debug!("lite: all {} connection permits are in use", self.config.peers);
        self.find_room();
    }

    /// Starts the task that finds permits for waiting peers and runs while there are any.
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

    /// Serves waiting peers while permits are free, and returns the number of peers that still wait.
    fn give_places(self: &Arc<Self>) -> usize {
        let now = self.platform.now();
        self.give_up(now);
        while PeerPermit::taken(&self.permits) < self.config.peers {
            let Some((member, attempt, next, since)) = self.next_waiting(now) else { break };
            sometimes!("a connection got a place that it waited for");
            let served = match next {
                Next::Asked { attempt, request } => self.answer_request(&member, attempt, request, since),
                // An error is reported to tasks that ask for the connection themselves.
                Next::Wanted => self.ask(attempt, &member, since).unwrap_or(true),
            };
            self.peer_change.wake_all();
            if !served {
                break;
            }
        }
        self.peers.lock().values().filter(|p| Self::waits(p)).count()
    }

    /// Picks the peer that has waited longest, incoming requests before outgoing ones, and moves its link
    /// to `Preparing { attempt }`.
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
            PeerLink::Asked { attempt, request, since } => {
                Some((member, attempt, Next::Asked { attempt, request }, since))
            }
            PeerLink::Wanted { since, .. } => Some((member, attempt, Next::Wanted, since)),
            _ => None,
        }
    }

    /// Ends the waits whose time is over.
    fn give_up(self: &Arc<Self>, now: Instant) {
        let mut any = false;
        let mut peers = self.peers.lock();
        for Peer { member, link, .. } in peers.values_mut() {
            match link {
                PeerLink::Asked { attempt, since, request } if *since + PERMIT_WAIT <= now => {
                    Letter::to_requester(self, member, *attempt, request.answer_to, &SetUp::Full)
                        .dispatch(self);
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

    /// Proposes to close the least recently used connections, until as many permits may become free as are
    /// wanted.
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

    /// Handles the answer that the peer has no permit for a requested connection. Returns true if it had an
    /// effect.
    pub(super) fn on_full(self: &Arc<Self>, node: NodeId, attempt: u64) -> bool {
        let now = self.platform.now();
        let from = now + Duration::from_micros(1 + self.random() % AGAIN_US);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return false };
        if !matches!(&peer.link, PeerLink::Asking { attempt: a, .. } if *a == attempt) {
            return false;
        }
        sometimes!("a peer had no place for a connection");
        let old = core::mem::replace(&mut peer.link, PeerLink::Wanted { from, since: now });
        drop(peers);
        self.retire(old);
        self.find_room();
        self.peer_change.wake_all();
        true
    }

    /// Returns the number of peers that wait for a permit, and of connections whose closing has been
    /// proposed.
    #[cfg(feature = "testing")]
    pub(crate) fn links_in_change(&self) -> usize {
        let in_change = |p: &&Peer| Self::waits(p) || matches!(p.link, PeerLink::Closing { .. });
        self.peers.lock().values().filter(in_change).count()
    }
}
