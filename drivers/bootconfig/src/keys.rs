//! The keys of the kernel command line and of configuration files.

use core::fmt;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The text in front of the `=`.
    pub name: &'static str,
    /// A description for the user.
    pub help: &'static str,
}

impl Key {
    /// Returns a key.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help }
    }
}

const fn key(name: &'static str, help: &'static str) -> Key {
    Key::new(name, help)
}

/// The keys of every kernel, except those of LITE's settings. Code of the kernel that reads a key must add it
/// here.
pub const KEYS: &[Key] = &[
    key(
        "console",
        "consoles, separated by commas: com1 to com4, spcr (the port that firmware names), vga, framebuffer, none",
    ),
    key(
        "fabric",
        "port of RDMA in software: Ethernet or PCI address, or auto (default): the second on the bus",
    ),
    key("enrol", "address:port of the manager's PXE service, which exchanges token= for the key of a node"),
    key("dns", "IPv4 or IPv6 addresses of DNS servers, separated by commas; DHCP's by default"),
    key("fabric_ip", "with perftest=, IPv4 address/prefix of the RDMA port"),
    key("gw", "IPv4 gateway of the management network"),
    key("gw6", "with ip6=ADDRESS/PREFIX, IPv6 gateway of the management network"),
    key(
        "hardware-report",
        "on: print what firmware and devices have said, and send it to the manager's log, for people who have not seen the machine",
    ),
    key("id", "this node's id: fresh (default), or keep: the id that its name had before"),
    key("ip", "IPv4 address/prefix of the management network, dhcp (default), or off"),
    key(
        "ip6",
        "IPv6 address/prefix of the management network, auto (default: what routers advertise), or off",
    ),
    key(
        "link_s",
        "seconds for which a ConnectX-3's link is waited for; by default for ever with nic=mlx4, 60 with auto",
    ),
    key("log", "least severe log level shown: off, error, warn, info (default), debug, trace"),
    key(
        "manager",
        "manager's address:port, [IPv6 address]:port or name:port, or several, separated by commas; DHCP's by default",
    ),
    key(
        "manager_key",
        "public key of the manager that enrols this node (`ferrolite key make --public`); that of the boot file counts",
    ),
    key(
        "mgmt",
        "management port: Ethernet or PCI address, mlx4/PORT (a port of the card of nic=), or auto (default): the first on the bus, or else the card's",
    ),
    key("mtu", "largest IP packet on the network of a ConnectX-3's Ethernet port, in bytes (1500)"),
    key(
        "nic",
        "RNIC to use: softroce, mlx4 (a ConnectX-3; mlx4:PCI-ADDRESS/PORT:LAYER selects one, its port, and ib or eth), or auto (default): mlx4 if there is a card",
    ),
    key("node", "this node's name"),
    key(
        "partition",
        "partition of a ConnectX-3's InfiniBand port: a number from 1 to 0x7ffe; the node waits until the subnet manager has made the port a member",
    ),
    key("perftest", "run perftest instead of a node: a program and its options, separated by commas"),
    key("probe", "probe instead of running a node; hypervisor: check the features that the kernel needs"),
    key("rdma_ip", "IPv4 address of RDMA: manager (default: the manager assigns it), ADDRESS, or dhcp"),
    key(
        "remote",
        "memory that peers can access: all that can be lent (default), arena (LITE's part; arena:MIB sets its size, half by default), or physical (all that a ConnectX-3 can address)",
    ),
    key(
        "retry",
        "what a node does that cannot join or start: on (default: it tries again, after 1 s to 60 s, or waits), or off: its machine is reset",
    ),
    key("token", "secret for one use, which the PXE service has made for this boot: see enrol="),
    key(
        "vlan",
        "VLAN of a ConnectX-3's Ethernet port, from 1 to 4094, or with a priority from 0 to 7: VLAN:PRIORITY",
    ),
    key("spin_us", "microseconds a processor polls before it halts"),
];

/// The prefix of the keys of LITE's settings. The rest of such a key is the name of a setting.
pub const LITE: &str = "lite.";

/// The reason for which a word cannot be a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadWord<'a> {
    /// The word is not `key=value`.
    NotAPair(&'a str),
    /// There is no such key.
    UnknownKey(&'a str),
}

impl fmt::Display for BadWord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPair(word) => write!(f, "`{word}` is not key=value"),
            Self::UnknownKey(key) => write!(f, "unknown key `{key}`"),
        }
    }
}

/// Returns the key of a word `key=value`. The names of LITE's settings are not checked, because only the
/// kernel knows them.
///
/// # Errors
/// If the word is not a pair, or no kernel for users knows the key.
pub fn key_of(word: &str) -> Result<&str, BadWord<'_>> {
    let (key, _) = word.split_once('=').ok_or(BadWord::NotAPair(word))?;
    match key.trim_end() {
        "" => Err(BadWord::NotAPair(word)),
        key if key.starts_with(LITE) || KEYS.iter().any(|known| known.name == key) => Ok(key),
        key => Err(BadWord::UnknownKey(key)),
    }
}
