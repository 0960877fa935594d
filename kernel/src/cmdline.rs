//! The kernel command line: `key=value` pairs separated by blanks. An unknown key is an error and is not
//! ignored.

use spin::Once;

/// A key of the command line.
pub(crate) struct Key {
    pub name: &'static str,
    /// A description for the user.
    pub help: &'static str,
}

const fn key(name: &'static str, help: &'static str) -> Key {
    Key { name, help }
}

/// All keys. Code that reads a key must add it here.
pub(crate) const KEYS: &[Key] = &[
    #[cfg(feature = "selftest")]
    key("app", "with selftest=join, what the node does once it has joined: hog or panic"),
    key(
        "fabric",
        "port of RDMA in software: Ethernet or PCI address, or auto (default): the second on the bus",
    ),
    key("fabric_ip", "with perftest=, IPv4 address/prefix of the RDMA port"),
    key("gw", "IPv4 gateway of the management network"),
    key("id", "this node's id: fresh (default), or keep: the id that its name had before"),
    key("ip", "IPv4 address/prefix of the management network, or dhcp (default)"),
    key("log", "least severe log level shown: off, error, warn, info (default), debug, trace"),
    key("manager", "manager's address:port"),
    key(
        "mgmt",
        "management port: Ethernet or PCI address, or auto (default): the first on the bus, or else the card's",
    ),
    key(
        "nic",
        "RNIC to use: softroce, mlx4 (a ConnectX-3; mlx4:PCI-ADDRESS/PORT selects one), or auto (default): mlx4 if there is a card",
    ),
    key("node", "this node's name"),
    key("perftest", "run perftest instead of a node: a program and its options, separated by commas"),
    key("probe", "probe instead of running a node; hypervisor: check the features that the kernel needs"),
    key(
        "remote",
        "memory that peers can access: all that can be lent (default), arena (LITE's part; arena:MIB sets its size, half by default), or physical (all that a ConnectX-3 can address)",
    ),
    #[cfg(feature = "selftest")]
    key("selftest", "run a test instead of a node: see kernel/src/selftest"),
    #[cfg(feature = "selftest")]
    key("selftest_s", "seconds that a test lasts"),
    #[cfg(feature = "selftest")]
    key("tcp_kb", "with selftest=tcp, KiB of the receive window"),
    key("spin_us", "microseconds a processor polls before it halts"),
];

/// The prefix of the keys of LITE's settings; the rest of such a key is a name in [`lite::SETTINGS`].
pub(crate) const LITE: &str = "lite.";

fn is_known(name: &str) -> bool {
    match name.strip_prefix(LITE) {
        Some(setting) => lite::SETTINGS.iter().any(|known| known.name == setting),
        None => KEYS.iter().any(|k| k.name == name),
    }
}

static CMDLINE: Once<&'static str> = Once::new();

/// Stores the command line and prints its errors on the console. Returns the number of errors.
pub(crate) fn init(line: &'static str) -> usize {
    CMDLINE.call_once(|| line);
    let mut errors = 0;
    for word in line.split_ascii_whitespace() {
        match word.split_once('=') {
            None => {
                errors += 1;
                log::error!("command line: `{word}` is not key=value");
            }
            Some((name, _)) if !is_known(name) => {
                errors += 1;
                log::error!("command line: unknown key `{name}` in `{word}`");
            }
            Some(_) => {}
        }
    }
    if errors > 0 {
        for k in KEYS {
            crate::println!("  {:<12} {}", k.name, k.help);
        }
        for setting in lite::SETTINGS {
            crate::println!("  {LITE}{:<15} {}: {}", setting.name, setting.help, setting.wanted());
        }
    }
    errors
}

/// Returns the value of `name`, the last one if it occurs more than once.
///
/// # Panics
/// Panics if `name` is not one of [`KEYS`].
pub(crate) fn get(name: &str) -> Option<&'static str> {
    assert!(KEYS.iter().any(|k| k.name == name), "command line key `{name}` is not in KEYS");
    find(CMDLINE.get().copied().unwrap_or(""), name)
}

/// Returns the value of `name` on a line that is not stored yet; see [`get`].
pub(crate) fn find<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace()
        .rev()
        .filter_map(|w| w.split_once('='))
        .find(|(k, _)| *k == name)
        .map(|(_, v)| v)
}

/// Returns LITE's settings on the command line, in order: the name without [`LITE`], and the value.
pub(crate) fn lite_settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    let line = CMDLINE.get().copied().unwrap_or("");
    line.split_ascii_whitespace().filter_map(|word| word.strip_prefix(LITE)?.split_once('='))
}

/// Returns the value of `name` as a number, or `default` if the key is absent. Reports a value that is not a
/// number, and returns `default`.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    match get(name) {
        None => default,
        Some(v) => v.parse().unwrap_or_else(|_| {
            log::error!("command line: `{name}={v}` is not a number; using {default}");
            default
        }),
    }
}
