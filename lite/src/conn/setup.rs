//! What a connection is made of: queue pairs, the memory that the peer writes, and how they are set up.

use super::seats::Seat;
use super::wire::{End, RpcArea};
use super::{Conn, Lanes};
use crate::Error;
use crate::bounce::Run;
use crate::node::Node;
use alloc::sync::Arc;
use proto::Member;
use verbs::{AddressVector, LinkKind, PathMtu, PortAddress, Psn, QpConnect, QpNum, QpOptions, VerbsError};

/// IP time to live of RDMA packets.
const HOP_LIMIT: u8 = 64;

/// Why there are no queue pairs for another connection.
pub(super) enum Unprepared {
    /// As many connections as can be; one that is closed gives room.
    Crowded,
    /// For another reason.
    For(Error),
}

impl Node {
    /// The connection of this node with itself: one queue pair, its own peer. Atomics on own memory go through it.
    pub(super) fn loopback(&self) -> Result<Arc<Conn>, Error> {
        let mut loopback = self.loopback.lock();
        // Whoever ends this node's membership takes the connection away under this lock.
        if self.is_fenced() {
            return Err(Error::LinkDown);
        }
        if let Some(conn) = loopback.as_ref().filter(|c| !c.is_shut()) {
            return Ok(conn.clone());
        }
        let refused = |e: VerbsError| Error::Refused(alloc::format!("no loop-back queue pair: {e}"));
        let options = self.qp_options();
        let lanes = Lanes::create(&self.rnic, &*self.platform, options, 1, None).map_err(refused)?;
        let port = PortAddress { gid: self.gid, ..self.rnic.attributes().port };
        let link = self.attributes.links.first().copied().unwrap_or(LinkKind::RoceV2);
        let common = self.qp_connect(link, port, self.attributes.max_mtu, u8::MAX);
        lanes.connect(&lanes.ends(), common).map_err(refused)?;
        let conn = Conn::new(self.me, self.incarnation, self.key, 0, lanes, None);
        Ok(loopback.insert(Arc::new(conn)).clone())
    }

    pub(super) fn qp_options(&self) -> QpOptions {
        QpOptions {
            send_cq: self.cq,
            recv_cq: self.cq,
            send_depth: self.config.send_depth,
            recv_depth: self.config.recv_depth(),
        }
    }

    pub(super) fn qp_connect(
        &self,
        link: LinkKind,
        peer: PortAddress,
        mtu: PathMtu,
        rd_atomic: u8,
    ) -> QpConnect {
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

    /// Takes a seat, and creates queue pairs and memory for a connection.
    pub(super) fn prepare(&self, count: usize) -> Result<Lanes, Unprepared> {
        let seat = Seat::take(&self.seats, self.config.peers).ok_or(Unprepared::Crowded)?;
        let run = |len: u32| {
            let asked = u64::from(len);
            let no_memory = || Error::NoMemory { asked, free: self.platform.memory().stats().largest_free };
            Run::take(&self.platform, asked).ok_or_else(|| Unprepared::For(no_memory()))
        };
        let memory = (run(self.config.ring)?, run(self.config.reply_slot * self.config.slots())?);
        let lanes =
            Lanes::create(&self.rnic, &*self.platform, self.qp_options(), count, Some((memory, seat)));
        lanes.map_err(|error| match error {
            // Others have them, unless nobody is connected.
            VerbsError::NoResources if Seat::taken(&self.seats) > 0 => Unprepared::Crowded,
            error => Unprepared::For(Error::Refused(alloc::format!("no queue pair: {error}"))),
        })
    }

    pub(super) fn area(&self, lanes: &Lanes) -> RpcArea {
        let (ring, slots) = lanes.memory.as_ref().map(|(r, s)| (r.addr(), s.addr())).unwrap_or_default();
        RpcArea {
            ring,
            ring_len: self.config.ring,
            slots,
            slot_len: self.config.reply_slot,
            slot_count: self.config.slots(),
        }
    }

    pub(super) fn end(&self, link: LinkKind, lanes: &Lanes) -> End {
        End {
            link,
            mtu: self.attributes.max_mtu,
            rd_atomic: self.attributes.max_rd_atomic,
            queue_pairs: lanes.ends(),
            rpc: self.area(lanes),
        }
    }

    /// The first of this node's link kinds that the member speaks too.
    pub(super) fn common_link(&self, member: &Member) -> Option<LinkKind> {
        self.attributes.links.iter().copied().find(|l| member.rnic.links.contains(l))
    }
}
