//! Jobs that a client ends or limits, and the treatment of nodes that have not ended their part of one.

use crate::support::{Harness, request, submit};
use manager::core::{Config, ConnId, Saved};
use proto::*;
use std::time::Duration;

fn harness() -> Harness {
    Harness::with(Config { lease: Duration::from_secs(600), ..Config::default() }, Saved::default())
}

/// Starts a job that computes on all of these nodes, none of which has another job.
fn running(h: &mut Harness, nodes: &[ConnId], limit: Option<Duration>) -> (ConnId, JobId) {
    let client = h.client();
    let limit_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap());
    let request = JobRequest { limit_ms, ..request(nodes.len() as u16, &[]) };
    h.say(client, &FromClient::Submit(request));
    let mut job = None;
    for &node in nodes {
        let heard = h.node_heard(node);
        job = heard.into_iter().find_map(|m| if let ToNode::JobStart(s) = m { Some(s.job) } else { None });
        h.say(node, &ToManager::JobAccepted { job: job.unwrap() });
    }
    assert!(matches!(h.client_heard(client)[..], [ToClient::Accepted { .. }]));
    (client, job.unwrap())
}

fn jobs(h: &mut Harness) -> Vec<JobStatus> {
    let client = h.client();
    h.say(client, &FromClient::Jobs);
    match h.client_heard(client).pop() {
        Some(ToClient::Jobs(jobs)) => jobs,
        other => panic!("{other:?}"),
    }
}

fn over(h: &mut Harness, node: ConnId, job: JobId) {
    h.say(node, &ToManager::JobOver { job });
}

#[test]
fn a_job_is_cancelled_by_its_number() {
    let mut h = harness();
    let nodes = ["a", "b"].map(|name| h.join(name).0);
    let (client, job) = running(&mut h, &nodes, None);
    let operator = h.client();
    h.say(operator, &FromClient::Cancel { job });
    assert_eq!(h.client_heard(operator), [ToClient::Cancelled { job }]);
    assert_eq!(h.failure(client), "cancelled by test");
    for node in nodes {
        let cancel = ToNode::JobCancel { job, reason: "cancelled by test".into() };
        assert_eq!(h.node_heard(node).pop(), Some(cancel));
    }
    h.say(operator, &FromClient::Cancel { job });
    assert_eq!(h.failure(operator), "job 1 has ended, but not yet on node 1 (a), node 2 (b)");
    nodes.iter().for_each(|&node| over(&mut h, node, job));
    let operator = h.client();
    h.say(operator, &FromClient::Cancel { job });
    assert_eq!(h.failure(operator), "job 1 has ended: cancelled");
    let operator = h.client();
    h.say(operator, &FromClient::Cancel { job: JobId(9) });
    assert_eq!(h.failure(operator), "there is no job 9");
}

#[test]
fn jobs_are_listed_with_their_nodes_and_phases() {
    let mut h = harness();
    let nodes = ["a", "b", "c"].map(|name| h.join(name).0);
    assert_eq!(jobs(&mut h), []);
    let (_, first) = running(&mut h, &nodes[..2], None);
    h.pass(Duration::from_secs(2));
    let second = h.client();
    h.say(second, &submit(1, &[5]));
    h.pass(Duration::from_secs(1));
    let status = |job, nodes: &[u16], phase, age_ms, phase_ms| {
        let nodes = nodes.iter().copied().map(NodeId).collect();
        JobStatus { job, app: "lines".into(), nodes, phase, age_ms, phase_ms }
    };
    let listed = jobs(&mut h);
    assert_eq!(listed[0], status(first, &[1, 2], JobPhase::Running, 3000, 3000));
    let starting = status(JobId(first.0 + 1), &[3], JobPhase::Starting, 1000, 1000);
    assert_eq!(listed[1], starting);
    h.say(nodes[2], &ToManager::JobAccepted { job: starting.job });
    assert_eq!(jobs(&mut h)[1], JobStatus { phase: JobPhase::Loading, phase_ms: 0, ..starting });
    let operator = h.client();
    h.say(operator, &FromClient::Cancel { job: first });
    over(&mut h, nodes[0], first);
    h.pass(Duration::from_secs(4));
    assert_eq!(jobs(&mut h)[0], status(first, &[2], JobPhase::Ending, 7000, 4000));
    over(&mut h, nodes[1], first);
    assert_eq!(jobs(&mut h).len(), 1);
}

#[test]
fn a_node_is_idle_only_when_its_part_is_over() {
    let mut h = harness();
    let nodes = ["a", "b"].map(|name| h.join(name).0);
    let (client, job) = running(&mut h, &nodes, None);
    h.drop(client);
    let next = h.client();
    h.say(next, &submit(0, &[]));
    for node in nodes {
        assert!(matches!(h.node_heard(node)[..], [.., ToNode::JobCancel { .. }]), "no start before the end");
    }
    over(&mut h, nodes[0], job);
    assert_eq!(h.node_heard(nodes[0]), [], "the other node has not ended its part");
    // The node finished its part at the moment when it was told to end it. That counts as its end too.
    h.say(nodes[1], &ToManager::JobDone { job, report: JobReport::default() });
    for node in nodes {
        assert!(matches!(h.node_heard(node)[..], [ToNode::JobStart(_)]));
    }
    assert!(!h.closed.contains(&next));
}

#[test]
fn a_job_that_waits_for_nodes_in_vain_gets_the_true_reason() {
    let mut h = harness();
    let nodes = ["a", "b"].map(|name| h.join(name).0);
    let (client, job) = running(&mut h, &nodes, None);
    h.drop(client);
    over(&mut h, nodes[0], job);
    let next = h.client();
    h.say(next, &submit(2, &[]));
    h.pass(Duration::from_millis(19_999));
    assert!(!h.closed.contains(&next));
    h.pass(Duration::from_millis(1));
    let reason = "2 nodes wanted, but 1 are idle: job 1 is ending on node 2 (b), and has been for 20 s";
    assert_eq!(h.failure(next), reason);
    // One node is enough for another job.
    let one = h.client();
    h.say(one, &submit(1, &[]));
    assert!(matches!(h.node_heard(nodes[0])[..], [.., ToNode::JobStart(_)]));
    // A submission does not wait for a job that runs.
    let refused = h.client();
    h.say(refused, &submit(2, &[]));
    assert_eq!(
        h.failure(refused),
        "2 nodes wanted, but 0 are idle: job 1 is ending on node 2 (b), job 3 runs"
    );
    h.pass(Duration::from_secs(11));
    assert!(h.log.iter().any(|line| line == "job 1: has not ended for 30 s on node 2 (b)"), "{:?}", h.log);
}

#[test]
fn a_client_that_goes_while_it_waits_for_nodes_is_forgotten() {
    let mut h = harness();
    let (node, _) = h.join("a");
    let (client, job) = running(&mut h, &[node], None);
    h.drop(client);
    let next = h.client();
    h.say(next, &submit(1, &[]));
    h.say(next, &submit(1, &[]));
    assert!(h.failure(next).contains("this connection already has a job"));
    let next = h.client();
    h.say(next, &submit(1, &[]));
    h.drop(next);
    h.node_heard(node);
    over(&mut h, node, job);
    assert_eq!(h.node_heard(node), []);
}

#[test]
fn the_death_of_a_node_ends_the_wait_for_it() {
    let mut h = harness();
    let nodes = ["a", "b"].map(|name| h.join(name).0);
    let (client, job) = running(&mut h, &nodes, None);
    h.drop(client);
    over(&mut h, nodes[0], job);
    let next = h.client();
    h.say(next, &submit(0, &[]));
    h.node_heard(nodes[0]);
    h.dies(nodes[1]);
    assert!(h.node_heard(nodes[0]).iter().any(|message| matches!(message, ToNode::JobStart(_))));
    assert!(!h.closed.contains(&next));
}

#[test]
fn a_job_that_takes_longer_than_its_limit_fails() {
    let mut h = harness();
    let (node, _) = h.join("a");
    let (client, job) = running(&mut h, &[node], Some(Duration::from_secs(90)));
    h.pass(Duration::from_millis(89_999));
    assert!(!h.closed.contains(&client));
    h.pass(Duration::from_millis(1));
    assert_eq!(h.failure(client), "the job has taken longer than its limit of 90 s");
    assert!(matches!(h.node_heard(node)[..], [.., ToNode::JobCancel { .. }]));
    over(&mut h, node, job);
    // Without a limit, and with the longest one.
    for limit in [None, Some(Duration::from_millis(u64::MAX))] {
        let (client, job) = running(&mut h, &[node], limit);
        h.pass(Duration::from_secs(500));
        h.say(node, &ToManager::Heartbeat { seq: 1 });
        h.say(node, &ToManager::JobDone { job, report: JobReport::default() });
        assert!(matches!(h.client_heard(client)[..], [.., ToClient::Done { .. }]));
    }
}

#[test]
fn a_node_that_gives_up_a_job_unasked_fails_it() {
    let mut h = harness();
    let nodes = ["a", "b"].map(|name| h.join(name).0);
    let (client, job) = running(&mut h, &nodes, None);
    over(&mut h, nodes[1], job);
    assert_eq!(h.failure(client), "node 2 (b): ended its part early");
    assert_eq!(jobs(&mut h)[0].nodes, [NodeId(1)]);
}
