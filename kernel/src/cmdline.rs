//! The keys of the kernel command line and of configuration files, and their values. An unknown key
//! is an error and is not ignored.

use alloc::boxed::Box;
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
    #[cfg(feature = "selftest")]
    key("selftest", "run a test instead of a node: see kernel/src/selftest"),
    #[cfg(feature = "selftest")]
    key("selftest_s", "seconds that a test lasts"),
    #[cfg(feature = "selftest")]
    key("tcp_kb", "with selftest=tcp, KiB of the receive window"),
    key("token", "secret for one use, which the PXE service has made for this boot: see enrol="),
    key(
        "vlan",
        "VLAN of a ConnectX-3's Ethernet port, from 1 to 4094, or with a priority from 0 to 7: VLAN:PRIORITY",
    ),
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

/// Replaces the settings of DHCP, and prints them, if they are others than before.
pub(crate) fn set_dhcp(line: &[u8]) {
    static BEFORE: IrqMutex<&str> = IrqMutex::new("");
    let Ok(line) = core::str::from_utf8(line) else {
        log::warn!("DHCP: the settings are not UTF-8, and are ignored");
        return;
    };
    if *BEFORE.lock() == line {
        return;
    }
    // The settings last as long as the kernel. A server that changes them does so a few times a day at most.
    let line: &'static str = Box::leak(Box::from(line));
    *BEFORE.lock() = line;
    let problems = SETTINGS.lock().set_dhcp(line);
    problems.iter().for_each(|problem| log::warn!("{problem}"));
    let settings = SETTINGS.lock().clone();
    let lines = settings.lines(Source::Dhcp).chain(settings.lines_overridden_by_dhcp());
    lines.for_each(|line| log::info!("{line}"));
}

/// Prints the settings of each source, and the errors on the console. Returns the errors.
pub(crate) fn report() -> Vec<String> {
    let settings = SETTINGS.lock().clone();
    let lines = Source::ALL.into_iter().flat_map(|source| settings.lines(source));
    lines.for_each(|line| log::info!("{line}"));
    for word in settings.of_loaders() {
        log::info!("command line: `{word}` of a loader is ignored");
    }
    let problems = settings.problems();
    let problems: Vec<_> = problems.iter().map(|problem| format!("{problem}")).collect();
    for problem in &problems {
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
    problems
}

/// Returns the value of `name` that counts.
///
/// # Panics
/// Panics if `name` is not one of [`KEYS`].
pub(crate) fn get(name: &str) -> Option<&'static str> {
    assert!(KEYS.iter().any(|k| k.name == name), "command line key `{name}` is not in KEYS");
    SETTINGS.lock().get(name).map(|setting| setting.value)
}

/// Returns the value of `name` in one source, whether it counts or not.
pub(crate) fn of_source(name: &str, source: Source) -> Option<&'static str> {
    let settings = SETTINGS.lock();
    let mut values = [true, false].into_iter().flat_map(|counts| settings.of(source, counts));
    values.find(|setting| setting.name == name).map(|setting| setting.value)
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
