//! A node's reports on itself: counters, and lines of its log.

use crate::{NodeId, Reason, check_text};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The counters of a node that have changed since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telemetry {
    /// The time since the node's start, in microseconds.
    pub uptime_us: u64,
    /// The names of all counters. Empty if the manager has them already: the first report on a connection
    /// has them.
    pub names: Vec<String>,
    /// The counters that have changed: index in the names, and value.
    pub values: Vec<(u16, u64)>,
    /// The peers to which the node has posted work requests since the last report, and the number of all
    /// work requests to them. Requests on a connection that came and went between two reports are missing.
    pub peers: Vec<(NodeId, u64)>,
    /// The number of all lines of the log that the node has dropped.
    pub log_dropped: u64,
}

impl Telemetry {
    /// The maximum number of counters of a node.
    pub const MAX_COUNTERS: usize = 256;
    /// The maximum length of a counter's name, in bytes.
    pub const MAX_NAME: usize = 48;
    /// The maximum length of the lines of the log in one message, in bytes.
    pub const MAX_LOG: usize = 16 << 10;

    /// Checks the lengths of a report, and that its names consist of lower-case letters, digits and `_`.
    ///
    /// # Errors
    /// A reason for users.
    pub fn check(&self) -> Result<(), Reason> {
        let most = Self::MAX_COUNTERS;
        if self.names.len() > most || self.values.len() > most {
            return Err(format!("it has more than {most} counters"));
        }
        for name in &self.names {
            check_text("the name of a counter", name, Self::MAX_NAME)?;
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(plain) {
                return Err(format!("{name:?} is no name of a counter"));
            }
        }
        Ok(())
    }
}

/// The severity of a line of a log. The order is from the most severe on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something has failed.
    Error,
    /// Something is wrong, and work goes on.
    Warn,
    /// A normal event.
    Info,
    /// A detail.
    Debug,
}

impl Severity {
    /// Returns the word for people and programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// A line of a node's log, as a node sends it: `I 1234567 text` with the first letter of the severity and the
/// time since the node's start in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    /// The severity.
    pub severity: Severity,
    /// The time since the node's start, in microseconds.
    pub at_us: u64,
    /// The text, which has not been checked.
    pub text: &'a str,
}

impl<'a> LogLine<'a> {
    /// Parses a line without its end. Returns `None` if it is malformed.
    #[must_use]
    pub fn parse(line: &'a str) -> Option<Self> {
        let (severity, rest) = line.split_once(' ')?;
        let (at, text) = rest.split_once(' ')?;
        let severity = match severity {
            "E" => Severity::Error,
            "W" => Severity::Warn,
            "I" => Severity::Info,
            "D" | "T" => Severity::Debug,
            _ => return None,
        };
        Some(Self { severity, at_us: at.parse().ok()?, text })
    }

    /// Returns the lines of a [message](crate::ToManager::Log), without those that are malformed.
    pub fn all(text: &'a [u8]) -> impl Iterator<Item = Self> {
        let lines = text.split(|byte| *byte == b'\n');
        lines.filter_map(|line| Self::parse(core::str::from_utf8(line).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn lines_are_parsed_and_bad_ones_left_out() {
        let text = b"I 5 lite: up\nX 1 no severity\nE 18446744073709551615 \xff\nW 7 \nE x y\nD 9 a b";
        let lines: Vec<_> = LogLine::all(text).map(|line| (line.severity, line.at_us, line.text)).collect();
        assert_eq!(
            lines,
            [(Severity::Info, 5, "lite: up"), (Severity::Warn, 7, ""), (Severity::Debug, 9, "a b")]
        );
    }

    #[test]
    fn a_report_that_is_too_long_or_has_strange_names_is_refused() {
        let named = |name: &str| Telemetry { names: vec![name.into()], ..Telemetry::default() };
        assert_eq!(named("lite_reads").check(), Ok(()));
        for name in ["", "9a", "A", "a-b", "a\"b", "a\n", &"a".repeat(49)] {
            assert!(named(name).check().is_err(), "{name:?}");
        }
        let values = vec![(0, 0); Telemetry::MAX_COUNTERS + 1];
        assert!(Telemetry { values, ..Telemetry::default() }.check().is_err());
    }
}
