//! A whole RoCE frame, from Ethernet to ICRC.

use super::lrh::{self, VCRC_LEN};
use super::{
    Bth, ETHERTYPE_INFINIBAND, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, Ecn, Error, Ethernet, Ext,
    Icrc, Ipv4, Ipv6, Lrh, Method, Ones, ROCE_PORT, ReceivedSeeds, SEEDED, Symbol, Template, Udp, XrcEth,
    ext,
};
use verbs::Gid;

/// The maximum length that headers and checks add to a payload, in bytes, including Ethernet's.
pub const MAX_OVERHEAD: usize =
    Ethernet::LEN + MAX_NET_LEN + Bth::LEN + XrcEth::LEN + ext::MAX_LEN + 3 + ICRC_LEN + VCRC_LEN;

/// The length of the longest network layer: that of InfiniBand with a GRH.
const MAX_NET_LEN: usize = Symbol::LEN + Lrh::LEN + Ipv6::LEN;

/// The length of the ICRC, in bytes.
const ICRC_LEN: usize = 4;

/// The transport part of a packet: base and extended headers, and the payload without padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Base header.
    pub bth: Bth,
    /// Extended headers.
    pub ext: Ext,
    /// Payload.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses the bytes between the network headers and the ICRC.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (bth, rest) = Bth::parse(bytes)?;
        let (ext, rest) = Ext::parse(bth.opcode, rest)?;
        // Payload and padding are whole 32-bit words (specification 9.2.5).
        if !rest.len().is_multiple_of(4) {
            return Err(Error::Malformed);
        }
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(Error::Truncated)?;
        Ok(Self { bth, ext, payload: rest.get(..len).ok_or(Error::Truncated)? })
    }
}

/// The network layer below the base header, by kind of link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// RoCEv2 over IPv4.
    V4(Ipv4, Udp),
    /// RoCEv2 over IPv6.
    V6(Ipv6, Udp),
    /// RoCEv1 over a GRH.
    Grh(Ipv6),
    /// InfiniBand: a local route header and, if the packet may leave its subnet, a GRH.
    InfiniBand(Lrh, Option<Ipv6>),
}

impl Net {
    /// Returns the length on the wire, in bytes.
    const fn len(&self) -> usize {
        match self {
            Self::V4(..) => Ipv4::LEN + Udp::LEN,
            Self::V6(..) => Ipv6::LEN + Udp::LEN,
            Self::Grh(_) => Ipv6::LEN,
            Self::InfiniBand(_, grh) => Symbol::LEN + Lrh::LEN + if grh.is_some() { Ipv6::LEN } else { 0 },
        }
    }

    /// Returns the length of the trailer after the ICRC, in bytes.
    pub(super) const fn trailer_len(&self) -> usize {
        if matches!(self, Self::InfiniBand(..)) { VCRC_LEN } else { 0 }
    }

    /// Returns the source as a GID, which is all zeros for an InfiniBand packet without GRH.
    #[must_use]
    pub const fn src(&self) -> Gid {
        match self {
            Self::V4(ip, _) => Gid::from_ipv4(ip.src),
            Self::V6(ip, _) | Self::Grh(ip) | Self::InfiniBand(_, Some(ip)) => Gid(ip.src),
            Self::InfiniBand(_, None) => Gid([0; 16]),
        }
    }

    /// Returns the type of service or traffic class.
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(ip, _) => ip.tos,
            Self::V6(ip, _) | Self::Grh(ip) | Self::InfiniBand(_, Some(ip)) => ip.traffic_class,
            Self::InfiniBand(_, None) => 0,
        }
    }

    /// Returns the congestion code point. RoCEv1 and InfiniBand have none, because their switches do not
    /// examine a GRH.
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        match self {
            Self::V4(..) | Self::V6(..) => Ecn::of(self.traffic_class()),
            Self::Grh(_) | Self::InfiniBand(..) => Ecn::NotCapable,
        }
    }

    /// Returns the destination as a GID, which is all zeros for an InfiniBand packet without GRH.
    #[must_use]
    pub const fn dst(&self) -> Gid {
        match self {
            Self::V4(ip, _) => Gid::from_ipv4(ip.dst),
            Self::V6(ip, _) | Self::Grh(ip) | Self::InfiniBand(_, Some(ip)) => Gid(ip.dst),
            Self::InfiniBand(_, None) => Gid([0; 16]),
        }
    }

    /// Returns true if the source of `received` is the destination of `self`. On InfiniBand this compares
    /// LIDs.
    #[must_use]
    pub fn leads_to_source_of(&self, received: &Self) -> bool {
        match (self, received) {
            (Self::InfiniBand(to, _), Self::InfiniBand(from, _)) => to.dlid == from.slid,
            (Self::InfiniBand(..), _) | (_, Self::InfiniBand(..)) => false,
            _ => self.dst() == received.src(),
        }
    }
}

/// All headers below the base header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The Ethernet header.
    pub ethernet: Ethernet,
    /// IP and UDP headers, or a GRH.
    pub net: Net,
}

impl Headers {
    /// Returns the length of a frame with these headers, `ext` and `payload_len` bytes, in bytes. Not for XRC
    /// requests.
    #[must_use]
    pub const fn frame_len(&self, ext: &Ext, payload_len: usize) -> usize {
        let payload = payload_len.next_multiple_of(4);
        Ethernet::LEN + self.net.len() + Bth::LEN + ext.len() + payload + ICRC_LEN + self.net.trailer_len()
    }

    /// Returns the length in bytes of a frame with these network headers, `bth`, `ext` and a payload of
    /// `payload_len` bytes.
    #[must_use]
    pub const fn frame_len_of(&self, bth: &Bth, ext: &Ext, payload_len: usize) -> usize {
        self.frame_len(ext, payload_len) + bth.xrc_len()
    }

    /// Returns the bytes that a receiver finds before a datagram with these headers, `ext` and `payload_len`
    /// bytes (annex A17.4.5.2): a GRH or the IPv6 header, zeros and the IPv4 header, or only zeros.
    #[must_use]
    pub fn origin(&self, ext: &Ext, payload_len: usize) -> [u8; Ipv6::LEN] {
        // The length from the last header of the network layer to the ICRC.
        let after = self.frame_len(ext, payload_len) - Ethernet::LEN - self.net.trailer_len();
        match &self.net {
            Net::V4(ip, _) => {
                let mut origin = [0; Ipv6::LEN];
                origin[Ipv6::LEN - Ipv4::LEN..].copy_from_slice(&ip.emit(after - Ipv4::LEN));
                origin
            }
            Net::V6(ip, _) | Net::Grh(ip) => ip.emit(after - Ipv6::LEN),
            Net::InfiniBand(_, Some(grh)) => grh.emit(after - self.net.len()),
            Net::InfiniBand(_, None) => [0; Ipv6::LEN],
        }
    }

    /// Writes a frame into the front of `out`; `fill` writes its payload. Returns the length of the frame, or
    /// `None` if `out` is too short. The padding in `bth` is ignored and computed.
    pub fn emit(
        &self,
        bth: &Bth,
        ext: &Ext,
        payload_len: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let id = if let Net::V4(ip, _) = &self.net { ip.id } else { 0 };
        Template::new(*self).emit(id, bth, ext, payload_len, out, fill)
    }
}

/// The bytes that count as ones, by the kind of network layer: its own and, as the last, that of the base
/// header.
mod ones {
    use super::{Bth, Ipv4, Ipv6, Lrh, Ones, SEEDED, Udp};

    /// Type of service, time to live, header checksum, UDP checksum.
    pub(super) const V4: Ones =
        Ones::new(0, &[1, 8, 10, 11, 26, 27, Ipv4::LEN + Udp::LEN + Bth::VARIANT_BYTE]);
    /// The ones of the bytes that no seed covers.
    pub(super) const V4_NOT_SEEDED: Ones = V4.after(SEEDED);
    /// Traffic class and flow label, hop limit, UDP checksum.
    pub(super) const V6: Ones =
        Ones::new(0x0f, &[1, 2, 3, 7, 46, 47, Ipv6::LEN + Udp::LEN + Bth::VARIANT_BYTE]);
    /// Traffic class and flow label, hop limit.
    pub(super) const GRH: Ones = Ones::new(0x0f, &[1, 2, 3, 7, Ipv6::LEN + Bth::VARIANT_BYTE]);
    /// The virtual lane.
    pub(super) const LOCAL: Ones = Ones::new(0xf0, &[Lrh::LEN + Bth::VARIANT_BYTE]);
}

/// Computes the ICRC of a packet, from its network layer to the last padding.
#[inline]
pub(super) fn crc(net: &Net, packet: &[u8]) -> Option<[u8; ICRC_LEN]> {
    // With a GRH, the local route header of InfiniBand counts as ones, like the missing one of RoCE. Without
    // GRH, all of it except the virtual lane is covered.
    let (start, ones, before) = match net {
        Net::V4(..) => (Icrc::START, &ones::V4, 0),
        Net::V6(..) => (Icrc::START, &ones::V6, 0),
        Net::Grh(_) => (Icrc::START, &ones::GRH, 0),
        Net::InfiniBand(_, Some(_)) => (Icrc::START, &ones::GRH, Symbol::LEN + Lrh::LEN),
        Net::InfiniBand(_, None) => (Icrc::EMPTY, &ones::LOCAL, Symbol::LEN),
    };
    Some(start.feed_with(ones, packet.get(before..)?).finish())
}

/// Computes the ICRC of a packet as [`crc`] does. `after` returns the CRC after the first bytes, which it may
/// have kept; it is used where that is of use.
#[inline]
pub(super) fn crc_by_seed(
    net: &Net,
    packet: &[u8],
    after: impl FnOnce(&[u8; SEEDED], &Ones) -> Icrc,
) -> Option<[u8; ICRC_LEN]> {
    match (net, packet.split_first_chunk()) {
        (Net::V4(..), Some((first, rest))) if Method::best() == Method::Shift => {
            Some(seeded(after(first, &ones::V4), rest))
        }
        _ => crc(net, packet),
    }
}

/// Returns the ICRC of a packet over IPv4, from the CRC after its first bytes and the others.
fn seeded(after_first: Icrc, rest: &[u8]) -> [u8; ICRC_LEN] {
    after_first.feed_with(&ones::V4_NOT_SEEDED, rest).finish()
}

/// A parsed frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The headers below the base header.
    pub headers: Headers,
    /// The transport part.
    pub packet: Packet<'a>,
    /// The ICRC as received.
    pub icrc: [u8; 4],
    /// The bytes from the network layer to the last padding.
    covered: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses a frame, without a check of the ICRC: see [`icrc_ok`](Self::icrc_ok). Bytes after the packet
    /// (Ethernet's padding of short frames) are ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (ethernet, network) = Ethernet::parse(bytes)?;
        match ethernet.ethertype {
            ETHERTYPE_IPV4 => {
                let (ip, rest) = Ipv4::parse(network)?;
                let (udp, body) = parse_udp(ip.protocol, rest)?;
                Self::of(ethernet, Net::V4(ip, udp), network, body)
            }
            ETHERTYPE_IPV6 => {
                let (ip, rest) = Ipv6::parse(network)?;
                let (udp, body) = parse_udp(ip.next_header, rest)?;
                Self::of(ethernet, Net::V6(ip, udp), network, body)
            }
            ETHERTYPE_ROCE_V1 => {
                let (ip, body) = Ipv6::parse(network)?;
                if ip.next_header != Ipv6::NEXT_IBA {
                    return Err(Error::NotRoce);
                }
                Self::of(ethernet, Net::Grh(ip), network, body)
            }
            ETHERTYPE_INFINIBAND => {
                let (net, body) = parse_infiniband(network)?;
                Self::of(ethernet, net, network, body)
            }
            _ => Err(Error::NotRoce),
        }
    }

    /// Parses the transport part: `body`, after the network layer at the front of `network`.
    #[inline]
    fn of(ethernet: Ethernet, net: Net, network: &'a [u8], body: &'a [u8]) -> Result<Self, Error> {
        let (transport, icrc) = body.split_last_chunk().ok_or(Error::Truncated)?;
        let covered = network.get(..net.len() + transport.len()).ok_or(Error::Truncated)?;
        let packet = Packet::parse(transport)?;
        Ok(Self { headers: Headers { ethernet, net }, packet, icrc: *icrc, covered })
    }

    /// Returns the bytes that the receiver of a datagram finds before it: see [`Headers::origin`].
    #[must_use]
    pub fn origin(&self) -> [u8; Ipv6::LEN] {
        self.headers.origin(&self.packet.ext, self.packet.payload.len())
    }

    /// Returns true if the ICRC is right.
    #[must_use]
    pub fn icrc_ok(&self) -> bool {
        crc(&self.headers.net, self.covered) == Some(self.icrc)
    }

    /// Returns true if the ICRC is right, by the seeds of former frames where they are of use.
    #[inline]
    pub fn icrc_ok_by(&self, seeds: &mut ReceivedSeeds) -> bool {
        let after = |first: &_, ones: &_| seeds.after(first, ones);
        crc_by_seed(&self.headers.net, self.covered, after) == Some(self.icrc)
    }

    /// Writes the frame again into the front of `out`. Returns its length, or `None` if `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let Packet { bth, ext, payload } = &self.packet;
        self.headers.emit(bth, ext, payload.len(), out, |to| to.copy_from_slice(payload))
    }
}

/// Parses a local route header and, if there is one, a GRH in the payload of an Ethernet frame. The variant
/// CRC is that of the link, so it is checked here.
fn parse_infiniband(bytes: &[u8]) -> Result<(Net, &[u8]), Error> {
    let (Symbol::Packet, packet) = Symbol::parse(bytes)? else { return Err(Error::NotRoce) };
    let (lrh, global, rest) = Lrh::parse(packet)?;
    let (covered, after) = packet.split_at_checked(Lrh::LEN + rest.len()).ok_or(Error::Truncated)?;
    if after.first_chunk().ok_or(Error::Truncated)? != &lrh::vcrc(covered) {
        return Err(Error::Checksum);
    }
    if !global {
        return Ok((Net::InfiniBand(lrh, None), rest));
    }
    let (grh, body) = Ipv6::parse(rest)?;
    if grh.next_header != Ipv6::NEXT_IBA {
        return Err(Error::NotRoce);
    }
    Ok((Net::InfiniBand(lrh, Some(grh)), body))
}

/// Parses a UDP header to the RoCE port at the front of `bytes`.
fn parse_udp(protocol: u8, bytes: &[u8]) -> Result<(Udp, &[u8]), Error> {
    if protocol != Udp::PROTOCOL {
        return Err(Error::NotRoce);
    }
    let (udp, body) = Udp::parse(bytes)?;
    if udp.dst != ROCE_PORT { Err(Error::NotRoce) } else { Ok((udp, body)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::SentSeeds;
    use proptest::prelude::*;

    proptest! {
        /// Packets that repeat each other's first bytes in part, as those of a few queue pairs do.
        #[test]
        fn seeds_give_the_same_icrc(
            packets in proptest::collection::vec(
                (0u16..3, any::<u16>(), 0u8..3, 0u8..4, proptest::collection::vec(any::<u8>(), 8..90)),
                1..40,
            ),
            first in proptest::collection::vec(any::<u8>(), SEEDED),
        ) {
            let (mut received, sent) = (ReceivedSeeds::default(), SentSeeds::default());
            for (len, id, source, operation, rest) in packets {
                let mut packet = first.clone();
                packet[2..4].copy_from_slice(&len.to_be_bytes());
                packet[4..6].copy_from_slice(&id.to_be_bytes());
                packet[15] = source;
                packet[28] = operation;
                // These count as ones.
                packet[1] = rest[0];
                packet[8] = rest[1];
                packet[10] = rest[2];
                packet[27] = rest[3];
                packet.extend(&rest);
                let expected = Icrc::START.feed_with(&ones::V4, &packet).finish();
                let covered = packet.first_chunk().unwrap();
                prop_assert_eq!(seeded(received.after(covered, &ones::V4), &rest), expected);
                // On one path, packets of a length and operation have the same first bytes.
                if source == 0 {
                    let key = usize::from(len) + 1;
                    prop_assert_eq!(seeded(sent.after(covered, key, &ones::V4), &rest), expected);
                }
            }
        }
    }
}
