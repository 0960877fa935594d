//! Numbers and times as text for people.

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
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Returns year, month and day of a number of days since 1970-01-01, in the Gregorian calendar. Years are
/// counted from March on, so that the day of a leap year is the last one.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        let at = |seconds| time(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_795_692_605), "2026-11-26 11:30:05");
        assert_eq!(at(4_107_542_399), "2100-02-28 23:59:59");
    }

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
