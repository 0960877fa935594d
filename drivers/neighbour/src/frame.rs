//! Frames: their classification, and ARP and neighbour discovery packets, parsed and emitted.

use crate::router;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use verbs::MacAddr;

/// The length of the longest frame that the resolver emits: Ethernet, IPv6, neighbour solicitation with one
/// option.
pub const FRAME_MAX: usize = 14 + 40 + 32;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ROCE_V1: u16 = 0x8915;
const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
const ROCE_V2_PORT: u16 = 4791;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The group of all nodes on the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const BROADCAST: MacAddr = MacAddr([0xff; 6]);

/// The receiver of a frame within the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// The software RNIC: Ethertype 0x8915, or UDP port 4791 over IPv4 or IPv6 (first fragments included).
    Roce,
    /// The resolver.
    Neighbour,
    /// The host's own stack.
    Host,
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn mac_at(bytes: &[u8], at: usize) -> Option<MacAddr> {
    Some(MacAddr(bytes.get(at..at + 6)?.try_into().ok()?))
}

fn v4_at(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(IpAddr::V4(octets.into()))
}

pub(crate) fn v6_at(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(octets.into())
}

/// Classifies a frame by its first bytes. A frame that is too short belongs to the host, whose stack drops
/// it.
#[must_use]
pub fn classify(frame: &[u8]) -> Traffic {
    try_classify(frame).unwrap_or(Traffic::Host)
}

fn try_classify(frame: &[u8]) -> Option<Traffic> {
    Some(match u16_at(frame, 12)? {
        ETHERTYPE_ROCE_V1 => Traffic::Roce,
        ETHERTYPE_ARP => Traffic::Neighbour,
        ETHERTYPE_IPV4 => {
            let header = usize::from(frame.get(14)? & 0xf) * 4;
            let offset = u16_at(frame, 20)? & 0x1fff;
            let udp = *frame.get(23)? == UDP && offset == 0;
            if udp && u16_at(frame, 14 + header + 2)? == ROCE_V2_PORT { Traffic::Roce } else { Traffic::Host }
        }
        ETHERTYPE_IPV6 => match *frame.get(20)? {
            UDP if u16_at(frame, 56)? == ROCE_V2_PORT => Traffic::Roce,
            ICMPV6 if is_discovery(*frame.get(54)?) => Traffic::Neighbour,
            _ => Traffic::Host,
        },
        _ => Traffic::Host,
    })
}

/// Returns true for the kinds of messages that the resolver handles: about neighbours, or of routers.
const fn is_discovery(kind: u8) -> bool {
    matches!(kind, SOLICITATION | ADVERTISEMENT | router::ADVERTISEMENT)
}

/// The contents of an ARP or neighbour discovery frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// True for a query (ARP request, solicitation), false for a reply or an advertisement.
    pub request: bool,
    /// The sender's IP address; `None` if unspecified (a probe for duplicates).
    pub sender: Option<IpAddr>,
    /// The sender's Ethernet address: that of `sender` in a query, of `target` in an advertisement.
    pub mac: Option<MacAddr>,
    /// The address that is queried or advertised (in an ARP reply: the receiver's).
    pub target: IpAddr,
}

impl Neighbour {
    /// Parses an ARP packet for IPv4 over Ethernet, or a neighbour solicitation or advertisement with a hop
    /// limit of 255 and a right checksum. Returns `None` for anything else, however malformed.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        match u16_at(frame, 12)? {
            ETHERTYPE_ARP => Self::parse_arp(frame.get(14..)?),
            ETHERTYPE_IPV6 => Self::parse_nd(frame.get(14..)?),
            _ => None,
        }
    }

    fn parse_arp(p: &[u8]) -> Option<Self> {
        // Hardware type Ethernet, protocol IPv4, lengths 6 and 4.
        if p.get(..6)? != [0, 1, 8, 0, 6, 4] {
            return None;
        }
        let request = match u16_at(p, 6)? {
            1 => true,
            2 => false,
            _ => return None,
        };
        let sender = v4_at(p, 14)?;
        Some(Self {
            request,
            sender: (!sender.is_unspecified()).then_some(sender),
            mac: unicast(mac_at(p, 8)?),
            target: v4_at(p, 24)?,
        })
    }

    fn parse_nd(p: &[u8]) -> Option<Self> {
        let len = usize::from(u16_at(p, 4)?);
        if p.first()? >> 4 != 6 || *p.get(6)? != ICMPV6 || *p.get(7)? != 255 {
            return None;
        }
        let (source, destination) = (v6_at(p, 8)?, v6_at(p, 24)?);
        let body = p.get(40..)?.get(..len)?;
        let request = match *body.first()? {
            SOLICITATION => true,
            ADVERTISEMENT => false,
            _ => return None,
        };
        let target = v6_at(body, 8)?;
        if *body.get(1)? != 0 || checksum(source, destination, body) != 0 || target.is_multicast() {
            return None;
        }
        let wanted = if request { 1 } else { 2 };
        let mut mac = None;
        let mut rest = body.get(24..)?;
        while let [kind, units, ..] = *rest {
            let option = rest.get(..usize::from(units) * 8).filter(|o| !o.is_empty())?;
            if kind == wanted && units == 1 {
                mac = unicast(mac_at(option, 2)?);
            }
            rest = &rest[option.len()..];
        }
        let sender = (!source.is_unspecified()).then_some(IpAddr::V6(source));
        Some(Self { request, sender, mac, target: IpAddr::V6(target) })
    }
}

fn unicast(mac: MacAddr) -> Option<MacAddr> {
    (mac.0[0] & 1 == 0 && mac.0 != [0; 6]).then_some(mac)
}

/// Returns the Internet checksum of an `ICMPv6` message with its pseudo-header, which is 0 over a message
/// with a right checksum.
pub(crate) fn checksum(source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        bytes.chunks(2).map(|c| (u32::from(c[0]) << 8) + c.get(1).copied().map_or(0, u32::from)).sum()
    };
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut sum =
        words(&source.octets()) + words(&destination.octets()) + len + u32::from(ICMPV6) + words(body);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// A writer that drops bytes beyond the end of `out`; the frames here are at most [`FRAME_MAX`] long.
pub(crate) struct Writer<'a> {
    pub(crate) out: &'a mut [u8],
    pub(crate) len: usize,
}

impl Writer<'_> {
    pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        if let Some(room) = self.out.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.len += bytes.len();
        self
    }
}

/// A query or an answer to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outgoing {
    /// A query for the Ethernet address of `target`, to the group, or to `to` if an entry is confirmed.
    Ask { me: IpAddr, target: IpAddr, to: Option<MacAddr> },
    /// A probe for another node with the address `target` (RFC 4862, 5.4.2).
    Probe { target: Ipv6Addr },
    /// The answer that `target` is this port's. `to` is the querying address, or `None` for a probe for
    /// duplicates.
    Tell { target: IpAddr, to: Option<IpAddr>, mac: MacAddr },
}

/// Writes an ARP reply that says `ip` is at `mac`, as `asker` would have received it. Returns its length.
/// `out` must have at least [`FRAME_MAX`] bytes.
pub fn arp_reply(out: &mut [u8], ip: Ipv4Addr, mac: MacAddr, asker_ip: Ipv4Addr, asker: MacAddr) -> usize {
    arp(out, 2, (mac, ip), (asker, asker_ip), asker)
}

/// Writes an advertisement to all nodes that says `ip` is at `mac`. Returns its length. `out` must have at
/// least [`FRAME_MAX`] bytes.
pub fn advertisement(out: &mut [u8], ip: Ipv6Addr, mac: MacAddr) -> usize {
    const OVERRIDE: u8 = 0x20;
    discovery(out, (mac, ip), (multicast(ALL_NODES), ALL_NODES), ADVERTISEMENT, OVERRIDE, ip)
}

fn arp(
    out: &mut [u8],
    operation: u8,
    sender: (MacAddr, Ipv4Addr),
    target: (MacAddr, Ipv4Addr),
    to: MacAddr,
) -> usize {
    let mut w = Writer { out, len: 0 };
    w.put(&to.0).put(&sender.0.0).put(&ETHERTYPE_ARP.to_be_bytes());
    w.put(&[0, 1, 8, 0, 6, 4, 0, operation]);
    w.put(&sender.0.0).put(&sender.1.octets()).put(&target.0.0).put(&target.1.octets());
    w.len
}

impl Outgoing {
    /// Writes the frame, with the source `mac`, into `out` (at least [`FRAME_MAX`] bytes). Returns its
    /// length, or 0 if the two addresses are of different families.
    pub(crate) fn emit(self, mac: MacAddr, out: &mut [u8]) -> usize {
        match self {
            Self::Ask { me: IpAddr::V4(me), target: IpAddr::V4(target), to } => {
                arp(out, 1, (mac, me), (MacAddr([0; 6]), target), to.unwrap_or(BROADCAST))
            }
            Self::Tell { target: IpAddr::V4(target), to, mac: asker } => {
                let to = if let Some(IpAddr::V4(ip)) = to { ip } else { Ipv4Addr::UNSPECIFIED };
                arp_reply(out, target, mac, to, asker)
            }
            Self::Ask { me: IpAddr::V6(me), target: IpAddr::V6(target), to } => {
                let group = solicited_group(target);
                let (ip, to) = match to {
                    Some(to) => (target, to),
                    None => (group, multicast(group)),
                };
                discovery(out, (mac, me), (to, ip), SOLICITATION, 0, target)
            }
            Self::Probe { target } => {
                let group = solicited_group(target);
                discovery(
                    out,
                    (mac, Ipv6Addr::UNSPECIFIED),
                    (multicast(group), group),
                    SOLICITATION,
                    0,
                    target,
                )
            }
            Self::Tell { target: IpAddr::V6(target), to, mac: asker } => {
                // Solicited and override flags; to a probe, unsolicited and to all nodes.
                let (ip, to, flags) = match to {
                    Some(IpAddr::V6(ip)) => (ip, asker, 0x60),
                    _ => (ALL_NODES, multicast(ALL_NODES), 0x20),
                };
                discovery(out, (mac, target), (to, ip), ADVERTISEMENT, flags, target)
            }
            Self::Ask { .. } => 0,
        }
    }
}

/// Returns the group of the solicitations for an address (RFC 4291, 2.7.1).
fn solicited_group(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// Returns the Ethernet groups of a port with the address `ip`: that of all nodes, and that of solicitations
/// for the address.
#[must_use]
pub fn groups(ip: Ipv6Addr) -> [MacAddr; 2] {
    [multicast(ALL_NODES), multicast(solicited_group(ip))]
}

/// Returns the Ethernet group of an IPv6 group (RFC 2464).
pub(crate) fn multicast(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

fn discovery(
    out: &mut [u8],
    from: (MacAddr, Ipv6Addr),
    to: (MacAddr, Ipv6Addr),
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
) -> usize {
    let mut body = [0u8; 32];
    body[0] = kind;
    body[4] = flags;
    body[8..24].copy_from_slice(&target.octets());
    body[24] = if kind == SOLICITATION { 1 } else { 2 };
    body[25] = 1;
    body[26..].copy_from_slice(&from.0.0);
    // A message from no address has no option with the sender's Ethernet address (RFC 4861, 4.3).
    let len: u8 = if from.1.is_unspecified() { 24 } else { 32 };
    let body = &mut body[..usize::from(len)];
    let sum = checksum(from.1, to.1, body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut w = Writer { out, len: 0 };
    w.put(&to.0.0).put(&from.0.0).put(&ETHERTYPE_IPV6.to_be_bytes());
    w.put(&[0x60, 0, 0, 0, 0, len, ICMPV6, 255]).put(&from.1.octets()).put(&to.1.octets()).put(body);
    w.len
}
