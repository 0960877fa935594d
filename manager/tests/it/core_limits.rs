//! The limits of one member or client: lengths, counts and rates.

use crate::support::{Harness, join, lines, submit};
use manager::core::{Cutter, Event};
use proptest::prelude::*;
use proto::*;
use std::time::Duration;

fn refusal(h: &mut Harness, wish: Join) -> String {
    let (conn, answer) = h.try_join(wish);
    assert!(h.closed.contains(&conn), "it was let in");
    match answer {
        ToNode::Refused { reason } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_member_says_of_itself_is_bounded() {
    let mut h = Harness::new();
    let with = |change: fn(&mut Join)| {
        let mut wish = join("b");
        change(&mut wish);
        wish
    };
    let long = |len: usize| "x".repeat(len);
    let _ = long;
    for (wish, subject) in [
        (with(|j| j.rnic.driver = "x".repeat(60_000)), "driver"),
        (with(|j| j.rnic.links = vec![verbs::LinkKind::RoceV2; 60_000]), "links"),
        (with(|j| j.boot.stages = vec![("x".repeat(55_000), 1)]), "stage"),
        (with(|j| j.boot.stages = vec![("x".into(), 1); 10_000]), "stages"),
        (with(|j| j.apps = vec![AppManifest { about: "x".repeat(50_000), ..lines() }]), "application"),
        (with(|j| j.apps = vec![AppManifest { name: "x".repeat(50_000), ..lines() }]), "application"),
        (with(|j| j.apps = vec![lines(); 1000]), "applications"),
    ] {
        let reason = refusal(&mut h, wish);
        assert!(reason.contains(subject), "{reason}");
        assert!(reason.len() < 300, "{reason}");
    }
    h.join("b");
}

#[test]
fn control_characters_are_refused_wherever_a_member_brings_text() {
    let mut h = Harness::new();
    let bad = "soft\n[  0.000] forged\u{1b}[31m";
    for change in [
        (|j, bad| j.rnic.driver = bad) as fn(&mut Join, String),
        |j, bad| j.name = bad,
        |j, bad| j.boot.stages = vec![(bad, 1)],
        |j, bad| j.apps[0].name = bad,
        |j, bad| j.apps[0].about = bad,
    ] {
        let mut wish = join("b");
        change(&mut wish, bad.into());
        assert!(refusal(&mut h, wish).contains("control characters"));
        let mut turned = join("b");
        change(&mut turned, "abc\u{202e}fed".into());
        assert!(refusal(&mut h, turned).contains("control characters"));
    }
    assert!(h.log.iter().all(|line| !line.chars().any(char::is_control)), "{:?}", h.log);
}

/// Starts a job on one node; returns the harness, the node, the client and the job.
fn running() -> (Harness, manager::core::ConnId, manager::core::ConnId, JobId) {
    let mut h = Harness::new();
    let (node, _) = h.join("a");
    let client = h.client();
    h.say(client, &submit(0, &[]));
    let job = h.node_heard(node).into_iter().find_map(|message| match message {
        ToNode::JobStart(start) => Some(start.job),
        _ => None,
    });
    let job = job.unwrap();
    h.say(node, &ToManager::JobAccepted { job });
    h.client_heard(client);
    (h, node, client, job)
}

#[test]
fn a_phase_is_a_short_printable_word() {
    let (mut h, node, client, job) = running();
    let phase = format!("map\u{1b}[2J{}", "x".repeat(100_000));
    h.say(node, &ToManager::JobProgress { job, phase, done: 1, total: 2 });
    match &h.client_heard(client)[..] {
        [ToClient::Progress { phase, .. }] => {
            assert!(phase.starts_with("map"));
            assert!(phase.len() <= 64 && !phase.chars().any(char::is_control), "{} bytes", phase.len());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn progress_reaches_the_client_at_a_bounded_rate() {
    let (mut h, node, client, job) = running();
    let mut heard = 0;
    for second in 0..10 {
        for done in 0..1000 {
            h.say(node, &ToManager::JobProgress { job, phase: format!("p{done}"), done, total: 1000 });
        }
        heard += h.client_heard(client).len();
        assert!(second > 0 || heard >= 10, "a burst passes");
        h.pass(Duration::from_secs(1));
        h.say(node, &ToManager::Heartbeat { seq: second });
    }
    assert!(heard <= 500, "{heard} of 10,000");
}

#[test]
fn a_report_is_bounded() {
    for report in [
        JobReport { counts: vec![("x".repeat(500_000), 1)], ..JobReport::default() },
        JobReport { counts: vec![("x".into(), 1); 100_000], ..JobReport::default() },
        JobReport { used: vec![("x".into(), 1); 100_000], ..JobReport::default() },
        JobReport { times_us: vec![("x\u{7}".into(), 1)], ..JobReport::default() },
    ] {
        let (mut h, node, client, job) = running();
        h.say(node, &ToManager::JobDone { job, report });
        assert!(h.failure(client).contains("node 1 (a)"));
    }
}

#[test]
fn the_names_of_a_node_are_bounded() {
    let mut h = Harness::new();
    let (node, _) = h.join("a");
    let (other, _) = h.join("b");
    let bind = |name: String| ToManager::NameBind { request: 1, name, value: vec![7; 1024] };
    let answer = |h: &mut Harness, conn| match h.node_heard(conn).pop() {
        Some(ToNode::Name { result, .. }) => result,
        other => panic!("{other:?}"),
    };
    let mut bound = 0;
    loop {
        h.say(node, &bind(format!("n{bound}")));
        if answer(&mut h, node).is_err() {
            break;
        }
        bound += 1;
        assert!(bound < 100_000, "no end of names");
    }
    assert!(bound >= 500, "{bound}");
    // No other node is affected, and names that are unbound can be used again.
    h.say(other, &bind("other".into()));
    assert!(answer(&mut h, other).is_ok());
    h.say(node, &ToManager::NameUnbind { request: 1, name: "n0".into() });
    assert!(answer(&mut h, node).is_ok());
    h.say(node, &bind("again".into()));
    assert!(answer(&mut h, node).is_ok());
}

#[test]
fn a_member_that_never_sees_who_is_gone_is_removed() {
    let mut h = Harness::new();
    let (blind, _) = h.join("a");
    let (good, _) = h.join("b");
    for _ in 0..10_000 {
        let (guest, _) = h.join("guest");
        h.drop(guest);
        for message in h.node_heard(good) {
            if let ToNode::Left { node, incarnation, .. } = message {
                h.say(good, &ToManager::LeftSeen { node, incarnation });
            }
        }
        h.node_heard(blind);
        if h.closed.contains(&blind) {
            break;
        }
    }
    assert!(h.closed.contains(&blind), "no end of what is kept for it");
    assert!(!h.closed.contains(&good));
}

#[test]
fn a_flood_of_relayed_messages_ends_its_sender() {
    let mut h = Harness::new();
    let (flooder, _) = h.join("a");
    let (victim, life) = h.join("b");
    let relay = ToManager::Relay { to: life.node, incarnation: life.incarnation, body: vec![0; 4096] };
    let mut sent = 0;
    while !h.closed.contains(&flooder) {
        h.say(flooder, &relay);
        sent += 1;
        assert!(sent < 100_000, "no end of it");
    }
    assert!(sent >= 1000, "setting up connections to all members at once is no flood: {sent}");
    assert!(!h.closed.contains(&victim));
    let (flooder, _) = h.join("c");
    let ask = ToManager::AskVoucher { request: 1, to: life.node, incarnation: life.incarnation };
    let asked = (0..100_000).take_while(|_| {
        h.say(flooder, &ask);
        !h.closed.contains(&flooder)
    });
    assert!((4096..99_999).contains(&asked.count()), "no end of it, or a voucher for each member is a flood");
}

#[test]
fn empty_input_is_no_sign_of_life() {
    let mut h = Harness::new();
    let (node, _) = h.join("a");
    let client = h.client();
    h.say(client, &submit(0, &[10]));
    let Some(ToNode::JobStart(start)) = h.node_heard(node).pop() else { panic!("no start") };
    h.say(node, &ToManager::JobAccepted { job: start.job });
    for seq in 0..20 {
        h.pass(Duration::from_secs(2));
        h.say(node, &ToManager::Heartbeat { seq });
        if !h.closed.contains(&client) {
            h.say(client, &FromClient::Input { job: start.job, bytes: vec![] });
        }
    }
    assert_eq!(h.failure(client), "the client sent no input");
}

#[test]
fn a_client_waits_for_nodes_once_at_a_time() {
    let mut h = Harness::new();
    let client = h.client();
    let wait = FromClient::WaitNodes { count: 2, timeout_ms: 60_000 };
    h.say(client, &wait);
    h.say(client, &wait);
    assert!(h.failure(client).contains("already waits"));
    h.join("a");
    h.join("b");
    assert_eq!(h.client_heard(client), [], "nothing is left of the wait");
}

#[test]
fn declared_lengths_near_the_largest_number_are_taken_as_they_are() {
    let mut h = Harness::new();
    let (node, _) = h.join("a");
    for lens in [&[u64::MAX][..], &[u64::MAX - 1, 1], &[u64::MAX / 2, u64::MAX / 2, 1]] {
        let client = h.client();
        h.say(client, &submit(0, lens));
        let Some(ToNode::JobStart(start)) = h.node_heard(node).pop() else { panic!("no start") };
        assert_eq!(start.share, u64::MAX, "all of it goes to the one node");
        h.say(node, &ToManager::JobFailed { job: start.job, reason: "too little memory".into() });
        h.failure(client);
    }
    h.event(Event::Tick);
}

proptest! {
    #[test]
    fn a_share_is_never_more_than_the_whole(
        lens in proptest::collection::vec(prop_oneof![any::<u64>(), (0..10u64).prop_map(|n| u64::MAX - n)], 1..5),
        nodes in 1..5000usize,
    ) {
        let files: Vec<InputFile> = lens.iter().map(|&len| InputFile { name: "f".into(), len }).collect();
        let total = lens.iter().fold(0u64, |sum, &len| sum.saturating_add(len));
        let share = Cutter::new(CutRule::Anywhere, &files, nodes).share();
        prop_assert!(share <= total);
        prop_assert!(share >= total / nodes as u64);
    }
}
