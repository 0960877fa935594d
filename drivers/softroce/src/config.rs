//! The configuration of a software RNIC.

use verbs::Gid;

/// The configuration of a software RNIC.
#[derive(Clone, Debug)]
pub struct Config {
    /// The port's GID: that of an IPv4 address ([`Gid::from_ipv4`]), or an IPv6 address.
    pub gid: Gid,
    /// Unpredictable bytes, from which the key and the queue pair numbers are derived. A peer that knew this
    /// node before its last boot, or a queue pair before it was destroyed, can then not reach the present
    /// one.
    pub random: [u8; 16],
    /// The maximum number of queue pairs, at most 4096.
    pub max_qps: u32,
    /// The maximum number of packets in flight on one connection: less than the capacity of a peer's receive
    /// ring.
    pub max_window: u32,
    /// The maximum number of elements in a scatter or gather list, 2 to 255.
    pub max_sge: u32,
    /// The maximum length of an inline payload, in bytes.
    pub max_inline: u32,
}

impl Config {
    /// Makes a configuration with the default limits: 1024 queue pairs, 64 packets in flight, 4 elements, 128
    /// bytes inline.
    #[must_use]
    pub const fn new(gid: Gid, random: [u8; 16]) -> Self {
        Self { gid, random, max_qps: 1024, max_window: 64, max_sge: 4, max_inline: 128 }
    }
}

/// Pseudorandom numbers from a seed (SplitMix64). They are as unpredictable as the seed, which protects
/// against chance and old packets, but this is not a cipher.
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
