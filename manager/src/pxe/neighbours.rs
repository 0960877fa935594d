//! The Ethernet addresses of hosts that ask by IP, from the table of ARP.

use crate::inventory::parse_mac;
use std::net::Ipv4Addr;
use verbs::MacAddr;

/// The table of Linux. `/proc/net` is not there if the unit of systemd shows processes only.
const TABLE: &str = "/proc/self/net/arp";
/// The bit of an entry whose address is known.
const COMPLETE: u32 = 2;

/// Returns the Ethernet address of a host on an interface; `None` if it is unknown, as that of a host behind
/// a router.
pub(super) fn address_of(host: Ipv4Addr, interface: &str) -> Option<MacAddr> {
    find(&std::fs::read_to_string(TABLE).ok()?, host, interface)
}

fn find(table: &str, host: Ipv4Addr, interface: &str) -> Option<MacAddr> {
    table.lines().skip(1).find_map(|line| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [ip, _, flags, address, _, device] = words[..] else { return None };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        let is_wanted = ip.parse() == Ok(host) && device == interface && flags & COMPLETE != 0;
        if is_wanted { parse_mac(address) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
IP address       HW type     Flags       HW address            Mask     Device
192.0.2.7        0x1         0x2         52:54:00:fd:00:01     *        br0
192.0.2.8        0x1         0x0         00:00:00:00:00:00     *        br0
192.0.2.9        0x1         0x2         52:54:00:fd:00:03     *        eth0
";

    #[test]
    fn complete_entries_of_the_interface() {
        let host = |last| find(TABLE, Ipv4Addr::new(192, 0, 2, last), "br0");
        assert_eq!(host(7), Some(MacAddr([0x52, 0x54, 0, 0xfd, 0, 1])));
        assert_eq!((host(8), host(9), host(10)), (None, None, None));
        assert_eq!(find("", Ipv4Addr::LOCALHOST, "lo"), None);
    }
}
