//! A point in monotonic time; times as text.

use core::fmt;
use core::ops::{Add, Sub};
use core::str::FromStr;
use core::time::Duration;

/// Units of time in nanoseconds, ascending; of two that end alike the longer name comes first.
pub const TIME_UNITS: [(&str, u64); 5] =
    [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)];

/// Reads a time: a whole number of one of the [units](TIME_UNITS), as in `90s`. `None` for
/// everything else, a number without a unit among it.
#[must_use]
pub fn parse_time(text: &str) -> Option<Duration> {
    let (digits, unit) =
        TIME_UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    let digits = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_nanos)
}

/// The time that a job may take: from a second to a year. As text `90s`, `15m` or `2h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeLimit(Duration);

/// The text is no [`TimeLimit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("want a time as in 90s, 15m or 2h")]
pub struct NoTimeLimit;

impl TimeLimit {
    const RANGE: core::ops::RangeInclusive<Duration> =
        Duration::from_secs(1)..=Duration::from_secs(366 * 24 * 3600);

    /// Returns the limit as a duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for TimeLimit {
    type Err = NoTimeLimit;

    fn from_str(text: &str) -> Result<Self, NoTimeLimit> {
        parse_time(text).filter(|time| Self::RANGE.contains(time)).map(Self).ok_or(NoTimeLimit)
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

/// Nanoseconds since the node's start (in the simulator: of virtual time). Wraps after 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The node's start.
    pub const ZERO: Self = Self(0);
    /// A time later than any instant that is reached.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `ns` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`, zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    /// Returns the instant `d` later, at most [`Instant::MAX`].
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Returns the time since `rhs`; zero if `rhs` is later.
    fn sub(self, rhs: Self) -> Duration {
        self.saturating_since(rhs)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn times_have_units() {
        for (text, ns) in [("7us", 7_000), ("7ms", 7_000_000), ("0s", 0), ("90m", 5_400_000_000_000)] {
            assert_eq!(parse_time(text), Some(Duration::from_nanos(ns)), "{text}");
        }
        for text in ["", "s", "5", "1d", "-1s", "+1s", "1.5h", " 1s", "1 s", "18446744073709551615h"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn limits_are_from_a_second_to_a_year() {
        for (text, seconds) in [("1s", 1), ("90s", 90), ("15m", 900), ("2h", 7200), ("8784h", 31_622_400)] {
            let limit: TimeLimit = text.parse().unwrap();
            assert_eq!(limit.get(), Duration::from_secs(seconds));
            assert_eq!(limit.to_string().parse(), Ok(limit), "what it says is read as the same");
        }
        for text in ["5", "0s", "999ms", "8785h", "soon"] {
            assert_eq!(text.parse::<TimeLimit>(), Err(NoTimeLimit), "{text}");
        }
    }
}
