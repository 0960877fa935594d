//! How likely each fault is, and its `key=value,...` text form.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// What happens to the frames of a link. Probabilities are per frame and independent of each other.
///
/// The text form is `key=value` pairs separated by commas, in any order, each at most once; what is not named is off:
///
/// | key | value |
/// |---|---|
/// | `loss` | probability that the frame disappears |
/// | `dup` | probability that it arrives twice |
/// | `reorder` | probability that it is held back by up to `reorder_us`, so that later frames overtake it |
/// | `corrupt` | probability that one bit of it is inverted |
/// | `delay_us` | microseconds that every frame takes |
/// | `reorder_us` | longest hold of a reordered frame in microseconds, 200 unless given |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Probability of loss, 0 to 1.
    pub loss: f64,
    /// Probability of duplication, 0 to 1.
    pub dup: f64,
    /// Probability of being held back, 0 to 1.
    pub reorder: f64,
    /// Probability of one inverted bit, 0 to 1.
    pub corrupt: f64,
    /// Delay of every frame, in nanoseconds.
    pub delay_ns: u64,
    /// Longest additional delay of a frame that is held back, in nanoseconds, at least 1.
    pub reorder_ns: u64,
}

/// The longest delay that is accepted, in microseconds: ten seconds.
const MAX_US: u64 = 10_000_000;

/// Why a fault description was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseFaultsError {
    /// A part between commas without an equals sign.
    #[error("fault `{0}` is not of the form key=value")]
    NotAPair(String),
    /// No such key.
    #[error("unknown fault `{0}` (known: loss, dup, reorder, corrupt, delay_us, reorder_us)")]
    UnknownKey(String),
    /// A key given twice.
    #[error("fault `{0}` is given twice")]
    Twice(String),
    /// Not a number from 0 to 1.
    #[error("fault {key}: `{value}` is not a probability from 0 to 1")]
    NotAProbability {
        /// The key.
        key: String,
        /// What stood after the equals sign.
        value: String,
    },
    /// Not a whole number of microseconds in range.
    #[error("fault {key}: `{value}` is not a whole number of microseconds up to {MAX_US}")]
    NotADelay {
        /// The key.
        key: String,
        /// What stood after the equals sign.
        value: String,
    },
}

impl Faults {
    /// A perfect network.
    pub const NONE: Self =
        Self { loss: 0.0, dup: 0.0, reorder: 0.0, corrupt: 0.0, delay_ns: 0, reorder_ns: 200_000 };

    /// Reads the text form. The empty text is a perfect network.
    pub fn parse(text: &str) -> Result<Self, ParseFaultsError> {
        let mut faults = Self::NONE;
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (key, value) = part.split_once('=').ok_or_else(|| ParseFaultsError::NotAPair(part.into()))?;
            let (key, value) = (key.trim(), value.trim());
            match key {
                "loss" => faults.loss = probability(key, value)?,
                "dup" => faults.dup = probability(key, value)?,
                "reorder" => faults.reorder = probability(key, value)?,
                "corrupt" => faults.corrupt = probability(key, value)?,
                "delay_us" => faults.delay_ns = microseconds(key, value, 0)?,
                "reorder_us" => faults.reorder_ns = microseconds(key, value, 1)?,
                _ => return Err(ParseFaultsError::UnknownKey(key.into())),
            }
            if seen.contains(&key) {
                return Err(ParseFaultsError::Twice(key.into()));
            }
            seen.push(key);
        }
        Ok(faults)
    }

    /// Whether every frame passes at once and unchanged.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.loss == 0.0
            && self.dup == 0.0
            && self.reorder == 0.0
            && self.corrupt == 0.0
            && self.delay_ns == 0
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for Faults {
    type Err = ParseFaultsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Faults {
    /// The text form with every key, as [`Faults::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, dup, reorder, corrupt, delay_ns, reorder_ns } = self;
        let (delay_us, reorder_us) = (delay_ns / 1000, reorder_ns / 1000);
        write!(f, "loss={loss},dup={dup},reorder={reorder},corrupt={corrupt},")?;
        write!(f, "delay_us={delay_us},reorder_us={reorder_us}")
    }
}

fn probability(key: &str, value: &str) -> Result<f64, ParseFaultsError> {
    value
        .parse()
        .ok()
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| ParseFaultsError::NotAProbability { key: key.into(), value: value.into() })
}

fn microseconds(key: &str, value: &str, least: u64) -> Result<u64, ParseFaultsError> {
    value
        .parse()
        .ok()
        .filter(|us| (least..=MAX_US).contains(us))
        .map(|us| us * 1000)
        .ok_or_else(|| ParseFaultsError::NotADelay { key: key.into(), value: value.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_key() {
        let f =
            Faults::parse("loss=0.01,reorder=0.02, corrupt=0.001,delay_us=50,dup=1,reorder_us=7").unwrap();
        assert_eq!(
            f,
            Faults {
                loss: 0.01,
                dup: 1.0,
                reorder: 0.02,
                corrupt: 0.001,
                delay_ns: 50_000,
                reorder_ns: 7_000
            }
        );
        assert_eq!(Faults::parse(&f.to_string()), Ok(f));
        assert!(!f.is_none());
    }

    #[test]
    fn empty_is_perfect() {
        assert!(Faults::parse("").unwrap().is_none());
        assert!(Faults::parse("loss=0,reorder_us=5").unwrap().is_none());
    }

    #[test]
    fn each_mistake_is_named() {
        let message = |text: &str| Faults::parse(text).unwrap_err().to_string();
        assert_eq!(message("loss"), "fault `loss` is not of the form key=value");
        assert!(message("lost=0.1").starts_with("unknown fault `lost`"));
        assert_eq!(message("loss=1.5"), "fault loss: `1.5` is not a probability from 0 to 1");
        assert_eq!(message("dup=nan"), "fault dup: `nan` is not a probability from 0 to 1");
        assert_eq!(message("corrupt=-0.1"), "fault corrupt: `-0.1` is not a probability from 0 to 1");
        assert!(message("delay_us=1.5").contains("`1.5` is not a whole number of microseconds"));
        assert!(message("reorder_us=0").contains("`0`"));
        assert_eq!(message("loss=0,loss=0"), "fault `loss` is given twice");
    }
}
