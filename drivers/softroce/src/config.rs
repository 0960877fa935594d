//! What a software RNIC is made with.

use verbs::Gid;

/// What a software RNIC is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The port's GID: of an IPv4 address ([`Gid::from_ipv4`]), or an IPv6 address.
    pub gid: Gid,
    /// Unpredictable bytes: the key and the queue pair numbers come from them, so that whoever knew this node before
    /// its last boot, or a queue pair before it was destroyed, does not reach the next one.
    pub random: [u8; 16],
    /// Queue pairs that can exist at once, at most 4096.
    pub max_qps: u32,
    /// Packets in flight on one connection: less than a peer's receive ring holds.
    pub max_window: u32,
    /// Elements of a scatter or gather list, 2 to 255.
    pub max_sge: u32,
    /// Bytes of an inline payload.
    pub max_inline: u32,
}

impl Config {
    /// The usual limits: 1024 queue pairs, 64 packets in flight, 4 elements, 128 bytes inline.
    #[must_use]
    pub const fn new(gid: Gid, random: [u8; 16]) -> Self {
        Self { gid, random, max_qps: 1024, max_window: 64, max_sge: 4, max_inline: 128 }
    }
}

/// Numbers spread from a seed (SplitMix64): as unpredictable as the seed, which is enough against chance and old
/// packets; it is no cipher.
pub(crate) struct Numbers(u64);

impl Numbers {
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
