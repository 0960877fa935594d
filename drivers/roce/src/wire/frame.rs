//! A whole RoCE frame: from Ethernet to ICRC.

use super::{
    Bth, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, Ecn, Error, Ethernet, Ext, Icrc, Ipv4, Ipv6,
    ROCE_PORT, Udp, ext,
};
use verbs::Gid;

/// Bytes that headers and ICRC add to a payload at most, Ethernet included.
pub const MAX_OVERHEAD: usize = Ethernet::LEN + Ipv6::LEN + Udp::LEN + Bth::LEN + ext::MAX_LEN + 3 + ICRC_LEN;

/// Bytes of the ICRC.
const ICRC_LEN: usize = 4;

/// The transport's part of a packet: base and extended headers, and the payload without padding.
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
    /// Takes apart what stands between the network headers and the ICRC.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (bth, rest) = Bth::parse(bytes)?;
        let (ext, rest) = Ext::parse(bth.opcode, rest)?;
        // Payload and padding are whole words (specification 9.2.5).
        if !rest.len().is_multiple_of(4) {
            return Err(Error::Malformed);
        }
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(Error::Truncated)?;
        Ok(Self { bth, ext, payload: rest.get(..len).ok_or(Error::Truncated)? })
    }
}

/// The network layer below the base header, by link kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// RoCEv2 over IPv4.
    V4(Ipv4, Udp),
    /// RoCEv2 over IPv6.
    V6(Ipv6, Udp),
    /// RoCEv1: a GRH.
    Grh(Ipv6),
}

impl Net {
    /// Bytes on the wire.
    const fn len(&self) -> usize {
        match self {
            Self::V4(..) => Ipv4::LEN + Udp::LEN,
            Self::V6(..) => Ipv6::LEN + Udp::LEN,
            Self::Grh(_) => Ipv6::LEN,
        }
    }

    /// The source, as a GID.
    #[must_use]
    pub const fn src(&self) -> Gid {
        match self {
            Self::V4(ip, _) => Gid::from_ipv4(ip.src),
            Self::V6(ip, _) | Self::Grh(ip) => Gid(ip.src),
        }
    }

    /// The type of service or traffic class.
    #[must_use]
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(ip, _) => ip.tos,
            Self::V6(ip, _) | Self::Grh(ip) => ip.traffic_class,
        }
    }

    /// The congestion code point. RoCEv1 has none, as its switches do not look into a GRH.
    #[must_use]
    pub const fn ecn(&self) -> Ecn {
        match self {
            Self::V4(..) | Self::V6(..) => Ecn::of(self.traffic_class()),
            Self::Grh(_) => Ecn::NotCapable,
        }
    }

    /// The destination, as a GID.
    #[must_use]
    pub const fn dst(&self) -> Gid {
        match self {
            Self::V4(ip, _) => Gid::from_ipv4(ip.dst),
            Self::V6(ip, _) | Self::Grh(ip) => Gid(ip.dst),
        }
    }
}

/// Everything below the base header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// Ethernet.
    pub ethernet: Ethernet,
    /// IP and UDP, or GRH.
    pub net: Net,
}

impl Headers {
    /// Bytes of a frame with these headers, `ext` and `payload_len` bytes.
    #[must_use]
    pub const fn frame_len(&self, ext: &Ext, payload_len: usize) -> usize {
        let payload = payload_len.next_multiple_of(4);
        Ethernet::LEN + self.net.len() + Bth::LEN + ext.len() + payload + ICRC_LEN
    }

    /// What a receiver finds before a datagram with these headers, `ext` and `payload_len` bytes (annex A17.4.5.2): a
    /// GRH or the IPv6 header, or zeros and the IPv4 header.
    #[must_use]
    pub fn origin(&self, ext: &Ext, payload_len: usize) -> [u8; Ipv6::LEN] {
        let after = self.frame_len(ext, payload_len) - Ethernet::LEN;
        match &self.net {
            Net::V4(ip, _) => {
                let mut origin = [0; Ipv6::LEN];
                origin[Ipv6::LEN - Ipv4::LEN..].copy_from_slice(&ip.emit(after - Ipv4::LEN));
                origin
            }
            Net::V6(ip, _) | Net::Grh(ip) => ip.emit(after - Ipv6::LEN),
        }
    }

    /// Writes a frame into the front of `out`, its payload by `fill`; gives its length, or `None` if `out` is too
    /// short. The padding in `bth` is ignored and computed.
    pub fn emit(
        &self,
        bth: &Bth,
        ext: &Ext,
        payload_len: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let frame_len = self.frame_len(ext, payload_len);
        let out = out.get_mut(..frame_len)?;
        let pad = payload_len.next_multiple_of(4) - payload_len;
        let bth = Bth { pad: pad as u8, ..*bth }.emit();

        let (ethernet, rest) = out.split_at_mut_checked(Ethernet::LEN)?;
        ethernet.copy_from_slice(&self.ethernet.emit());
        let ip_payload_len = rest.len();
        let (net, rest) = rest.split_at_mut_checked(self.net.len())?;
        match &self.net {
            Net::V4(ip, udp) => {
                let (ip_bytes, udp_bytes) = net.split_at_mut_checked(Ipv4::LEN)?;
                ip_bytes.copy_from_slice(&ip.emit(ip_payload_len - Ipv4::LEN));
                udp_bytes.copy_from_slice(&udp.emit(rest.len()));
            }
            Net::V6(ip, udp) => {
                let (ip_bytes, udp_bytes) = net.split_at_mut_checked(Ipv6::LEN)?;
                ip_bytes.copy_from_slice(&ip.emit(ip_payload_len - Ipv6::LEN));
                udp_bytes.copy_from_slice(&udp.emit(rest.len()));
            }
            Net::Grh(ip) => net.copy_from_slice(&ip.emit(rest.len())),
        }
        let crc = masked(&self.net, net, &bth)?;

        let (covered, icrc) = rest.split_at_mut_checked(rest.len() - ICRC_LEN)?;
        let (bth_bytes, after_bth) = covered.split_at_mut_checked(Bth::LEN)?;
        bth_bytes.copy_from_slice(&bth);
        let (ext_bytes, body) = after_bth.split_at_mut_checked(ext.len())?;
        ext_bytes.copy_from_slice(ext.emit().get(..ext.len())?);
        let (payload, padding) = body.split_at_mut_checked(payload_len)?;
        fill(payload);
        padding.fill(0);
        icrc.copy_from_slice(&crc.feed(after_bth).finish());
        Some(frame_len)
    }
}

/// The CRC over network and base header with what may change as ones.
fn masked(net: &Net, bytes: &[u8], bth: &[u8; Bth::LEN]) -> Option<Icrc> {
    const MAX: usize = Ipv6::LEN + Udp::LEN + Bth::LEN;
    let mut copy = [0; MAX];
    let net_len = net.len();
    copy.get_mut(..net_len)?.copy_from_slice(bytes.get(..net_len)?);
    match net {
        Net::V4(..) => {
            // Type of service, time to live, header checksum, UDP checksum.
            for at in [1, 8, 10, 11, 26, 27] {
                copy[at] = 0xff;
            }
        }
        Net::V6(..) | Net::Grh(_) => {
            // Traffic class and flow label, hop limit, UDP checksum (of a GRH: overwritten by the base header).
            copy[0] |= 0x0f;
            for at in [1, 2, 3, 7, 46, 47] {
                copy[at] = 0xff;
            }
        }
    }
    let total = net_len + Bth::LEN;
    copy.get_mut(net_len..total)?.copy_from_slice(bth);
    *copy.get_mut(net_len + Bth::VARIANT_BYTE)? = 0xff;
    Some(Icrc::START.feed(copy.get(..total)?))
}

/// A received frame, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// What is below the base header.
    pub headers: Headers,
    /// The transport's part.
    pub packet: Packet<'a>,
    /// The ICRC as received.
    pub icrc: [u8; 4],
    net: &'a [u8],
    covered: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Takes a frame apart. Does not check the ICRC: see [`icrc_ok`](Self::icrc_ok). Bytes after the packet
    /// (Ethernet's padding of short frames) are ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (ethernet, network) = Ethernet::parse(bytes)?;
        let (net, body) = match ethernet.ethertype {
            ETHERTYPE_IPV4 => {
                let (ip, rest) = Ipv4::parse(network)?;
                let (udp, body) = parse_udp(ip.protocol, rest)?;
                (Net::V4(ip, udp), body)
            }
            ETHERTYPE_IPV6 => {
                let (ip, rest) = Ipv6::parse(network)?;
                let (udp, body) = parse_udp(ip.next_header, rest)?;
                (Net::V6(ip, udp), body)
            }
            ETHERTYPE_ROCE_V1 => {
                let (ip, body) = Ipv6::parse(network)?;
                if ip.next_header != Ipv6::NEXT_IBA {
                    return Err(Error::NotRoce);
                }
                (Net::Grh(ip), body)
            }
            _ => return Err(Error::NotRoce),
        };
        let (covered, icrc) = body.split_last_chunk().ok_or(Error::Truncated)?;
        let net_bytes = network.get(..net.len()).ok_or(Error::Truncated)?;
        let packet = Packet::parse(covered)?;
        Ok(Self { headers: Headers { ethernet, net }, packet, icrc: *icrc, net: net_bytes, covered })
    }

    /// What the receiver of a datagram finds before it: see [`Headers::origin`].
    #[must_use]
    pub fn origin(&self) -> [u8; Ipv6::LEN] {
        self.headers.origin(&self.packet.ext, self.packet.payload.len())
    }

    /// Whether the ICRC is right.
    #[must_use]
    pub fn icrc_ok(&self) -> bool {
        let Some((bth, rest)) = self.covered.split_first_chunk() else { return false };
        masked(&self.headers.net, self.net, bth).is_some_and(|crc| crc.feed(rest).finish() == self.icrc)
    }

    /// Writes the frame anew into the front of `out`; gives its length, or `None` if `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> Option<usize> {
        let Packet { bth, ext, payload } = &self.packet;
        self.headers.emit(bth, ext, payload.len(), out, |to| to.copy_from_slice(payload))
    }
}

/// Takes a UDP header to the RoCE port off `bytes`.
fn parse_udp(protocol: u8, bytes: &[u8]) -> Result<(Udp, &[u8]), Error> {
    if protocol != Udp::PROTOCOL {
        return Err(Error::NotRoce);
    }
    let (udp, body) = Udp::parse(bytes)?;
    if udp.dst != ROCE_PORT { Err(Error::NotRoce) } else { Ok((udp, body)) }
}
