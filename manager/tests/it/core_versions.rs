//! Nodes and clients of the former release.
use crate::support::*;
use manager::core::{Config, ConnId, Saved};
use proto::*;
use std::time::Duration;

/// Joins a node of the former release.
fn former(h: &mut Harness, name: &str) -> (ConnId, Welcome) {
    match h.try_join(Join { version: OLDEST_VERSION, ..join(name) }) {
        (conn, ToNode::Welcome(welcome)) => (conn, welcome),
        (_, other) => panic!("{other:?}"),
    }
}

/// Returns the messages that a node was sent, all of which its release must know.
fn heard(h: &mut Harness, conn: ConnId) -> Vec<ToNode> {
    let heard = h.all_heard(conn);
    for message in &heard {
        assert!(message.since() <= OLDEST_VERSION, "{message:?}");
    }
    heard
}

#[test]
fn a_node_of_the_former_release_joins_works_and_is_drained() {
    let mut h = Harness::new();
    let (old, welcome) = former(&mut h, "old");
    let (new, _) = h.join("new");
    let worker = h.client();
    h.say(worker, &submit(2, &[]));
    assert!(heard(&mut h, old).iter().any(|message| matches!(message, ToNode::JobStart(_))));
    for conn in [old, new] {
        h.say(conn, &ToManager::JobAccepted { job: JobId(1) });
    }
    for conn in [old, new] {
        h.say(conn, &ToManager::JobDone { job: JobId(1), report: JobReport::default() });
    }
    assert!(matches!(h.client_heard(worker).last(), Some(ToClient::Done { .. })));
    let drain = FromClient::Drain { node: "old".into(), reason: "x".into(), deadline_ms: None, force: false };
    let answer = h.ask(&drain);
    // It cannot move its memory of regions.
    assert!(matches!(answer, ToClient::NodeChanged { standing: NodeStanding::Drained(_) }), "{answer:?}");
    h.ask(&FromClient::Undrain { node: "old".into() });
    h.pass(Duration::from_secs(1));
    h.drop(old);
    let resume = Resume {
        version: OLDEST_VERSION,
        node: welcome.node,
        incarnation: welcome.incarnation,
        secret: welcome.secret,
        epoch: welcome.epoch,
    };
    for manager in 0..2 {
        let conn = h.open();
        h.say(conn, &Hello::Resume(resume.clone()));
        let all = heard(&mut h, conn);
        assert!(all.iter().any(|message| matches!(message, ToNode::Resumed(_))), "{manager}: {all:?}");
        h.ask(&drain);
        h.ask(&FromClient::Undrain { node: "old".into() });
        heard(&mut h, conn);
        h = Harness::with(Config::default(), h.restart());
    }
}

#[test]
fn a_node_of_another_release_is_refused_by_name_of_the_versions() {
    for version in [OLDEST_VERSION - 1, PROTOCOL_VERSION + 1] {
        let mut h = Harness::with(Config::default(), Saved::default());
        let (_, answer) = h.try_join(Join { version, ..join("a") });
        let ToNode::Refused { reason } = answer else { panic!("{answer:?}") };
        let want = format!(
            "protocol version {version}, but the manager speaks {OLDEST_VERSION} to {PROTOCOL_VERSION}: use one \
             build"
        );
        assert_eq!(reason, want);
    }
    // The refusal of a former manager makes a node of this release try the version before.
    let refusal = "protocol version 11, but the manager speaks 9 to 10: use one build";
    assert_eq!(version_after(PROTOCOL_VERSION, refusal), Some(PROTOCOL_VERSION - 1));
    assert_eq!(version_after(OLDEST_VERSION, refusal), None);
    assert_eq!(version_after(PROTOCOL_VERSION, "the cluster is full"), None);
}

#[test]
fn a_client_of_the_former_release_gets_the_one_refusal_that_it_knows() {
    let mut h = Harness::new();
    let client = h.open();
    h.say(client, &Hello::Client { version: OLDEST_VERSION });
    h.say(client, &FromClient::Cancel { job: JobId(7) });
    let heard = h.client_heard(client);
    assert!(matches!(heard[..], [ToClient::Hello, ToClient::Failed { .. }]), "{heard:?}");
}
