//! IPv4 and IPv6 headers. The latter is also the layout of InfiniBand's global route header (GRH).

use super::{Error, take};

/// An IPv4 header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// Type of service.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// Flags (3 bits) and fragment offset (13 bits).
    pub flags_fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

impl Ipv4 {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 20;
    /// The flag that forbids fragmentation.
    pub const DONT_FRAGMENT: u16 = 0x4000;

    /// Parses the header at the front of `bytes`, and returns the payload by its length field.
    ///
    /// Options and fragments are rejected as malformed: RoCEv2 has neither (annex A17.4.3).
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (h, rest) = take::<{ Self::LEN }>(bytes)?;
        if h[0] != 0x45 {
            return Err(Error::Malformed);
        }
        if checksum(Self::sum(h)) != 0 {
            return Err(Error::Checksum);
        }
        let header = Self {
            tos: h[1],
            id: u16::from_be_bytes([h[4], h[5]]),
            flags_fragment: u16::from_be_bytes([h[6], h[7]]),
            ttl: h[8],
            protocol: h[9],
            src: [h[12], h[13], h[14], h[15]],
            dst: [h[16], h[17], h[18], h[19]],
        };
        // More fragments, or an offset.
        if header.flags_fragment & 0x3fff != 0 {
            return Err(Error::Malformed);
        }
        let total = usize::from(u16::from_be_bytes([h[2], h[3]]));
        let len = total.checked_sub(Self::LEN).ok_or(Error::Malformed)?;
        Ok((header, rest.get(..len).ok_or(Error::Truncated)?))
    }

    /// Returns the bytes of a header before `payload_len` bytes.
    #[must_use]
    pub fn emit(&self, payload_len: usize) -> [u8; Self::LEN] {
        let mut h = self.fixed();
        let sum = Self::sum(&h);
        Self::complete(&mut h, sum, self.id, payload_len);
        h
    }

    /// Returns the bytes of the header without length, identification and checksum.
    pub(super) const fn fixed(&self) -> [u8; Self::LEN] {
        let [f, g] = self.flags_fragment.to_be_bytes();
        let ([a, b, c, d], [p, q, r, s]) = (self.src, self.dst);
        [0x45, self.tos, 0, 0, 0, 0, f, g, self.ttl, self.protocol, 0, 0, a, b, c, d, p, q, r, s]
    }

    /// Adds what [`fixed`](Self::fixed) leaves out. `sum` is that of the header without it.
    #[inline]
    pub(super) const fn complete(h: &mut [u8; Self::LEN], sum: u32, id: u16, payload_len: usize) {
        let total = (Self::LEN + payload_len) as u16;
        [h[2], h[3]] = total.to_be_bytes();
        [h[4], h[5]] = id.to_be_bytes();
        [h[10], h[11]] = checksum(sum + total as u32 + id as u32).to_be_bytes();
    }

    /// Returns the sum of the words of a header.
    #[inline]
    pub(super) fn sum(header: &[u8; Self::LEN]) -> u32 {
        let (words, _) = header.as_chunks::<2>();
        words.iter().map(|&w| u32::from(u16::from_be_bytes(w))).sum()
    }
}

/// Returns the Internet checksum for a sum, which is zero over a header with a right checksum field.
const fn checksum(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// An IPv6 header, or a GRH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label: 20 bits.
    pub flow_label: u32,
    /// The protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Ipv6 {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 40;
    /// The next header value of a GRH before a BTH (specification 8.3).
    pub const NEXT_IBA: u8 = 0x1b;

    /// Parses the header at the front of `bytes`, and returns the payload by its length field.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (h, rest) = take::<{ Self::LEN }>(bytes)?;
        let first = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
        if first >> 28 != 6 {
            return Err(Error::Malformed);
        }
        let mut header = Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            next_header: h[6],
            hop_limit: h[7],
            src: [0; 16],
            dst: [0; 16],
        };
        header.src.copy_from_slice(&h[8..24]);
        header.dst.copy_from_slice(&h[24..40]);
        let len = usize::from(u16::from_be_bytes([h[4], h[5]]));
        Ok((header, rest.get(..len).ok_or(Error::Truncated)?))
    }

    /// Returns the bytes of a header before `payload_len` bytes.
    #[must_use]
    pub fn emit(&self, payload_len: usize) -> [u8; Self::LEN] {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let mut h = [0; Self::LEN];
        h[..4].copy_from_slice(&first.to_be_bytes());
        h[4..6].copy_from_slice(&(payload_len as u16).to_be_bytes());
        h[6] = self.next_header;
        h[7] = self.hop_limit;
        h[8..24].copy_from_slice(&self.src);
        h[24..40].copy_from_slice(&self.dst);
        h
    }

    /// Changes the length field to that of `payload_len` bytes.
    pub(super) const fn set_payload_len(h: &mut [u8; Self::LEN], payload_len: usize) {
        [h[4], h[5]] = (payload_len as u16).to_be_bytes();
    }
}
