//! The path in the context of a queue pair: the port, the peer's address and the queue pair's own.

use super::context::Context;
use crate::device::layout::qp_context as qp;
use verbs::{Gid, MacAddr};

impl Context {
    /// Returns the counter of the queue pair's frames.
    #[must_use]
    pub(crate) fn counter(&self) -> u8 {
        self.field(qp::COUNTER) as u8
    }
    /// Returns whether the queue pair accepts a frame sent by a queue pair of the same port with counter
    /// `counter`. Frames with its own counter are refused if the path has the flag for it (Linux
    /// `include/linux/mlx4/qp.h`, `MLX4_FL_ETH_SRC_CHECK_MC_LB`).
    #[must_use]
    pub(crate) fn takes_looped(&self, unicast: bool, counter: u8) -> bool {
        const CHECKS_UNICAST: u32 = 1 << 0;
        const CHECKS_MULTICAST: u32 = 1 << 1;
        const BY_COUNTER: u32 = 1 << 7;
        let kind = if unicast { CHECKS_UNICAST } else { CHECKS_MULTICAST };
        let checks = self.field(qp::PATH_FLAGS) & kind != 0 && self.field(qp::PATH_CONTROL) & BY_COUNTER != 0;
        !checks || self.counter() != counter
    }
    /// Returns the port, counted from 0.
    #[must_use]
    pub(crate) fn port(&self) -> usize {
        (self.field(qp::SCHED_QUEUE) >> 6 & 1) as usize
    }
    /// Returns the row of the source in the port's GID table.
    #[must_use]
    pub(crate) fn source_gid(&self) -> usize {
        (self.field(qp::SOURCE_GID) & 0x7f) as usize
    }
    /// Returns the row of the port's GID table that has index 0 in the address vectors of datagrams. A
    /// virtual function's master sets it.
    #[must_use]
    pub(crate) fn datagram_gids(&self) -> usize {
        const GIVEN: u32 = 1 << 7;
        if self.field(qp::SOURCE_GID) & GIVEN != 0 { self.source_gid() } else { 0 }
    }
    /// InfiniBand: returns the peer's LID.
    #[must_use]
    pub(crate) fn remote_lid(&self) -> u16 {
        self.field(qp::REMOTE_LID) as u16
    }
    /// InfiniBand: returns the path bits that select the source among the port's LIDs.
    #[must_use]
    pub(crate) fn path_bits(&self) -> u8 {
        self.field(qp::SOURCE_MAC) as u8
    }
    /// InfiniBand: returns whether packets have a GRH.
    #[must_use]
    pub(crate) fn has_global_route(&self) -> bool {
        self.field(qp::GRH) != 0
    }
    /// InfiniBand: returns the service level.
    #[must_use]
    pub(crate) fn service_level(&self) -> u8 {
        (self.field(qp::SCHED_QUEUE) >> 2 & 0xf) as u8
    }
    /// Ethernet: returns the priority.
    #[must_use]
    pub(crate) fn priority(&self) -> u8 {
        (self.field(qp::SCHED_QUEUE) >> 3 & 7) as u8
    }
    /// Returns the flow label of a GRH.
    #[must_use]
    pub(crate) fn flow_label(&self) -> u32 {
        self.field(qp::FLOW_LABEL)
    }
    /// Returns the row of the source in the port's MAC table.
    #[must_use]
    pub(crate) fn source_mac(&self) -> usize {
        self.field(qp::SOURCE_MAC) as usize
    }
    /// Returns the row of the VLAN in the port's table, and the priority, if the path is on a VLAN.
    #[must_use]
    pub(crate) fn vlan(&self) -> Option<(usize, u8)> {
        const VALID: u32 = 1 << 6;
        let row = self.field(qp::VLAN_INDEX) & 0x7f;
        (self.field(qp::PATH_FLAGS) & VALID != 0).then_some((row as usize, self.priority()))
    }
    /// Returns the index of the partition in the port's table of P_Keys.
    #[must_use]
    pub(crate) fn partition_index(&self) -> usize {
        (self.field(qp::PKEY_INDEX) & 0x7f) as usize
    }
    /// Returns the code of the acknowledgement timeout: 4.096 us times 2 to the power of the code; 0 means no
    /// timeout.
    #[must_use]
    pub(crate) fn ack_timeout(&self) -> u8 {
        self.field(qp::ACK_TIMEOUT) as u8
    }
    /// Returns the hop limit and the traffic class.
    #[must_use]
    pub(crate) fn hop_and_class(&self) -> (u8, u8) {
        (self.field(qp::HOP_LIMIT) as u8, self.field(qp::TRAFFIC_CLASS) as u8)
    }
    /// Returns the peer's GID.
    #[must_use]
    pub(crate) fn remote_gid(&self) -> Gid {
        let mut gid = [0; 16];
        let words = [qp::REMOTE_GID_0, qp::REMOTE_GID_1, qp::REMOTE_GID_2, qp::REMOTE_GID_3];
        for (place, word) in gid.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = self.field(word).to_be_bytes();
        }
        Gid(gid)
    }
    /// Returns the peer's Ethernet address.
    #[must_use]
    pub(crate) fn remote_mac(&self) -> MacAddr {
        let [_, _, a, b] = self.field(qp::REMOTE_MAC_HIGH).to_be_bytes();
        let [c, d, e, f] = self.field(qp::REMOTE_MAC).to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    }
}
