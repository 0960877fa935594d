//! The reports of nodes on themselves: counters, and the last lines of their logs, a bounded amount of each
//! node.

use super::rate::Rate;
use super::{Core, Reason};
use platform::Instant;
use proto::{Incarnation, LogLine, NodeId, Severity, Telemetry, printable};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The number of lines that are kept of a node's log.
const LINES: usize = 500;
/// The bytes of lines that a node may send at once, and again in each second.
const LINE_BYTES: u64 = 64 << 10;
/// The number of samples that are kept of a node, about one for each second.
const SAMPLES: usize = 120;
/// The number of departed nodes whose lines are kept.
const DEPARTED: usize = 64;
/// The number of peers of which a node may tell.
const PEERS: usize = 4096;

/// A line of a node's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLine {
    /// The severity.
    pub severity: Severity,
    /// The time since the node's start, in microseconds.
    pub at_us: u64,
    /// The text, printable.
    pub text: String,
}

/// The work of a node between two of its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The time of the later report.
    pub at: Instant,
    /// The time between the reports.
    pub over: Duration,
    /// The operations of LITE that were begun.
    pub operations: u64,
    /// The bytes of reads and writes that were begun.
    pub bytes: u64,
}

/// The reports of a node on itself.
#[derive(Clone, Debug)]
pub struct NodeTelemetry {
    /// The time of the last report; `None` before the first.
    pub at: Option<Instant>,
    /// The time from the node's start to that report, in microseconds.
    pub uptime_us: u64,
    /// The names of the counters.
    pub names: Arc<[String]>,
    /// The values of the counters.
    pub values: Vec<u64>,
    /// The work requests posted to each peer.
    pub peers: BTreeMap<NodeId, u64>,
    /// The last samples, the oldest first.
    pub samples: VecDeque<Sample>,
    /// The last lines of the node's log, the oldest first.
    pub lines: Arc<VecDeque<Arc<NodeLine>>>,
    /// The number of lines that the node has dropped, because it logged more than it sends.
    pub dropped_there: u64,
    /// The number of bytes of lines that the manager has dropped, because the node has sent too many.
    pub dropped_here: u64,
    allowance: Rate,
}

impl Default for NodeTelemetry {
    fn default() -> Self {
        Self {
            at: None,
            uptime_us: 0,
            names: Arc::default(),
            values: Vec::new(),
            peers: BTreeMap::new(),
            samples: VecDeque::new(),
            lines: Arc::default(),
            dropped_there: 0,
            dropped_here: 0,
            allowance: Rate::new(LINE_BYTES, Duration::from_secs(1)),
        }
    }
}

impl NodeTelemetry {
    /// Returns the counters, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names.iter().map(String::as_str).zip(self.values.iter().copied())
    }

    /// Returns the value of a counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters().find(|(counter, _)| *counter == name).map(|(_, value)| value)
    }

    /// Returns the sum of counters.
    fn sum(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|name| self.counter(name)).fold(0, u64::wrapping_add)
    }

    /// Returns the operations and the bytes so far.
    fn work(&self) -> (u64, u64) {
        let operations =
            self.sum(&["lite_reads", "lite_writes", "lite_atomics", "lite_memsets", "lite_calls"]);
        (operations, self.sum(&["lite_bytes_read", "lite_bytes_written"]))
    }

    fn update(&mut self, now: Instant, report: Telemetry) {
        let begins = !report.names.is_empty();
        if begins {
            self.names = report.names.into();
            self.values = vec![0; self.names.len()];
        }
        let before = self.work();
        for (index, value) in report.values {
            if let Some(slot) = self.values.get_mut(usize::from(index)) {
                *slot = value;
            }
        }
        for (peer, requests) in report.peers {
            if self.peers.len() < PEERS || self.peers.contains_key(&peer) {
                self.peers.insert(peer, requests);
            }
        }
        if let (Some(last), false) = (self.at, begins) {
            let now_done = self.work();
            let sample = Sample {
                at: now,
                over: now - last,
                operations: now_done.0.saturating_sub(before.0),
                bytes: now_done.1.saturating_sub(before.1),
            };
            if self.samples.len() == SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back(sample);
        }
        (self.at, self.uptime_us, self.dropped_there) = (Some(now), report.uptime_us, report.log_dropped);
    }

    /// Takes lines. Returns false if there are too many.
    fn add_lines(&mut self, now: Instant, text: &[u8]) -> bool {
        if text.len() > Telemetry::MAX_LOG || !self.allowance.take(now, text.len() as u64) {
            self.dropped_here += text.len() as u64;
            return false;
        }
        let lines = Arc::make_mut(&mut self.lines);
        for LogLine { severity, at_us, text } in LogLine::all(text) {
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(Arc::new(NodeLine { severity, at_us, text: printable(text) }));
        }
        true
    }
}

/// A node whose incarnation has ended.
#[derive(Clone, Debug)]
pub struct Departed {
    /// The node.
    pub node: NodeId,
    /// The incarnation that has ended.
    pub incarnation: Incarnation,
    /// The node's name.
    pub name: String,
    /// The reason.
    pub reason: Reason,
    /// The time of the end.
    pub at: Instant,
    /// The last lines of its log.
    pub lines: Arc<VecDeque<Arc<NodeLine>>>,
}

/// The reports of all nodes on themselves.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) nodes: BTreeMap<NodeId, NodeTelemetry>,
    /// The nodes that departed last, the last one at the end.
    pub(super) departed: VecDeque<Arc<Departed>>,
}

impl Core {
    /// Takes a node's counters. A report that no node of ours sends is ignored, and logged once.
    pub(super) fn telemetry_told(&mut self, node: NodeId, report: Telemetry) {
        let now = self.now;
        if let Err(reason) = report.check() {
            let told = self.told.nodes.entry(node).or_default();
            if told.dropped_here == 0 {
                told.dropped_here = 1;
                let label = self.members.label(node);
                self.log(format!("{label}: its report is ignored: {reason}"));
            }
            return;
        }
        self.told.nodes.entry(node).or_default().update(now, report);
    }

    /// Takes lines of a node's log.
    pub(super) fn lines_told(&mut self, node: NodeId, lines: &[u8]) {
        let now = self.now;
        let kept = self.told.nodes.entry(node).or_default().add_lines(now, lines);
        self.log_lines(node, lines, kept);
    }

    /// Keeps the lines of a node whose incarnation has ended.
    pub(super) fn telemetry_ends(&mut self, node: NodeId, incarnation: Incarnation, name: &str, why: &str) {
        let lines = self.told.nodes.remove(&node).map(|told| told.lines).unwrap_or_default();
        let departed = &mut self.told.departed;
        if departed.len() == DEPARTED {
            departed.pop_front();
        }
        let (name, reason) = (name.to_owned(), why.to_owned());
        departed.push_back(Arc::new(Departed { node, incarnation, name, reason, at: self.now, lines }));
    }
}
