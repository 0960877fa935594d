//! The choice of a port's GID.

use crate::config::Options;
use crate::sysfs::GidEntry;
use std::net::{IpAddr, Ipv6Addr};
use verbs::{Gid, LinkKind};

/// A GID, and its index in the port's table for each frame format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The GID.
    pub gid: Gid,
    /// The network interface of the GID.
    pub netdev: Option<String>,
    /// The index for RoCE v2.
    pub v2: Option<u8>,
    /// The index for RoCE v1.
    pub v1: Option<u8>,
}

impl Source {
    /// Returns the index for a frame format of Ethernet.
    pub(crate) fn index(&self, link: LinkKind) -> Option<u8> {
        match link {
            LinkKind::RoceV2 => self.v2,
            LinkKind::RoceV1 => self.v1,
            LinkKind::InfiniBand => None,
        }
    }

    /// Returns the frame formats for which the port has an index of this GID, best first.
    pub(crate) fn links(&self) -> &'static [LinkKind] {
        match (self.v2, self.v1) {
            (Some(_), Some(_)) => &[LinkKind::RoceV2, LinkKind::RoceV1],
            (Some(_), None) => &[LinkKind::RoceV2],
            (None, Some(_)) => &[LinkKind::RoceV1],
            (None, None) => &[],
        }
    }
}

/// Returns the best of the GIDs that the options allow: RoCE v2 before v1, IPv4 before IPv6, and link-local
/// addresses last.
pub(crate) fn choose(table: &[GidEntry], options: &Options) -> Option<Source> {
    let wanted = options.address.map(gid_of);
    let fits = |entry: &&GidEntry| {
        wanted.is_none_or(|gid| entry.gid == gid)
            && options.netdev.as_ref().is_none_or(|name| entry.netdev.as_ref() == Some(name))
    };
    let rank = |entry: &&GidEntry| {
        let ip = Ipv6Addr::from(entry.gid.0);
        (entry.link, ip.is_unicast_link_local(), entry.gid.ipv4().is_none(), entry.index)
    };
    let best = table.iter().filter(fits).min_by_key(rank)?;
    let same = |link| {
        table.iter().find(|e| e.gid == best.gid && e.netdev == best.netdev && e.link == link).map(|e| e.index)
    };
    Some(Source {
        gid: best.gid,
        netdev: best.netdev.clone(),
        v2: same(LinkKind::RoceV2),
        v1: same(LinkKind::RoceV1),
    })
}

/// Returns the GID that the kernel derives from an IP address.
fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(ip) => Gid::from_ipv4(ip.octets()),
        IpAddr::V6(ip) => Gid(ip.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, ip: &str, link: LinkKind, netdev: &str) -> GidEntry {
        let gid = gid_of(ip.parse().unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)));
        GidEntry { index, gid, link, netdev: Some(netdev.into()) }
    }

    fn table() -> Vec<GidEntry> {
        vec![
            entry(0, "fe80::1", LinkKind::RoceV1, "eth0"),
            entry(1, "fe80::1", LinkKind::RoceV2, "eth0"),
            entry(2, "fd00::1", LinkKind::RoceV2, "eth0"),
            entry(3, "10.0.0.1", LinkKind::RoceV1, "eth0"),
            entry(4, "10.0.0.1", LinkKind::RoceV2, "eth0"),
            entry(5, "10.9.0.1", LinkKind::RoceV2, "vlan7"),
        ]
    }

    fn chosen(change: impl FnOnce(&mut Options)) -> Option<(Option<u8>, Option<u8>)> {
        let mut options = Options::new(0);
        change(&mut options);
        choose(&table(), &options).map(|s| (s.v2, s.v1))
    }

    #[test]
    fn the_first_ipv4_address_for_both_formats() {
        assert_eq!(chosen(|_| ()), Some((Some(4), Some(3))));
        let source = choose(&table(), &Options::new(0));
        assert_eq!(source.as_ref().map(Source::links), Some(&[LinkKind::RoceV2, LinkKind::RoceV1][..]));
        assert_eq!(source.and_then(|s| s.index(LinkKind::RoceV1)), Some(3));
    }

    #[test]
    fn the_requested_address_or_none() {
        assert_eq!(chosen(|o| o.netdev = Some("vlan7".into())), Some((Some(5), None)));
        assert_eq!(chosen(|o| o.address = "fd00::1".parse().ok()), Some((Some(2), None)));
        assert_eq!(chosen(|o| o.address = "fe80::1".parse().ok()), Some((Some(1), Some(0))));
        assert_eq!(chosen(|o| o.address = "10.0.0.2".parse().ok()), None);
        assert_eq!(chosen(|o| o.netdev = Some("eth1".into())), None);
        assert_eq!(choose(&[], &Options::new(0)), None);
    }
}
