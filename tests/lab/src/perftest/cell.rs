//! A cell: one run of one program, its parameters and its result.

use std::fmt;
use std::time::Duration;

/// The programs, named as in perftest.
pub const PROGRAMS: [&str; 8] = [
    "ib_write_lat",
    "ib_write_bw",
    "ib_read_lat",
    "ib_read_bw",
    "ib_send_lat",
    "ib_send_bw",
    "ib_atomic_lat",
    "ib_atomic_bw",
];
/// Message lengths in bytes: within a packet, a packet of one MTU and several of the other, and messages of
/// many packets.
pub const SIZES: [u32; 6] = [8, 64, 4096, 65536, 1 << 20, 8 << 20];
/// Message lengths with `--quick`, in bytes.
pub const QUICK_SIZES: [u32; 4] = [8, 1024, 65536, 1 << 20];

/// The most operations of a cell: no more than the receives that perftest posts beforehand. Message `m` of a
/// send test then lies in slot `m % slots` on Linux too (the slots of receives that it posts later are off by
/// one).
const MOST: u32 = 500;
const QUICK_MOST: u32 = 70;
/// The most operations under loss: enough that every cell loses some frames.
const LOSSY_MOST: u32 = 300;
/// The least number of operations that perftest accepts.
const LEAST: u32 = 5;
/// The most bytes that a cell moves, unless [`LEAST`] messages are more.
const BYTES: u32 = 16 << 20;
const QUICK_BYTES: u32 = 2 << 20;
const LOSSY_BYTES: u32 = 4 << 20;
/// The time limit of a cell, many times the usual time. The longest cells under loss are Linux's READs of 8
/// MiB: after each loss Linux waits until nothing arrives any more and then requests all the rest.
const LIMIT: Duration = Duration::from_secs(180);
const LOSSY_LIMIT: Duration = Duration::from_secs(600);

/// The assignment of client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The appliance is the client.
    ApplianceLinux,
    /// Linux is the client.
    LinuxAppliance,
    /// Both are appliances.
    ApplianceAppliance,
}

impl Direction {
    /// All assignments.
    pub const ALL: [Self; 3] = [Self::ApplianceLinux, Self::LinuxAppliance, Self::ApplianceAppliance];

    /// Returns true if Linux takes part.
    pub fn has_linux(self) -> bool {
        self != Self::ApplianceAppliance
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApplianceLinux => "appliance-linux",
            Self::LinuxAppliance => "linux-appliance",
            Self::ApplianceAppliance => "appliance-appliance",
        })
    }
}

/// One run of one program.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The program, one of [`PROGRAMS`].
    pub program: &'static str,
    /// The assignment of client and server.
    pub direction: Direction,
    /// The length of a message in bytes.
    pub size: u32,
    /// The path MTU in bytes.
    pub mtu: u32,
    /// The share of frames that the fabric loses.
    pub loss: f64,
    /// The number of operations.
    pub iterations: u32,
}

impl Cell {
    /// Returns a cell with as many operations as its limits allow; `quick` means fewer.
    pub fn new(
        program: &'static str,
        direction: Direction,
        size: u32,
        mtu: u32,
        loss: f64,
        quick: bool,
    ) -> Self {
        let both_ways = matches!(program, "ib_write_lat" | "ib_send_lat");
        let bytes = if quick { QUICK_BYTES } else { BYTES };
        let bytes = if loss > 0.0 { bytes.min(LOSSY_BYTES) } else { bytes };
        let bytes = if both_ways { bytes / 2 } else { bytes };
        let most = match (quick, loss > 0.0) {
            (true, _) => QUICK_MOST,
            (false, true) => LOSSY_MOST,
            (false, false) => MOST,
        };
        let iterations = (bytes / size).clamp(LEAST, most);
        Self { program, direction, size, mtu, loss, iterations }
    }

    /// Returns the time limit of the cell.
    pub fn limit(&self) -> Duration {
        if self.loss > 0.0 { LOSSY_LIMIT } else { LIMIT }
    }

    /// Returns true if the program measures latency.
    pub(crate) fn is_latency(&self) -> bool {
        self.program.ends_with("_lat")
    }

    /// Returns true if the program's operations are atomics.
    pub fn is_atomic(&self) -> bool {
        self.program.starts_with("ib_atomic")
    }

    /// Returns true if messages go both ways.
    pub(crate) fn both_ways(&self) -> bool {
        matches!(self.program, "ib_write_lat" | "ib_send_lat")
    }

    /// Returns the words of the command line, without the server's address.
    pub fn words(&self) -> Vec<String> {
        let mut words: Vec<String> =
            [self.program, "-n", &self.iterations.to_string(), "-m", &self.mtu.to_string()]
                .map(str::to_owned)
                .into();
        if !self.is_atomic() {
            // perftest's atomic programs refuse a size.
            words.extend(["-s".to_owned(), self.size.to_string()]);
        }
        words
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, direction, size, mtu, loss, iterations } = self;
        write!(f, "{program} {direction} {size} B x {iterations}, MTU {mtu}")?;
        if *loss > 0.0 {
            write!(f, ", loss {loss}")?;
        }
        Ok(())
    }
}

/// The client's result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// The latency of an operation.
    Latency {
        /// The median, in microseconds.
        p50_us: f64,
        /// The 99th percentile, in microseconds.
        p99_us: f64,
    },
    /// The average, in MiB per second.
    Bandwidth(f64),
}

impl Figure {
    /// Returns the median in microseconds, of a latency.
    pub fn p50_us(&self) -> Option<f64> {
        match self {
            Self::Latency { p50_us, .. } => Some(*p50_us),
            Self::Bandwidth(_) => None,
        }
    }

    /// Returns the 99th percentile in microseconds, of a latency.
    pub fn p99_us(&self) -> Option<f64> {
        match self {
            Self::Latency { p99_us, .. } => Some(*p99_us),
            Self::Bandwidth(_) => None,
        }
    }

    /// Returns the average in MiB per second, of a bandwidth.
    pub fn average_mib_s(&self) -> Option<f64> {
        match self {
            Self::Bandwidth(rate) => Some(*rate),
            Self::Latency { .. } => None,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency { p50_us, .. } => write!(f, "{p50_us:.1} us"),
            Self::Bandwidth(rate) => write!(f, "{rate:.2} MiB/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_moves_no_more_than_it_may() {
        for size in SIZES {
            for (loss, most) in [(0.0, BYTES), (0.01, LOSSY_BYTES)] {
                for program in PROGRAMS {
                    let cell = Cell::new(program, Direction::ApplianceLinux, size, 4096, loss, false);
                    let bytes =
                        u64::from(cell.iterations) * u64::from(size) * (1 + u64::from(cell.both_ways()));
                    assert!(bytes <= most.into() || cell.iterations == LEAST, "{cell}: {bytes}");
                    assert!((LEAST..=MOST).contains(&cell.iterations));
                }
            }
        }
    }
}
