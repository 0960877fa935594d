//! Datasets on a virtual clock: kept, read, listed, dropped, and lost with their nodes.

use crate::support::{Harness, request};
use manager::core::ConnId;
use proto::*;

/// Joins nodes, and returns them by rank.
fn nodes(h: &mut Harness, count: usize) -> Vec<ConnId> {
    let joined: Vec<ConnId> = (0..count).map(|i| h.join(&format!("n{i}")).0).collect();
    for &conn in &joined {
        h.node_heard(conn);
    }
    joined
}

/// Returns a submission without files that reads and keeps datasets.
fn wish(reads: &[&str], keeps: Option<&str>) -> FromClient {
    let datasets = reads.iter().map(ToString::to_string).collect();
    FromClient::Submit(JobRequest { datasets, keep: keeps.map(str::to_owned), ..request(0, &[]) })
}

/// Submits a job that all nodes accept, and returns its start.
fn started(h: &mut Harness, nodes: &[ConnId], client: ConnId, wish: &FromClient) -> JobStart {
    h.say(client, wish);
    let mut start = None;
    for &conn in nodes {
        let Some(ToNode::JobStart(told)) = h.node_heard(conn).pop() else { panic!("no start") };
        start = Some(told);
    }
    let start = start.unwrap();
    for &conn in nodes {
        h.say(conn, &ToManager::JobAccepted { job: start.job });
        h.node_heard(conn);
    }
    h.client_heard(client);
    start
}

/// Reports that a node is done and keeps pieces of these lengths.
fn done(h: &mut Harness, node: ConnId, job: JobId, kept: &[u64]) {
    let report = JobReport { kept: kept.to_vec(), ..JobReport::default() };
    h.say(node, &ToManager::JobDone { job, report });
}

/// Runs a job on two nodes whose output, of 10 and 5 bytes, becomes the dataset `d`.
fn keep(h: &mut Harness, nodes: &[ConnId]) -> JobId {
    let client = h.client();
    let start = started(h, nodes, client, &wish(&[], Some("d")));
    assert!(start.keep && start.datasets.is_empty());
    done(h, nodes[1], start.job, &[5]);
    done(h, nodes[0], start.job, &[8, 2]);
    assert!(matches!(h.client_heard(client)[..], [_, _, ToClient::Done { .. }]));
    start.job
}

fn list(h: &mut Harness) -> Vec<DatasetStatus> {
    let client = h.client();
    h.say(client, &FromClient::Datasets);
    match h.client_heard(client).pop() {
        Some(ToClient::Datasets(all)) => all,
        other => panic!("{other:?}"),
    }
}

fn refused(h: &mut Harness, message: &FromClient) -> String {
    let client = h.client();
    h.say(client, message);
    h.failure(client)
}

#[test]
fn the_output_of_a_job_is_the_input_of_the_next() {
    let mut h = Harness::new();
    let nodes = nodes(&mut h, 2);
    let job = keep(&mut h, &nodes);
    let [status] = &list(&mut h)[..] else { panic!("not one dataset") };
    assert_eq!((status.name.as_str(), status.bytes, status.job), ("d", 15, job));
    assert_eq!(status.nodes, [NodeId(1), NodeId(2)]);
    let client = h.client();
    let start = started(&mut h, &nodes, client, &wish(&["d"], None));
    assert_eq!(start.inputs, [InputFile { name: "lite:d".into(), len: 15 }]);
    let pieces = vec![(NodeId(1), 8), (NodeId(1), 2), (NodeId(2), 5)];
    assert_eq!(start.datasets, [Dataset { name: "d".into(), job, pieces }]);
    assert!(start.share >= 8 && !start.keep, "{}", start.share);
    // It stays while a job reads it, and until it is dropped.
    let drop = FromClient::DropDataset { name: "d".into() };
    assert_eq!(refused(&mut h, &drop), format!("job {} reads the dataset d", start.job.0));
    nodes.iter().for_each(|&node| done(&mut h, node, start.job, &[]));
    assert_eq!(list(&mut h).len(), 1);
    let client = h.client();
    h.say(client, &drop);
    assert_eq!(h.client_heard(client).pop(), Some(ToClient::Dropped { name: "d".into() }));
    for &node in &nodes {
        assert_eq!(h.node_heard(node).pop(), Some(ToNode::DropDataset { job }));
    }
    assert_eq!(list(&mut h), []);
    assert_eq!(refused(&mut h, &drop), "there is no dataset d");
}

#[test]
fn unknown_and_taken_names_are_refused() {
    let mut h = Harness::new();
    let nodes = nodes(&mut h, 2);
    assert_eq!(refused(&mut h, &wish(&["d"], None)), "there is no dataset d");
    keep(&mut h, &nodes);
    assert_eq!(refused(&mut h, &wish(&[], Some("d"))), "there is a dataset d already");
    for name in ["", "a b", "a\n", &"x".repeat(65)] {
        assert!(refused(&mut h, &wish(&[], Some(name))).contains("the name of a dataset") || name.len() < 4);
    }
    let client = h.client();
    let start = started(&mut h, &nodes, client, &wish(&[], Some("e")));
    let taken = refused(&mut h, &wish(&[], Some("e")));
    assert_eq!(taken, format!("job {} keeps its output as e", start.job.0));
}

#[test]
fn a_job_that_fails_keeps_nothing() {
    let mut h = Harness::new();
    let nodes = nodes(&mut h, 2);
    let client = h.client();
    let job = started(&mut h, &nodes, client, &wish(&[], Some("d"))).job;
    done(&mut h, nodes[1], job, &[5]);
    h.say(nodes[0], &ToManager::JobFailed { job, reason: "no luck".into() });
    // Also the node whose part was done frees it.
    for &node in &nodes {
        assert_eq!(h.node_heard(node).pop(), Some(ToNode::DropDataset { job }));
    }
    assert_eq!(list(&mut h), []);
    keep(&mut h, &nodes);
}

#[test]
fn a_dataset_is_lost_with_one_of_its_nodes() {
    let mut h = Harness::new();
    let nodes = nodes(&mut h, 2);
    let job = keep(&mut h, &nodes);
    h.say(nodes[1], &ToManager::Leave);
    assert_eq!(list(&mut h), []);
    assert!(h.node_heard(nodes[0]).contains(&ToNode::DropDataset { job }));
    assert_eq!(refused(&mut h, &wish(&["d"], None)), "there is no dataset d");
}

#[test]
fn too_many_pieces_fail_the_job() {
    let mut h = Harness::new();
    let nodes = nodes(&mut h, 1);
    let client = h.client();
    let job = started(&mut h, &nodes, client, &wish(&[], Some("d"))).job;
    done(&mut h, nodes[0], job, &vec![1; Dataset::MAX_PIECES + 1]);
    assert!(h.failure(client).contains("it keeps 257 pieces of output"));
    assert_eq!(list(&mut h), []);
}
