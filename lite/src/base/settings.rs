//! [`Config`] by name and text, as operators write it on the command line of an appliance or of a Linux
//! node.

use super::config::{MOST_CORES, MOST_SLOTS};
use super::qos::Scheme;
use crate::Config;
use Form::{Bytes, Number, Pools, Schemes, Time, TimeOrNever};
use alloc::string::{String, ToString};
use core::ops::RangeInclusive;
use core::time::Duration;
use platform::{TIME_UNITS, parse_time};

/// The longest time that a setting accepts, which is the longest that Linux counts of a silent connection.
const LONGEST: Duration = Duration::from_secs(24 * 86_400);
const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const MICROSECOND: Duration = Duration::from_micros(1);

/// A setting: one of [`Config`]'s sizes and times, with its name.
pub struct Setting {
    /// The name: lower-case letters and hyphens.
    pub name: &'static str,
    /// The meaning, for people: one line.
    pub help: &'static str,
    form: Form,
}

/// The syntax and the range of a value, and the function that stores it.
enum Form {
    /// A number without a unit.
    Number(RangeInclusive<u64>, fn(&mut Config, u64)),
    /// A number of bytes; the text may end in K or M.
    Bytes(RangeInclusive<u64>, fn(&mut Config, u64)),
    /// A time with its unit.
    Time(RangeInclusive<Duration>, fn(&mut Config, Duration)),
    /// A time with its unit, or `never`.
    TimeOrNever(RangeInclusive<Duration>, fn(&mut Config, Option<Duration>)),
    /// The pools of bounce buffers.
    Pools,
    /// The scheme by which priorities are told apart.
    Schemes,
}

/// The reason for which a setting is not accepted. One line for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no setting with that name.
    #[error("LITE has no setting {0}")]
    Unknown(String),
    /// The value does not have the right form or is out of range.
    #[error("{name}={value}: want {wanted}")]
    Value {
        /// The name of the setting.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are accepted, for people.
        wanted: String,
    },
}

const fn setting(name: &'static str, help: &'static str, form: Form) -> Setting {
    Setting { name, help, form }
}

/// All settings: the fields of [`Config`] except the node's name.
pub const SETTINGS: &[Setting] = &[
    setting(
        "deadline",
        "the time limit of an operation whose handle sets none",
        Time(MICROSECOND..=LONGEST, |c, v| c.deadline = v),
    ),
    setting(
        "cores",
        "cores with queue pairs of their own",
        Number(1..=MOST_CORES as u64, |c, v| c.cores = v as usize),
    ),
    setting("queue-pairs", "queue pairs per peer and core", Number(1..=4, |c, v| c.queue_pairs = v as usize)),
    setting(
        "send-depth",
        "send work requests outstanding on one queue pair",
        Number(8..=16_384, |c, v| c.send_depth = v as u32),
    ),
    setting(
        "operations",
        "one-sided operations and RPC messages outstanding on a core",
        Number(16..=MOST_SLOTS as u64, |c, v| c.operations = v as u32),
    ),
    setting("peers", "peers that may be connected at once", Number(2..=4095, |c, v| c.peers = v as u32)),
    setting(
        "idle",
        "the time after which an unused connection is closed",
        TimeOrNever(MILLISECOND..=LONGEST, |c, v| c.idle = v),
    ),
    setting("bounce", "the three pools of bounce buffers", Pools),
    setting(
        "window",
        "chunks of one large transfer in flight at once",
        Number(1..=8, |c, v| c.window = v as usize),
    ),
    setting(
        "ring",
        "length of the ring for one peer's requests, a power of two",
        Bytes(16 << 10..=16 << 20, |c, v| c.ring = v as u32),
    ),
    setting("calls", "calls outstanding to one peer", Number(1..=4088, |c, v| c.calls = v as u32)),
    setting(
        "backlog",
        "memory for one peer's undelivered requests",
        Bytes(4 << 10..=1 << 30, |c, v| c.backlog = v as u32),
    ),
    setting(
        "reply-slot",
        "length of the slot for one reply",
        Bytes(256..=64 << 10, |c, v| c.reply_slot = v as u32),
    ),
    setting(
        "connect-timeout",
        "the time after which the set-up of a connection starts again",
        Time(MILLISECOND..=LONGEST, |c, v| c.connect_timeout = v),
    ),
    setting(
        "ack-timeout",
        "the time that a queue pair waits for an acknowledgement before it retransmits",
        Time(Duration::from_micros(10)..=Duration::from_secs(60), |c, v| c.retransmission.ack_timeout = v),
    ),
    setting(
        "retries",
        "retransmissions before a queue pair fails",
        Number(0..=7, |c, v| c.retransmission.retries = v as u8),
    ),
    setting(
        "rnr-delay",
        "the time for which a peer waits when no receive is posted",
        Time(Duration::from_micros(10)..=Duration::from_millis(655), |c, v| c.retransmission.rnr_delay = v),
    ),
    setting(
        "silence",
        "the time, beyond the lease, after which the node leaves if the manager is silent",
        TimeOrNever(SECOND..=LONGEST, |c, v| c.silence = v),
    ),
    setting("scheme", "the scheme by which priorities are told apart", Schemes),
    setting(
        "service-level",
        "the service level of high priority under hw-sep; its DSCP is eight times the level",
        Number(0..=7, |c, v| c.service_level = v as u8),
    ),
    setting(
        "move-window",
        "bytes for which operations wait at once when a move of their region begins",
        Bytes(8..=64 << 20, |c, v| c.move_window = v),
    ),
];

/// The schemes by name.
const SCHEMES: [(&str, Scheme); 3] =
    [("none", Scheme::None), ("hw-sep", Scheme::HwSep), ("sw-pri", Scheme::SW_PRI)];

impl Setting {
    /// Returns the values that are accepted, for people.
    #[must_use]
    pub fn wanted(&self) -> String {
        match &self.form {
            Number(range, _) => alloc::format!("a number from {} to {}", range.start(), range.end()),
            Bytes(range, _) => {
                alloc::format!("bytes from {} to {}", size_text(*range.start()), size_text(*range.end()))
            }
            Time(range, _) => time_range_text(range),
            TimeOrNever(range, _) => time_range_text(range) + ", or never",
            Pools => "three pools as SIZExCOUNT, as in 256x256,4Kx64,64Kx16".into(),
            Schemes => "none, hw-sep or sw-pri".into(),
        }
    }

    fn apply(&self, config: &mut Config, text: &str) -> Option<()> {
        match &self.form {
            Number(range, set) => set(config, parse_number(text).filter(|v| range.contains(v))?),
            Bytes(range, set) => set(config, parse_size(text).filter(|v| range.contains(v))?),
            Time(range, set) => set(config, parse_time(text).filter(|v| range.contains(v))?),
            TimeOrNever(_, set) if text == "never" => set(config, None),
            TimeOrNever(range, set) => {
                set(config, Some(parse_time(text).filter(|v| range.contains(v))?));
            }
            Pools => config.bounce = parse_pools(text)?,
            Schemes => config.scheme = SCHEMES.iter().find(|(name, _)| *name == text)?.1,
        }
        // The ring is the one size that is not a plain range.
        (self.name != "ring" || config.ring.is_power_of_two()).then_some(())
    }
}

impl Config {
    /// Sets one size or time by its name ([`SETTINGS`]). A value that is not accepted changes nothing.
    ///
    /// ```
    /// let mut config = lite::Config::default();
    /// config.set("peers", "256")?;
    /// config.set("deadline", "30s")?;
    /// config.set("bounce", "256x256,4Kx64,128Kx16")?;
    /// assert_eq!(config.peers, 256);
    /// let error = config.set("peers", "1").unwrap_err();
    /// assert_eq!(error.to_string(), "peers=1: want a number from 2 to 4095");
    /// # Ok::<(), lite::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// `Unknown` if there is no such setting, `Value` if the value does not have the right form or is out
    /// of range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name);
        let setting = setting.ok_or_else(|| SettingError::Unknown(name.into()))?;
        let mut changed = self.clone();
        if setting.apply(&mut changed, value).is_none() {
            let wanted = setting.wanted();
            return Err(SettingError::Value { name: setting.name, value: value.into(), wanted });
        }
        *self = changed;
        Ok(())
    }
}

/// Returns the number that `text` stands for, if it has digits and nothing else.
fn parse_number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn parse_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (text.strip_suffix('K')?, 10),
        b'M' => (text.strip_suffix('M')?, 20),
        _ => (text, 0),
    };
    parse_number(digits)?.checked_mul(1 << shift)
}

fn parse_pools(text: &str) -> Option<[(u32, u32); 3]> {
    let mut pools = [(0, 0); 3];
    let mut parts = text.split(',');
    for pool in &mut pools {
        let (size, count) = parts.next()?.split_once('x')?;
        let size = parse_size(size).filter(|size| (64..=1 << 20).contains(size))?;
        let count = parse_number(count).filter(|count| (1..=1 << 16).contains(count))?;
        *pool = (size as u32, count as u32);
    }
    parts.next().is_none().then_some(pools)
}

fn size_text(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => alloc::format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => alloc::format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

fn time_range_text(range: &RangeInclusive<Duration>) -> String {
    alloc::format!("a time from {} to {}", time_text(*range.start()), time_text(*range.end()))
}

fn time_text(time: Duration) -> String {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let unit = TIME_UNITS.iter().rev().find(|(_, unit)| ns.is_multiple_of(*unit));
    unit.map_or_else(|| alloc::format!("{ns}ns"), |(name, unit)| alloc::format!("{}{name}", ns / unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn set(name: &str, value: &str) -> Result<Config, String> {
        let mut config = Config::default();
        config.set(name, value).map(|()| config).map_err(|error| error.to_string())
    }

    #[test]
    fn each_setting_reaches_its_field_and_no_other() {
        let ms = Duration::from_millis;
        let changed = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            format!("{config:?}")
        };
        let cases = [
            ("deadline", "30s", changed(|c| c.deadline = Duration::from_secs(30))),
            ("cores", "3", changed(|c| c.cores = 3)),
            ("queue-pairs", "4", changed(|c| c.queue_pairs = 4)),
            ("send-depth", "256", changed(|c| c.send_depth = 256)),
            ("operations", "2000", changed(|c| c.operations = 2000)),
            ("peers", "256", changed(|c| c.peers = 256)),
            ("idle", "5m", changed(|c| c.idle = Some(Duration::from_secs(300)))),
            ("bounce", "64x1,4Kx2,1Mx3", changed(|c| c.bounce = [(64, 1), (4096, 2), (1 << 20, 3)])),
            ("window", "8", changed(|c| c.window = 8)),
            ("ring", "1M", changed(|c| c.ring = 1 << 20)),
            ("calls", "4088", changed(|c| c.calls = 4088)),
            ("backlog", "64K", changed(|c| c.backlog = 64 << 10)),
            ("reply-slot", "300", changed(|c| c.reply_slot = 300)),
            ("connect-timeout", "1h", changed(|c| c.connect_timeout = Duration::from_secs(3600))),
            ("ack-timeout", "500us", changed(|c| c.retransmission.ack_timeout = Duration::from_micros(500))),
            ("retries", "0", changed(|c| c.retransmission.retries = 0)),
            ("rnr-delay", "10ms", changed(|c| c.retransmission.rnr_delay = Duration::from_millis(10))),
            ("silence", "90s", changed(|c| c.silence = Some(Duration::from_secs(90)))),
            ("scheme", "sw-pri", changed(|c| c.scheme = Scheme::SW_PRI)),
            ("service-level", "1", changed(|c| c.service_level = 1)),
            ("move-window", "1M", changed(|c| c.move_window = 1 << 20)),
        ];
        let names: alloc::vec::Vec<_> = cases.iter().map(|(name, ..)| *name).collect();
        let all: alloc::vec::Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert_eq!(names, all, "a case for each");
        for (name, value, wanted) in cases {
            assert_eq!(set(name, value).map(|c| format!("{c:?}")), Ok(wanted), "{name}={value}");
        }
        assert_eq!(set("silence", "never").unwrap().silence, None);
        assert_eq!(set("idle", "never").unwrap().idle, None);
        assert_eq!(set("deadline", "7ms").unwrap().deadline, ms(7));
    }

    /// A value that is accepted is used as it was given.
    #[test]
    fn nothing_that_is_accepted_is_corrected() {
        let given = [
            ("cores", "1"),
            ("queue-pairs", "1"),
            ("send-depth", "8"),
            ("operations", "16"),
            ("peers", "2"),
            ("window", "1"),
            ("ring", "16K"),
            ("ring", "16M"),
            ("calls", "1"),
            ("calls", "4088"),
            ("retries", "7"),
            ("service-level", "7"),
        ];
        for (name, value) in given {
            let mut config = set(name, value).unwrap();
            let checked = config.clone().checked();
            // A longer record needs a longer buffer.
            config.bounce = checked.bounce;
            assert_eq!(format!("{config:?}"), format!("{checked:?}"), "{name}={value}");
        }
    }

    #[test]
    fn other_values_are_refused_in_one_line() {
        let refused = [
            ("peers", "1", "peers=1: want a number from 2 to 4095"),
            ("peers", "+5", "peers=+5: want a number from 2 to 4095"),
            ("peers", "", "peers=: want a number from 2 to 4095"),
            ("peers", "99999999999999999999", "peers=99999999999999999999: want a number from 2 to 4095"),
            ("retries", "8", "retries=8: want a number from 0 to 7"),
            ("ring", "100000", "ring=100000: want bytes from 16K to 16M"),
            ("ring", "8K", "ring=8K: want bytes from 16K to 16M"),
            ("reply-slot", "100", "reply-slot=100: want bytes from 256 to 64K"),
            ("deadline", "30", "deadline=30: want a time from 1us to 576h"),
            ("deadline", "0s", "deadline=0s: want a time from 1us to 576h"),
            ("deadline", "never", "deadline=never: want a time from 1us to 576h"),
            ("deadline", "5124096h", "deadline=5124096h: want a time from 1us to 576h"),
            ("silence", "10ms", "silence=10ms: want a time from 1s to 576h, or never"),
            ("scheme", "None", "scheme=None: want none, hw-sep or sw-pri"),
            ("service-level", "8", "service-level=8: want a number from 0 to 7"),
            ("turbo", "on", "LITE has no setting turbo"),
        ];
        for (name, value, why) in refused {
            assert_eq!(set(name, value).map(drop).unwrap_err(), why);
        }
        for pools in
            ["", "256x256", "256x256,4Kx64,64Kx16,1Mx1", "256x0,4Kx64,64Kx16", "2Mx1,4Kx64,64Kx16", "a,b,c"]
        {
            let why = set("bounce", pools).map(drop).unwrap_err();
            assert!(why.starts_with(&format!("bounce={pools}: want three pools as SIZExCOUNT")), "{why}");
        }
    }

    /// The page that operators read names each setting.
    #[test]
    fn the_documentation_has_them_all() {
        let page = include_str!("../../../docs/reference/settings.md");
        for setting in SETTINGS {
            assert!(page.contains(&format!("| `{}` |", setting.name)), "the page lacks {}", setting.name);
        }
    }
}
