//! Statistics of the times of operations.

use crate::message::Bandwidth;
use crate::run::Sent;
use alloc::vec::Vec;
use platform::Instant;

/// Bytes of perftest's MB.
const MIB: f64 = (1u64 << 20) as f64;
/// The most pairs of a first and a last operation that are examined for the peak.
const PAIRS_MAX: usize = 4_000_000;

/// Statistics of the time that an operation took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// The number of operations.
    pub iterations: u32,
    /// The shortest time, in microseconds.
    pub min_us: f64,
    /// The longest time, in microseconds.
    pub max_us: f64,
    /// The median of the times, in microseconds.
    pub typical_us: f64,
    /// The mean of the times, in microseconds.
    pub average_us: f64,
    /// The standard deviation of the times, in microseconds.
    pub deviation_us: f64,
    /// The 99th percentile of the times, in microseconds.
    pub p99_us: f64,
    /// The 99.9th percentile of the times, in microseconds.
    pub p999_us: f64,
}

impl Latency {
    /// Computes the statistics from the times at which operations were posted, each of which waited for the
    /// one before. If `halves` is set, the latency is half of the time between two postings.
    #[must_use]
    pub fn new(posted: &[Instant], halves: bool) -> Self {
        let unit = if halves { 2000.0 } else { 1000.0 };
        let between = |pair: &[Instant]| match pair {
            [a, b] => (*b - *a).as_nanos() as f64 / unit,
            _ => 0.0,
        };
        let mut us: Vec<f64> = posted.windows(2).map(between).collect();
        us.sort_unstable_by(f64::total_cmp);
        let n = us.len().max(1) as f64;
        let average = us.iter().sum::<f64>() / n;
        let variance = us.iter().map(|x| (x - average) * (x - average)).sum::<f64>() / n;
        let at = |share: f64| {
            let index = libm::ceil(us.len() as f64 * share) as usize;
            us.get(index.clamp(1, us.len().max(1)) - 1).copied().unwrap_or(0.0)
        };
        Self {
            iterations: posted.len() as u32,
            min_us: at(0.0),
            max_us: at(1.0),
            typical_us: at(0.5),
            average_us: average,
            deviation_us: libm::sqrt(variance),
            p99_us: at(0.99),
            p999_us: at(0.999),
        }
    }
}

impl Bandwidth {
    /// Computes the bandwidth from the times at which messages of `size` bytes were sent.
    #[must_use]
    pub fn measured(size: u32, iterations: u64, sent: &Sent) -> Self {
        let seconds = (sent.end - sent.start).as_secs_f64().max(1e-9);
        let per_second = iterations as f64 / seconds;
        Self {
            size: size.into(),
            iterations,
            peak: peak(sent) * f64::from(size) / MIB,
            average: per_second * f64::from(size) / MIB,
            rate: per_second / 1e6,
        }
    }
}

/// Returns the most messages per second over any interval from the posting of one operation to the completion
/// of another.
fn peak(sent: &Sent) -> f64 {
    if sent.posted.len().saturating_mul(sent.completed.len()) > PAIRS_MAX {
        return 0.0;
    }
    let mut most = 0.0;
    for (first, posted) in sent.posted.iter().enumerate() {
        for (count, at) in sent.completed.iter().filter(|(count, _)| *count > first as u64) {
            let seconds = (*at - *posted).as_secs_f64().max(1e-9);
            most = f64::max(most, (count - first as u64) as f64 / seconds);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn latencies() {
        let times: Vec<Instant> = [0, 10, 30, 60, 100].map(|us| Instant::from_nanos(us * 1000)).into();
        let found = Latency::new(&times, false);
        assert_eq!((found.iterations, found.min_us, found.max_us), (5, 10.0, 40.0));
        assert_eq!((found.typical_us, found.average_us, found.p99_us), (20.0, 25.0, 40.0));
        assert!((found.deviation_us - 11.180_339_887).abs() < 1e-6);
        assert_eq!(Latency::new(&times, true).max_us, 20.0);
        assert_eq!(Latency::new(&[], true).max_us, 0.0);
    }

    #[test]
    fn bandwidths() {
        let at = |us: u64| Instant::from_nanos(us * 1000);
        let sent = Sent {
            start: at(0),
            end: at(1000),
            posted: vec![at(0), at(400)],
            completed: vec![(1, at(900)), (2, at(1000))],
        };
        let found = Bandwidth::measured(1 << 20, 2, &sent);
        assert_eq!((found.iterations, found.average, found.rate), (2, 2000.0, 0.002));
        // Both operations complete within 1 ms; a single one takes longer.
        assert_eq!(found.peak, 2000.0);
    }
}
