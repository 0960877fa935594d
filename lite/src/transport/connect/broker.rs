//! Set-up of connections: two nodes exchange the numbers of their queue pairs through the manager.
//!
//! The side that needs a connection sends a request. The other side creates and connects its queue pairs
//! and replies. The requester connects its own and sends that it is ready. If both send a request at once,
//! that of the lower node number counts and the other is void.

use super::connections::Connections;
use super::setup::Unprepared;
use super::wire::{End, Envelope, Message, VERSION};
use crate::Error;
use crate::base::trace::Event;
use crate::channel::Channel;
use crate::sometimes::sometimes;
use crate::transport::conn::peers::{Peer, PeerLink};
use crate::transport::conn::{Conn, QpGroup};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::mem;
use core::time::Duration;
use platform::Instant;
use proto::{Incarnation, Member, NodeId, ToManager};
use verbs::PortAddress;

/// The time after a refusal before the peer is asked again.
const REFUSAL_STANDS: Duration = Duration::from_millis(100);

/// The next step of the caller of `look`.
enum Look {
    Use(Arc<Conn>),
    Wait,
    Ask { attempt: u64, member: Member },
}

impl Connections {
    /// Returns a connection to `node`, and opens one if there is none. Waits; the caller sets the deadline.
    pub(crate) async fn connection(self: &Arc<Self>, node: NodeId) -> Result<Arc<Conn>, Error> {
        self.peer_change
            .until(|| {
                loop {
                    match self.look(node) {
                        Err(error) => break Some(Err(error)),
                        Ok(Look::Use(conn)) => break Some(Ok(conn)),
                        Ok(Look::Wait) => break None,
                        Ok(Look::Ask { attempt, member }) => {
                            match self.ask(attempt, &member, self.platform.now()) {
                                Ok(true) => {}
                                Ok(false) => self.on_no_permit(),
                                Err(error) => break Some(Err(error)),
                            }
                        }
                    }
                }
            })
            .await
    }

    fn look(self: &Arc<Self>, node: NodeId) -> Result<Look, Error> {
        if self.is_fenced() {
            return Err(Error::LinkDown);
        }
        if node == self.me {
            return self.loopback().map(Look::Use);
        }
        let mut peers = self.peers.lock();
        let peer = peers.get_mut(&node).ok_or(Error::NoSuchNode)?;
        match &peer.link {
            PeerLink::Ready(conn) => return Ok(Look::Use(conn.clone())),
            PeerLink::Gone => return Err(Error::NodeDown(node)),
            PeerLink::Refused { error, until } if *until > self.platform.now() => return Err(error.clone()),
            // While this node is suspended, the manager would not forward the request.
            PeerLink::Idle | PeerLink::Refused { .. } if self.lease.is_suspended() => return Ok(Look::Wait),
            PeerLink::Idle | PeerLink::Refused { .. } => {}
            PeerLink::Preparing { .. }
            | PeerLink::Wanted { .. }
            | PeerLink::Asked { .. }
            | PeerLink::Asking { .. }
            | PeerLink::Accepted(_)
            | PeerLink::Closing { .. } => return Ok(Look::Wait),
        }
        let attempt = self.random();
        peer.link = PeerLink::Preparing { attempt };
        Ok(Look::Ask { attempt, member: peer.member.clone() })
    }

    /// Creates queue pairs and sends a request to `member`, which is wanted since `since`. Returns `false`
    /// if no permit is free; the request is then sent when one is.
    pub(super) fn ask(
        self: &Arc<Self>,
        attempt: u64,
        member: &Member,
        since: Instant,
    ) -> Result<bool, Error> {
        let node = member.node;
        let prepared = self
            .common_link(member)
            .ok_or(Unprepared::For(Error::NoSharedLink(node)))
            .and_then(|link| Ok((link, self.prepare(self.shards.count(), self.config.queue_pairs)?)));
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return Err(Error::NoSuchNode) };
        if !matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt) {
            // The peer has sent a request meanwhile, or has departed.
            drop(peers);
            return Ok(true);
        }
        let (link, group) = match prepared {
            Ok(prepared) => prepared,
            Err(Unprepared::Crowded) => {
                peer.link = PeerLink::Wanted { from: since, since };
                return Ok(false);
            }
            Err(Unprepared::For(error)) => {
                peer.link = PeerLink::Idle;
                drop(peers);
                self.peer_change.wake_all();
                return Err(error);
            }
        };
        let request = Message::Request(self.end(link, &group));
        peer.link = PeerLink::Asking { attempt, link, group };
        drop(peers);
        self.tell(member, attempt, request);
        self.watch_attempt(node, attempt);
        Ok(true)
    }

    /// Abandons `attempt` if it has not succeeded in time.
    fn watch_attempt(self: &Arc<Self>, node: NodeId, attempt: u64) {
        let me = self.clone();
        let until = self.platform.now() + self.config.connect_timeout;
        let task = async move {
            let is_open = |link: &PeerLink| match link {
                PeerLink::Asking { attempt: a, .. } => *a == attempt,
                PeerLink::Accepted(conn) => conn.id == attempt,
                _ => false,
            };
            let over = || {
                let open = me.peers.lock().get(&node).is_some_and(|peer| is_open(&peer.link));
                (!open).then_some(())
            };
            if me.timers.before(until, me.peer_change.until(over)).await.is_some() {
                return;
            }
            let mut peers = me.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            if is_open(&peer.link) {
                sometimes!("the set-up of a connection took too long");
                let old = mem::replace(&mut peer.link, PeerLink::Idle);
                drop(peers);
                me.retire(old);
                me.peer_change.wake_all();
            }
        };
        self.platform.spawn("lite-connect", alloc::boxed::Box::pin(task));
    }

    /// Handles a message of another node that the manager has forwarded.
    pub(crate) fn on_relayed(self: &Arc<Self>, from: NodeId, incarnation: Incarnation, body: &[u8]) {
        let Ok(Envelope { version, attempt, message }) = proto::decode(body) else {
            log::warn!("lite: malformed connection message of {from}");
            return;
        };
        let member = {
            let peers = self.peers.lock();
            let live = |p: &&Peer| p.member.incarnation == incarnation && !matches!(p.link, PeerLink::Gone);
            peers.get(&from).filter(live).map(|p| p.member.clone())
        };
        let Some(member) = member else { return };
        if version != VERSION {
            if matches!(message, Message::Request(_)) {
                self.tell(&member, attempt, Message::Refused("another version of LITE".into()));
            }
            return;
        }
        match message {
            Message::Request(end) => self.on_request(&member, attempt, end),
            Message::Reply(end) => self.on_reply(&member, attempt, &end),
            Message::Ready => {
                let mut peers = self.peers.lock();
                if let Some(peer) = peers.get_mut(&from)
                    && let PeerLink::Accepted(conn) = &peer.link
                    && conn.id == attempt
                {
                    peer.link = PeerLink::Ready(conn.clone());
                }
                drop(peers);
            }
            Message::Full => self.on_full(from, attempt),
            Message::Close { unused_ns } => {
                self.on_close(&member, attempt, Duration::from_nanos(unused_ns));
            }
            Message::Closed => {
                self.on_silent(&member, attempt);
                self.on_close_answer(&member, attempt, true);
            }
            Message::Broken => self.on_broken(&member, attempt),
            Message::Used => self.on_close_answer(&member, attempt, false),
            Message::Refused(why) => {
                let mut peers = self.peers.lock();
                let Some(peer) = peers.get_mut(&from) else { return };
                if matches!(&peer.link, PeerLink::Asking { attempt: a, .. } if *a == attempt) {
                    let until = self.platform.now() + REFUSAL_STANDS;
                    let refused = PeerLink::Refused { error: Error::Refused(why), until };
                    let old = mem::replace(&mut peer.link, refused);
                    drop(peers);
                    self.retire(old);
                }
            }
        }
        self.peer_change.wake_all();
    }

    fn on_request(self: &Arc<Self>, member: &Member, attempt: u64, end: End) {
        let node = member.node;
        let old = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            let asking = matches!(peer.link, PeerLink::Asking { .. } | PeerLink::Preparing { .. });
            if matches!(peer.link, PeerLink::Gone) || (asking && self.me < node) {
                return;
            }
            // This state keeps other requests out meanwhile.
            mem::replace(&mut peer.link, PeerLink::Preparing { attempt })
        };
        // The former connection is destroyed before the answer is sent.
        self.retire(old);
        if self.is_served((node, member.incarnation)) {
            let mut peers = self.peers.lock();
            if let Some(peer) = peers.get_mut(&node)
                && matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt)
            {
                peer.link = PeerLink::Idle;
            }
            return self.tell(member, attempt, Message::Full);
        }
        if !self.answer_request(member, attempt, end, self.platform.now()) {
            self.on_no_permit();
        }
    }

    /// Accepts or refuses the request of `member`, whose link is in `Preparing`. Returns `false` if no
    /// permit is free; the request then waits, counted from `since`.
    pub(super) fn answer_request(
        self: &Arc<Self>,
        member: &Member,
        attempt: u64,
        end: End,
        since: Instant,
    ) -> bool {
        let node = member.node;
        let answer = self.accept(member, attempt, &end);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return true };
        if !matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt) {
            // The member departed meanwhile; dropping the connection destroys its queue pairs.
            drop(peers);
            if let Ok((conn, _)) = answer {
                self.shut(&conn);
            }
            return true;
        }
        match answer {
            Ok((conn, reply)) => {
                peer.link = PeerLink::Accepted(conn);
                drop(peers);
                self.tell(member, attempt, Message::Reply(reply));
                self.watch_attempt(node, attempt);
            }
            Err(Unprepared::Crowded) => {
                peer.link = PeerLink::Asked { attempt, end, since };
                return false;
            }
            Err(Unprepared::For(error)) => {
                peer.link = PeerLink::Idle;
                drop(peers);
                let why = match error {
                    Error::Refused(why) => why,
                    error => error.to_string(),
                };
                self.tell(member, attempt, Message::Refused(why));
            }
        }
        true
    }

    fn accept(
        self: &Arc<Self>,
        member: &Member,
        attempt: u64,
        end: &End,
    ) -> Result<(Arc<Conn>, End), Unprepared> {
        let refused = |why: String| Unprepared::For(Error::Refused(why));
        if !self.attributes.links.contains(&end.link) {
            return Err(refused(alloc::format!("this node does not support {:?}", end.link)));
        }
        let Some(each) = end.each() else {
            return Err(refused("a connection has 1 to 4 queue pairs for each of 1 to 16 cores".into()));
        };
        let group = self.prepare(end.rpc.len().min(self.shards.count()), each)?;
        let own = self.end(end.link, &group);
        Ok((self.connect(member, attempt, group, end).map_err(refused)?, own))
    }

    fn on_reply(self: &Arc<Self>, member: &Member, attempt: u64, end: &End) {
        let node = member.node;
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return };
        let asked = matches!(&peer.link, PeerLink::Asking { attempt: a, link, .. }
            if *a == attempt && *link == end.link);
        if !asked {
            return;
        }
        let PeerLink::Asking { group, .. } = mem::replace(&mut peer.link, PeerLink::Preparing { attempt })
        else {
            return;
        };
        drop(peers);
        let connected = self.connect(member, attempt, group, end);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return };
        if !matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt) {
            drop(peers);
            if let Ok(conn) = connected {
                self.shut(&conn);
            }
            return;
        }
        match connected {
            Ok(conn) => {
                peer.link = PeerLink::Ready(conn);
                drop(peers);
                self.tell(member, attempt, Message::Ready);
            }
            Err(why) => {
                let until = self.platform.now() + REFUSAL_STANDS;
                peer.link = PeerLink::Refused { error: Error::Refused(why), until };
            }
        }
    }

    /// Connects `group` to the peer's and makes them known to the poller.
    fn connect(
        self: &Arc<Self>,
        member: &Member,
        attempt: u64,
        mut group: QpGroup,
        end: &End,
    ) -> Result<Arc<Conn>, String> {
        if end.each() != Some(group.lanes.each()) {
            return Err("the ends have different queue pairs".into());
        }
        // Both ends use as many cores as the one with fewer has.
        group.truncate(end.rpc.len()).map_err(|e| e.to_string())?;
        let port = PortAddress { mac: member.rnic.mac, gid: member.gid, lid: member.rnic.lid };
        let mtu = end.mtu.min(self.attributes.max_mtu);
        let common = self.qp_connect(end.link, port, mtu, end.rd_atomic);
        group.connect(&end.queue_pairs, common).map_err(|e| e.to_string())?;
        let areas = self.areas(&group).into_iter().zip(&end.rpc).enumerate();
        let channel = |(shard, (area, remote)): (usize, (_, &_))| Channel::new(shard, area, *remote);
        let channels = areas.map(channel).collect::<Option<_>>().ok_or("unusable RPC area")?;
        let key = member.rnic.key;
        let conn = Arc::new(Conn::new(member.node, member.incarnation, key, attempt, group, channels));
        conn.touch(self.platform.now());
        self.plan_sweep(self.platform.now());
        self.by_receive.lock().insert(conn.group().receives, conn.clone());
        self.counters.connections.add(1);
        self.trace(|| Event::Connected { peer: member.node });
        Ok(conn)
    }

    pub(super) fn tell(&self, member: &Member, attempt: u64, message: Message) {
        let body = proto::encode(&Envelope { version: VERSION, attempt, message });
        self.control.post(&ToManager::Relay { to: member.node, incarnation: member.incarnation, body });
    }

    /// Ends the connection of a link.
    pub(crate) fn retire(&self, link: PeerLink) {
        match link {
            PeerLink::Accepted(conn) | PeerLink::Ready(conn) | PeerLink::Closing { conn, .. } => {
                self.shut(&conn);
            }
            // Dropping the group destroys the queue pairs.
            _ => drop(link),
        }
    }
}
