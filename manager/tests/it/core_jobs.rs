//! Jobs on a virtual clock: success, the windows, and every kind of failure.

use crate::support::{Harness, join, lines, request, submit};
use manager::core::{Config, ConnId, Saved};
use proto::*;
use std::time::Duration;

/// Joins nodes, and returns them by rank with a client.
fn cluster(h: &mut Harness, nodes: usize) -> (Vec<ConnId>, ConnId) {
    let joined: Vec<ConnId> = (0..nodes).map(|i| h.join(&format!("n{i}")).0).collect();
    for &conn in &joined {
        h.node_heard(conn);
    }
    (joined, h.client())
}

/// Submits a job, accepts it on all nodes, and returns it.
fn started(h: &mut Harness, nodes: &[ConnId], client: ConnId, lens: &[u64]) -> JobId {
    h.say(client, &submit(0, lens));
    let mut id = None;
    for &conn in nodes {
        match &h.node_heard(conn)[..] {
            [ToNode::JobStart(start)] => id = Some(start.job),
            other => panic!("{other:?}"),
        }
    }
    let job = id.expect("a start");
    for &conn in nodes {
        assert_eq!(h.client_heard(client), [], "accepted only when all have");
        h.say(conn, &ToManager::JobAccepted { job });
        h.say(conn, &ToManager::JobInputCredit { job, bytes: ToManager::MAX_CREDIT });
    }
    assert!(matches!(&h.client_heard(client)[..], [ToClient::Accepted { job: j, nodes: n }]
        if *j == job && n.len() == nodes.len()));
    job
}

fn report(words: u64) -> JobReport {
    JobReport { counts: vec![("words".into(), words)], ..JobReport::default() }
}

fn input(h: &mut Harness, client: ConnId, job: JobId, bytes: &[u8]) {
    for piece in bytes.chunks(48 << 10) {
        h.say(client, &FromClient::Input { job, bytes: piece.into() });
    }
}

/// Reports that the nodes have ended their parts of a cancelled job.
fn over(h: &mut Harness, nodes: &[ConnId], job: JobId) {
    for &conn in nodes {
        h.say(conn, &ToManager::JobOver { job });
    }
}

fn heartbeats(h: &mut Harness, nodes: &[ConnId]) {
    for &conn in nodes {
        h.say(conn, &ToManager::Heartbeat { seq: 1 });
    }
}

#[test]
fn happy_path() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 2);
    let text = b"one\ntwo\nthree\nfour\n";
    let job = started(&mut h, &nodes, client, &[0, text.len() as u64]);
    h.pass(Duration::from_millis(5));
    input(&mut h, client, job, text);
    let mut pieces = Vec::new();
    for &conn in &nodes {
        let heard = h.node_heard(conn);
        assert_eq!(heard.last(), Some(&ToNode::JobInputEnd { job }));
        for message in heard {
            if let ToNode::JobInput { file, offset, bytes, end_of_split, .. } = message {
                assert!(end_of_split);
                pieces.push((file, offset, bytes));
            }
        }
    }
    assert_eq!(pieces, [(1, 0, b"one\ntwo\nthree\n".to_vec()), (1, 14, b"four\n".to_vec())]);

    h.pass(Duration::from_millis(20));
    let progress = ToManager::JobProgress { job, phase: "map".into(), done: 1, total: 2 };
    h.say(nodes[1], &progress);
    h.say(nodes[1], &ToManager::JobDone { job, report: report(1) });
    h.say(nodes[0], &ToManager::JobOutput { job, offset: 0, bytes: b"result".to_vec() });
    assert_eq!(h.node_heard(nodes[0]), []);
    h.say(client, &FromClient::OutputTaken { bytes: 6 });
    assert_eq!(h.node_heard(nodes[0]), [ToNode::JobOutputAck { job, bytes: 6 }]);
    h.say(nodes[0], &ToManager::JobDone { job, report: report(3) });
    let heard = h.client_heard(client);
    assert_eq!(
        heard,
        [
            ToClient::Progress { node: NodeId(2), phase: "map".into(), done: 1, total: 2 },
            ToClient::Report { node: NodeId(2), report: report(1) },
            ToClient::Output { bytes: b"result".to_vec() },
            ToClient::Report { node: NodeId(1), report: report(3) },
            ToClient::Done { run_us: 20_000, stream_us: 0 },
        ]
    );
    assert!(!h.closed.contains(&client));
    let next = started(&mut h, &nodes, client, &[]);
    assert!(next > job);
    assert_eq!(h.node_heard(nodes[0]), [ToNode::JobInputEnd { job: next }], "an empty input works");
}

#[test]
fn refusals_say_what_is_wrong() {
    let mut h = Harness::new();
    let client = h.client();
    h.say(client, &submit(0, &[]));
    assert_eq!(h.failure(client), "no node has joined");
    let (nodes, _) = cluster(&mut h, 2);
    let refused = |h: &mut Harness, message: FromClient| {
        let client = h.client();
        h.say(client, &message);
        h.failure(client)
    };
    let unknown = FromClient::Submit(JobRequest { app: "sort".into(), ..JobRequest::default() });
    assert_eq!(refused(&mut h, unknown), "unknown application sort; the nodes have: lines");
    assert_eq!(refused(&mut h, submit(3, &[])), "3 nodes wanted, but only 2 with lines have joined");
    assert_eq!(refused(&mut h, submit(0, &[u64::MAX, 1])), "the input is longer than 2^64 bytes");
    assert!(
        refused(&mut h, FromClient::Input { job: JobId(9), bytes: vec![1] }).contains("no job waits for")
    );
    let inputs = (0..40_000).map(|i| InputFile { name: format!("file{i}"), len: 1 }).collect();
    let long = FromClient::Submit(JobRequest { inputs, ..request(0, &[]) });
    assert!(refused(&mut h, long).contains("too long"));
    let client = h.client();
    let job = started(&mut h, &nodes, client, &[9]);
    assert_eq!(
        refused(&mut h, submit(1, &[])),
        format!("1 nodes wanted, but 0 are idle: job {} runs", job.0)
    );

    let mut other = join("other");
    other.apps = vec![AppManifest { cut: CutRule::Anywhere, ..lines() }];
    h.drop(client);
    over(&mut h, &nodes, job);
    h.try_join(other);
    assert!(refused(&mut h, submit(0, &[])).contains("node 3 (other) has another build of lines"));
}

#[test]
fn two_jobs_share_the_cluster() {
    let mut h = Harness::new();
    let (nodes, first) = cluster(&mut h, 3);
    let second = h.client();
    h.say(first, &submit(2, &[]));
    h.say(second, &submit(1, &[]));
    let starts: Vec<JobStart> = nodes
        .iter()
        .map(|&conn| match h.node_heard(conn).pop() {
            Some(ToNode::JobStart(start)) => start,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(starts[0].nodes, [NodeId(1), NodeId(2)]);
    assert_eq!(starts[2].nodes, [NodeId(3)]);
    assert_ne!(starts[0].job, starts[2].job);
    h.dies(nodes[2]);
    assert!(h.failure(second).starts_with("node 3 (n2): died: a test"));
    assert!(!h.closed.contains(&first));
}

#[test]
fn the_death_of_a_node_fails_the_job_and_frees_the_others() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 3);
    let job = started(&mut h, &nodes, client, &[100]);
    input(&mut h, client, job, &[b'\n'; 50]);
    for &conn in &nodes {
        h.node_heard(conn);
    }
    h.say(nodes[1], &ToManager::LastWords { reason: "out of memory".into() });
    let reason = "node 2 (n1): died: out of memory";
    assert_eq!(h.failure(client), reason);
    for at in [0, 2] {
        assert!(h.node_heard(nodes[at]).contains(&ToNode::JobCancel { job, reason: reason.into() }));
    }
    h.say(nodes[0], &ToManager::JobDone { job, report: report(1) });
    assert_eq!(h.node_heard(nodes[0]), [], "what comes late is ignored");
    over(&mut h, &nodes[2..], job);
    let again = h.client();
    started(&mut h, &[nodes[0], nodes[2]], again, &[]);
}

#[test]
fn a_job_may_name_its_nodes() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 3);
    let on = |names: &[&str]| {
        let on = names.iter().map(ToString::to_string).collect();
        FromClient::Submit(JobRequest { on, ..request(0, &[]) })
    };
    h.say(client, &on(&["n2", "n1"]));
    let Some(ToNode::JobStart(start)) = h.node_heard(nodes[2]).pop() else { panic!("no start") };
    assert_eq!(start.nodes, [NodeId(3), NodeId(2)], "by rank as they are named");
    assert_eq!(h.node_heard(nodes[1]), [ToNode::JobStart(start)]);
    assert_eq!(h.node_heard(nodes[0]), []);
    for (names, reason) in [
        (&["n1"][..], "1 nodes wanted, but 0 are idle: job 1 runs"),
        (&["n9"], "no node n9 with lines has joined"),
        (&["n0", "n0"], "node n0 is named twice"),
    ] {
        let other = h.client();
        h.say(other, &on(names));
        assert_eq!(h.failure(other), reason);
    }
}

#[test]
fn a_lease_that_ends_fails_the_job_in_bounded_time() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 2);
    started(&mut h, &nodes, client, &[]);
    h.pass(Duration::from_secs(3));
    heartbeats(&mut h, &nodes[..1]);
    h.pass(Duration::from_secs(2));
    assert_eq!(h.failure(client), "node 2 (n1): lease expired");
}

#[test]
fn a_node_may_fail_the_job() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 2);
    h.say(client, &submit(0, &[1 << 40]));
    let Some(ToNode::JobStart(start)) = h.node_heard(nodes[0]).pop() else { panic!("no start") };
    assert!(start.share >= 1 << 39 && start.share < 1 << 40);
    let reason = "needs 512 GB, has 48 MB".to_owned();
    h.say(nodes[0], &ToManager::JobFailed { job: start.job, reason });
    assert_eq!(h.failure(client), "node 1 (n0): needs 512 GB, has 48 MB");
}

#[test]
fn a_client_that_goes_cancels() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 2);
    let job = started(&mut h, &nodes, client, &[100]);
    h.drop(client);
    let reason = "its client has disconnected: connection lost".to_owned();
    assert_eq!(h.node_heard(nodes[0]), [ToNode::JobCancel { job, reason }]);
}

#[test]
fn the_silent_are_not_waited_for() {
    let config = Config { lease: Duration::from_secs(600), ..Config::default() };
    let mut h = Harness::with(config, Saved::default());
    let (nodes, client) = cluster(&mut h, 2);
    h.say(client, &submit(0, &[5]));
    let Some(ToNode::JobStart(start)) = h.node_heard(nodes[0]).pop() else { panic!("no start") };
    h.say(nodes[0], &ToManager::JobAccepted { job: start.job });
    h.pass(Duration::from_secs(30));
    assert_eq!(h.failure(client), "did not accept the job in time: node 2 (n1)");

    over(&mut h, &nodes, start.job);
    let client = h.client();
    h.node_heard(nodes[0]);
    h.node_heard(nodes[1]);
    let job = started(&mut h, &nodes, client, &[5]);
    h.pass(Duration::from_secs(29));
    input(&mut h, client, job, b"ab");
    h.pass(Duration::from_secs(29));
    assert!(!h.closed.contains(&client));
    h.pass(Duration::from_secs(1));
    assert_eq!(h.failure(client), "the client sent no input");
}

#[test]
fn output_is_acknowledged_when_the_client_has_it() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 2);
    let job = started(&mut h, &nodes, client, &[]);
    h.node_heard(nodes[0]);
    let output = |n: u64| ToManager::JobOutput { job, offset: n << 16, bytes: vec![1; 64 << 10] };
    for n in 0..16 {
        h.say(nodes[0], &output(n));
    }
    assert_eq!(h.node_heard(nodes[0]), []);
    h.say(client, &FromClient::OutputTaken { bytes: 128 << 10 });
    assert_eq!(h.node_heard(nodes[0]), [ToNode::JobOutputAck { job, bytes: 128 << 10 }]);
    // A client cannot have taken more bytes than it was sent, so this acknowledgement has no effect.
    h.say(client, &FromClient::OutputTaken { bytes: 64 << 20 });
    assert_eq!(h.node_heard(nodes[0]), []);
    h.say(nodes[0], &output(16));
    h.say(nodes[0], &output(17));
    assert!(!h.closed.contains(&client));
    h.say(nodes[0], &output(18));
    assert!(h.failure(client).contains("node 1 (n0) sent output without waiting"));
}

#[test]
fn whoever_breaks_the_rules_fails_the_job() {
    let broken = |lens: &[u64], breaker: fn(&mut Harness, &[ConnId], ConnId, JobId)| {
        let mut h = Harness::new();
        let (nodes, client) = cluster(&mut h, 2);
        let job = started(&mut h, &nodes, client, lens);
        breaker(&mut h, &nodes, client, job);
        h.failure(client)
    };
    let reason = broken(&[], |h, nodes, _, job| {
        h.say(nodes[1], &ToManager::JobOutput { job, offset: 0, bytes: vec![1] });
    });
    assert!(reason.contains("node 2 (n1) sent output, which only rank 0 may send"));
    let reason = broken(&[9], |h, nodes, _, job| {
        h.say(nodes[0], &ToManager::JobOutput { job, offset: 0, bytes: vec![1] });
    });
    assert!(reason.contains("before it had all input"));
    let reason =
        broken(&[9], |h, nodes, _, job| h.say(nodes[1], &ToManager::JobDone { job, report: report(1) }));
    assert!(reason.contains("node 2 (n1) was done before"));
    let reason = broken(&[9], |h, _, client, job| input(h, client, job, &[1; 10]));
    assert_eq!(reason, "more input than announced");
    let reason = broken(&[99_999], |h, _, client, job| {
        h.say(client, &FromClient::Input { job, bytes: vec![1; (48 << 10) + 1] });
    });
    assert!(reason.contains("in one message"));
    let reason = broken(&[9], |h, _, client, _| h.say(client, &submit(0, &[])));
    assert!(reason.contains("this connection already has a job"));
}

#[test]
fn shutdown_fails_what_runs() {
    let mut h = Harness::new();
    let (nodes, client) = cluster(&mut h, 1);
    let job = started(&mut h, &nodes, client, &[]);
    h.node_heard(nodes[0]);
    let operator = h.client();
    h.say(operator, &FromClient::Shutdown);
    assert_eq!(h.failure(client), "the cluster is shut down");
    let reason = "the cluster is shut down".to_owned();
    assert_eq!(h.node_heard(nodes[0]), [ToNode::JobCancel { job, reason }, ToNode::Shutdown]);
}
