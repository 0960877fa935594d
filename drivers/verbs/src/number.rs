//! Numbers that must not be mixed up.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A queue pair number: 24 bits. 0 and 1 are the special queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QpNum(u32);

impl QpNum {
    /// Makes a number from the low 24 bits of `n`.
    #[must_use]
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }
    /// Returns the number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for QpNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qp:{:#08x}", self.0)
    }
}

/// A packet sequence number: 24 bits, compared modulo 2^24 (InfiniBand specification, 9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Psn(u32);

impl Psn {
    /// Makes a number from the low 24 bits of `n`.
    #[must_use]
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }
    /// Returns the number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
    /// Returns the number `n` packets later.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "modular; `+` would hide that")]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & 0xff_ffff)
    }
    /// Returns the number of packets by which `self` is after `other`: -2^23 to 2^23 - 1.
    #[must_use]
    pub const fn distance_from(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8).cast_signed()) >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "psn:{:#08x}", self.0)
    }
}

/// The key a peer must name to reach this node's memory (R_Key).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteKey(pub u32);

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a capability: never in a log.
        f.write_str("rkey")
    }
}

/// The key that a datagram must carry so that a queue pair accepts it (Q_Key, specification 3.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct QKey(pub u32);

impl QKey {
    /// Returns whether this is a controlled Q_Key. A send that names a controlled one carries the key of its
    /// own queue pair instead (specification 10.2.5).
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 & 1 << 31 != 0
    }
}

/// A queue pair of the unreliable datagram service. Its [`number`](Self::number) is an argument of
/// [`Rnic::post_recv`](crate::Rnic::post_recv) and [`Rnic::destroy_qp`](crate::Rnic::destroy_qp), and is told
/// to peers. Calls that only datagrams have accept this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdQp(QpNum);

impl UdQp {
    /// Wraps the number of a datagram queue pair. Only an RNIC that has made the queue pair calls this.
    #[must_use]
    pub const fn new(number: QpNum) -> Self {
        Self(number)
    }
    /// Returns the queue pair's number.
    #[must_use]
    pub const fn number(self) -> QpNum {
        self.0
    }
}

/// A completion queue of one RNIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqId(pub u16);

/// The caller's identifier of a work request, returned in its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WrId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: u32 = 1 << 24;
    const HALF: u32 = 1 << 23;

    /// Generates any number, and more often one near 0 or near 2^23.
    fn number() -> impl Strategy<Value = u32> {
        prop_oneof![0..ALL, 0..40u32, ALL - 40..ALL, HALF - 40..HALF + 40]
    }

    proptest! {
        /// Packets are ordered as they are sent, whatever the first number is.
        #[test]
        fn a_packet_is_as_far_on_as_packets_have_been_sent(first in number(), sent in number()) {
            let (a, b) = (Psn::new(first), Psn::new(first).add(sent));
            prop_assert_eq!(b.get(), (first + sent) % ALL);
            let ahead = sent < HALF;
            let distance = if ahead { i64::from(sent) } else { i64::from(sent) - i64::from(ALL) };
            prop_assert_eq!(i64::from(b.distance_from(a)), distance);
            prop_assert_eq!(a.add(b.distance_from(a) as u32), b, "also backwards");
            // The distance between two numbers that are 2^23 apart is -2^23 in both directions.
            let back = if sent == HALF { -i64::from(HALF) } else { -distance };
            prop_assert_eq!(i64::from(a.distance_from(b)), back);
        }

        #[test]
        fn steps_add_up(first in number(), one in number(), other in number()) {
            let first = Psn::new(first);
            prop_assert_eq!(first.add(one).add(other), first.add(one + other));
            prop_assert_eq!(first.add(one).add(one.wrapping_neg()), first, "modulo 2^24, as 2^32 is a multiple of it");
            prop_assert_eq!(Psn::new(one | 0xff << 24), Psn::new(one));
        }
    }
}
