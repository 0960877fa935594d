//! The state of the cluster as JSON, for programs and for people who help.

use super::view::{NodeView, View};
use super::{Core, Departed, NodeLine, PartLine, Timeline};
use crate::access::digits;
use platform::Instant;
use proto::{
    AuditEntry, DatasetStatus, InventoryNode, JobDetails, JobInfo, JobPhase, JobQos, JobReport, NodeId,
    NodeStep, Presence, RolloutStatus, ToClient, UserRole, UserStatus, printable,
};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The length of a piece of the report, in bytes.
const PIECE: usize = 48 << 10;

/// Returns a node as an object.
#[must_use]
pub fn node_json(view: &View, node: &NodeView) -> Value {
    let status = &node.status;
    let counters: Map<String, Value> =
        node.told.counters().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let boot: Vec<Value> = status.boot.stages.iter().map(|(name, us)| json!([name, us])).collect();
    json!({
        "name": status.name,
        "node": status.node.0,
        "incarnation": status.incarnation.0,
        "boot_id": format!("{:016x}", status.boot_id),
        "state": node.standing.word(),
        "reason": node.standing.withdrawal().and_then(|_| node.standing.objection()),
        "held": node.standing.held(),
        "job": node.job.map(|job| job.0),
        "rnic": status.rnic,
        "driver": node.rnic.driver,
        "mac": node.rnic.mac.to_string(),
        "lid": node.rnic.lid,
        "appliance": node.rnic.physical,
        "memory": status.memory,
        "cpus": status.cpus,
        "applications": status.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(),
        "heartbeat_age_ms": status.heartbeat_age_ms,
        "boot_us": boot,
        "uptime_us": node.told.uptime_us,
        "report_age_ms": node.told.at.map(|at| millis(view.at.saturating_since(at))),
        "counters": counters,
        "log_dropped": node.told.dropped_there,
    })
}

/// Returns nodes of the inventory as an object.
#[must_use]
pub fn inventory_json(nodes: &[InventoryNode]) -> Value {
    let node = |node: &InventoryNode| {
        let differences = match &node.presence {
            Presence::Differs(differences) => differences.as_slice(),
            _ => &[],
        };
        json!({
            "name": node.name,
            "presence": node.presence.word(),
            "state": node.standing.word(),
            "bmc": node.bmc,
            "differences": differences,
        })
    };
    json!({ "nodes": nodes.iter().map(node).collect::<Vec<_>>() })
}

/// Returns a rollout as an object; `null` if there was none.
#[must_use]
pub fn rollout_json(status: Option<&RolloutStatus>) -> Value {
    let Some(status) = status else { return json!({ "rollout": null }) };
    let node = |(name, former, step): &(String, [u8; 32], NodeStep)| json!({ "name": name, "former": digits(former), "step": step.word(), "reason": step.reason() });
    json!({
        "rollout": status.number,
        "image": digits(&status.plan.image),
        "who": status.who,
        "state": status.state.word(),
        "reason": status.state.reason(),
        "nodes": status.nodes.iter().map(node).collect::<Vec<_>>(),
    })
}

/// The names of nodes, by id.
pub type Names = BTreeMap<NodeId, String>;

/// Returns the names of nodes, or the numbers of those that have left since.
#[must_use]
pub fn labels(nodes: &[NodeId], names: &Names) -> Vec<String> {
    nodes.iter().map(|node| names.get(node).map_or_else(|| node.to_string(), |n| printable(n))).collect()
}

/// Returns the datasets as JSON.
#[must_use]
pub fn datasets_json(datasets: &[DatasetStatus], names: &Names) -> Value {
    let object = |dataset: &DatasetStatus| {
        json!({
            "dataset": dataset.name,
            "bytes": dataset.bytes,
            "app": dataset.app,
            "job": dataset.job.0,
            "age_s": dataset.age_ms as f64 / 1000.0,
            "nodes": labels(&dataset.nodes, names),
        })
    };
    json!({ "datasets": datasets.iter().map(object).collect::<Vec<_>>() })
}

/// Returns the users as JSON.
#[must_use]
pub fn users_json(users: &[UserStatus]) -> Value {
    let object = |user: &UserStatus| json!({ "user": user.name, "role": user.role.word(), "key": user.key.to_string() });
    json!({ "users": users.iter().map(object).collect::<Vec<_>>() })
}

/// Returns the audit log as JSON.
#[must_use]
pub fn audit_json(entries: &[AuditEntry]) -> Value {
    let object = |entry: &AuditEntry| {
        json!({
            "entry": entry.number,
            "time_ms": entry.time_ms,
            "who": entry.who,
            "what": entry.what,
            "result": entry.result,
            "hash": entry.hash.to_string(),
        })
    };
    json!({ "audit": entries.iter().map(object).collect::<Vec<_>>() })
}

/// Returns a job of the queue or of the history as an object.
#[must_use]
pub fn job_info_json(job: &JobInfo) -> Value {
    json!({
        "job": job.job.0,
        "app": job.app,
        "by": job.by,
        "state": job.state.word(),
        "reason": job.state.reason(),
        "nodes": job.nodes,
        "wanted": job.wanted,
        "priority": job.priority,
        "submitted_ms": job.submitted_ms,
        "started_ms": job.started_ms,
        "ended_ms": job.ended_ms,
        "limit_ms": job.limit_ms,
        "requeues": job.requeues,
        "detached": job.detached,
        "output_bytes": job.output_bytes,
        "log_bytes": job.log_bytes,
        "expired": job.expired,
    })
}

/// Returns jobs of the queue or of the history as JSON.
#[must_use]
pub fn jobs_json(jobs: &[JobInfo]) -> Value {
    json!({ "jobs": jobs.iter().map(job_info_json).collect::<Vec<_>>() })
}

/// Returns names with numbers as an object.
fn pairs(pairs: &[(String, u64)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| (name.clone(), (*value).into())).collect()
}

/// Returns all that is known of a job as JSON.
#[must_use]
pub fn job_details_json(details: &JobDetails) -> Value {
    let report = |(node, report): &(String, JobReport)| {
        let JobReport { counts, times_us, used, .. } = report;
        json!({ "name": node, "counts": pairs(counts), "times_us": pairs(times_us), "used": pairs(used) })
    };
    let JobQos { priority, bytes_per_second, outstanding } = details.qos;
    let mut all = job_info_json(&details.info);
    all["rdma_priority"] = priority.unwrap_or_default().word().into();
    all["rdma_limit"] = bytes_per_second.into();
    all["rdma_outstanding"] = outstanding.into();
    all["reports"] = details.reports.iter().map(report).collect();
    all
}

/// Returns a phase of a job as one word.
#[must_use]
pub fn phase_word(phase: JobPhase) -> String {
    format!("{phase:?}").to_lowercase()
}

/// Returns the state of a job as one word.
#[must_use]
pub fn job_state(line: &Timeline) -> String {
    match line.ended {
        None => line.phases.last().map_or_else(|| "new".into(), |(phase, _)| phase_word(*phase)),
        Some(_) if line.is_complete() => "done".into(),
        Some(_) => "failed".into(),
    }
}

/// Returns a job as an object. `time` tells times as numbers.
#[must_use]
pub fn job_json(line: &Timeline, time: &dyn Fn(Instant) -> f64) -> Value {
    let part = |part: &PartLine| {
        let phases = part.phases.iter().map(|phase| {
            json!({
                "phase": phase.name, "from": time(phase.from),
                "to": time(phase.to), "done": phase.done, "total": phase.total,
            })
        });
        json!({
            "name": part.name,
            "phases": phases.collect::<Vec<_>>(),
            "times_us": part.report.as_ref().map(|report| pairs(&report.times_us)),
            "counts": part.report.as_ref().map(|report| pairs(&report.counts)),
            "used": part.report.as_ref().map(|report| pairs(&report.used)),
            "failed": part.failed,
        })
    };
    json!({
        "job": line.job.0,
        "app": line.app,
        "state": job_state(line),
        "phases": line.phases.iter()
            .map(|(phase, at)| json!([phase_word(*phase), time(*at)]))
            .collect::<Vec<_>>(),
        "ended": line.ended.map(time),
        "parts": line.parts.values().map(part).collect::<Vec<_>>(),
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn lines_json(lines: &VecDeque<Arc<NodeLine>>) -> Vec<Value> {
    let line = |line: &Arc<NodeLine>| json!([line.at_us, line.severity.word(), line.text]);
    lines.iter().map(line).collect()
}

fn departed_json(node: &Departed) -> Value {
    json!({
        "name": node.name, "node": node.node.0, "incarnation": node.incarnation.0,
        "reason": node.reason, "at_s": seconds(node.at), "log": lines_json(&node.lines),
    })
}

/// Returns a time of the manager's clock, in seconds.
fn seconds(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e9
}

impl Core {
    /// Sends a client everything that helps to find a fault. It holds no key.
    pub(super) fn tell_support(&mut self, conn: super::ConnId) {
        let view = self.view();
        let role = self.asker(conn).map_or(UserRole::Viewer, |(_, role)| role);
        let nodes = view.nodes.iter().map(|node| {
            let mut object = node_json(&view, node);
            object["log"] = lines_json(&node.told.lines).into();
            object["hardware"] = self.members.hardware(node.status.node).into();
            object
        });
        let report = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": proto::PROTOCOL_VERSION,
            "epoch": view.epoch,
            "clock_s": seconds(view.at),
            "trouble": view.trouble,
            "configuration": {
                "lease_ms": millis(self.config.lease),
                "reply_timeout_ms": millis(self.config.reply_timeout),
                "leave_ms": millis(self.config.leave),
                "ending_ms": millis(self.config.ending),
                "trust_hosts": self.config.rules.trust_hosts,
                "input_window": self.config.input_window,
                "job_window": self.config.job_window,
            },
            "nodes": nodes.collect::<Vec<_>>(),
            "departed": view.departed.iter().map(|node| departed_json(node)).collect::<Vec<_>>(),
            "jobs": view.timelines.iter().map(|line| job_json(line, &seconds)).collect::<Vec<_>>(),
            "events": view.events.of(role)
                .map(|event| json!([seconds(event.at), event.text]))
                .collect::<Vec<_>>(),
        });
        let text = report.to_string();
        let mut pieces = text.as_bytes().chunks(PIECE).peekable();
        while let Some(piece) = pieces.next() {
            let more = pieces.peek().is_some();
            self.tell_client(conn, ToClient::Support { bytes: piece.to_vec(), more });
        }
    }
}
