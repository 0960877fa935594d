//! The probability of each fault, and its `key=value,...` text form.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use thiserror::Error;

/// The faults of a link. Probabilities are per frame and independent of each other.
///
/// The text form is `key=value` pairs separated by commas, in any order, each at most once; faults that are
/// not named are off:
///
/// | key | value |
/// |---|---|
/// | `loss` | probability that the frame is lost |
/// | `dup` | probability that it arrives twice |
/// | `reorder` | probability that it is delayed by up to `reorder_us`, so that later frames overtake it |
/// | `corrupt` | probability that one of its bits is inverted |
/// | `delay_us` | delay of every frame, in microseconds |
/// | `reorder_us` | maximum delay of a reordered frame, in microseconds; default 200 |
/// | `rate_mbit` | rate of the link, in megabits per second; faster frames wait in a queue |
/// | `queue` | capacity of the queue, in frames; default 256; further frames are dropped |
/// | `ecn` | probability that a frame of a capable sender (ECT) is marked (CE) |
/// | `ecn_queue` | length of the queue, in frames, from which on such frames are marked too |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Probability of loss, 0 to 1.
    pub loss: f64,
    /// Probability of duplication, 0 to 1.
    pub dup: f64,
    /// Probability of reordering, 0 to 1.
    pub reorder: f64,
    /// Probability of one inverted bit, 0 to 1.
    pub corrupt: f64,
    /// Delay of every frame, in nanoseconds.
    pub delay_ns: u64,
    /// Maximum additional delay of a reordered frame, in nanoseconds, at least 1.
    pub reorder_ns: u64,
    /// Rate of the link, in bits per second; 0 for no limit, and then no queue.
    pub rate_bps: u64,
    /// Maximum number of frames that wait for the link, at least 1.
    pub queue: u32,
    /// Probability of a congestion mark, 0 to 1.
    pub ecn: f64,
    /// Length of the queue, in frames, from which on each new frame is marked, at least 1; `u32::MAX` for
    /// never.
    pub ecn_queue: u32,
}

/// The maximum delay that is accepted, in microseconds: ten seconds.
const MAX_US: u64 = 10_000_000;
/// The maximum rate that is accepted, in megabits per second: one terabit.
const MAX_MBIT: u64 = 1_000_000;
/// The maximum queue length that is accepted, in frames.
const MAX_QUEUE: u64 = 1_000_000;

/// The list of all keys, for error messages.
const KEYS: &str = "loss, dup, reorder, corrupt, delay_us, reorder_us, rate_mbit, queue, ecn, ecn_queue";

/// The reason for which a fault description was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseFaultsError {
    /// A part of the text, between commas, has no equals sign.
    #[error("fault `{0}` is not of the form key=value")]
    NotAPair(String),
    /// The key does not exist.
    #[error("unknown fault `{0}` (known: {KEYS})")]
    UnknownKey(String),
    /// The key appears twice.
    #[error("fault `{0}` is given twice")]
    Twice(String),
    /// The value is not a number from 0 to 1.
    #[error("fault {key}: `{value}` is not a probability from 0 to 1")]
    NotAProbability {
        /// The key.
        key: String,
        /// The text after the equals sign.
        value: String,
    },
    /// The value is not a whole number in range.
    #[error("fault {key}: `{value}` is not a whole number of {unit} up to {max}")]
    NotANumber {
        /// The key.
        key: String,
        /// The text after the equals sign.
        value: String,
        /// The unit of the value.
        unit: &'static str,
        /// The maximum that is accepted.
        max: u64,
    },
}

impl Faults {
    /// A perfect network.
    pub const NONE: Self = Self {
        loss: 0.0,
        dup: 0.0,
        reorder: 0.0,
        corrupt: 0.0,
        delay_ns: 0,
        reorder_ns: 200_000,
        rate_bps: 0,
        queue: 256,
        ecn: 0.0,
        ecn_queue: u32::MAX,
    };

    /// Parses the text form. The empty text is a perfect network.
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
                "ecn" => faults.ecn = probability(key, value)?,
                "delay_us" => faults.delay_ns = number(key, value, "microseconds", 0..=MAX_US)? * 1000,
                "reorder_us" => faults.reorder_ns = number(key, value, "microseconds", 1..=MAX_US)? * 1000,
                "rate_mbit" => faults.rate_bps = number(key, value, "megabits", 0..=MAX_MBIT)? * 1_000_000,
                "queue" => faults.queue = number(key, value, "frames", 1..=MAX_QUEUE)? as u32,
                "ecn_queue" => faults.ecn_queue = number(key, value, "frames", 1..=MAX_QUEUE)? as u32,
                _ => return Err(ParseFaultsError::UnknownKey(key.into())),
            }
            if seen.contains(&key) {
                return Err(ParseFaultsError::Twice(key.into()));
            }
            seen.push(key);
        }
        Ok(faults)
    }

    /// Returns true if every frame passes at once and unchanged.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.loss == 0.0
            && self.dup == 0.0
            && self.reorder == 0.0
            && self.corrupt == 0.0
            && self.delay_ns == 0
            && self.rate_bps == 0
            && self.ecn == 0.0
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
    /// Writes the text form with all keys, as [`Faults::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, dup, reorder, corrupt, delay_ns, reorder_ns, rate_bps, queue, ecn, ecn_queue } =
            self;
        let (delay_us, reorder_us) = (delay_ns / 1000, reorder_ns / 1000);
        write!(f, "loss={loss},dup={dup},reorder={reorder},corrupt={corrupt},")?;
        write!(f, "delay_us={delay_us},reorder_us={reorder_us},")?;
        write!(f, "rate_mbit={},queue={queue},ecn={ecn}", rate_bps / 1_000_000)?;
        // The text form expresses "never" only by omission.
        if *ecn_queue < u32::MAX { write!(f, ",ecn_queue={ecn_queue}") } else { Ok(()) }
    }
}

fn probability(key: &str, value: &str) -> Result<f64, ParseFaultsError> {
    value
        .parse()
        .ok()
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| ParseFaultsError::NotAProbability { key: key.into(), value: value.into() })
}

fn number(
    key: &str,
    value: &str,
    unit: &'static str,
    range: RangeInclusive<u64>,
) -> Result<u64, ParseFaultsError> {
    let max = *range.end();
    value.parse().ok().filter(|n| range.contains(n)).ok_or_else(|| ParseFaultsError::NotANumber {
        key: key.into(),
        value: value.into(),
        unit,
        max,
    })
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
                reorder_ns: 7_000,
                ..Faults::NONE
            }
        );
        assert_eq!(Faults::parse(&f.to_string()), Ok(f));
        assert!(!f.is_none());
    }

    #[test]
    fn reads_a_link() {
        let f = Faults::parse("rate_mbit=3200,queue=64,ecn=0.25,ecn_queue=20").unwrap();
        let expected =
            Faults { rate_bps: 3_200_000_000, queue: 64, ecn: 0.25, ecn_queue: 20, ..Faults::NONE };
        assert_eq!(f, expected);
        assert_eq!(Faults::parse(&f.to_string()), Ok(f));
        assert!(!Faults::parse("rate_mbit=1").unwrap().is_none());
        assert!(!Faults::parse("ecn=1").unwrap().is_none());
        assert!(Faults::parse("ecn_queue=1,queue=9").unwrap().is_none(), "without a rate there is no queue");
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
        assert_eq!(message("queue=0"), "fault queue: `0` is not a whole number of frames up to 1000000");
        assert_eq!(message("loss=0,loss=0"), "fault `loss` is given twice");
    }
}
