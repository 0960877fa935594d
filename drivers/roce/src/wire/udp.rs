//! UDP, as in RoCEv2.

use super::{Error, take};
use verbs::QpNum;

/// The destination port of RoCEv2 (annex A17.4.5).
pub const ROCE_PORT: u16 = 4791;

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Source port: the entropy of the flow, ignored by the receiver.
    pub src: u16,
    /// Destination port.
    pub dst: u16,
    /// Checksum: zero, because the ICRC covers more.
    pub checksum: u16,
}

impl Udp {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 8;
    /// The protocol number in IP headers.
    pub const PROTOCOL: u8 = 17;

    /// Parses the header at the front of `bytes`, and returns the payload by its length field.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (&[a, b, c, d, e, f, g, h], rest) = take::<{ Self::LEN }>(bytes)?;
        let len = usize::from(u16::from_be_bytes([e, f]));
        let len = len.checked_sub(Self::LEN).ok_or(Error::Malformed)?;
        let header = Self {
            src: u16::from_be_bytes([a, b]),
            dst: u16::from_be_bytes([c, d]),
            checksum: u16::from_be_bytes([g, h]),
        };
        Ok((header, rest.get(..len).ok_or(Error::Truncated)?))
    }

    /// Returns the bytes of a header before `payload_len` bytes.
    #[must_use]
    pub const fn emit(&self, payload_len: usize) -> [u8; Self::LEN] {
        let [a, b] = self.src.to_be_bytes();
        let [c, d] = self.dst.to_be_bytes();
        let [e, f] = ((Self::LEN + payload_len) as u16).to_be_bytes();
        let [g, h] = self.checksum.to_be_bytes();
        [a, b, c, d, e, f, g, h]
    }

    /// Changes the length field to that of `payload_len` bytes.
    pub(super) const fn set_payload_len(header: &mut [u8; Self::LEN], payload_len: usize) {
        [header[4], header[5]] = ((Self::LEN + payload_len) as u16).to_be_bytes();
    }
}

/// Returns the source port of a reliable connection between two queue pairs, the same in both directions, as
/// Linux computes it: the product of their numbers folded to a 20-bit flow label, and that folded to 14 bits
/// above 0xc000.
#[must_use]
pub const fn rc_source_port(a: QpNum, b: QpNum) -> u16 {
    let mut v = a.get() as u64 * b.get() as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    let flow = (v & 0xf_ffff) as u32;
    0xc000 | ((flow & 0x3fff) ^ (flow >> 14)) as u16
}

/// Returns the source port of the datagrams of a queue pair, as Linux computes it: a multiplicative hash of
/// its number, in the 14 bits above 0xc000.
#[must_use]
pub const fn ud_source_port(from: QpNum) -> u16 {
    0xc000 | (from.get().wrapping_mul(0x61c8_8647) >> 18) as u16
}
