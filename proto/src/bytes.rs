//! Numbers of bytes and rates, as people write them.

use core::fmt;
use core::str::FromStr;

/// Parses a number of bytes, as in `500MB` or `16GiB`.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let unit = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)));
    unit.and_then(|(digits, unit)| digits.trim_end().parse::<u64>().ok()?.checked_mul(unit))
}

/// A limit of bytes per second, as in `500MB/s`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRate(u64);

/// The text is no [`ByteRate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("want a rate as in 500MB/s or 1GiB/s, of 1kB/s or more")]
pub struct NoByteRate;

impl ByteRate {
    /// The least rate, in bytes per second: with less, work makes no progress.
    pub const LEAST: u64 = 1000;

    /// Returns the rate in bytes per second.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteRate {
    type Err = NoByteRate;

    fn from_str(text: &str) -> Result<Self, NoByteRate> {
        let rate = text.strip_suffix("/s").and_then(|bytes| parse_bytes(bytes.trim_end()));
        rate.filter(|rate| *rate >= Self::LEAST).map(Self).ok_or(NoByteRate)
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B/s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn rates_have_a_unit_and_a_time() {
        let rate = |text: &str| text.parse::<ByteRate>().map(ByteRate::get);
        assert_eq!(rate("500MB/s"), Ok(500_000_000));
        assert_eq!(rate("1 GiB /s"), Ok(1 << 30));
        assert_eq!(rate("1kB/s"), Ok(1000));
        for wrong in ["", "5", "5MB", "5/s", "999B/s", "-1MB/s", "99999999999TB/s", "1mb/s"] {
            assert_eq!(rate(wrong), Err(NoByteRate), "{wrong}");
        }
        let text = rate("2MB/s").map(|rate| ByteRate(rate).to_string());
        assert_eq!(text.as_deref(), Ok("2000000B/s"));
    }
}
