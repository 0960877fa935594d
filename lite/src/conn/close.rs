//! Closing connections that are not used, by agreement of both ends.
//!
//! An end at which nothing is under way *seals* its queue pairs, so that nothing is posted any more, and proposes through the
//! manager. The other end refuses if something is under way there, or was a moment ago; else it destroys its queue pairs and
//! says so, and the proposer destroys its own. So neither loses anything: what wants to be posted meanwhile waits, and goes
//! over the next connection. A proposer never goes back on its word: the answer may be on its way. It comes, or the peer
//! is dead.

use super::broker::{Peer, PeerLink};
use super::wire::Message;
use super::{Conn, Gone, STAY};
use crate::node::Node;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::sync::atomic::Ordering;
use core::time::Duration;
use platform::Instant;
use proto::Member;

/// How often to look who is used while there are many, so that the one least recently used is known.
const SAMPLE: Duration = Duration::from_millis(250);

impl Node {
    /// Proposes to close `conn`, if nothing is under way on it and the peer has not used it for `unused` either. For room,
    /// `unused` is zero: then calls that nobody waits for do not count. Gives whether it was proposed.
    pub(super) fn propose(self: &Arc<Self>, conn: &Arc<Conn>, unused: Duration) -> bool {
        if conn.is_shut() || !self.seal(conn, unused.is_zero()) {
            return false;
        }
        let mut peers = self.peers.lock();
        let peer = peers.get_mut(&conn.peer);
        let Some(Peer { member, link }) = peer.filter(|p| p.link.is_ready(conn)) else {
            drop(peers);
            self.unseal(conn);
            return false;
        };
        *link = PeerLink::Closing { conn: conn.clone(), since: self.platform.now() };
        let unused_ns = u64::try_from(unused.as_nanos()).unwrap_or(u64::MAX);
        // Under the lock, so that it goes out before anything that follows from it.
        self.tell(member, conn.id, Message::Close { unused_ns });
        true
    }

    /// Lets nothing be posted on `conn` any more, if nothing is under way on it.
    fn seal(&self, conn: &Arc<Conn>, for_room: bool) -> bool {
        if !self.ops.lock().seal(conn) {
            return false;
        }
        let quiet = conn.rpc.as_ref().is_some_and(|rpc| rpc.is_closable(for_room));
        if !quiet {
            self.unseal(conn);
        }
        quiet
    }

    fn unseal(&self, conn: &Arc<Conn>) {
        self.ops.lock().unseal(conn);
        if let Some(rpc) = &conn.rpc {
            rpc.room.wake_all();
        }
        self.resources.wake_all();
    }

    /// The peer proposes to close connection `id`.
    pub(super) fn on_close(self: &Arc<Self>, member: &Member, id: u64, unused: Duration) {
        let (conn, proposed) = {
            let peers = self.peers.lock();
            let conn = match peers.get(&member.node).map(|p| &p.link) {
                Some(PeerLink::Ready(conn) | PeerLink::Accepted(conn)) => Some((conn, false)),
                Some(PeerLink::Closing { conn, .. }) => Some((conn, true)),
                _ => None,
            };
            match conn.filter(|(conn, _)| conn.id == id) {
                Some((conn, proposed)) => (Some(conn.clone()), proposed),
                None => (None, false),
            }
        };
        // One that has ended here already, or is about to, is broken to the peer.
        let Some(conn) = conn else { return self.on_broken(member, id) };
        // If both propose, both have sealed it.
        let agreed = proposed
            || planted(Bug::ClosedInUse)
            || conn.unused(self.platform.now()) >= unused.max(STAY) && self.seal(&conn, unused.is_zero());
        if agreed {
            if proposed {
                sometimes!("both ends proposed to close a connection");
            }
            self.counters.closed.add(1);
            self.on_broken(member, id);
        } else {
            self.tell(member, id, Message::Used);
        }
    }

    /// The peer has ended connection `id`, or still uses it.
    pub(super) fn on_close_answer(self: &Arc<Self>, member: &Member, id: u64, closed: bool) {
        let conn = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&member.node) else { return };
            let PeerLink::Closing { conn, .. } = &peer.link else { return };
            let conn = conn.clone();
            if conn.id != id {
                return;
            }
            if !closed {
                sometimes!("a proposal to close a connection was refused");
                peer.link = PeerLink::Ready(conn.clone());
            }
            conn
        };
        if closed {
            sometimes!("a connection was closed by agreement");
            self.counters.closed.add(1);
            self.end_conn(&conn);
        } else {
            conn.refused(self.platform.now());
            self.unseal(&conn);
        }
    }

    /// The connections that are ready, each with how long it has not been used, the longest first.
    pub(super) fn by_age(&self, now: Instant) -> Vec<(Duration, Arc<Conn>)> {
        let ready = |peer: &Peer| match &peer.link {
            PeerLink::Ready(conn) => Some(conn.clone()),
            _ => None,
        };
        let conns: Vec<_> = self.peers.lock().values().filter_map(ready).collect();
        let mut aged: Vec<_> = conns.into_iter().map(|conn| (conn.unused(now), conn)).collect();
        aged.sort_by_key(|(unused, _)| core::cmp::Reverse(*unused));
        aged
    }

    /// Closes what has not been used for [`Config::idle`](crate::Config::idle); called by the poller.
    pub(crate) fn sweep(self: &Arc<Self>, now: Instant) -> bool {
        if now.as_nanos() < self.next_sweep.load(Ordering::Relaxed) {
            return false;
        }
        self.next_sweep.store(u64::MAX, Ordering::Relaxed);
        let aged = self.by_age(now);
        let is_empty = aged.is_empty();
        if let Some(idle) = self.config.idle {
            let old = aged.into_iter().take_while(|(unused, _)| *unused >= idle);
            for (_, conn) in old.filter(|(_, conn)| conn.may_ask(now)) {
                // If something is under way, it is looked at again.
                self.propose(&conn, idle);
            }
        }
        if !is_empty {
            self.plan_sweep(now);
        }
        true
    }

    /// Has the poller look when it must. To be called when a connection has been made.
    pub(super) fn plan_sweep(&self, now: Instant) {
        let many = super::Seat::taken(&self.seats) >= self.config.peers / 2;
        let idle = self.config.idle.map(|idle| (idle / 4).max(Duration::from_micros(1)));
        let Some(pause) = [many.then_some(SAMPLE), idle].into_iter().flatten().min() else { return };
        self.next_sweep.fetch_min((now + pause).as_nanos(), Ordering::Relaxed);
    }

    /// When [`sweep`](Self::sweep) must be called.
    pub(crate) fn next_sweep(&self) -> Option<Instant> {
        let next = self.next_sweep.load(Ordering::Relaxed);
        (next != u64::MAX).then(|| Instant::from_nanos(next))
    }

    /// Ends a connection that this node has found broken. The peer is told, so that calls that wait there for an answer over this
    /// connection end before their deadlines. The next use opens another connection.
    pub(crate) fn fail(&self, conn: &Arc<Conn>) {
        conn.note_failure();
        self.end_conn(conn);
    }

    /// Ends a connection by agreement of both ends, or by the peer's word. The next use opens another connection.
    pub(super) fn end_conn(&self, conn: &Arc<Conn>) {
        self.shut(conn);
        let mut peers = self.peers.lock();
        let mut old = None;
        if let Some(peer) = peers.get_mut(&conn.peer)
            && let PeerLink::Accepted(c) | PeerLink::Ready(c) | PeerLink::Closing { conn: c, .. } = &peer.link
            && Arc::ptr_eq(c, conn)
        {
            old = Some(mem::replace(&mut peer.link, PeerLink::Idle));
        }
        drop(peers);
        drop(old);
        self.peer_change.wake_all();
    }

    /// Destroys a connection's queue pairs. From the return on the peer reaches no memory of this node through it. The
    /// poller ends the operations that were under way.
    ///
    /// While the RNIC does not let go of a queue pair, nothing of the connection ends or is used again: the poller tries anew,
    /// and [`is_served`](Self::is_served) tells those who must not go on before.
    pub(crate) fn shut(&self, conn: &Arc<Conn>) {
        match conn.lanes().destroy() {
            Gone::Now => self.bury(conn),
            Gone::Before | Gone::NotYet { first: false } => {}
            Gone::NotYet { first: true } => {
                log::error!("lite: the RNIC does not let go of the connection to {}", conn.peer);
                self.served.push(conn.clone());
                // Those that wait for room go on elsewhere; those that wait for an end wait until there is one.
                if let Some(rpc) = &conn.rpc {
                    rpc.room.wake_all();
                }
                self.resources.wake_all();
            }
        }
    }

    /// Tries again to destroy what the RNIC did not let go of; called by the poller.
    #[cold]
    pub(crate) fn shut_served(&self) {
        for conn in self.served.take() {
            match conn.lanes().destroy() {
                Gone::Now => self.bury(&conn),
                Gone::Before => {}
                Gone::NotYet { .. } => self.served.push(conn),
            }
        }
    }

    /// The queue pairs of a connection are destroyed.
    fn bury(&self, conn: &Arc<Conn>) {
        self.trace(|| crate::trace::Event::Disconnected { peer: conn.peer });
        if let Some(lane) = conn.lane(super::RPC_LANE) {
            self.by_qp.lock().remove(&lane.number);
        }
        self.closing.push(conn.clone());
        if let Some(rpc) = &conn.rpc {
            rpc.lose_all();
        }
        self.tell_closed(conn);
        self.resources.wake_all();
        self.peer_change.wake_all();
    }
}
