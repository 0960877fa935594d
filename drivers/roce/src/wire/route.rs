//! The headers below the base header on the path to a peer.

use super::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_ROCE_V1, Ethernet, Headers, Ipv4, Ipv6, Net, ROCE_PORT, Udp,
};
use verbs::{AddressVector, Gid, LinkKind, MacAddr};

impl Headers {
    /// Makes the headers below the base header for the path from the port with address `mac` and `gid` to a
    /// peer. Returns `None` for a link that is not Ethernet, and for GIDs of different families. RoCEv1
    /// ignores the source port.
    #[must_use]
    pub fn towards(mac: MacAddr, gid: Gid, to: &AddressVector, source_port: u16) -> Option<Self> {
        let udp = Udp { src: source_port, dst: ROCE_PORT, checksum: 0 };
        let v6 = |next_header| Ipv6 {
            traffic_class: to.traffic_class,
            flow_label: 0,
            next_header,
            hop_limit: to.hop_limit,
            src: gid.0,
            dst: to.peer.gid.0,
        };
        let (ethertype, net) = match (to.link, gid.ipv4(), to.peer.gid.ipv4()) {
            (LinkKind::RoceV2, Some(src), Some(dst)) => {
                let ip = Ipv4 {
                    tos: to.traffic_class,
                    id: 0,
                    flags_fragment: Ipv4::DONT_FRAGMENT,
                    ttl: to.hop_limit,
                    protocol: Udp::PROTOCOL,
                    src,
                    dst,
                };
                (ETHERTYPE_IPV4, Net::V4(ip, udp))
            }
            (LinkKind::RoceV2, None, None) => (ETHERTYPE_IPV6, Net::V6(v6(Udp::PROTOCOL), udp)),
            (LinkKind::RoceV1, ..) => (ETHERTYPE_ROCE_V1, Net::Grh(v6(Ipv6::NEXT_IBA))),
            (LinkKind::RoceV2 | LinkKind::InfiniBand, ..) => return None,
        };
        Some(Self { ethernet: Ethernet { dst: to.peer.mac, src: mac, ethertype }, net })
    }
}
