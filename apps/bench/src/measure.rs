//! Samples, and the line of output that they become.

use alloc::vec::Vec;
use core::fmt;
use platform::Instant;

/// One line of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The name of the measurement.
    what: &'static str,
    /// Payload bytes of one operation.
    size: usize,
    /// The number of operations.
    samples: usize,
    /// Median and 99th percentile of the latency, in nanoseconds.
    latency: Option<(u64, u64)>,
    /// Total bytes and nanoseconds of all operations.
    throughput: Option<(u64, u64)>,
}

impl Row {
    /// Returns a row of latencies from the nanoseconds that each operation took. `samples` must not be empty.
    pub(crate) fn latency(what: &'static str, size: usize, mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| samples.get((samples.len() - 1) * percent / 100).copied().unwrap_or(0);
        Self { what, size, samples: samples.len(), latency: Some((at(50), at(99))), throughput: None }
    }

    /// Returns a row of throughput from the total time of `samples` operations.
    pub(crate) fn throughput(
        what: &'static str,
        size: usize,
        samples: usize,
        begin: Instant,
        end: Instant,
    ) -> Self {
        let ns = u64::try_from((end - begin).as_nanos()).unwrap_or(u64::MAX).max(1);
        Self { what, size, samples, latency: None, throughput: Some(((size * samples) as u64, ns)) }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\t{}\t{}", self.what, self.size, self.samples)?;
        match self.latency {
            Some((p50, p99)) => write!(f, "\t{p50}\t{p99}")?,
            None => f.write_str("\t-\t-")?,
        }
        match self.throughput {
            // Bytes per nanosecond are GB/s; hundredths of MB/s are precise enough.
            Some((bytes, ns)) => {
                let hundredths = u128::from(bytes) * 100_000 / u128::from(ns);
                writeln!(f, "\t{}.{:02}", hundredths / 100, hundredths % 100)
            }
            None => f.write_str("\t-\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn lines() {
        assert_eq!(
            Row::latency("read", 8, (0..=100).rev().collect()).to_string(),
            "read\t8\t101\t50\t99\t-\n"
        );
        let row = Row::throughput("write_bw", 1000, 10, Instant::from_nanos(5), Instant::from_nanos(100_005));
        assert_eq!(row.to_string(), "write_bw\t1000\t10\t-\t-\t100.00\n");
    }
}
