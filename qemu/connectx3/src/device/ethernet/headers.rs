//! The parts of a frame that the card's offloads use: VLAN tag, IP, TCP and UDP headers. Parsing accepts any
//! bytes.

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_CUSTOMER_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Offset of the Ethernet type in a frame.
pub(crate) const TYPE: usize = 12;
/// The length of a VLAN tag, in bytes.
pub(crate) const TAG: usize = 4;

/// A frame's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    /// The outermost VLAN tag.
    pub vlan: Option<Vlan>,
    /// The Ethernet type behind the tags.
    pub ethertype: Option<u16>,
    /// The IP header, if it is complete.
    pub ip: Option<Ip>,
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vlan {
    /// The kind of VLAN.
    pub kind: VlanKind,
    /// The tag control information: priority and VLAN id.
    pub tci: u16,
}

/// The kind of a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VlanKind {
    /// C-VLAN, 802.1Q.
    Customer,
    /// S-VLAN, 802.1ad.
    Service,
}

impl VlanKind {
    const fn of(ethertype: u16) -> Option<Self> {
        match ethertype {
            ETHERTYPE_CUSTOMER_VLAN => Some(Self::Customer),
            ETHERTYPE_SERVICE_VLAN => Some(Self::Service),
            _ => None,
        }
    }

    const fn ethertype(self) -> u16 {
        match self {
            Self::Customer => ETHERTYPE_CUSTOMER_VLAN,
            Self::Service => ETHERTYPE_SERVICE_VLAN,
        }
    }
}

impl Vlan {
    /// Returns the tag's bytes as they appear in a frame.
    #[must_use]
    pub(crate) fn bytes(self) -> [u8; TAG] {
        let ([a, b], [c, d]) = (self.kind.ethertype().to_be_bytes(), self.tci.to_be_bytes());
        [a, b, c, d]
    }
    /// Returns the VLAN id.
    #[must_use]
    pub(crate) const fn id(self) -> u16 {
        self.tci & 0xfff
    }
    /// Returns the priority.
    #[must_use]
    pub(crate) const fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// The version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A transport protocol that the card recognizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

/// The location and contents of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    /// The IP version.
    pub version: Version,
    /// Offset of the header in the frame.
    pub start: usize,
    /// Offset of the payload in the frame.
    pub payload: usize,
    /// Offset of the end of the packet in the frame; the rest is padding.
    pub end: usize,
    /// The payload's protocol, or that of the first extension header.
    pub protocol: u8,
    /// True for an IPv4 fragment.
    pub fragment: bool,
    /// True for an IPv4 header with options.
    pub options: bool,
}

impl Ip {
    fn parse(frame: &[u8], start: usize, ethertype: u16, length: Length) -> Option<Self> {
        let packet = frame.get(start..)?;
        let (version, header, len, protocol, fragment) = match ethertype {
            ETHERTYPE_IPV4 => {
                let header = usize::from(*packet.first()? & 0xf) * 4;
                let fragment = be16(packet, 6)? & 0x3fff != 0;
                (Version::V4, header, usize::from(be16(packet, 2)?), *packet.get(9)?, fragment)
            }
            ETHERTYPE_IPV6 => (Version::V6, 40, 40 + usize::from(be16(packet, 4)?), *packet.get(6)?, false),
            _ => return None,
        };
        let (nibble, least) = if version == Version::V4 { (4, 20) } else { (6, 40) };
        let len = match length {
            Length::AsStated => len,
            Length::Ignored => packet.len(),
        };
        let whole = packet.first()? >> 4 == nibble && header >= least && header <= len && len <= packet.len();
        whole.then_some(Self {
            version,
            start,
            payload: start + header,
            end: start + len,
            protocol,
            fragment,
            options: header > least,
        })
    }

    /// Returns the transport, TCP or UDP, if the packet contains the complete fixed header of it.
    #[must_use]
    pub(crate) const fn transport(&self) -> Option<Transport> {
        let len = self.end - self.payload;
        match self.protocol {
            6 if !self.fragment && len >= 20 => Some(Transport::Tcp),
            17 if !self.fragment && len >= 8 => Some(Transport::Udp),
            _ => None,
        }
    }

    /// Returns the source address followed by the destination address.
    #[must_use]
    pub(crate) fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let range = match self.version {
            Version::V4 => self.start + 12..self.start + 20,
            Version::V6 => self.start + 8..self.start + 40,
        };
        frame.get(range).unwrap_or_default()
    }
}

/// The handling of the length field of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// The packet has the stated length.
    AsStated,
    /// The packet fills the frame: the header is a template for segments of other lengths.
    Ignored,
}

impl Headers {
    /// Parses a frame.
    #[must_use]
    pub(crate) fn parse(frame: &[u8], length: Length) -> Self {
        let Some(mut ethertype) = be16(frame, TYPE) else { return Self::default() };
        let mut start = TYPE + 2;
        let mut vlan = None;
        // At most two tags: an S-VLAN tag, then a C-VLAN tag.
        for _ in 0..2 {
            let Some(kind) = VlanKind::of(ethertype) else { break };
            let (Some(tci), Some(inner)) = (be16(frame, start), be16(frame, start + 2)) else { break };
            vlan = vlan.or(Some(Vlan { kind, tci }));
            ethertype = inner;
            start += TAG;
        }
        Self { vlan, ethertype: Some(ethertype), ip: Ip::parse(frame, start, ethertype, length) }
    }
}

/// Returns the big-endian 16-bit word at an offset.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|word| u16::from_be_bytes(*word))
}
