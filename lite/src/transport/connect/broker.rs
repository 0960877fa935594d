//! Set-up of connections: two nodes exchange the numbers of their queue pairs.
//!
//! The side that needs a connection asks the manager for a voucher and sends a request. The other side
//! creates and connects its queue pairs and replies. The requester connects its own and sends that it is
//! ready. If both send a request at once, that of the lower node number counts and the other is void. The
//! messages go over the fabric or through the manager (`carrier.rs`).
//!
//! The stamp of the voucher is the number of the attempt, and of the connection at both ends. A request is
//! handled once, and only if its stamp is larger than those of all attempts of either node that were handled
//! before: a request that comes again, or late, ends no connection and makes none.

use super::carrier::{self, Arrivals, Carrier, Letter};
use super::connections::Connections;
use super::setup::{Unprepared, port_of};
use super::vouching::Voucher;
use super::wire::{End, Envelope, MAX_REASON, Message, Request, SetUp, VERSION};
use crate::Error;
use crate::base::per_shard::PerShard;
use crate::base::trace::Event;
use crate::channel::Channel;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::conn::peers::{Peer, PeerLink};
use crate::transport::conn::{Conn, QpGroup};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;
use platform::Instant;
use proto::{Attempt, Incarnation, Member, NodeId, ToManager};
use verbs::QpNum;

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

    /// Creates queue pairs for a request to `member`, which is wanted since `since`, and asks for a voucher.
    /// Returns `false` if no permit is free; the request is then sent when one is.
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
        peer.link = PeerLink::Asking { attempt, link, group };
        drop(peers);
        let (to, incarnation) = (node, member.incarnation);
        self.control.post(&ToManager::AskVoucher { request: attempt, to, incarnation });
        carrier::watch(self, node, attempt, None);
        Ok(true)
    }

    /// Handles the manager's voucher for the request with a number: sends the request.
    pub(crate) fn on_voucher(self: &Arc<Self>, node: NodeId, number: u64, voucher: Voucher) {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return };
        let PeerLink::Asking { attempt, link, group } = &mut peer.link else { return };
        if *attempt != number {
            return;
        }
        *attempt = voucher.stamp;
        let end = self.end(*link, group);
        let member = peer.member.clone();
        peer.voucher = Some(voucher.clone());
        drop(peers);
        let answer_to = voucher.queue_pair.and_then(|_| self.endpoint.queue_pair());
        let voucher = Voucher { queue_pair: voucher.queue_pair.filter(|_| answer_to.is_some()), ..voucher };
        let request = SetUp::Request(Request { end, answer_to });
        Letter::to_responder(self, &member, &voucher, &request).send_until_open(self);
        self.peer_change.wake_all();
    }

    /// Ends an attempt that has not succeeded in time.
    pub(super) fn abandon(&self, node: NodeId, attempt: u64) {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node).filter(|peer| peer.link.waits_for(attempt)) else { return };
        sometimes!("the set-up of a connection took too long");
        let old = mem::replace(&mut peer.link, PeerLink::Idle);
        drop(peers);
        self.retire(old);
        self.peer_change.wake_all();
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
            return log::warn!("lite: {from} has another version of LITE");
        }
        match message {
            Message::SetUp(mut bytes) => {
                Arrivals(self.clone()).on_datagram(&mut bytes, Carrier::Manager);
            }
            Message::Close { unused_ns, number } => {
                self.on_close(&member, attempt, Duration::from_nanos(unused_ns), number);
            }
            Message::Closed => {
                self.on_silent(&member, attempt);
                self.on_close_answer(&member, attempt, None);
            }
            Message::Broken => self.on_broken(&member, attempt),
            Message::Used { number } => self.on_close_answer(&member, attempt, Some(number)),
        }
        self.peer_change.wake_all();
    }

    /// Handles the message that the requester's queue pairs are connected. Returns true if it had an effect.
    pub(super) fn on_ready(&self, node: NodeId, attempt: u64) -> bool {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get_mut(&node)
            && let PeerLink::Accepted(conn) = &peer.link
            && conn.id == attempt
        {
            peer.link = PeerLink::Ready(conn.clone());
            drop(peers);
            self.peer_change.wake_all();
            return true;
        }
        false
    }

    /// Handles the refusal of a request. Returns true if it had an effect.
    pub(super) fn on_refused(&self, node: NodeId, attempt: u64, why: String) -> bool {
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return false };
        if !matches!(&peer.link, PeerLink::Asking { attempt: a, .. } if *a == attempt) {
            return false;
        }
        let until = self.platform.now() + REFUSAL_STANDS;
        let refused = PeerLink::Refused { error: Error::Refused(why), until };
        let old = mem::replace(&mut peer.link, refused);
        drop(peers);
        self.retire(old);
        self.peer_change.wake_all();
        true
    }

    /// Handles a request with a voucher. Returns true if it had an effect.
    pub(super) fn on_request(self: &Arc<Self>, member: &Member, voucher: &Attempt, request: Request) -> bool {
        let (node, attempt) = (member.node, voucher.stamp);
        let old = {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&node) else { return false };
            if matches!(peer.link, PeerLink::Gone) {
                return false;
            }
            let asking = matches!(peer.link, PeerLink::Asking { .. } | PeerLink::Preparing { .. });
            // Both nodes ask each other: the attempt of the lower number goes on.
            let is_crossed = asking && self.me < node;
            if attempt <= peer.newest && !planted(Bug::VoucherTwice) {
                let is_over = attempt == peer.newest && !peer.link.is_of(attempt) && !is_crossed;
                drop(peers);
                return self.on_old_request(member, attempt, request.answer_to, is_over);
            }
            peer.newest = attempt;
            if is_crossed {
                // If the request comes again once this node's attempt has succeeded, it must not replace that
                // connection.
                return false;
            }
            // This state keeps other requests out meanwhile.
            mem::replace(&mut peer.link, PeerLink::Preparing { attempt })
        };
        #[cfg(feature = "testing")]
        self.accepted.lock().push((*voucher, (node, member.incarnation)));
        // The former connection is destroyed before the answer is sent.
        self.retire(old);
        if self.is_served((node, member.incarnation)) {
            let mut peers = self.peers.lock();
            if let Some(peer) = peers.get_mut(&node)
                && matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt)
            {
                peer.link = PeerLink::Idle;
            }
            drop(peers);
            Letter::to_requester(self, member, attempt, request.answer_to, &SetUp::Full).dispatch(self);
        } else if !self.answer_request(member, attempt, request, self.platform.now()) {
            self.on_no_permit();
        }
        self.peer_change.wake_all();
        true
    }

    /// Handles a request that this node has handled before, or that is older than another one. If the
    /// attempt is over, its answer was lost, or this request comes late: the requester may ask again. If the
    /// attempt is going on, its reply is repeated anyway.
    fn on_old_request(&self, member: &Member, attempt: u64, answer_to: Option<QpNum>, is_over: bool) -> bool {
        sometimes!("a request for a connection came again");
        self.counters.set_ups_refused.add(1);
        if is_over {
            Letter::to_requester(self, member, attempt, answer_to, &SetUp::Full).dispatch(self);
        }
        false
    }

    /// Accepts or refuses the request of `member`, whose link is in `Preparing`. Returns `false` if no
    /// permit is free; the request then waits, counted from `since`.
    pub(super) fn answer_request(
        self: &Arc<Self>,
        member: &Member,
        attempt: u64,
        request: Request,
        since: Instant,
    ) -> bool {
        let node = member.node;
        let answer = self.accept(member, attempt, &request.end);
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
                let reply = SetUp::Reply(reply);
                Letter::to_requester(self, member, attempt, request.answer_to, &reply).send_until_open(self);
            }
            Err(Unprepared::Crowded) => {
                peer.link = PeerLink::Asked { attempt, request, since };
                return false;
            }
            Err(Unprepared::For(error)) => {
                peer.link = PeerLink::Idle;
                drop(peers);
                let mut why = match error {
                    Error::Refused(why) => why,
                    error => error.to_string(),
                };
                why.truncate(why.floor_char_boundary(MAX_REASON));
                let refused = SetUp::Refused(why);
                Letter::to_requester(self, member, attempt, request.answer_to, &refused).dispatch(self);
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
        let group = self.prepare(end.rpc.cores().min(self.shards.count()), each)?;
        let own = self.end(end.link, &group);
        Ok((self.connect(member, attempt, group, end).map_err(refused)?, own))
    }

    /// Handles the reply to a request with a voucher. Returns true if it had an effect.
    pub(super) fn on_reply(self: &Arc<Self>, member: &Member, voucher: &Voucher, end: &End) -> bool {
        let (node, attempt) = (member.node, voucher.stamp);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return false };
        let asked = matches!(&peer.link, PeerLink::Asking { attempt: a, link, .. }
            if *a == attempt && *link == end.link);
        if !asked {
            let is_open = peer.link.is_of(attempt);
            let is_ready = matches!(&peer.link,
                PeerLink::Ready(conn) | PeerLink::Closing { conn, .. } if conn.id == attempt);
            if !is_open {
                // No answer to this attempt is expected any more.
                peer.voucher = None;
            }
            drop(peers);
            self.on_old_reply(member, voucher, is_open, is_ready);
            return false;
        }
        let PeerLink::Asking { group, .. } = mem::replace(&mut peer.link, PeerLink::Preparing { attempt })
        else {
            return false;
        };
        peer.newest = peer.newest.max(attempt);
        drop(peers);
        let connected = self.connect(member, attempt, group, end);
        let mut peers = self.peers.lock();
        let Some(peer) = peers.get_mut(&node) else { return true };
        if !matches!(peer.link, PeerLink::Preparing { attempt: a } if a == attempt) {
            drop(peers);
            if let Ok(conn) = connected {
                self.shut(&conn);
            }
            return true;
        }
        match connected {
            Ok(conn) => {
                peer.link = PeerLink::Ready(conn);
                drop(peers);
                Letter::to_responder(self, member, voucher, &SetUp::Ready).dispatch(self);
            }
            Err(why) => {
                let until = self.platform.now() + REFUSAL_STANDS;
                peer.link = PeerLink::Refused { error: Error::Refused(why), until };
                drop(peers);
            }
        }
        self.peer_change.wake_all();
        true
    }

    /// Handles a reply that this node has handled before, or whose attempt is over here. The peer waits for
    /// an answer.
    fn on_old_reply(&self, member: &Member, voucher: &Voucher, is_open: bool, is_ready: bool) {
        if is_ready {
            sometimes!("a reply came again");
            Letter::to_responder(self, member, voucher, &SetUp::Ready).dispatch(self);
        } else if !is_open {
            sometimes!("a reply came after its attempt");
            self.tell(member, voucher.stamp, Message::Broken);
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
        group.truncate(end.rpc.cores()).map_err(|e| e.to_string())?;
        let mtu = end.mtu.min(self.attributes.max_mtu);
        let common = self.qp_connect(end.link, port_of(member), mtu, end.rd_atomic);
        let level = self.qos.level(&self.config);
        group.connect(&end.queue_pairs, common, level).map_err(|e| e.to_string())?;
        let areas = self.areas(&group).into_iter().zip(group.memories().cloned()).zip(end.rpc.iter());
        let channel = |(shard, (local, remote))| Channel::new(shard, local, remote).map(Arc::new);
        let channels = areas.enumerate().map(channel).collect::<Option<Vec<_>>>().and_then(PerShard::collect);
        let channels = Some(channels.ok_or("unusable RPC area")?);
        let key = member.rnic.key;
        let conn = Arc::new(Conn::new(member.node, member.incarnation, key, attempt, group, channels));
        conn.touch(self.platform.now());
        self.plan_sweep(self.platform.now());
        self.by_receive.lock().insert(conn.group().receive_id, conn.clone());
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
