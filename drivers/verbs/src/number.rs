//! Numbers that must not be mixed up.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A queue pair number: 24 bits. 0 and 1 are the special queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QpNum(u32);

impl QpNum {
    /// Keeps the low 24 bits.
    #[must_use]
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }
    /// The number, below 2^24.
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
    /// Keeps the low 24 bits.
    #[must_use]
    pub const fn new(n: u32) -> Self {
        Self(n & 0xff_ffff)
    }
    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
    /// The number `n` packets later.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "modular; `+` would hide that")]
    pub const fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n) & 0xff_ffff)
    }
    /// How many packets `self` is after `other`: -2^23 to 2^23 - 1.
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

/// What a datagram must name to be taken by a queue pair (Q_Key, specification 3.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct QKey(pub u32);

impl QKey {
    /// Whether it is a controlled one: a send that names it carries the key of its own queue pair instead
    /// (specification 10.2.5).
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 & 1 << 31 != 0
    }
}

/// A queue pair of the unreliable datagram service. Its [`number`](Self::number) goes into
/// [`Rnic::post_recv`](crate::Rnic::post_recv) and [`Rnic::destroy_qp`](crate::Rnic::destroy_qp) and to peers; what
/// only datagrams have takes the type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdQp(QpNum);

impl UdQp {
    /// For an RNIC to name one that it has made.
    #[must_use]
    pub const fn new(number: QpNum) -> Self {
        Self(number)
    }
    /// Its number.
    #[must_use]
    pub const fn number(self) -> QpNum {
        self.0
    }
}

/// A completion queue of one RNIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqId(pub u16);

/// The caller's name for a work request, given back in its completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WrId(pub u64);
