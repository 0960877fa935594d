//! Opening connections: two nodes exchange the numbers of their queue pairs through the manager.
//!
//! The side that needs a connection asks; the other creates and connects its queue pairs and replies; the asker connects
//! its own and says that it is ready. If both ask at once, the lower node id's question stands and the other's is void.

use super::wire::{End, Envelope, Message, RpcArea, VERSION};
use super::{Conn, Lanes};
use crate::Error;
use crate::bounce::Run;
use crate::node::Node;
use crate::rpc::ConnRpc;
use crate::trace::Event;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::mem;
use core::time::Duration;
use platform::Instant;
use proto::{Incarnation, Member, NodeId, ToManager};
use verbs::{AddressVector, LinkKind, PortAddress, Psn, QpConnect, QpNum, QpOptions};

/// How long a refusal stands before the peer is asked again.
const REFUSAL_STANDS: Duration = Duration::from_millis(100);
/// IP time to live of RDMA packets.
const HOP_LIMIT: u8 = 64;

/// A member, and how it is connected.
pub(crate) struct Peer {
    pub(crate) member: Member,
    pub(crate) link: PeerLink,
}

/// How a member is connected.
pub(crate) enum PeerLink {
    /// Not; the next use asks.
    Idle,
    /// Queue pairs are being created in order to ask.
    Preparing { attempt: u64 },
    /// Asked.
    Asking { attempt: u64, link: LinkKind, lanes: Lanes },
    /// Replied; the asker is not ready yet.
    Accepted(Arc<Conn>),
    /// Both sides are connected.
    Ready(Arc<Conn>),
    /// Refused a moment ago.
    Refused { error: Error, until: Instant },
    /// The member has left or is dead.
    Gone,
}

/// What the caller of [`Node::look`] does next.
enum Look {
    Use(Arc<Conn>),
    Wait,
    Ask { attempt: u64, member: Member },
}

impl Node {
    /// A connection to `node`, opened if there is none. Waits; the caller sets the deadline.
    pub(crate) async fn connection(self: &Arc<Self>, node: NodeId) -> Result<Arc<Conn>, Error> {
        self.peer_change
            .until(|| {
                loop {
                    match self.look(node) {
                        Err(error) => break Some(Err(error)),
                        Ok(Look::Use(conn)) => break Some(Ok(conn)),
                        Ok(Look::Wait) => break None,
                        Ok(Look::Ask { attempt, member }) => {
                            if let Err(error) = self.ask(attempt, &member) {
                                break Some(Err(error));
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
            PeerLink::Idle | PeerLink::Refused { .. } => {}
            PeerLink::Preparing { .. } | PeerLink::Asking { .. } | PeerLink::Accepted(_) => {
                return Ok(Look::Wait);
            }
        }
        let attempt = self.random();
        peer.link = PeerLink::Preparing { attempt };
        Ok(Look::Ask { attempt, member: peer.member.clone() })
    }

    /// Creates queue pairs and asks `member` to connect them.
    fn ask(self: &Arc<Self>, attempt: u64, member: &Member) -> Result<(), Error> {
        let node = member.node;
        let prepared = self
            .common_link(member)
            .ok_or(Error::NoSharedLink(node))
            .and_then(|link| Ok((link, self.prepare(self.config.queue_pairs)?)));
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return Err(Error::NoSuchNode) };
        if !matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt) {
            // The peer has asked in between, or is gone.
            drop(peers);
            return Ok(());
        }
        let (link, lanes) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                peer.link = PeerLink::Idle;
                drop(peers);
                self.peer_change.wake_all();
                return Err(error);
            }
        };
        let request = Message::Request(self.end(link, &lanes));
        peer.link = PeerLink::Asking { attempt, link, lanes };
        drop(peers);
        self.tell(member, attempt, request);
        self.watch_attempt(node, attempt);
        Ok(())
    }

    /// Gives up `attempt` if it is not through in time.
    fn watch_attempt(self: &Arc<Self>, node: NodeId, attempt: u64) {
        let me = self.clone();
        let until = self.platform.now() + self.config.connect_timeout;
        let task = async move {
            me.timers.until(until).await;
            let mut peers = me.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            let late = match &peer.link {
                PeerLink::Asking { attempt: a, .. } => *a == attempt,
                PeerLink::Accepted(conn) => conn.id == attempt,
                _ => false,
            };
            if late {
                let old = mem::replace(&mut peer.link, PeerLink::Idle);
                drop(peers);
                me.retire(old);
                me.peer_change.wake_all();
            }
        };
        self.platform.spawn("lite-connect", alloc::boxed::Box::pin(task));
    }

    /// Takes a message of another node that the manager has passed on.
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
            Message::Request(end) => self.on_request(&member, attempt, &end),
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

    fn on_request(self: &Arc<Self>, member: &Member, attempt: u64, end: &End) {
        let node = member.node;
        let old = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return };
            let asking = matches!(peer.link, PeerLink::Asking { .. } | PeerLink::Preparing { .. });
            if matches!(peer.link, PeerLink::Gone) || (asking && self.me < node) {
                return;
            }
            // Nobody else asks meanwhile.
            mem::replace(&mut peer.link, PeerLink::Preparing { attempt })
        };
        // The former connection falls silent before the answer.
        self.retire(old);
        let answer = self.accept(member, attempt, end);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return };
        if !matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt) {
            // Gone in between; dropping the connection destroys its queue pairs.
            drop(peers);
            if let Ok((conn, _)) = answer {
                self.shut(&conn);
            }
            return;
        }
        match answer {
            Ok((conn, reply)) => {
                peer.link = PeerLink::Accepted(conn);
                drop(peers);
                self.tell(member, attempt, Message::Reply(reply));
                self.watch_attempt(node, attempt);
            }
            Err(why) => {
                peer.link = PeerLink::Idle;
                drop(peers);
                self.tell(member, attempt, Message::Refused(why));
            }
        }
    }

    fn accept(
        self: &Arc<Self>,
        member: &Member,
        attempt: u64,
        end: &End,
    ) -> Result<(Arc<Conn>, End), String> {
        if !self.attributes.links.contains(&end.link) {
            return Err(alloc::format!("no {:?} here", end.link));
        }
        if !(1..=4).contains(&end.queue_pairs.len()) {
            return Err("1 to 4 queue pairs, please".into());
        }
        let lanes = self.prepare(end.queue_pairs.len()).map_err(|e| e.to_string())?;
        let own = self.end(end.link, &lanes);
        Ok((self.connect(member, attempt, lanes, end)?, own))
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
        let PeerLink::Asking { lanes, .. } = mem::replace(&mut peer.link, PeerLink::Preparing { attempt })
        else {
            return;
        };
        drop(peers);
        let connected = self.connect(member, attempt, lanes, end);
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

    /// Connects `lanes` to the peer's and makes them known to the poller.
    fn connect(
        self: &Arc<Self>,
        member: &Member,
        attempt: u64,
        lanes: Lanes,
        end: &End,
    ) -> Result<Arc<Conn>, String> {
        let port = PortAddress { mac: member.rnic.mac, gid: member.gid, lid: member.rnic.lid };
        let mtu = end.mtu.min(self.attributes.max_mtu);
        let common = self.qp_connect(end.link, port, mtu, end.rd_atomic);
        lanes.connect(&end.queue_pairs, common).map_err(|e| e.to_string())?;
        let area = self.area(&lanes);
        let rpc = ConnRpc::new(area, end.rpc).ok_or("unusable RPC area")?;
        let key = member.rnic.key;
        let conn = Arc::new(Conn::new(member.node, member.incarnation, key, attempt, lanes, Some(rpc)));
        if let Some(lane) = conn.lane(super::RPC_LANE) {
            self.by_qp.lock().insert(lane.number, conn.clone());
        }
        self.counters.connections.add(1);
        self.trace(|| Event::Connected { peer: member.node });
        Ok(conn)
    }

    /// The connection of this node with itself: one queue pair, its own peer. Atomics on own memory go through it.
    fn loopback(&self) -> Result<Arc<Conn>, Error> {
        let mut loopback = self.loopback.lock();
        if let Some(conn) = loopback.as_ref().filter(|c| !c.is_shut()) {
            return Ok(conn.clone());
        }
        let refused = |e: verbs::VerbsError| Error::Refused(alloc::format!("no loop-back queue pair: {e}"));
        let options = self.qp_options();
        let lanes = Lanes::create(&self.rnic, &*self.platform, options, 1, None).map_err(refused)?;
        let port = PortAddress { gid: self.gid, ..self.rnic.attributes().port };
        let link = self.attributes.links.first().copied().unwrap_or(LinkKind::RoceV2);
        let common = self.qp_connect(link, port, self.attributes.max_mtu, u8::MAX);
        lanes.connect(&lanes.ends(), common).map_err(refused)?;
        let conn = Conn::new(self.me, self.incarnation, self.key, 0, lanes, None);
        Ok(loopback.insert(Arc::new(conn)).clone())
    }

    fn qp_options(&self) -> QpOptions {
        QpOptions {
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: self.config.send_depth,
            recv_depth: self.config.recv_depth(),
        }
    }

    fn qp_connect(&self, link: LinkKind, peer: PortAddress, mtu: verbs::PathMtu, rd_atomic: u8) -> QpConnect {
        QpConnect {
            address: AddressVector {
                link,
                peer,
                traffic_class: AddressVector::ECT_0,
                hop_limit: HOP_LIMIT,
                service_level: 0,
            },
            remote_qp: QpNum::new(0),
            send_psn: Psn::new(0),
            recv_psn: Psn::new(0),
            mtu,
            max_rd_atomic: rd_atomic.min(self.attributes.max_rd_atomic).max(1),
            ack_timeout: self.config.ack_timeout,
            retries: self.config.retries,
            rnr_retries: 7,
            min_rnr_delay: self.config.rnr_delay,
        }
    }

    fn prepare(&self, count: usize) -> Result<Lanes, Error> {
        if self.by_qp.lock().len() >= self.config.peers as usize {
            return Err(Error::Refused(alloc::format!("{} peers are connected already", self.config.peers)));
        }
        let run = |len: u32| {
            let asked = u64::from(len);
            let no_memory = || Error::NoMemory { asked, free: self.platform.memory().stats().largest_free };
            Run::take(&self.platform, asked).ok_or_else(no_memory)
        };
        let memory = (run(self.config.ring)?, run(self.config.reply_slot * self.config.slots())?);
        Lanes::create(&self.rnic, &*self.platform, self.qp_options(), count, Some(memory))
            .map_err(|e| Error::Refused(alloc::format!("no queue pair: {e}")))
    }

    fn area(&self, lanes: &Lanes) -> RpcArea {
        let (ring, slots) = lanes.memory.as_ref().map(|(r, s)| (r.addr(), s.addr())).unwrap_or_default();
        RpcArea {
            ring,
            ring_len: self.config.ring,
            slots,
            slot_len: self.config.reply_slot,
            slot_count: self.config.slots(),
        }
    }

    fn end(&self, link: LinkKind, lanes: &Lanes) -> End {
        End {
            link,
            mtu: self.attributes.max_mtu,
            rd_atomic: self.attributes.max_rd_atomic,
            queue_pairs: lanes.ends(),
            rpc: self.area(lanes),
        }
    }

    /// The first of this node's link kinds that the member speaks too.
    fn common_link(&self, member: &Member) -> Option<LinkKind> {
        self.attributes.links.iter().copied().find(|l| member.rnic.links.contains(l))
    }

    fn tell(&self, member: &Member, attempt: u64, message: Message) {
        let body = proto::encode(&Envelope { version: VERSION, attempt, message });
        self.control.post(&ToManager::Relay { to: member.node, incarnation: member.incarnation, body });
    }

    /// Ends what a link held.
    pub(crate) fn retire(&self, link: PeerLink) {
        match link {
            PeerLink::Accepted(conn) | PeerLink::Ready(conn) => self.shut(&conn),
            // Dropping the lanes destroys the queue pairs.
            _ => drop(link),
        }
    }

    /// A connection has failed: ends it, and the next use opens another.
    pub(crate) fn fail(&self, conn: &Arc<Conn>) {
        self.shut(conn);
        let mut peers = self.peers.lock();
        let mut old = None;
        if let Some(peer) = peers.get_mut(&conn.peer)
            && let PeerLink::Accepted(c) | PeerLink::Ready(c) = &peer.link
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
    pub(crate) fn shut(&self, conn: &Arc<Conn>) {
        if !conn.lanes().destroy() {
            return;
        }
        self.trace(|| Event::Disconnected { peer: conn.peer });
        if let Some(lane) = conn.lane(super::RPC_LANE) {
            self.by_qp.lock().remove(&lane.number);
        }
        self.closing.lock().push(conn.clone());
        if let Some(rpc) = &conn.rpc {
            rpc.lose_all();
        }
        self.resources.wake_all();
    }
}
