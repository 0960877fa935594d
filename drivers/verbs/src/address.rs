//! Addresses of ports, by kind of link.

use core::fmt;
use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A global identifier: an IPv6 address, or an IPv4 address mapped into one (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the GID that holds the IPv4 address.
    #[must_use]
    pub const fn from_ipv4(ip: [u8; 4]) -> Self {
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ip[0], ip[1], ip[2], ip[3]])
    }
    /// Returns the IPv4 address, if the GID holds one.
    #[must_use]
    pub fn ipv4(&self) -> Option<[u8; 4]> {
        core::net::Ipv6Addr::from(self.0).to_ipv4_mapped().map(|ip| ip.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&core::net::Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The frame format on the wire. Two nodes can communicate only over a kind that both have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LinkKind {
    /// UDP port 4791 (InfiniBand specification, annex A17).
    RoceV2,
    /// Ethertype 0x8915 with a GRH (annex A16).
    RoceV1,
    /// Native InfiniBand.
    InfiniBand,
}

/// The address of a port. A node publishes it when it joins, and the manager passes it to peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PortAddress {
    /// The port's Ethernet address; zero on InfiniBand.
    pub mac: MacAddr,
    /// The port's GID in use.
    pub gid: Gid,
    /// The port's local identifier; zero on Ethernet.
    pub lid: u16,
}

/// The path to a peer's port (specification: address vector, 11.2.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressVector {
    /// The frame format.
    pub link: LinkKind,
    /// The peer's port.
    pub peer: PortAddress,
    /// IPv4 type of service or IPv6 traffic class; the low two bits are ECN.
    pub traffic_class: u8,
    /// IP time to live, or hop limit.
    pub hop_limit: u8,
    /// InfiniBand service level, 0 to 15.
    pub service_level: u8,
}

impl AddressVector {
    /// Traffic class of a sender that slows down when it is told of congestion marks (RFC 3168: ECT(0)), as
    /// RDMA over converged Ethernet does. A congested switch marks the packets of such a sender instead
    /// of dropping them.
    pub const ECT_0: u8 = 2;

    /// Returns the path at service level `level`, 0 to 7, with the DSCP of the same class: eight times the
    /// level (a class selector of RFC 2474). The ECN bits stay.
    #[must_use]
    pub const fn with_level(self, level: u8) -> Self {
        let level = level & 7;
        Self { service_level: level, traffic_class: level << 5 | self.traffic_class & 3, ..self }
    }
}

/// The payload bytes of a full packet on a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PathMtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: the largest on standard 1500-byte Ethernet.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl PathMtu {
    /// All path MTUs, the smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// Returns the largest path MTU whose RoCE frames fit into an Ethernet MTU, for the longest headers: GRH
    /// or IPv6 40, UDP 8, BTH 12, extended headers 16 + 4, ICRC 4.
    #[must_use]
    pub fn fitting(ethernet_mtu: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.bytes() + 84 <= ethernet_mtu)
    }
}
