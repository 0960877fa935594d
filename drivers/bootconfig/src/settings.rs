//! Settings of several sources, of which the first in the order of [`Source`] counts.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A source of settings. An earlier one overrides a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The command line.
    CommandLine,
    /// A file that the loader has passed.
    Initrd,
    /// The DHCP server of the management network.
    Dhcp,
    /// A partition for configuration, or the EFI system partition.
    Partition,
    /// The boot file itself.
    BuiltIn,
}

impl Source {
    /// All sources, in their order.
    pub const ALL: [Self; 5] = [Self::CommandLine, Self::Initrd, Self::Dhcp, Self::Partition, Self::BuiltIn];
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CommandLine => "command line",
            Self::Initrd => "initrd",
            Self::Dhcp => "DHCP",
            Self::Partition => "partition",
            Self::BuiltIn => "boot file",
        })
    }
}

/// A value of a key, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<'a> {
    /// The key.
    pub name: &'a str,
    /// The value.
    pub value: &'a str,
    /// The source of the value.
    pub source: Source,
}

/// A mistake in a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem<'a> {
    /// A word is not `key=value`.
    NotAPair(Source, &'a str),
    /// There is no such key.
    UnknownKey(Source, Setting<'a>),
    /// The file is not UTF-8.
    NotText(Source),
    /// The key has no effect any more when a DHCP server answers.
    NotByDhcp(Setting<'a>),
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPair(source, word) => write!(f, "{source}: `{word}` is not key=value"),
            Self::UnknownKey(source, Setting { name, value, .. }) => {
                write!(f, "{source}: unknown key `{name}` in `{name}={value}`")
            }
            Self::NotByDhcp(Setting { name, value, .. }) => {
                write!(f, "DHCP: `{name}={value}` is ignored: the key counts before DHCP")
            }
            Self::NotText(source) => write!(f, "{source}: the configuration is not UTF-8"),
        }
    }
}

/// The beginnings of words that loaders and monitors add to a command line: GRUB, pxelinux and iPXE name the
/// file that they load, pxelinux the card, and monitors their devices.
const OF_LOADERS: [&str; 4] = ["BOOT_IMAGE=", "initrd=", "BOOTIF=", "virtio_mmio.device="];

/// The keys that are read after a DHCP server has answered.
const OF_DHCP: [&str; 3] = ["manager", "node", "dns"];

/// The keys whose values are not printed.
const SECRETS: [&str; 1] = ["token"];

/// Returns true for a word that a loader has added. The first word of a line may be the name of the program
/// itself: EFI's shell passes it.
fn is_of_loader(word: &str, is_first: bool) -> bool {
    let is_name = is_first && !word.contains('=') && word.to_ascii_lowercase().ends_with(".efi");
    is_name || OF_LOADERS.iter().any(|begin| word.starts_with(begin))
}

/// The settings of all sources.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    is_known: fn(&str) -> bool,
    /// All values: the last one of each key and source.
    values: Vec<Setting<'a>>,
    problems: Vec<Problem<'a>>,
    of_loaders: Vec<&'a str>,
}

impl<'a> Settings<'a> {
    /// Returns settings without values. `is_known` tells whether a key exists.
    #[must_use]
    pub const fn new(is_known: fn(&str) -> bool) -> Self {
        Self { is_known, values: Vec::new(), problems: Vec::new(), of_loaders: Vec::new() }
    }

    /// Adds the words of a command line, which are separated by blanks.
    pub fn add_line(&mut self, line: &'a str) {
        for (index, word) in line.split_ascii_whitespace().enumerate() {
            if is_of_loader(word, index == 0) {
                self.of_loaders.push(word);
            } else {
                self.add_pair(Source::CommandLine, word);
            }
        }
    }

    /// Adds the lines of a file. Empty lines and lines that begin with `#` are left out. Zeros at the end are
    /// padding.
    pub fn add_file(&mut self, source: Source, bytes: &'a [u8]) {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let Ok(text) = core::str::from_utf8(bytes.get(..end).unwrap_or_default()) else {
            self.problems.push(Problem::NotText(source));
            return;
        };
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            self.add_pair(source, line);
        }
    }

    fn add_pair(&mut self, source: Source, word: &'a str) {
        match word.split_once('=') {
            None => self.problems.push(Problem::NotAPair(source, word)),
            Some((name, value)) => {
                self.add(Setting { name: name.trim_end(), value: value.trim_start(), source });
            }
        }
    }

    /// Replaces the values of DHCP by the words of `line`. Returns the words that are mistakes.
    pub fn set_dhcp(&mut self, line: &'a str) -> Vec<Problem<'a>> {
        let source = Source::Dhcp;
        self.values.retain(|setting| setting.source != source);
        let mut problems = Vec::new();
        for word in line.split_ascii_whitespace() {
            let Some((name, value)) = word.split_once('=') else {
                problems.push(Problem::NotAPair(source, word));
                continue;
            };
            let setting = Setting { name, value, source };
            if OF_DHCP.contains(&name) {
                self.add(setting);
            } else if (self.is_known)(name) {
                problems.push(Problem::NotByDhcp(setting));
            } else {
                problems.push(Problem::UnknownKey(source, setting));
            }
        }
        problems
    }

    /// Adds a value. Within a source the last value of a key counts.
    pub fn add(&mut self, setting: Setting<'a>) {
        if !(self.is_known)(setting.name) {
            self.problems.push(Problem::UnknownKey(setting.source, setting));
            return;
        }
        let is_same = |other: &&mut Setting<'_>| (other.name, other.source) == (setting.name, setting.source);
        match self.values.iter_mut().find(is_same) {
            Some(earlier) => *earlier = setting,
            None => self.values.push(setting),
        }
    }

    /// Returns the value of `name` that counts, and its source.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Setting<'a>> {
        let values = self.values.iter().filter(|setting| setting.name == name);
        values.min_by_key(|setting| setting.source).copied()
    }

    /// Returns the values that count, or those that another source overrides, of one source.
    pub fn of(&self, source: Source, counts: bool) -> impl Iterator<Item = Setting<'a>> + '_ {
        let values = self.values.iter().filter(move |setting| setting.source == source).copied();
        values.filter(move |setting| (self.get(setting.name) == Some(*setting)) == counts)
    }

    /// Returns the lines for the console on one source: its values that count, and those that another source
    /// overrides. The values of secrets are left out.
    pub fn lines(&self, source: Source) -> impl Iterator<Item = String> + '_ {
        [true, false].into_iter().filter_map(move |counts| line(source, counts, self.of(source, counts)))
    }

    /// Returns the lines for the console on the values that DHCP overrides.
    pub fn lines_overridden_by_dhcp(&self) -> impl Iterator<Item = String> + '_ {
        let behind = Source::ALL.into_iter().filter(|source| *source > Source::Dhcp);
        behind.filter_map(|source| {
            let is_by_dhcp = |name| self.get(name).is_some_and(|setting| setting.source == Source::Dhcp);
            line(source, false, self.of(source, false).filter(|setting| is_by_dhcp(setting.name)))
        })
    }

    /// Returns the values that count.
    pub fn iter(&self) -> impl Iterator<Item = Setting<'a>> + '_ {
        self.values.iter().copied().filter(|setting| self.get(setting.name) == Some(*setting))
    }

    /// Returns the mistakes in the sources.
    #[must_use]
    pub fn problems(&self) -> &[Problem<'a>] {
        &self.problems
    }

    /// Returns the words of the command line that loaders have added, and that nobody reads.
    #[must_use]
    pub fn of_loaders(&self) -> &[&'a str] {
        &self.of_loaders
    }
}

/// Returns the line on values of a source, or `None` if there are none.
fn line<'a>(source: Source, counts: bool, settings: impl Iterator<Item = Setting<'a>>) -> Option<String> {
    let pair = |setting: Setting<'_>| {
        let value = if SECRETS.contains(&setting.name) { "(secret)" } else { setting.value };
        format!(" {}={value}", setting.name)
    };
    let pairs: String = settings.map(pair).collect();
    let what = if counts { "" } else { ", overridden" };
    (!pairs.is_empty()).then(|| format!("settings by {source}{what}:{pairs}"))
}
