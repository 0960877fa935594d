//! The header of an Ethernet II frame.

use super::{Error, take};
use verbs::MacAddr;

/// The ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// The ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// The ethertype of RoCE version 1, before a GRH (annex A16).
pub const ETHERTYPE_ROCE_V1: u16 = 0x8915;

/// An Ethernet II header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// The Ethernet address of the receiver.
    pub dst: MacAddr,
    /// The Ethernet address of the sender.
    pub src: MacAddr,
    /// The type of the payload.
    pub ethertype: u16,
}

impl Ethernet {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 14;

    /// Parses the header at the front of `bytes`, and returns the remaining bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (&[a, b, c, d, e, f, g, h, i, j, k, l, t, u], rest) = take::<{ Self::LEN }>(bytes)?;
        let header = Self {
            dst: MacAddr([a, b, c, d, e, f]),
            src: MacAddr([g, h, i, j, k, l]),
            ethertype: u16::from_be_bytes([t, u]),
        };
        Ok((header, rest))
    }

    /// Returns the bytes of the header.
    #[must_use]
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [a, b, c, d, e, f] = self.dst.0;
        let [g, h, i, j, k, l] = self.src.0;
        let [t, u] = self.ethertype.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, t, u]
    }
}
