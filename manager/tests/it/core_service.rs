//! Nodes in service and out of service: drains and their undoing.
use crate::support::*;
use manager::core::{Config, ConnId, Saved};
use proto::*;
use std::time::Duration;

fn drain(node: &str) -> FromClient {
    FromClient::Drain { node: node.into(), reason: "new fan".into(), deadline_ms: None, force: false }
}

fn undrain(node: &str) -> FromClient {
    FromClient::Undrain { node: node.into() }
}

fn on(node: &str) -> FromClient {
    FromClient::Submit(JobRequest { on: vec![node.into()], ..request(1, &[]) })
}

/// Returns the names and states of all nodes.
fn states(h: &mut Harness) -> Vec<(String, &'static str)> {
    h.node_list().into_iter().map(|node| (node.name, node.standing.word())).collect()
}

fn is(h: &mut Harness, node: &str, state: &str) {
    let states = states(h);
    assert!(states.iter().any(|(name, word)| name == node && *word == state), "{node} in {states:?}");
}

/// Lets a node obey the order to move its memory of regions elsewhere.
fn vacates(h: &mut Harness, node: ConnId) {
    let heard = h.node_heard(node);
    assert!(heard.contains(&ToNode::Vacate { begin: true }), "{heard:?}");
    h.say(node, &ToManager::Vacated { result: Ok(()) });
}

/// Ends a job of one node.
fn ends(h: &mut Harness, node: ConnId, job: u64) {
    h.say(node, &ToManager::JobAccepted { job: JobId(job) });
    h.say(node, &ToManager::JobDone { job: JobId(job), report: JobReport::default() });
}

/// Keeps nodes alive for some seconds.
fn live(h: &mut Harness, nodes: &[ConnId], seconds: u64) {
    for seq in 0..seconds {
        h.pass(Duration::from_secs(1));
        for &node in nodes {
            h.say(node, &ToManager::Heartbeat { seq });
        }
    }
}

#[test]
fn an_idle_node_is_drained_and_takes_no_job() {
    let mut h = Harness::with(Config { wall: Duration::from_secs(1), ..Config::default() }, Saved::default());
    let ((a, _), _) = (h.join("a"), h.join("b"));
    h.pass(Duration::from_secs(2));
    let draining = h.ask(&drain("a"));
    let ToClient::NodeChanged { standing: NodeStanding::Draining { held: None, .. } } = draining else {
        panic!("{draining:?}")
    };
    vacates(&mut h, a);
    let NodeStanding::Drained(why) = h.node_list().remove(0).standing else { panic!("it is not drained") };
    assert_eq!(why, Withdrawal { reason: "new fan".into(), who: "test".into(), since_ms: 3000 });
    assert_eq!(states(&mut h), [("a".into(), "drained"), ("b".into(), "ready")]);
    assert_eq!(h.refusal(&on("a")), "1 nodes wanted, but 0 are idle: node 1 (a) is drained by test: new fan");
    let want = "2 nodes wanted, but 1 are idle: node 1 (a) is drained by test: new fan";
    assert_eq!(h.refusal(&submit(2, &[])), want);
    let worker = h.client();
    h.say(worker, &submit(0, &[]));
    assert_eq!(h.client_heard(worker), [], "the job runs on b");
    // Nomad's nodes stayed ineligible after the end of a drain.
    assert_eq!(h.ask(&undrain("a")), ToClient::NodeChanged { standing: NodeStanding::Ready });
    assert_eq!(h.node_heard(a).last(), Some(&ToNode::Vacate { begin: false }), "it accepts regions again");
    is(&mut h, "a", "ready");
    assert_eq!(h.refusal(&undrain("a")), "node a is in service already");
    assert_eq!(h.refusal(&undrain("c")), "no node c is known");
    assert_eq!(h.refusal(&drain("c")), "no node c is known");
}

#[test]
fn a_drain_waits_for_the_job_of_the_node() {
    let mut h = Harness::new();
    let ((a, _), _) = (h.join("a"), h.join("b"));
    let worker = h.client();
    h.say(worker, &on("a"));
    let draining = h.ask(&drain("a"));
    let ToClient::NodeChanged { standing: NodeStanding::Draining { left_ms: None, .. } } = draining else {
        panic!("{draining:?}")
    };
    live(&mut h, &[a], 20);
    is(&mut h, "a", "draining");
    assert!(!h.node_heard(a).contains(&ToNode::Vacate { begin: true }), "the job uses its regions");
    ends(&mut h, a, 1);
    assert!(matches!(h.client_heard(worker).last(), Some(ToClient::Done { .. })));
    is(&mut h, "a", "draining");
    vacates(&mut h, a);
    is(&mut h, "a", "drained");
}

#[test]
fn a_node_that_cannot_move_its_memory_is_not_drained_and_tries_again() {
    let mut h = Harness::new();
    let ((a, _), (b, _)) = (h.join("a"), h.join("b"));
    h.ask(&drain("a"));
    for attempt in 0..3 {
        let heard = h.node_heard(a);
        assert_eq!(heard.iter().filter(|m| **m == ToNode::Vacate { begin: true }).count(), 1, "{attempt}");
        h.say(a, &ToManager::Vacated { result: Err("no memory\n".into()) });
        let held = h.node_list()[0].standing.held().cloned();
        assert_eq!(held.as_deref(), Some("its memory of regions cannot move: no memory"));
        live(&mut h, &[a, b], 4);
        assert!(!h.node_heard(a).contains(&ToNode::Vacate { begin: true }), "it tries again too early");
        live(&mut h, &[a, b], 2);
    }
    let told = h.log.iter().filter(|line| line.contains("cannot move its memory of regions"));
    assert_eq!(told.count(), 1, "the same failure is told once: {:?}", h.log);
    vacates(&mut h, a);
    is(&mut h, "a", "drained");
}

#[test]
fn an_order_to_vacate_that_was_lost_is_sent_again() {
    let mut h = Harness::new();
    let ((a, welcome), _) = (h.join("a"), h.join("b"));
    h.ask(&drain("a"));
    h.drop(a);
    is(&mut h, "a", "draining");
    let again = h.resumes(&welcome);
    vacates(&mut h, again);
    is(&mut h, "a", "drained");
    // A manager that starts again does not know whether the node has memory of regions.
    let mut h = Harness::with(Config::default(), h.restart());
    let again = h.resumes(&welcome);
    vacates(&mut h, again);
    h.say(again, &ToManager::Leave);
    // The next incarnation accepts no region either.
    let (next, _) = h.join("a");
    vacates(&mut h, next);
    is(&mut h, "a", "drained");
}

#[test]
fn an_answer_that_nobody_waits_for_has_no_effect() {
    let mut h = Harness::new();
    let ((a, _), _) = (h.join("a"), h.join("b"));
    h.say(a, &ToManager::Vacated { result: Ok(()) });
    is(&mut h, "a", "ready");
    h.ask(&drain("a"));
    h.ask(&undrain("a"));
    h.ask(&drain("a"));
    let orders = h.node_heard(a).into_iter().filter(|message| matches!(message, ToNode::Vacate { .. }));
    let orders: Vec<ToNode> = orders.collect();
    assert_eq!(orders, [true, false, true].map(|begin| ToNode::Vacate { begin }));
    is(&mut h, "a", "draining");
}

#[test]
fn the_deadline_of_a_drain_cancels_the_job() {
    let mut h = Harness::new();
    let ((a, _), _) = (h.join("a"), h.join("b"));
    let worker = h.client();
    h.say(worker, &on("a"));
    let FromClient::Drain { node, reason, force, .. } = drain("a") else { panic!() };
    h.ask(&FromClient::Drain { node, reason, deadline_ms: Some(10_000), force });
    live(&mut h, &[a], 9);
    assert_eq!(h.client_heard(worker), []);
    live(&mut h, &[a], 2);
    assert_eq!(h.failure(worker), "node 1 (a) is drained by test: new fan, and its time to end is over");
    is(&mut h, "a", "draining");
    h.say(a, &ToManager::JobOver { job: JobId(1) });
    vacates(&mut h, a);
    is(&mut h, "a", "drained");
}

#[test]
fn the_last_node_that_takes_jobs_is_drained_by_force_alone() {
    let mut h = Harness::new();
    let ((a, _), (b, _)) = (h.join("a"), h.join("b"));
    h.ask(&drain("b"));
    assert_eq!(h.refusal(&drain("a")), "a is the last node that takes jobs: --force drains it all the same");
    // A node that is out of service already may be drained for another reason.
    assert!(matches!(h.ask(&drain("b")), ToClient::NodeChanged { .. }));
    h.ask(&undrain("b"));
    h.drop(a);
    is(&mut h, "a", "silent");
    assert_eq!(h.refusal(&drain("b")), "b is the last node that takes jobs: --force drains it all the same");
    let FromClient::Drain { node, reason, deadline_ms, .. } = drain("b") else { panic!() };
    h.ask(&FromClient::Drain { node, reason, deadline_ms, force: true });
    vacates(&mut h, b);
    is(&mut h, "b", "drained");
}

#[test]
fn a_drain_outlives_the_manager_and_the_boot_of_the_node() {
    let mut h = Harness::new();
    let ((a, _), _) = (h.join("a"), h.join("b"));
    h.ask(&drain("a"));
    h.say(a, &ToManager::Leave);
    is(&mut h, "a", "drained");
    h.join("a");
    is(&mut h, "a", "drained");
    let mut h = Harness::with(Config::default(), h.restart());
    assert_eq!(states(&mut h), [("a".into(), "drained"), ("b".into(), "awaited")]);
    let view = h.node_list().remove(0);
    assert_eq!(view.standing.objection().as_deref(), Some("drained by test: new fan"));
    h.ask(&undrain("a"));
    let mut h = Harness::with(Config::default(), h.restart());
    is(&mut h, "a", "awaited");
}

#[test]
fn a_drain_with_a_deadline_goes_on_after_a_restart() {
    let mut h = Harness::new();
    let ((a, _), _) = (h.join("a"), h.join("b"));
    let worker = h.client();
    h.say(worker, &on("a"));
    h.say(a, &ToManager::JobAccepted { job: JobId(1) });
    let FromClient::Drain { node, reason, force, .. } = drain("a") else { panic!() };
    h.ask(&FromClient::Drain { node, reason, deadline_ms: Some(3000), force });
    let mut h = Harness::with(Config::default(), h.restart());
    is(&mut h, "a", "draining");
    h.pass(Duration::from_secs(4));
    assert!(h.log.iter().any(|line| line.contains("its time to end is over")), "{:?}", h.log);
}

#[test]
fn a_node_that_was_turned_off_is_off_until_it_joins_again() {
    let mut h = Harness::new();
    let ((a, _), _) = (h.join("a"), h.join("b"));
    let client = h.client();
    h.say(client, &FromClient::Power { node: "a".into(), action: PowerAction::Off });
    h.say(a, &ToManager::Leave);
    assert_eq!(h.client_heard(client), [ToClient::NodeLeft]);
    assert_eq!(states(&mut h), [("a".into(), "off"), ("b".into(), "ready")]);
    let (a, _) = h.join("a");
    is(&mut h, "a", "ready");
    let client = h.client();
    h.say(client, &FromClient::Power { node: "a".into(), action: PowerAction::Reset });
    h.say(a, &ToManager::Leave);
    assert_eq!(states(&mut h), [("b".into(), "ready")]);
}

#[test]
fn nothing_is_told_before_it_is_on_the_disk() {
    let mut h = Harness::new();
    let _ = (h.join("a"), h.join("b"));
    h.saves = false;
    let client = h.client();
    h.say(client, &drain("a"));
    assert_eq!(h.client_heard(client), []);
    h.disk_works_again();
    assert!(matches!(h.client_heard(client)[..], [ToClient::NodeChanged { .. }]));
}

#[test]
fn a_long_list_has_pages() {
    let mut h = Harness::new();
    for i in 0..1200 {
        let conn = h.open();
        h.say(conn, &Hello::Node(join(&format!("n{i:04}"))));
    }
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let ToClient::NodeList { nodes, more } = h.ask(&FromClient::NodeList { after }) else { panic!() };
        names.extend(nodes.into_iter().map(|node| node.name));
        after = names.last().unwrap().clone();
        if !more {
            break;
        }
    }
    assert_eq!(names, (0..1200).map(|i| format!("n{i:04}")).collect::<Vec<_>>());
}
