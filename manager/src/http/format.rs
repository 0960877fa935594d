//! Numbers and times as text for people.

use crate::utc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns a number of bytes, in binary units.
pub(super) fn bytes(bytes: u64) -> String {
    scaled(bytes, 1024.0, ["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Returns a count, in decimal units.
pub(super) fn count(count: u64) -> String {
    scaled(count, 1000.0, ["", "k", "M", "G", "T"])
}

fn scaled(number: u64, step: f64, units: [&str; 5]) -> String {
    let (mut value, mut unit) = (number as f64, 0);
    while value >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let space = if units[unit].is_empty() || step < 1001.0 { "" } else { " " };
    match value {
        _ if unit == 0 => format!("{number}{space}{}", units[0]),
        value if value < 10.0 => format!("{value:.2}{space}{}", units[unit]),
        value if value < 100.0 => format!("{value:.1}{space}{}", units[unit]),
        value => format!("{value:.0}{space}{}", units[unit]),
    }
}

/// Returns a length of time.
pub(super) fn duration(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.as_millis());
    match seconds {
        _ if duration < Duration::from_millis(1) => format!("{} µs", duration.as_micros()),
        0 => format!("{millis} ms"),
        1..60 => format!("{}.{} s", seconds, millis % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Returns a time as UTC: `2026-11-26 11:30:05`.
pub(super) fn time(time: SystemTime) -> String {
    utc::text(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        assert_eq!(
            [0, 999, 1023, 1024, 1 << 20].map(bytes),
            ["0 B", "999 B", "1023 B", "1.00 KiB", "1.00 MiB"]
        );
        assert_eq!([0, 999, 1500, 12_345, 123_456].map(count), ["0", "999", "1.50k", "12.3k", "123k"]);
        let text = |ms| duration(Duration::from_millis(ms));
        assert_eq!([5, 1500, 61_000, 3_700_000].map(text), ["5 ms", "1.5 s", "1 min 1 s", "1 h 1 min"]);
    }
}
