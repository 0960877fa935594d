//! `/metrics`: the state of the cluster for Prometheus, in the OpenMetrics format or in the former text
//! format, as the request accepts it.
//!
//! Labels are names of nodes and a few fixed words: no job and no pair of nodes is a label, so that the
//! number of series grows with the number of nodes alone, by at most 29 for each node.

use super::{App, Snapshot};
use crate::core::json::job_state;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use proto::NodeState;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The counters of nodes that are series, each with its help. Others are in `/api/v1/nodes`.
const COUNTERS: [(&str, &str); 22] = [
    ("lite_reads", "Reads of LITE begun"),
    ("lite_writes", "Writes of LITE begun"),
    ("lite_atomics", "Atomics of LITE begun"),
    ("lite_calls", "Calls of LITE begun"),
    ("lite_served", "Calls of LITE given to handlers"),
    ("lite_bytes_read", "Bytes of reads of LITE begun"),
    ("lite_bytes_written", "Bytes of writes of LITE begun"),
    ("lite_retries", "Transfers of LITE continued on a new connection"),
    ("lite_busy", "Calls of LITE repeated because the queue of the server was full"),
    ("lite_deadline_misses", "Operations of LITE whose deadline passed"),
    ("lite_connections", "Connections of LITE made"),
    ("lite_bytes_limited", "Bytes of operations and calls of LITE by jobs with limits"),
    ("lite_limit_waits", "Operations and calls of LITE that waited for a limit of their job"),
    ("lite_limit_waited_us", "Microseconds that operations and calls of LITE waited for a limit"),
    ("rx_packets", "Packets received by the software RNIC"),
    ("tx_packets", "Packets sent by the software RNIC"),
    ("rx_icrc_errors", "Packets dropped by the software RNIC for a wrong ICRC"),
    ("retransmits", "Packets sent again by the software RNIC"),
    ("timeouts", "Acknowledgement timeouts of the software RNIC"),
    ("tx_requests", "Work requests posted to the card"),
    ("qp_errors", "Errors of queue pairs that the card has reported"),
    ("card_resets", "Resets of the card"),
];

/// Answers a scrape.
pub(super) async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    let snapshot = app.feed.borrow().clone();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Cluster(snapshot)));
    let mut body = String::new();
    if text::encode(&mut body, &registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if !accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
        return ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], former(&body))
            .into_response();
    }
    let format = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    (format, body).into_response()
}

/// Returns a text of OpenMetrics in the format before it: there, comments name a counter with its suffix.
fn former(text: &str) -> String {
    let mut counters = BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            counters.insert(name);
        }
    }
    let mut former = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF") {
        let comment = line.strip_prefix("# ").and_then(|rest| rest.split_once(' '));
        match comment.and_then(|(kind, rest)| Some((kind, rest.split_once(' ')?))) {
            Some((kind, (name, rest))) if counters.contains(name) => {
                former.extend(["# ", kind, " ", name, "_total ", rest, "\n"]);
            }
            _ => former.extend([line, "\n"]),
        }
    }
    former
}

/// The state of the cluster as metrics.
#[derive(Debug)]
struct Cluster(Arc<Snapshot>);

/// A family of metrics that is written at once.
struct Family<'a, 'b> {
    encoder: &'a mut DescriptorEncoder<'b>,
    name: &'static str,
    help: &'static str,
}

impl Family<'_, '_> {
    fn gauges<'l>(
        &mut self,
        unit: Option<&Unit>,
        series: impl IntoIterator<Item = (&'static str, &'l str, f64)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(self.name, self.help, unit, MetricType::Gauge)?;
        for (label, value, number) in series {
            let gauge = ConstGauge::new(number);
            if label.is_empty() {
                gauge.encode(metric.encode_family(&[("", ""); 0])?)?;
            } else {
                gauge.encode(metric.encode_family(&[(label, value)])?)?;
            }
        }
        Ok(())
    }

    fn counters<'l>(
        &mut self,
        series: impl IntoIterator<Item = (&'static str, &'l str, u64)>,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(self.name, self.help, None, MetricType::Counter)?;
        for (label, value, number) in series {
            let counter = ConstCounter::new(number);
            if label.is_empty() {
                counter.encode(metric.encode_family(&[("", ""); 0])?)?;
            } else {
                counter.encode(metric.encode_family(&[(label, value)])?)?;
            }
        }
        Ok(())
    }
}

impl Cluster {
    fn of_manager(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let view = &self.0.view;
        let one = |number: f64| [("", "", number)];
        Family { encoder, name: "ferrolite_manager_epoch", help: "The number of the manager's process" }
            .gauges(None, one(view.epoch as f64))?;
        Family { encoder, name: "ferrolite_manager_uptime", help: "The time since the start of the manager" }
            .gauges(Some(&Unit::Seconds), one(view.at.as_nanos() as f64 / 1e9))?;
        let lease = view.lease.as_secs_f64();
        Family { encoder, name: "ferrolite_lease", help: "The lease of members" }
            .gauges(Some(&Unit::Seconds), one(lease))?;
        let trouble = f64::from(u8::from(view.trouble.is_some()));
        let help = "1 if the manager cannot save its state or may not act";
        Family { encoder, name: "ferrolite_manager_trouble", help }.gauges(None, one(trouble))?;
        Family { encoder, name: "ferrolite_clients", help: "Clients that are connected" }
            .gauges(None, one(view.clients as f64))?;
        let states = [NodeState::Ready, NodeState::Silent, NodeState::Awaited].map(|state| {
            let count = view.nodes.iter().filter(|node| node.status.state == state).count();
            ("state", state.word(), count as f64)
        });
        Family { encoder, name: "ferrolite_nodes", help: "Members by the state of their connection" }
            .gauges(None, states)?;
        let mut phases = BTreeMap::new();
        let mut ended = BTreeMap::from([("done".to_owned(), 0), ("failed".to_owned(), 0)]);
        for line in &view.timelines {
            let of = if line.ended.is_some() { &mut ended } else { &mut phases };
            *of.entry(job_state(line)).or_insert(0u64) += 1;
        }
        phases.insert("queued".to_owned(), view.queued as u64);
        Family { encoder, name: "ferrolite_jobs", help: "Present jobs by phase" }
            .gauges(None, phases.iter().map(|(phase, count)| ("phase", phase.as_str(), *count as f64)))?;
        let now = self.0.unix_ms();
        let waits = view.queue.iter().map(|(job, _)| now.saturating_sub(job.submitted_ms)).max();
        let help = "The time since the submission of the oldest of the first 50 jobs of the queue";
        Family { encoder, name: "ferrolite_queue_wait", help }
            .gauges(Some(&Unit::Seconds), one(waits.unwrap_or_default() as f64 / 1e3))?;
        Family { encoder, name: "ferrolite_events", help: "Lines that the manager has logged" }.counters([(
            "",
            "",
            view.events_total,
        )])
    }

    fn of_nodes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let nodes = &self.0.view.nodes;
        let gauges = |of: fn(&crate::core::NodeView) -> f64| {
            nodes.iter().map(move |node| ("node", node.status.name.as_str(), of(node)))
        };
        let help = "1 if the node is connected, 0 if it is silent; 0 also for a node that has died";
        let up = gauges(|node| f64::from(u8::from(node.status.state == NodeState::Ready)));
        let dead = super::pages::dead(&self.0);
        let dead = dead.iter().map(|node| ("node", node.name.as_str(), 0.0));
        Family { encoder, name: "ferrolite_node_up", help }.gauges(None, up.chain(dead))?;
        Family { encoder, name: "ferrolite_node_heartbeat_age", help: "The time since the last heartbeat" }
            .gauges(Some(&Unit::Seconds), gauges(|node| node.status.heartbeat_age_ms as f64 / 1e3))?;
        Family { encoder, name: "ferrolite_node_busy", help: "1 if the node takes part in a job" }
            .gauges(None, gauges(|node| f64::from(u8::from(node.job.is_some()))))?;
        Family { encoder, name: "ferrolite_node_memory", help: "The memory of the node" }
            .gauges(Some(&Unit::Bytes), gauges(|node| node.status.memory as f64))?;
        Family { encoder, name: "ferrolite_node_memory_free", help: "The memory that is free for regions" }
            .gauges(
            Some(&Unit::Bytes),
            nodes.iter().filter_map(|node| {
                let free = node.told.counter("memory_free_bytes")?;
                Some(("node", node.status.name.as_str(), free as f64))
            }),
        )?;
        Family {
            encoder,
            name: "ferrolite_node_boot",
            help: "The time from the first instruction to the join",
        }
        .gauges(
            Some(&Unit::Seconds),
            nodes.iter().filter_map(|node| {
                let (_, us) = node.status.boot.stages.last()?;
                Some(("node", node.status.name.as_str(), f64::from(*us) / 1e6))
            }),
        )?;
        let help = "Lines of the log that the node has dropped, because it logged more than it sends";
        Family { encoder, name: "ferrolite_node_log_dropped", help }.counters(
            nodes.iter().map(|node| ("node", node.status.name.as_str(), node.told.dropped_there)),
        )?;
        for (counter, help) in COUNTERS {
            let series = nodes
                .iter()
                .filter_map(|node| Some(("node", node.status.name.as_str(), node.told.counter(counter)?)));
            let mut series = series.peekable();
            if series.peek().is_some() {
                let name = format!("ferrolite_{counter}");
                let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
                for (label, value, number) in series {
                    ConstCounter::new(number).encode(metric.encode_family(&[(label, value)])?)?;
                }
            }
        }
        Ok(())
    }
}

impl Collector for Cluster {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.of_manager(&mut encoder)?;
        self.of_nodes(&mut encoder)
    }
}
