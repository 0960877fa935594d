//! Wire formats: parsers of received bytes, and emission of the same.
//!
//! Each header has a file of its own, with a plain struct of the header's fields. `parse` takes the header
//! from the front of any bytes and never panics. `emit` writes it into exactly as many bytes as it has.
//! Fields that the transport does not use are kept, so that a parsed frame is emitted as the same bytes.
//! Lengths and checksums are not kept: `parse` checks them and `emit` computes them.
//!
//! Names and layouts: InfiniBand Architecture Specification volume 1, chapters 7 to 9, annex A16 (RoCE) and
//! A17 (RoCEv2).

mod bth;
mod ecn;
mod ethernet;
mod ext;
mod frame;
mod icrc;
mod ip;
mod lrh;
mod route;
mod template;
mod udp;

pub use bth::{Bth, Opcode, Operation, Service, XrcEth};
pub use ecn::Ecn;
pub use ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, Ethernet};
pub use ext::{Aeth, AtomicEth, Deth, Ext, NakCode, Reth, RnrTimer, Syndrome};
pub use frame::{Frame, Headers, MAX_OVERHEAD, Net, Packet};
pub use icrc::{Icrc, Method, ReceivedSeeds};
pub use ip::{Ipv4, Ipv6};
pub use lrh::{CABLE, ETHERTYPE_INFINIBAND, Lrh, Symbol, vcrc};
pub use template::Template;
pub use udp::{ROCE_PORT, Udp, rc_source_port, ud_source_port};

use icrc::{Ones, SEEDED, SentSeeds};

/// The reason for which bytes are not a frame of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The frame ends within a header, or a length field exceeds the frame.
    #[error("frame is shorter than its headers say")]
    Truncated,
    /// The frame is not of a protocol that carries the transport.
    #[error("not a RoCE or InfiniBand frame")]
    NotRoce,
    /// The checksum of an IPv4 header, or the variant CRC of InfiniBand, is wrong.
    #[error("bad IPv4 header checksum or variant CRC")]
    Checksum,
    /// A header has a value that the specification does not allow.
    #[error("malformed header")]
    Malformed,
    /// The operation code is unknown.
    #[error("unknown operation code {0:#04x}")]
    Opcode(u8),
}

/// Splits off the first `N` bytes.
fn take<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), Error> {
    bytes.split_first_chunk().ok_or(Error::Truncated)
}

/// Returns a big-endian 24-bit number.
const fn be24(b: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, b[0], b[1], b[2]])
}

/// Returns the low 24 bits, big-endian.
const fn to_be24(n: u32) -> [u8; 3] {
    let [_, a, b, c] = n.to_be_bytes();
    [a, b, c]
}
