//! How likely each fault is, and its `key=value,...` text form.

use std::fmt;
use std::ops::RangeInclusive;
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
/// | `rate_mbit` | megabits per second that the link carries; frames that come faster wait in a queue |
/// | `queue` | frames that the queue holds, 256 unless given; more are dropped |
/// | `ecn` | probability that the frame is marked as having met congestion (CE), if its sender allows that (ECT) |
/// | `ecn_queue` | frames that find at least so many in the queue are marked as well |
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
    /// What the link carries, in bits per second; 0 for no limit, and then no queue.
    pub rate_bps: u64,
    /// Frames that wait for the link at most, at least 1.
    pub queue: u32,
    /// Probability of a congestion mark, 0 to 1.
    pub ecn: f64,
    /// Frames in the queue from which on each new one is marked, at least 1; `u32::MAX` for never.
    pub ecn_queue: u32,
}

/// The longest delay that is accepted, in microseconds: ten seconds.
const MAX_US: u64 = 10_000_000;
/// The highest rate that is accepted, in megabits per second: one terabit.
const MAX_MBIT: u64 = 1_000_000;
/// The longest queue that is accepted, in frames.
const MAX_QUEUE: u64 = 1_000_000;

/// All keys.
const KEYS: &str = "loss, dup, reorder, corrupt, delay_us, reorder_us, rate_mbit, queue, ecn, ecn_queue";

/// Why a fault description was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParseFaultsError {
    /// A part between commas without an equals sign.
    #[error("fault `{0}` is not of the form key=value")]
    NotAPair(String),
    /// No such key.
    #[error("unknown fault `{0}` (known: {KEYS})")]
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
    /// Not a whole number in range.
    #[error("fault {key}: `{value}` is not a whole number of {unit} up to {max}")]
    NotANumber {
        /// The key.
        key: String,
        /// What stood after the equals sign.
        value: String,
        /// What it counts.
        unit: &'static str,
        /// The largest that is accepted.
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

    /// Whether every frame passes at once and unchanged.
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
    /// The text form with every key that has a value, as [`Faults::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, dup, reorder, corrupt, delay_ns, reorder_ns, rate_bps, queue, ecn, ecn_queue } =
            self;
        let (delay_us, reorder_us) = (delay_ns / 1000, reorder_ns / 1000);
        write!(f, "loss={loss},dup={dup},reorder={reorder},corrupt={corrupt},")?;
        write!(f, "delay_us={delay_us},reorder_us={reorder_us},")?;
        write!(f, "rate_mbit={},queue={queue},ecn={ecn}", rate_bps / 1_000_000)?;
        // There is no text for "never" but to leave it out.
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
