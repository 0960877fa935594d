//! The settings of the command line, of configuration files and of DHCP. An unknown key is an error and is
//! not ignored.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bootconfig::{KEYS, Key, LITE, Settings, Source};

use crate::sync::IrqMutex;

/// The keys of a kernel with self-tests.
#[cfg(feature = "selftest")]
const OF_TESTS: &[Key] = &[
    Key::new("app", "with selftest=join, what the node does once it has joined: hog or panic"),
    Key::new("selftest", "run a test instead of a node: see kernel/src/selftest"),
    Key::new("selftest_s", "seconds that a test lasts"),
    Key::new("tcp_kb", "with selftest=tcp, KiB of the receive window"),
];
#[cfg(not(feature = "selftest"))]
const OF_TESTS: &[Key] = &[];

/// Returns all keys of this kernel, except those of LITE's settings.
fn keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().chain(OF_TESTS)
}

/// Returns true if there is such a key outside of LITE's settings.
fn is_own(name: &str) -> bool {
    keys().any(|key| key.name == name)
}

fn is_known(name: &str) -> bool {
    match name.strip_prefix(LITE) {
        Some(setting) => lite::SETTINGS.iter().any(|known| known.name == setting),
        None => is_own(name),
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
        for key in keys() {
            crate::println!("  {:<12} {}", key.name, key.help);
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
/// Panics if there is no such key.
pub(crate) fn get(name: &str) -> Option<&'static str> {
    assert!(is_own(name), "command line key `{name}` is not in bootconfig's KEYS");
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
