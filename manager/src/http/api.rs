//! The interface for programs: JSON under `/api/v1`, and two pages for those who watch the process.

use super::auth::Caller;
use super::{App, Snapshot};
use crate::core::json::{job_json, node_json, rollout_json};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use platform::Instant;
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

/// The asker, as the manager knows it.
pub(super) async fn whoami(caller: Caller) -> Json<Value> {
    Json(json!({ "name": caller.name, "role": caller.role.word() }))
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
        "lease_ms": u64::try_from(view.lease.as_millis()).unwrap_or(u64::MAX),
        "trouble": view.trouble,
        "nodes": view.nodes.len(),
        "jobs": view.jobs.len(),
        "clients": view.clients,
        "events": view.events_total,
    }))
}

pub(super) async fn nodes(State(app): State<App>, _: Caller) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    let nodes: Vec<Value> = snapshot.view.nodes.iter().map(|node| node_json(&snapshot.view, node)).collect();
    let departed = snapshot.view.departed.iter().map(|node| {
        json!({
            "name": node.name, "node": node.node.0, "incarnation": node.incarnation.0,
            "reason": node.reason, "at": unix(snapshot.time(node.at)),
        })
    });
    let absent = snapshot.view.absent.iter().map(
        |(name, standing)| json!({ "name": name, "state": standing.word(), "reason": standing.objection() }),
    );
    let absent: Vec<Value> = absent.collect();
    Json(json!({ "nodes": nodes, "absent": absent, "departed": departed.collect::<Vec<_>>() }))
}

pub(super) async fn node(State(app): State<App>, _: Caller, Path(name): Path<String>) -> Response {
    let snapshot = app.feed.borrow().clone();
    match snapshot.view.nodes.iter().find(|node| node.status.name == name) {
        Some(node) => Json(node_json(&snapshot.view, node)).into_response(),
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
    let jobs: Vec<Value> =
        snapshot.view.timelines.iter().map(|line| job_json(line, &times(&snapshot))).collect();
    Json(json!({ "jobs": jobs }))
}

pub(super) async fn job(State(app): State<App>, _: Caller, Path(job): Path<u64>) -> Response {
    let snapshot = app.feed.borrow().clone();
    match snapshot.view.timelines.iter().find(|line| line.job.0 == job) {
        Some(line) => Json(job_json(line, &times(&snapshot))).into_response(),
        None => not_found(&format!("no job {job} is known")),
    }
}

/// The first event that a program wants.
#[derive(Debug, serde::Deserialize)]
pub(super) struct From {
    #[serde(default)]
    after: Option<u64>,
}

/// The events that the caller's role may read, from a number on.
pub(super) async fn events(State(app): State<App>, caller: Caller, Query(from): Query<From>) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    let allowed = snapshot.view.events.of(caller.role);
    let events: Vec<Value> = allowed
        .filter(|event| from.after.is_none_or(|after| event.number > after))
        .map(|event| {
            json!({ "number": event.number, "at": unix(snapshot.time(event.at)), "text": event.text })
        })
        .collect();
    Json(json!({ "events": events }))
}

/// The last rollout.
pub(super) async fn rollout(State(app): State<App>, _: Caller) -> Json<Value> {
    let snapshot = app.feed.borrow().clone();
    Json(rollout_json(snapshot.view.rollout.as_ref()))
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

/// Returns a function that tells times as seconds since 1970.
fn times(snapshot: &Snapshot) -> impl Fn(Instant) -> f64 {
    |at| unix(snapshot.time(at))
}

/// Returns a time as seconds since 1970.
fn unix(time: SystemTime) -> f64 {
    let millis = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    millis as f64 / 1000.0
}
