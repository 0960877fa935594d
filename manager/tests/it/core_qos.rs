//! The quality of service of jobs: what the operator allows, what the nodes are told, and who may ask.

use crate::support::{Harness, join, request};
use manager::core::{Config, ConnId, Event, Rules, Saved};
use proto::*;
use std::time::Duration;

fn with(usual: JobQos, most: JobQos) -> Config {
    let rules = Rules { qos: QosRules { usual, most }, ..Rules::default() };
    Config { lease: Duration::from_secs(100_000), rules, ..Config::default() }
}

const fn rate(bytes_per_second: u64) -> JobQos {
    JobQos { priority: None, bytes_per_second: Some(bytes_per_second), outstanding: None }
}

const fn priority(priority: RdmaPriority) -> JobQos {
    JobQos { priority: Some(priority), bytes_per_second: None, outstanding: None }
}

fn wish(request: JobRequest, qos: JobQos) -> FromClient {
    FromClient::SubmitWith { request, terms: Terms { wait: true, ..Terms::default() }, qos }
}

/// Returns the quality of service of each start message that a node was sent; `None` for one without.
fn starts(h: &mut Harness, node: ConnId) -> Vec<Option<JobQos>> {
    let told = |message| match message {
        ToNode::JobStart(_) => Some(None),
        ToNode::JobStartWith { qos, .. } => Some(Some(qos)),
        _ => None,
    };
    h.all_heard(node).into_iter().filter_map(told).collect()
}

fn shown(h: &mut Harness, job: u64) -> JobQos {
    match h.ask(&FromClient::JobShow { job: JobId(job) }) {
        ToClient::JobShown(_) => JobQos::default(),
        ToClient::JobShownWith { qos, .. } => qos,
        other => panic!("{other:?}"),
    }
}

fn ends(h: &mut Harness, node: ConnId, job: u64) {
    h.say(node, &ToManager::JobAccepted { job: JobId(job) });
    h.say(node, &ToManager::JobDone { job: JobId(job), report: JobReport::default() });
}

#[test]
fn nodes_are_told_what_a_job_gets_and_it_is_shown_before_and_after_the_end() {
    let usual = JobQos { priority: Some(RdmaPriority::Low), ..rate(2_000_000) };
    let mut h = Harness::with(with(usual, rate(9_000_000)), Saved::default());
    let (node, _) = h.join("a");
    let client = h.client();
    h.say(client, &wish(request(1, &[]), rate(5_000_000)));
    let expected = JobQos { bytes_per_second: Some(5_000_000), ..usual };
    assert_eq!(starts(&mut h, node), [Some(expected)]);
    assert_eq!(shown(&mut h, 1), expected);
    ends(&mut h, node, 1);
    assert_eq!(shown(&mut h, 1), expected);
    // A client that asks for nothing gets the usual.
    let client = h.client();
    h.say(client, &FromClient::Submit(request(1, &[])));
    assert_eq!(starts(&mut h, node), [Some(usual)]);
    ends(&mut h, node, 2);
    // The next process of the manager knows it as well.
    let mut h = Harness::with(Config::default(), h.restart());
    assert_eq!((shown(&mut h, 1), shown(&mut h, 2)), (expected, usual));
}

#[test]
fn without_rules_and_wishes_the_messages_are_those_of_the_former_release() {
    let mut h = Harness::new();
    let (node, _) = h.join("a");
    let client = h.client();
    h.say(client, &wish(request(1, &[]), priority(RdmaPriority::Normal)));
    assert_eq!(starts(&mut h, node), [None]);
}

#[test]
fn more_than_the_operator_allows_is_refused_and_new_rules_hold_for_later_jobs() {
    let most = JobQos { outstanding: Some(8), ..rate(1_000_000) };
    let mut h = Harness::with(with(JobQos::default(), most), Saved::default());
    let (node, _) = h.join("a");
    let refusal = h.refusal(&wish(request(1, &[]), rate(1_000_001)));
    let expected =
        "the RDMA limit of bytes per second 1000001 is more than the operator allows, which is 1000000";
    assert_eq!(refusal, expected);
    let many = JobQos { outstanding: Some(9), ..JobQos::default() };
    let refusal = h.refusal(&wish(request(1, &[]), many));
    assert!(refusal.contains("outstanding RDMA operations 9 is more"), "{refusal}");
    let refusal = h.refusal(&wish(request(1, &[]), rate(999)));
    assert_eq!(refusal, "a limit of RDMA is at least 1000 bytes per second");
    assert_eq!(starts(&mut h, node), []);
    let most = rate(2_000_000);
    let rules = QosRules { usual: JobQos::default(), most };
    h.core.reconfigure(Rules { qos: rules, ..Rules::default() });
    let client = h.client();
    h.say(client, &wish(request(1, &[]), rate(1_000_001)));
    assert_eq!(starts(&mut h, node), [Some(rate(1_000_001))]);
}

#[test]
fn a_job_with_limits_runs_on_no_node_that_does_not_know_them() {
    let mut h = Harness::new();
    let (old, _) = match h.try_join(Join { version: OLDEST_VERSION, ..join("old") }) {
        (conn, ToNode::Welcome(welcome)) => (conn, welcome),
        (_, other) => panic!("{other:?}"),
    };
    let why = "node 1 (old) is of a former release, and knows no limits of RDMA";
    assert_eq!(h.refusal(&wish(request(0, &[]), rate(5000))), why);
    let (new, _) = h.join("new");
    let named = JobRequest { on: vec!["old".into()], ..request(0, &[]) };
    assert_eq!(h.refusal(&wish(named, rate(5000))), why);
    let client = h.client();
    h.say(client, &wish(request(0, &[]), rate(5000)));
    assert_eq!((starts(&mut h, old), starts(&mut h, new)), (vec![], vec![Some(rate(5000))]));
    // One without limits runs there.
    ends(&mut h, new, 1);
    let client = h.client();
    h.say(client, &wish(request(0, &[]), JobQos::default()));
    assert_eq!((starts(&mut h, old), starts(&mut h, new)), (vec![None], vec![None]));
}

#[test]
fn a_job_that_starts_again_has_the_same_limits() {
    let mut h = Harness::with(with(JobQos::default(), JobQos::default()), Saved::default());
    let (node, _) = h.join_keeping("a");
    let client = h.client();
    let terms = Terms { wait: true, requeue: true, ..Terms::default() };
    h.say(client, &FromClient::SubmitWith { request: request(1, &[]), terms, qos: rate(5000) });
    assert_eq!(starts(&mut h, node), [Some(rate(5000))]);
    h.dies(node);
    let mut h = Harness::with(with(rate(7000), JobQos::default()), h.restart());
    let (node, _) = h.join_keeping("a");
    let client = h.client();
    h.say(client, &FromClient::Attach { job: JobId(1), output: 0 });
    assert_eq!(starts(&mut h, node), [Some(rate(5000))]);
}

#[test]
fn high_priority_needs_an_operator() {
    let user = |(number, role): (u8, UserRole)| UserStatus {
        name: format!("u{number}"),
        role,
        key: proto::channel::UserId([number; 32]),
    };
    let users: Vec<UserStatus> = (0..).zip([UserRole::User, UserRole::Operator]).map(user).collect();
    let mut h = Harness::with(Config::default(), Saved { users: users.clone(), ..Saved::default() });
    h.join("a");
    let mut ask = |user: &UserStatus, which| {
        let conn = h.open();
        h.event(Event::Identified { conn, user: user.key });
        h.say(conn, &Hello::Client { version: PROTOCOL_VERSION });
        h.say(conn, &wish(request(1, &[]), priority(which)));
        h.client_heard(conn).pop()
    };
    let answer = ask(&users[0], RdmaPriority::High);
    let why = "u0 has the role user, and this needs operator";
    assert!(matches!(&answer, Some(ToClient::Refused { reason, .. }) if reason == why), "{answer:?}");
    for (user, which) in [(0, RdmaPriority::Low), (1, RdmaPriority::High)] {
        let answer = ask(&users[user], which);
        assert!(!matches!(answer, Some(ToClient::Refused { .. } | ToClient::Failed { .. })), "{answer:?}");
    }
}
