//! InfiniBand's link layer: the local route header, the variant CRC, and the transport of packets in Ethernet
//! frames.
//!
//! # Encapsulation
//!
//! The project's fabrics carry Ethernet frames, so an InfiniBand cable consists of these: type 0x88b5 (IEEE
//! 802, for local experiments), destination [`CABLE`], and as source the address that the sending port would
//! have on Ethernet. A fabric with two ports is a cable; more ports are joined by switches, each port of
//! which is on a cable of its own.
//!
//! The first two bytes stand for the symbols that delimit data on copper ([`Symbol`]). After
//! [`Symbol::Packet`] follows an unchanged data packet: from the local route header to the invariant CRC,
//! then the variant CRC. Bytes after it are padding.

use super::{Error, take};
use verbs::MacAddr;

/// The ethertype of frames that carry InfiniBand.
pub const ETHERTYPE_INFINIBAND: u16 = 0x88b5;

/// The destination of such frames: a locally administered group, because a cable has no addresses.
pub const CABLE: MacAddr = MacAddr([0x03, 0x49, 0x42, 0x88, 0xb5, 0x00]);

/// The kind of a frame on an InfiniBand cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Symbol {
    /// A data packet (start delimiter K27.7).
    Packet = 0x00fb,
    /// The sender searches for a partner (training sequence 1).
    Polling = 0x004a,
    /// The sender has received its partner's training sequence (training sequence 2).
    Trained = 0x0045,
    /// The sender stops: the link is down.
    Silence = 0x0000,
}

impl Symbol {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 2;

    /// Parses the symbol at the front of the payload of an Ethernet frame.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (code, rest) = take::<{ Self::LEN }>(bytes)?;
        let symbol = [Self::Packet, Self::Polling, Self::Trained, Self::Silence]
            .into_iter()
            .find(|&symbol| symbol as u16 == u16::from_be_bytes(*code))
            .ok_or(Error::Malformed)?;
        Ok((symbol, rest))
    }
}

/// A local route header (specification 7.7). Its length field is computed, and its next header field says if
/// a GRH follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lrh {
    /// Virtual lane: 4 bits.
    pub lane: u8,
    /// Service level: 4 bits.
    pub service_level: u8,
    /// The destination LID.
    pub dlid: u16,
    /// The source LID.
    pub slid: u16,
}

impl Lrh {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 8;
    /// The virtual lane of subnet management.
    pub const MANAGEMENT_LANE: u8 = 15;
    /// The LID of a port without one, and of directed routes.
    pub const PERMISSIVE_LID: u16 = 0xffff;
    /// The first LID of multicast groups.
    pub const FIRST_MULTICAST_LID: u16 = 0xc000;

    /// Parses the header of a packet that ends before the variant CRC. Returns the header, true if a GRH
    /// follows, and the remaining bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Self, bool, &[u8]), Error> {
        const LOCAL: u8 = 2;
        const GLOBAL: u8 = 3;
        let (&[a, b, c, d, e, f, g, h], _) = take::<{ Self::LEN }>(bytes)?;
        if a & 0x0f != 0 {
            return Err(Error::Malformed);
        }
        let global = match b & 3 {
            LOCAL => false,
            GLOBAL => true,
            _ => return Err(Error::NotRoce),
        };
        let words = usize::from(u16::from_be_bytes([e, f]) & 0x7ff);
        let header = Self {
            lane: a >> 4,
            service_level: b >> 4,
            dlid: u16::from_be_bytes([c, d]),
            slid: u16::from_be_bytes([g, h]),
        };
        let rest = bytes.get(Self::LEN..words * 4).ok_or(Error::Truncated)?;
        Ok((header, global, rest))
    }

    /// Returns the bytes of a header before `rest_len` bytes, without the variant CRC, that begin with a GRH
    /// if `global`.
    #[must_use]
    pub const fn emit(&self, global: bool, rest_len: usize) -> [u8; Self::LEN] {
        let [c, d] = self.dlid.to_be_bytes();
        let [e, f] = (((Self::LEN + rest_len) / 4) as u16 & 0x7ff).to_be_bytes();
        let [g, h] = self.slid.to_be_bytes();
        [self.lane << 4, self.service_level << 4 | 2 | global as u8, c, d, e, f, g, h]
    }
}

/// The length of the variant CRC, in bytes.
pub(super) const VCRC_LEN: usize = 2;

/// Computes the variant CRC over a packet from its local route header to its invariant CRC (specification
/// 7.8.2): polynomial 0x100b, with the bits of each byte and of the result in the order of the invariant CRC.
#[must_use]
pub fn vcrc(packet: &[u8]) -> [u8; VCRC_LEN] {
    let (words, rest) = packet.as_chunks::<8>();
    let mut crc = u16::MAX;
    for &word in words {
        let bits = u64::from_le_bytes(word) ^ u64::from(crc);
        crc = 0;
        for (k, table) in TABLES.iter().rev().enumerate() {
            crc ^= table[(bits >> (8 * k) & 0xff) as usize];
        }
    }
    for &byte in rest {
        crc = crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    (!crc).to_le_bytes()
}

/// `TABLES[k][b]` is the effect of byte `b` on the CRC when `k` more bytes follow it.
static TABLES: [[u16; 256]; 8] = {
    /// The polynomial 0x100b, with the lowest power in the highest bit.
    const POLYNOMIAL: u16 = 0xd008;
    let mut t = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        t[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = t[k - 1][byte];
            t[k][byte] = before >> 8 ^ t[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    t
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the CRC bit by bit, like the shift register in the specification.
    fn by_bits(bytes: &[u8]) -> [u8; 2] {
        let mut register = u16::MAX;
        for byte in bytes {
            for bit in 0..8 {
                let feedback = (register >> 15 != 0) ^ (byte >> bit & 1 != 0);
                register = register << 1 ^ if feedback { 0x100b } else { 0 };
            }
        }
        (!register.reverse_bits()).to_le_bytes()
    }

    #[test]
    fn the_variant_crc_is_that_of_the_shift_register() {
        let data: [u8; 70] = core::array::from_fn(|i| (i * 37 + 11) as u8);
        for len in 0..data.len() {
            assert_eq!(vcrc(&data[..len]), by_bits(&data[..len]), "{len}");
        }
    }

    #[test]
    fn symbols_keep_their_code() {
        for symbol in [Symbol::Packet, Symbol::Polling, Symbol::Trained, Symbol::Silence] {
            let code = (symbol as u16).to_be_bytes();
            assert_eq!(Symbol::parse(&code), Ok((symbol, &[][..])));
        }
        assert_eq!(Symbol::parse(&[1, 2]), Err(Error::Malformed));
        assert_eq!(Symbol::parse(&[0]), Err(Error::Truncated));
    }
}
