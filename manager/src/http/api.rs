//! The interface for programs: JSON under `/api/v1`, and two pages for those who watch the process.

use super::auth::Caller;
use super::{App, Snapshot};
use crate::core::{NodeView, PartLine, Timeline};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use proto::JobPhase;
use serde_json::{Map, Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The age of the last copy of the core's state beyond which the core's task is stuck.
const STUCK: Duration = Duration::from_secs(5);

/// Tells whether the process works at all.
pub(super) async fn healthz(State(app): State<App>) -> Response {
    let age = app.feed.borrow().monotonic.elapsed();
    if age > STUCK {
        let why = format!("the core has not run for {} s\n", age.as_secs());
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    }
    "ok\n".into_response()
}

/// Tells whether the manager accepts nodes and jobs.
pub(super) async fn readyz(State(app): State<App>) -> Response {
    let snapshot = app.feed.borrow().clone();
    let stuck = snapshot.monotonic.elapsed() > STUCK;
    match snapshot.view.trouble.clone().or_else(|| stuck.then(|| "the core does not run".into())) {
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        None => "ready\n".into_response(),
    }
}

/// The manager itself.
pub(super) async fn cluster(State(app): State<App>, _: Caller) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    let view = &snapshot.view;
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": proto::PROTOCOL_VERSION,
        "epoch": view.epoch,
        "uptime_s": view.at.as_nanos() as f64 / 1e9,
        "lease_ms": millis(view.lease),
        "trouble": view.trouble,
        "nodes": view.nodes.len(),
        "jobs": view.jobs.len(),
        "clients": view.clients,
        "events": view.events_total,
    }))
}

pub(super) async fn nodes(State(app): State<App>, _: Caller) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    let nodes: Vec<Value> = snapshot.view.nodes.iter().map(|node| node_json(&snapshot, node)).collect();
    let departed = snapshot.view.departed.iter().map(|node| {
        json!({
            "name": node.name, "node": node.node.0, "incarnation": node.incarnation.0,
            "reason": node.reason, "at": unix(snapshot.time(node.at)),
        })
    });
    Json(json!({ "nodes": nodes, "departed": departed.collect::<Vec<_>>() }))
}

pub(super) async fn node(State(app): State<App>, _: Caller, Path(name): Path<String>) -> Response {
    let snapshot = app.feed.borrow().clone();
    match snapshot.view.nodes.iter().find(|node| node.status.name == name) {
        Some(node) => Json(node_json(&snapshot, node)).into_response(),
        None => not_found(&format!("no node {} is a member", proto::printable(&name))),
    }
}

/// The last lines of a node's log, also of one that has departed.
pub(super) async fn node_log(State(app): State<App>, _: Caller, Path(name): Path<String>) -> Response {
    let snapshot = app.feed.borrow().clone();
    let member = snapshot.view.nodes.iter().find(|node| node.status.name == name);
    let departed = || snapshot.view.departed.iter().rev().find(|node| node.name == name);
    let lines = member.map(|node| &node.told.lines).or_else(|| departed().map(|node| &node.lines));
    let Some(lines) = lines else {
        return not_found(&format!("no node {} is known", proto::printable(&name)));
    };
    let lines: Vec<Value> = lines
        .iter()
        .map(|line| json!({ "at_us": line.at_us, "severity": line.severity.word(), "text": line.text }))
        .collect();
    let dropped = member.map_or(0, |node| node.told.dropped_there);
    let refused = member.map_or(0, |node| node.told.dropped_here);
    Json(json!({ "name": name, "lines": lines, "dropped": dropped, "refused_bytes": refused }))
        .into_response()
}

pub(super) async fn jobs(State(app): State<App>, _: Caller) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    let jobs: Vec<Value> = snapshot.view.timelines.iter().map(|line| job_json(&snapshot, line)).collect();
    Json(json!({ "jobs": jobs }))
}

pub(super) async fn job(State(app): State<App>, _: Caller, Path(job): Path<u64>) -> Response {
    let snapshot = app.feed.borrow().clone();
    match snapshot.view.timelines.iter().find(|line| line.job.0 == job) {
        Some(line) => Json(job_json(&snapshot, line)).into_response(),
        None => not_found(&format!("no job {job} is known")),
    }
}

/// The first event that a program wants.
#[derive(Debug, serde::Deserialize)]
pub(super) struct From {
    #[serde(default)]
    after: Option<u64>,
}

/// The events, from a number on.
pub(super) async fn events(State(app): State<App>, _: Caller, Query(from): Query<From>) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    let wanted =
        snapshot.view.events.iter().filter(|event| from.after.is_none_or(|after| event.number > after));
    let events: Vec<Value> = wanted
        .map(|event| {
            json!({ "number": event.number, "at": unix(snapshot.time(event.at)), "text": event.text })
        })
        .collect();
    Json(json!({ "events": events }))
}

/// The work requests between nodes.
pub(super) async fn traffic(State(app): State<App>, _: Caller) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    let nodes = &snapshot.view.nodes;
    let names: Map<String, Value> =
        nodes.iter().map(|node| (node.status.node.0.to_string(), node.status.name.clone().into())).collect();
    let rows = nodes.iter().map(|node| {
        let peers: Map<String, Value> =
            node.told.peers.iter().map(|(peer, requests)| (peer.0.to_string(), (*requests).into())).collect();
        (node.status.node.0.to_string(), Value::Object(peers))
    });
    Json(json!({ "names": names, "requests": rows.collect::<Map<_, _>>() }))
}

fn not_found(why: &str) -> Response {
    (StatusCode::NOT_FOUND, format!("{why}\n")).into_response()
}

/// Returns a node as an object.
pub(super) fn node_json(snapshot: &Snapshot, node: &NodeView) -> Value {
    let status = &node.status;
    let counters: Map<String, Value> =
        node.told.counters().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let boot: Vec<Value> = status.boot.stages.iter().map(|(name, us)| json!([name, us])).collect();
    json!({
        "name": status.name,
        "node": status.node.0,
        "incarnation": status.incarnation.0,
        "boot_id": format!("{:016x}", status.boot_id),
        "state": status.state.word(),
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
        "report_age_ms": node.told.at.map(|at| millis(snapshot.age(at))),
        "counters": counters,
        "log_dropped": node.told.dropped_there,
    })
}

/// Returns a phase of a job as one word.
pub(super) fn phase_word(phase: JobPhase) -> String {
    format!("{phase:?}").to_lowercase()
}

/// Returns the state of a job as one word.
pub(super) fn job_state(line: &Timeline) -> String {
    match line.ended {
        None => line.phases.last().map_or_else(|| "new".into(), |(phase, _)| phase_word(*phase)),
        Some(_) if line.is_complete() => "done".into(),
        Some(_) => "failed".into(),
    }
}

/// Returns a job as an object.
fn job_json(snapshot: &Snapshot, line: &Timeline) -> Value {
    let part = |part: &PartLine| {
        let phases = part.phases.iter().map(|phase| {
            json!({
                "phase": phase.name, "from": unix(snapshot.time(phase.from)),
                "to": unix(snapshot.time(phase.to)), "done": phase.done, "total": phase.total,
            })
        });
        let pairs = |pairs: &[(String, u64)]| -> Map<String, Value> {
            pairs.iter().map(|(name, value)| (name.clone(), (*value).into())).collect()
        };
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
            .map(|(phase, at)| json!([phase_word(*phase), unix(snapshot.time(*at))]))
            .collect::<Vec<_>>(),
        "ended": line.ended.map(|at| unix(snapshot.time(at))),
        "parts": line.parts.values().map(part).collect::<Vec<_>>(),
    })
}

/// Returns a time as seconds since 1970.
fn unix(time: SystemTime) -> f64 {
    let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    millis as f64 / 1000.0
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
