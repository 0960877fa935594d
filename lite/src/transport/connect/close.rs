//! Closing of unused connections, by agreement of both ends.
//!
//! An end that has nothing in flight *seals* its queue pairs, so that nothing is posted any more, and sends
//! a proposal through the manager. The other end refuses if it has something in flight, or had a moment
//! ago. Otherwise it destroys its queue pairs and acknowledges, and the proposer destroys its own. So no
//! operation is lost: operations issued meanwhile wait and use the next connection. A
//! proposer never withdraws, because the acknowledgement may be on its way: it waits until the answer
//! arrives or the peer is dead.
//!
//! Operations in flight on a broken connection may still arrive: the peer's queue pair accepts a packet
//! that the network delays for as long as the queue pair exists. If operations that change memory were
//! lost, the peer is told through the manager that the connection is broken; it destroys its queue pairs
//! and acknowledges. Until then those operations count as in flight: their mappings are not drained, so
//! memory that is revoked or moved is not used again, and a lock that protects it is not released.

use super::connections::Connections;
use super::wire::Message;
use crate::base::member::MemberId;
use crate::base::writers::Ordering;
use crate::channel::Channel;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::conn::peers::{Peer, PeerLink};
use crate::transport::conn::{Conn, Gone, STAY};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;
use platform::Instant;
use proto::{Member, NodeId};

/// The interval at which use is sampled while there are many connections, so that the least recently used
/// one is known.
const SAMPLE: Duration = Duration::from_millis(250);

impl Connections {
    /// Proposes to close `conn`, if nothing is in flight on it and the peer has not used it for `unused`
    /// either. `unused` is zero if the connection's permit is wanted; calls without a waiter do not count
    /// then. Returns true if it was proposed.
    pub(super) fn propose(self: &Arc<Self>, conn: &Arc<Conn>, unused: Duration) -> bool {
        if conn.is_shut() || !self.seal(conn, unused.is_zero()) {
            return false;
        }
        let mut peers = self.peers.lock();
        let peer = peers.get_mut(&conn.peer);
        let Some(Peer { member, link, .. }) = peer.filter(|p| p.link.is_ready(conn)) else {
            drop(peers);
            self.unseal(conn);
            return false;
        };
        let since = self.platform.now();
        *link = PeerLink::Closing { conn: conn.clone(), since, unused };
        // Sent under the lock, so that it precedes everything that follows from it.
        self.tell(member, conn.id, Self::proposal(since, unused));
        true
    }

    /// Returns a proposal to close. Its number is the time of the proposal.
    fn proposal(since: Instant, unused: Duration) -> Message {
        let unused_ns = u64::try_from(unused.as_nanos()).unwrap_or(u64::MAX);
        Message::Close { unused_ns, number: since.as_nanos() }
    }

    /// Sends a peer again all messages whose answers this node waits for: they, or the answers, may have been
    /// lost with a control connection.
    pub(crate) fn repeat(&self, node: NodeId) {
        let mut peers = self.peers.lock();
        let Some(Peer { member, link, .. }) = peers.get_mut(&node) else { return };
        if let PeerLink::Closing { conn, since, unused } = link {
            sometimes!("a proposal to close a connection was repeated");
            // An answer to the former proposal does not count any more.
            *since = self.platform.now().max(*since + Duration::from_nanos(1));
            self.tell(member, conn.id, Self::proposal(*since, *unused));
        }
        let member = member.clone();
        drop(peers);
        let broken = self.unfinished.lock().awaited((member.node, member.incarnation));
        for id in broken {
            self.tell(&member, id, Message::Broken);
        }
    }

    /// Seals `conn` if nothing is in flight on it.
    fn seal(&self, conn: &Arc<Conn>, for_room: bool) -> bool {
        if !self.transport.seal(conn) {
            return false;
        }
        let quiet = conn.channels().all(|channel| channel.is_closable(for_room));
        if !quiet {
            self.unseal(conn);
        }
        quiet
    }

    /// Handles the peer's proposal to close connection `id`.
    pub(super) fn on_close(self: &Arc<Self>, member: &Member, id: u64, unused: Duration, number: u64) {
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
        // A connection that has ended here, or is about to, is broken for the peer.
        let Some(conn) = conn else { return self.on_broken(member, id) };
        // If both have proposed, both have sealed it.
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
            self.tell(member, id, Message::Used { number });
        }
    }

    /// Handles the peer's answer: it has destroyed connection `id`, or still uses it, which answers the
    /// proposal with the number `used`.
    pub(super) fn on_close_answer(self: &Arc<Self>, member: &Member, id: u64, used: Option<u64>) {
        let closed = used.is_none();
        let conn = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&member.node) else { return };
            let PeerLink::Closing { conn, since, .. } = &peer.link else { return };
            let conn = conn.clone();
            if conn.id != id || used.is_some_and(|number| number != since.as_nanos()) {
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

    /// Returns the connections in use, each with the time for which it has not been used, the longest
    /// first.
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

    /// Closes connections that have not been used for [`Config::idle`](crate::Config::idle); called by the
    /// poller. Returns true if it was time for that.
    pub(crate) fn sweep(self: &Arc<Self>, now: Instant) -> bool {
        let is_due = now.as_nanos() >= self.next_sweep.load(Ordering::Relaxed);
        if is_due {
            self.close_idle(now);
        }
        is_due
    }

    fn close_idle(self: &Arc<Self>, now: Instant) {
        self.next_sweep.store(u64::MAX, Ordering::Relaxed);
        let aged = self.by_age(now);
        let is_empty = aged.is_empty();
        if let Some(idle) = self.config.idle {
            let old = aged.into_iter().take_while(|(unused, _)| *unused >= idle);
            for (_, conn) in old.filter(|(_, conn)| conn.may_ask(now)) {
                // A connection with something in flight is looked at again later.
                self.propose(&conn, idle);
            }
        }
        if !is_empty {
            self.plan_sweep(now);
        }
    }

    /// Sets the time of the poller's next sweep. Must be called when a connection has been made.
    pub(super) fn plan_sweep(&self, now: Instant) {
        let many = crate::transport::conn::PeerPermit::taken(&self.permits) >= self.config.peers / 2;
        let idle = self.config.idle.map(|idle| (idle / 4).max(Duration::from_micros(1)));
        let Some(pause) = [many.then_some(SAMPLE), idle].into_iter().flatten().min() else { return };
        self.next_sweep.fetch_min((now + pause).as_nanos(), Ordering::SeqCst);
        self.standing.due_by(now + pause);
    }

    /// Returns the time by which [`sweep`](Self::sweep) must be called.
    pub(crate) fn next_sweep(&self) -> Option<Instant> {
        let next = self.next_sweep.load(Ordering::Relaxed);
        (next != u64::MAX).then(|| Instant::from_nanos(next))
    }

    /// Ends a connection that this node has found broken. The peer is told, so that calls there that wait
    /// for an answer over this connection end before their deadlines. The next use opens another
    /// connection.
    pub(crate) fn fail(&self, conn: &Arc<Conn>) {
        conn.note_failure();
        self.end_conn(conn);
    }

    /// Ends a connection by agreement of both ends, or by a message of the peer. The next use opens another
    /// connection.
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

    /// Destroys a connection's queue pairs. After the return the peer reaches no memory of this node
    /// through it. The poller ends the operations in flight.
    ///
    /// As long as the RNIC cannot destroy a queue pair, nothing of the connection ends or is used again:
    /// the poller tries again, and [`is_served`](Self::is_served) tells the tasks that must wait for it.
    pub(crate) fn shut(&self, conn: &Arc<Conn>) {
        match conn.group().destroy() {
            Gone::Now => self.bury(conn),
            Gone::Before | Gone::NotYet { first: false } => {}
            Gone::NotYet { first: true } => {
                log::error!("lite: the RNIC cannot destroy the connection to {} yet", conn.peer);
                self.defer(&self.served, conn.clone());
                // Tasks that wait for room use another connection; tasks that wait for an end wait until it
                // comes.
                conn.channels().for_each(|channel| channel.room.wake_all());
                self.resources.wake_all();
            }
        }
    }

    /// Tries again to destroy queue pairs that the RNIC could not destroy; called by the poller.
    pub(crate) fn shut_served(&self) {
        for conn in self.served.take() {
            match conn.group().destroy() {
                Gone::Now => self.bury(&conn),
                Gone::Before => {}
                Gone::NotYet { .. } => self.defer(&self.served, conn),
            }
        }
    }

    /// Removes a connection whose queue pairs are destroyed.
    fn bury(&self, conn: &Arc<Conn>) {
        self.trace(|| crate::base::trace::Event::Disconnected { peer: conn.peer });
        self.by_receive.lock().remove(&conn.group().receive_id);
        self.defer(&self.closing, conn.clone());
        conn.channels().for_each(Channel::lose_all);
        self.tell_closed(conn);
        self.resources.wake_all();
        self.peer_change.wake_all();
    }

    // ---- The confirmed end of a broken connection ----

    /// Handles the end of a connection here. If this node has found it broken, or operations were lost on
    /// it, the peer is told to end it too.
    pub(crate) fn confirm_end(&self, conn: &Conn) {
        let ended = (conn.peer, conn.incarnation);
        if !conn.has_failed() && !self.unfinished.lock().awaits(ended, conn.id) {
            return;
        }
        let member = {
            let peers = self.peers.lock();
            let peer = peers.get(&conn.peer).filter(|p| p.member.incarnation == conn.incarnation);
            peer.filter(|p| !matches!(p.link, PeerLink::Gone)).map(|p| p.member.clone())
        };
        match member.filter(|_| !self.is_fenced() && !planted(Bug::LostUnconfirmed)) {
            Some(member) => self.tell(&member, conn.id, Message::Broken),
            // This check follows the noting of the operations: the code that ends a membership forgets them
            // after that.
            None => self.forget_lost(ended),
        }
    }

    /// Handles the peer's message that connection `id` is broken: ends it here, and tells the peer
    /// afterwards.
    pub(super) fn on_broken(self: &Arc<Self>, member: &Member, id: u64) {
        // A connection is in this table until its queue pairs are destroyed.
        let is_meant = |conn: &&Arc<Conn>| {
            conn.id == id && (conn.peer, conn.incarnation) == (member.node, member.incarnation)
        };
        let conn = self.by_receive.lock().values().find(is_meant).cloned();
        match conn {
            Some(conn) => {
                sometimes!("a peer heard that a connection is broken");
                conn.owe_closed();
                self.end_conn(&conn);
                self.tell_closed(&conn);
            }
            None => {
                sometimes!("a broken connection had ended at its peer");
                self.tell(member, id, Message::Closed);
            }
        }
    }

    /// Tells the peer that a connection has ended here, if it has ended and the peer waits for that.
    pub(super) fn tell_closed(&self, conn: &Conn) {
        if !conn.group().is_gone() || !conn.pays_closed() {
            return;
        }
        let peers = self.peers.lock();
        let peer = peers.get(&conn.peer).filter(|p| p.member.incarnation == conn.incarnation);
        if let Some(peer) = peer {
            self.tell(&peer.member, conn.id, Message::Closed);
        }
    }

    /// Handles the peer's message that its queue pairs of connection `id` are destroyed.
    pub(super) fn on_silent(&self, member: &Member, id: u64) {
        self.unfinished.lock().silent((member.node, member.incarnation), id);
        self.drains.wake_all();
    }

    /// Forgets the operations lost on the way to a departed peer, whose memory is not used any more.
    pub(crate) fn forget_lost(&self, peer: MemberId) {
        self.unfinished.lock().forget(peer);
        self.drains.wake_all();
    }

    /// Returns true if any queue pair to the member exists, also one that is being destroyed.
    pub(crate) fn is_served(&self, member: MemberId) -> bool {
        self.by_receive.lock().values().any(|conn| (conn.peer, conn.incarnation) == member)
    }
}
