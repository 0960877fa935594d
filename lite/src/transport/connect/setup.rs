//! The parts of a connection (queue pairs, the memory that the peer writes) and their creation.

use super::connections::Connections;
use super::endpoint::Endpoint;
use super::vouching::Vouching;
use super::wire::{End, RpcAreas};
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::per_shard::PerShard;
use crate::base::wait::DeferredList;
use crate::base::writers::{AtomicBool, AtomicU64, Ordering};
use crate::channel::{RpcArea, RpcMemory};
use crate::transport::conn::{Conn, PeerResources, QpGroup};
use crate::transport::conn::{PeerPermit, PeerPermits};
use crate::transport::op::{Shard, Transport};
use alloc::sync::Arc;
use alloc::vec::Vec;
use proto::{Member, Welcome};
use verbs::{
    AddressVector, LinkKind, PathMtu, PortAddress, Psn, QpConnect, QpNum, QpOptions, VerbsError, WrId,
};

/// The IP time to live of RDMA packets.
const HOP_LIMIT: u8 = 64;

/// Returns the path to a port.
fn address(link: LinkKind, peer: PortAddress) -> AddressVector {
    AddressVector { link, peer, traffic_class: AddressVector::ECT_0, hop_limit: HOP_LIMIT, service_level: 0 }
}

/// Returns the port of a member.
pub(super) fn port_of(member: &Member) -> PortAddress {
    PortAddress { mac: member.rnic.mac, gid: member.gid, lid: member.rnic.lid }
}

/// The reason for which no queue pairs could be made for another connection.
pub(super) enum Unprepared {
    /// All permits are in use; closing a connection frees one.
    Crowded,
    /// The connection could not be set up, for this reason.
    For(Error),
}

impl Connections {
    /// Returns no connections of a node that joined with `welcome`.
    pub(crate) fn new(transport: Arc<Transport>, welcome: &Welcome) -> Self {
        // Datagrams are rare: the first core takes them all.
        let cq = transport.shards.first.cq;
        Self {
            attributes: transport.rnic.attributes(),
            gid: welcome.gid,
            key: transport.rnic.memory_key(),
            endpoint: Endpoint::new(transport.rnic.clone(), cq),
            vouching: Vouching::new(welcome.key.clone(), welcome.time, transport.platform.now()),
            #[cfg(feature = "testing")]
            accepted: Mutex::default(),
            by_receive: Mutex::default(),
            next_receive_id: AtomicU64::new(1),
            loopback: Mutex::default(),
            permits: PeerPermits::default(),
            finding_room: AtomicBool::new(false),
            next_sweep: AtomicU64::new(u64::MAX),
            closing: DeferredList::default(),
            served: DeferredList::default(),
            transport,
        }
    }

    /// Returns this node's connection to itself: a queue pair for each shard, connected to itself. Atomics on
    /// own memory use it.
    pub(super) fn loopback(&self) -> Result<Arc<Conn>, Error> {
        let mut loopback = self.loopback.lock();
        // The code that ends this node's membership removes the connection under this lock.
        if self.is_fenced() {
            return Err(Error::LinkDown);
        }
        if let Some(conn) = loopback.as_ref().filter(|c| !c.is_shut()) {
            return Ok(conn.clone());
        }
        let refused = |e: VerbsError| Error::Refused(alloc::format!("no loop-back queue pair: {e}"));
        let options = self.qp_options(self.shards.count());
        let group = QpGroup::create(&self.rnic, &*self.platform, &options, 1, None).map_err(refused)?;
        let port = PortAddress { gid: self.gid, ..self.rnic.attributes().port };
        let link = self.attributes.links.first().copied().unwrap_or(LinkKind::RoceV2);
        let common = self.qp_connect(link, port, self.attributes.max_mtu, u8::MAX);
        group.connect(&group.ends(), common, 0).map_err(refused)?;
        let conn = Conn::new(self.me, self.incarnation, self.key, 0, group, None);
        Ok(loopback.insert(Arc::new(conn)).clone())
    }

    /// Returns the options of the queue pairs of the first `shards` shards.
    fn qp_options(&self, shards: usize) -> Vec<QpOptions> {
        let options = |shard: &Shard| QpOptions {
            send_cq: shard.cq,
            recv_cq: shard.cq,
            send_depth: self.config.send_depth,
            recv_depth: self.config.recv_depth(),
        };
        self.shards.iter().take(shards).map(options).collect()
    }

    pub(super) fn qp_connect(
        &self,
        link: LinkKind,
        peer: PortAddress,
        mtu: PathMtu,
        rd_atomic: u8,
    ) -> QpConnect {
        QpConnect {
            address: address(link, peer),
            remote_qp: QpNum::new(0),
            send_psn: Psn::new(0),
            recv_psn: Psn::new(0),
            mtu,
            max_rd_atomic: rd_atomic.min(self.attributes.max_rd_atomic).max(1),
            ack_timeout: self.config.retransmission.ack_timeout,
            retries: self.config.retransmission.retries,
            rnr_retries: 7,
            min_rnr_delay: self.config.retransmission.rnr_delay,
        }
    }

    /// Takes a permit, and creates `each` queue pairs and memory for each of the first `shards` shards.
    pub(super) fn prepare(&self, shards: usize, each: usize) -> Result<QpGroup, Unprepared> {
        let permit = PeerPermit::take(&self.permits, self.config.peers).ok_or(Unprepared::Crowded)?;
        let run = |len: u32| {
            let asked = u64::from(len);
            let no_memory = || Error::NoMemory { asked, free: self.platform.memory().largest_free() };
            self.platform.memory().lend(asked).ok_or_else(|| Unprepared::For(no_memory()))
        };
        let slots = self.config.reply_slot * self.config.slots();
        let both = |_| Ok(Arc::new((run(self.config.ring)?, run(slots)?)));
        let memory = PerShard::try_new(shards, both)?;
        let receive_id = WrId(self.next_receive_id.fetch_add(1, Ordering::Relaxed));
        let peer = PeerResources { memory, permit, receive_id };
        let options = self.qp_options(shards);
        let group = QpGroup::create(&self.rnic, &*self.platform, &options, each, Some(peer));
        group.map_err(|error| match error {
            // Other connections use them up, unless no peer is connected.
            VerbsError::NoResources if PeerPermit::taken(&self.permits) > 0 => Unprepared::Crowded,
            error => Unprepared::For(Error::Refused(alloc::format!("no queue pair: {error}"))),
        })
    }

    /// Returns the memory of a connection for RPC, by shard.
    pub(super) fn areas(&self, group: &QpGroup) -> Vec<RpcArea> {
        let area = |memory: &RpcMemory| RpcArea {
            ring: memory.0.addr(),
            ring_len: self.config.ring,
            slots: memory.1.addr(),
            slot_len: self.config.reply_slot,
            slot_count: self.config.slots(),
        };
        group.memories().map(area).collect()
    }

    pub(super) fn end(&self, link: LinkKind, group: &QpGroup) -> End {
        End {
            link,
            mtu: self.attributes.max_mtu,
            rd_atomic: self.attributes.max_rd_atomic,
            queue_pairs: group.ends(),
            rpc: RpcAreas::new(&self.areas(group)),
        }
    }

    /// Returns the path to a member.
    pub(super) fn address_of(&self, member: &Member, link: LinkKind) -> AddressVector {
        address(link, port_of(member))
    }

    /// Returns the first of this node's link kinds that the member supports too.
    pub(super) fn common_link(&self, member: &Member) -> Option<LinkKind> {
        self.attributes.links.iter().copied().find(|l| member.rnic.links.contains(l))
    }
}
