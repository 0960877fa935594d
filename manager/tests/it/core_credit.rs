//! Input goes to a node within the credit of the node, and never beyond it.

use crate::support::{Harness, submit};
use manager::core::{Config, ConnId, Saved};
use proto::*;
use std::time::Duration;

const PIECE: u64 = 48_000;

fn input(h: &mut Harness, client: ConnId, bytes: u64) {
    // The first job of each test.
    let job = JobId(1);
    h.say(client, &FromClient::Input { job, bytes: vec![b'\n'; usize::try_from(bytes).unwrap()] });
}

fn credit(h: &mut Harness, node: ConnId, job: JobId, bytes: u64) {
    h.say(node, &ToManager::JobInputCredit { job, bytes });
}

/// Returns the number of input bytes that a node has been sent since the last call, and whether that was the
/// end.
fn taken(h: &mut Harness, node: ConnId) -> (u64, bool) {
    h.node_heard(node).into_iter().fold((0, false), |(sum, end), message| match message {
        ToNode::JobInput { bytes, .. } => {
            assert!(!end, "input after its end");
            (sum + bytes.len() as u64, end)
        }
        ToNode::JobInputEnd { .. } => (sum, true),
        ToNode::HeartbeatAck { .. } => (sum, end),
        other => panic!("{other:?}"),
    })
}

/// Starts a job with an input of `len` bytes on nodes that have accepted it.
fn loading(config: Config, nodes: usize, len: u64) -> (Harness, Vec<ConnId>, ConnId, JobId) {
    let mut h = Harness::with(config, Saved::default());
    let nodes: Vec<ConnId> = (0..nodes).map(|i| h.join(&format!("n{i}")).0).collect();
    let client = h.client();
    h.say(client, &submit(0, &[len]));
    let mut job = JobId(0);
    for &node in &nodes {
        let Some(ToNode::JobStart(start)) = h.node_heard(node).pop() else { panic!("no start") };
        job = start.job;
        h.say(node, &ToManager::JobAccepted { job });
    }
    assert!(matches!(h.client_heard(client)[..], [ToClient::Accepted { .. }]));
    (h, nodes, client, job)
}

fn small() -> Config {
    Config { input_window: 100_000, lease: Duration::from_secs(600), ..Config::default() }
}

#[test]
fn a_node_gets_no_more_than_it_is_ready_to_take() {
    let (mut h, nodes, client, job) = loading(small(), 1, 4 * PIECE);
    input(&mut h, client, PIECE);
    assert_eq!(taken(&mut h, nodes[0]), (0, false), "it has not said that it is ready");
    credit(&mut h, nodes[0], job, PIECE - 1);
    assert_eq!(taken(&mut h, nodes[0]), (0, false), "a piece is sent whole");
    credit(&mut h, nodes[0], job, 2 * PIECE + 10);
    assert_eq!(taken(&mut h, nodes[0]), (PIECE, false));
    input(&mut h, client, PIECE);
    assert_eq!(taken(&mut h, nodes[0]), (PIECE, false));
    input(&mut h, client, PIECE);
    input(&mut h, client, PIECE);
    assert_eq!(taken(&mut h, nodes[0]), (0, false), "all input has come, but not all may go");
    credit(&mut h, nodes[0], job, PIECE);
    assert_eq!(taken(&mut h, nodes[0]), (0, false), "what was said once is not taken back");
    credit(&mut h, nodes[0], job, 4 * PIECE);
    assert_eq!(taken(&mut h, nodes[0]), (2 * PIECE, true));
}

#[test]
fn a_heartbeat_is_answered_whatever_input_waits() {
    let (mut h, nodes, client, job) = loading(small(), 1, 2 * PIECE);
    input(&mut h, client, PIECE);
    input(&mut h, client, PIECE);
    h.say(nodes[0], &ToManager::Heartbeat { seq: 7 });
    assert!(matches!(h.node_heard(nodes[0])[..], [ToNode::HeartbeatAck { seq: 7, .. }]));
    credit(&mut h, nodes[0], job, 2 * PIECE);
    assert_eq!(taken(&mut h, nodes[0]), (2 * PIECE, true));
}

#[test]
fn the_client_is_heard_only_as_fast_as_nodes_take_input() {
    let (mut h, nodes, client, job) = loading(small(), 1, 300_000);
    input(&mut h, client, PIECE);
    input(&mut h, client, PIECE);
    assert!(!h.paused.contains(&client));
    input(&mut h, client, PIECE);
    assert!(h.paused.contains(&client));
    credit(&mut h, nodes[0], job, PIECE);
    assert!(h.paused.contains(&client), "not before no more than half waits");
    credit(&mut h, nodes[0], job, 2 * PIECE);
    assert!(!h.paused.contains(&client));
    for _ in 0..2 {
        input(&mut h, client, PIECE);
    }
    assert!(h.paused.contains(&client));
    h.node_heard(nodes[0]);
    h.say(nodes[0], &ToManager::JobFailed { job, reason: "no memory".into() });
    assert!(!h.paused.contains(&client), "a job that ends leaves nobody paused");
    h.failure(client);
}

#[test]
fn what_waits_for_all_nodes_together_is_bounded() {
    let config = Config { job_window: 200_000, ..small() };
    let (mut h, _, client, _) = loading(config, 50, 100_000_000);
    let mut sent = 0;
    while !h.paused.contains(&client) {
        input(&mut h, client, PIECE);
        sent += PIECE;
        assert!(sent < 1_000_000, "no end of it");
    }
}

#[test]
fn single_bytes_are_charged_as_many() {
    let (mut h, nodes, client, job) = loading(small(), 1, 10_000);
    let mut count = 0;
    credit(&mut h, nodes[0], job, 100_000);
    while !h.paused.contains(&client) {
        input(&mut h, client, 1);
        count += 1;
    }
    assert!((150..1000).contains(&count), "{count}");
    let sent = u64::try_from(h.node_heard(nodes[0]).len()).unwrap();
    assert_eq!(sent, 100_000 / ToNode::MIN_CHARGE);
}

#[test]
fn a_node_that_takes_no_input_fails_the_job_by_name() {
    let (mut h, nodes, client, job) = loading(small(), 2, 300_000);
    for _ in 0..4 {
        input(&mut h, client, PIECE);
    }
    for _ in 0..3 {
        h.pass(Duration::from_secs(29));
        assert!(!h.closed.contains(&client), "{:?}", h.log);
        credit(&mut h, nodes[0], job, ToManager::MAX_CREDIT);
        let more = h.now.as_nanos();
        credit(&mut h, nodes[1], job, more / 1_000_000_000);
    }
    h.pass(Duration::from_secs(30));
    assert_eq!(h.failure(client), "node 2 (n1) accepted no input for 30 s");
}

#[test]
fn a_credit_that_cannot_be_fails_the_job() {
    let (mut h, nodes, client, job) = loading(small(), 1, 10);
    credit(&mut h, nodes[0], JobId(job.0 + 1), u64::MAX);
    credit(&mut h, nodes[0], job, ToManager::MAX_CREDIT);
    assert!(!h.closed.contains(&client));
    credit(&mut h, nodes[0], job, ToManager::MAX_CREDIT + 1);
    assert_eq!(h.failure(client), "node 1 (n0) granted more credit than is permitted");
}
