//! The keys of the kernel command line and of configuration files, and their values. An unknown key
//! is an error and is not ignored.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bootconfig::{Settings, Source};

use crate::sync::IrqMutex;

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

static SETTINGS: IrqMutex<Settings<'static>> = IrqMutex::new(Settings::new(is_known));

/// Stores the command line.
pub(crate) fn add_line(line: &'static str) {
    SETTINGS.lock().add_line(line);
}

/// Stores the settings of a file.
pub(crate) fn add_file(source: Source, bytes: &'static [u8]) {
    SETTINGS.lock().add_file(source, bytes);
}

/// Prints the settings of each source, and the errors on the console. Returns the number of errors.
pub(crate) fn report() -> usize {
    let settings = SETTINGS.lock().clone();
    for source in Source::ALL {
        for (counts, what) in [(true, ""), (false, ", overridden")] {
            let line: String = settings
                .of(source, counts)
                .map(|setting| format!(" {}={}", setting.name, setting.value))
                .collect();
            if !line.is_empty() {
                log::info!("settings by {source}{what}:{line}");
            }
        }
    }
    for word in settings.of_loaders() {
        log::info!("command line: `{word}` of a loader is ignored");
    }
    let problems = settings.problems();
    for problem in problems {
        log::error!("{problem}");
    }
    if !problems.is_empty() {
        for k in KEYS {
            crate::println!("  {:<12} {}", k.name, k.help);
        }
        for setting in lite::SETTINGS {
            crate::println!("  {LITE}{:<15} {}: {}", setting.name, setting.help, setting.wanted());
        }
    }
    problems.len()
}

/// Returns the value of `name` that counts.
///
/// # Panics
/// Panics if `name` is not one of [`KEYS`].
pub(crate) fn get(name: &str) -> Option<&'static str> {
    assert!(KEYS.iter().any(|k| k.name == name), "command line key `{name}` is not in KEYS");
    SETTINGS.lock().get(name).map(|setting| setting.value)
}

/// Returns LITE's settings: the name without [`LITE`], and the value.
pub(crate) fn lite_settings() -> Vec<(&'static str, &'static str)> {
    let settings = SETTINGS.lock();
    settings.iter().filter_map(|setting| Some((setting.name.strip_prefix(LITE)?, setting.value))).collect()
}

/// Returns the value of `name` as a number, or `default` if the key is absent. Reports a value that is not a
/// number, and returns `default`.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    match get(name) {
        None => default,
        Some(v) => v.parse().unwrap_or_else(|_| {
            log::error!("`{name}={v}` is not a number; using {default}");
            default
        }),
    }
}
