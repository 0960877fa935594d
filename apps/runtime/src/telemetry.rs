//! The task that tells the manager this node's counters and the lines of its log.
//!
//! It runs as other tasks do, about once in a second, and reads counters that exist anyway: it adds nothing
//! to an operation, to a poller, or to the RNIC's queues.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use lite::Lite;
use proto::{NodeId, Telemetry, ToManager};

/// The time between two reports.
const PERIOD: Duration = Duration::from_secs(1);
/// The time that a report may wait behind other messages to the manager.
const PATIENCE: Duration = Duration::from_secs(5);
/// The bytes of the log in each report. A node that logs more loses lines, which are counted.
const LOG: usize = 8 << 10;

/// The handle of the task.
pub(crate) struct Telemeter(Arc<Signals>);

#[derive(Default)]
struct Signals {
    stop: AtomicBool,
    again: AtomicBool,
}

impl Telemeter {
    /// Starts the task.
    pub(crate) fn start(lite: &Lite) -> Self {
        let signals = Arc::<Signals>::default();
        let reporter = Reporter::new(lite.with_deadline(PATIENCE));
        lite.platform().spawn("lite-telemetry", Box::pin(reporter.run(signals.clone())));
        Self(signals)
    }

    /// Makes the next report a complete one.
    pub(crate) fn begin_again(&self) {
        self.0.again.store(true, Ordering::Relaxed);
    }

    /// Ends the task after its present wait.
    pub(crate) fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// The counters as the manager has them.
struct Reporter {
    lite: Lite,
    /// The names and values that were sent.
    names: Vec<&'static str>,
    values: Vec<u64>,
    peers: BTreeMap<NodeId, Sum>,
}

/// The work requests to a peer.
#[derive(Default)]
struct Sum {
    /// The present connection, and the requests on it.
    conn: u64,
    begun: u32,
    /// All requests.
    total: u64,
    /// The part of them that was sent.
    told: u64,
}

impl Reporter {
    fn new(lite: Lite) -> Self {
        Self { lite, names: Vec::new(), values: Vec::new(), peers: BTreeMap::new() }
    }

    async fn run(mut self, signals: Arc<Signals>) {
        if !self.lite.manager_knows(ToManager::Telemetry(Telemetry::default()).since()) {
            return;
        }
        let mut lines = vec![0; LOG];
        loop {
            self.lite.sleep(PERIOD).await;
            if signals.stop.load(Ordering::Relaxed) || !self.lite.is_member() {
                return;
            }
            if signals.again.swap(false, Ordering::Relaxed) {
                self.forget();
            }
            let (taken, log_dropped) = self.lite.platform().take_log(&mut lines);
            if let Some(taken) = lines.get(..taken).filter(|taken| !taken.is_empty()) {
                let _ = self.lite.send_control(&ToManager::Log { lines: taken.to_vec() }).await;
            }
            let report = Telemetry { log_dropped, ..self.report() };
            if self.lite.send_control(&ToManager::Telemetry(report)).await.is_err() {
                self.forget();
            }
        }
    }

    /// Forgets what was sent.
    fn forget(&mut self) {
        self.names.clear();
        self.values.clear();
        self.peers.values_mut().for_each(|sum| sum.told = 0);
    }

    /// Returns the counters that have changed, and takes them as sent.
    fn report(&mut self) -> Telemetry {
        let mut all = Vec::with_capacity(self.names.len().max(64));
        let memory = self.lite.platform().memory().stats();
        all.push(("memory_total_bytes", memory.total));
        all.push(("memory_free_bytes", memory.free));
        self.lite.counters(&mut |counter| all.push(counter));
        self.lite.rnic_counters(&mut |counter| all.push(counter));
        all.truncate(Telemetry::MAX_COUNTERS);

        let mut report =
            Telemetry { uptime_us: micros(self.lite.platform().now().as_nanos()), ..Telemetry::default() };
        if !self.names.iter().eq(all.iter().map(|(name, _)| name)) {
            self.names = all.iter().map(|&(name, _)| name).collect();
            self.values = vec![0; all.len()];
            report.names = self.names.iter().map(ToString::to_string).collect();
        }
        for (index, ((_, value), told)) in (0..).zip(all.iter().zip(&mut self.values)) {
            if value != told {
                *told = *value;
                report.values.push((index, *value));
            }
        }
        self.count_peers();
        for (&peer, sum) in &mut self.peers {
            if sum.total != sum.told {
                sum.told = sum.total;
                report.peers.push((peer, sum.total));
            }
        }
        report
    }

    /// Adds the work requests since the last look.
    fn count_peers(&mut self) {
        for (peer, conn, begun) in self.lite.traffic() {
            let sum = self.peers.entry(peer).or_default();
            let before = if sum.conn == conn { sum.begun } else { 0 };
            sum.total += u64::from(begun.wrapping_sub(before));
            (sum.conn, sum.begun) = (conn, begun);
        }
    }
}

fn micros(nanos: u64) -> u64 {
    nanos / 1000
}
