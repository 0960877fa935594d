//! The capture of a fabric: every frame as received, on disk within a fraction of a second.

use anyhow::{Context, Result};
use netfault::pcap::PcapWriter;
use std::fs::File;
use std::time::{SystemTime, UNIX_EPOCH};

/// The longest time in nanoseconds until a captured frame is written to disk.
const FLUSH_NS: u64 = 200_000_000;

/// A capture. Times are nanoseconds since the fabric's start.
pub(crate) struct Capture {
    pcap: PcapWriter<File>,
    /// The time of the fabric's start, in nanoseconds since 1970.
    epoch_ns: u64,
    flush_at: u64,
    dirty: bool,
}

impl Capture {
    /// Starts a capture at time 0 of the fabric.
    pub(crate) fn new(pcap: PcapWriter<File>) -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let epoch_ns = epoch.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        Self { pcap, epoch_ns, flush_at: 0, dirty: false }
    }

    /// Records a frame.
    pub(crate) fn frame(&mut self, now: u64, frame: &[u8]) -> Result<()> {
        self.pcap.frame(self.epoch_ns + now, frame).context("cannot write the capture")?;
        self.dirty = true;
        Ok(())
    }

    /// Returns the time at which [`flush`](Self::flush) is due.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.dirty.then_some(self.flush_at)
    }

    /// Writes buffered frames to disk if that is due, or regardless of the time if `at_once` is set.
    pub(crate) fn flush(&mut self, now: u64, at_once: bool) -> Result<()> {
        if self.dirty && (at_once || now >= self.flush_at) {
            self.pcap.flush().context("cannot write the capture")?;
            self.flush_at = now + FLUSH_NS;
            self.dirty = false;
        }
        Ok(())
    }
}
