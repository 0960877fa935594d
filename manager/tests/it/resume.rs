//! Members and jobs over breaks of connections and restarts of the manager, on a virtual clock.

use crate::support::{Harness, submit};
use manager::core::{Config, ConnId, Event};
use proto::*;
use std::time::Duration;

fn wish(welcome: &Welcome) -> Hello {
    let Welcome { node, incarnation, epoch, .. } = *welcome;
    Hello::Resume(Resume {
        version: PROTOCOL_VERSION,
        node,
        incarnation,
        secret: welcome.secret.clone(),
        epoch,
    })
}

/// Resumes a membership, and returns the connection and what the node heard.
fn resume(h: &mut Harness, welcome: &Welcome) -> (ConnId, Vec<ToNode>) {
    let conn = h.open();
    h.say(conn, &wish(welcome));
    let heard = h.node_heard(conn);
    (conn, heard)
}

/// Returns a manager with the state of the former, as after a crash.
fn restarted(h: &Harness) -> Harness {
    Harness::with(Config::default(), h.restart())
}

/// Returns a manager with the state of the former, which has stopped in good order: nothing failed.
fn stopped(mut h: Harness, client: ConnId) -> Harness {
    h.event(Event::Stop);
    assert!(!h.closed.contains(&client), "{:?}", h.log);
    restarted(&h)
}

#[test]
fn a_job_outlives_a_manager_that_stops_in_good_order() {
    // The nodes compute.
    let mut h = Harness::new();
    let (a, welcome) = h.join("a");
    let client = h.client();
    h.say(client, &submit(1, &[]));
    let Some(ToNode::JobStart(start)) = h.node_heard(a).pop() else { panic!("no start") };
    let job = start.job;
    h.say(a, &ToManager::JobAccepted { job });
    h.client_heard(client);
    let mut h = stopped(h, client);
    let (a, _) = resume(&mut h, &welcome);
    h.say(a, &ToManager::Jobs { jobs: vec![(job, JobStanding::Running)], kept: vec![] });
    let client = h.client();
    h.say(client, &FromClient::Attach { job, output: 0 });
    h.say(a, &ToManager::JobDone { job, report: JobReport::default() });
    assert!(matches!(h.client_heard(client)[..], [ToClient::Report { .. }, ToClient::Done { .. }]));

    // The nodes have not accepted: the client learns the number, and the job starts again.
    h.drop(client);
    let client = h.client();
    h.say(client, &submit(1, &[]));
    h.event(Event::Stop);
    let heard = h.client_heard(client);
    let [ToClient::Queued { job, reason }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!(reason, "the manager stops");
    let job = *job;
    let mut h = restarted(&h);
    let (a, _) = resume(&mut h, &welcome);
    h.say(a, &ToManager::Jobs { jobs: vec![], kept: vec![] });
    let client = h.client();
    h.say(client, &FromClient::Attach { job, output: 0 });
    let Some(ToNode::JobStart(again)) = h.node_heard(a).pop() else { panic!("no start") };
    assert!(again.job > job);
}

#[test]
fn a_client_of_the_former_release_whose_job_has_no_number_yet_is_told_of_the_stop() {
    let mut h = Harness::new();
    h.join("a");
    let client = h.open();
    h.say(client, &Hello::Client { version: 9 });
    h.client_heard(client);
    h.say(client, &submit(1, &[]));
    h.event(Event::Stop);
    assert_eq!(h.failure(client), "the manager stops");
}

#[test]
fn a_member_outlives_its_connection_and_its_manager() {
    let mut h = Harness::new();
    let (a, first) = h.join("a");
    let (b, second) = h.join("b");
    h.say(a, &ToManager::NameBind { request: 1, name: "n".into(), value: vec![7] });
    let bound = h.node_heard(a).pop();
    h.drop(a);
    assert_eq!(h.node_heard(b), [], "nobody is told");
    let client = h.client();
    h.say(client, &FromClient::Nodes { after: NodeId(0) });
    assert!(matches!(&h.client_heard(client)[..], [ToClient::Nodes { nodes, .. }]
        if nodes[0].state == NodeState::Silent && nodes[1].state == NodeState::Ready));
    let (a, heard) = resume(&mut h, &first);
    assert!(matches!(&heard[..],
        [ToNode::Joined(other), ToNode::Resumed(resumed), ToNode::AskJobs, ToNode::ImageDrop]
        if other.node == second.node && resumed.unsettled.is_empty() && resumed.epoch == 1));
    h.say(a, &ToManager::Heartbeat { seq: 1 });
    assert!(matches!(h.node_heard(a)[..], [ToNode::HeartbeatAck { .. }]));

    let mut h = restarted(&h);
    let (a, heard) = resume(&mut h, &first);
    assert!(matches!(&heard[..],
        [ToNode::Joined(_), ToNode::Resumed(resumed), ToNode::AskJobs, ToNode::ImageDrop]
        if resumed.epoch == 2));
    // A repeated request gets the answer of the first one. Another request finds the name taken.
    h.say(a, &ToManager::NameBind { request: 1, name: "n".into(), value: vec![7] });
    assert_eq!(h.node_heard(a).pop(), bound);
    h.say(a, &ToManager::NameBind { request: 2, name: "n".into(), value: vec![7] });
    assert_eq!(h.node_heard(a), [ToNode::Name { request: 2, result: Err(NameError::Taken) }]);
    // The other does not come back: it is dead when its lease ends, and stays so.
    h.pass(Duration::from_secs(3));
    h.say(a, &ToManager::Heartbeat { seq: 2 });
    h.node_heard(a);
    h.pass(Duration::from_secs(2));
    let Welcome { node, incarnation, .. } = second;
    let reason = "lease expired".into();
    assert_eq!(h.node_heard(a), [ToNode::Left { node, incarnation, reason }]);
    let (late, heard) = resume(&mut h, &second);
    assert!(h.closed.contains(&late) && matches!(heard[..], [ToNode::Refused { .. }]));

    // The departure is not settled, also for the next manager.
    let mut h = restarted(&h);
    let (late, heard) = resume(&mut h, &second);
    assert!(h.closed.contains(&late) && matches!(heard[..], [ToNode::Refused { .. }]));
    let (a, heard) = resume(&mut h, &first);
    assert!(matches!(&heard[..],
        [ToNode::Left { incarnation: ended, .. }, ToNode::Resumed(resumed), ToNode::AskJobs, ToNode::ImageDrop]
        if *ended == incarnation && resumed.unsettled == [(node, incarnation)]));
    h.say(a, &ToManager::LeftSeen { node, incarnation });
    assert_eq!(h.node_heard(a), [ToNode::Settled { node, incarnation }]);
    assert!(restarted(&h).restart().departures.is_empty());
}

#[test]
fn nobody_is_told_what_is_not_saved() {
    let mut h = Harness::new();
    let (a, _) = h.join("a");
    h.saves = false;
    let b = h.open();
    h.say(b, &Hello::Node(crate::support::join("b")));
    h.say(a, &ToManager::NameBind { request: 1, name: "n".into(), value: vec![] });
    assert_eq!((h.node_heard(a), h.node_heard(b)), (vec![], vec![]));
    h.say(a, &ToManager::Heartbeat { seq: 1 });
    assert!(matches!(h.node_heard(a)[..], [ToNode::HeartbeatAck { .. }]), "a lease waits for no disk");
    assert_eq!(restarted(&h).restart().members.len(), 1, "the other never was a member");
}

/// A node sends no heartbeat before it has the answer to its wish.
#[test]
fn a_lease_does_not_end_while_the_answer_waits_for_the_disk() {
    let mut h = Harness::new();
    let (a, welcome) = h.join("a");
    h.drop(a);
    h.saves = false;
    let joining = h.open();
    h.say(joining, &Hello::Node(crate::support::join("b")));
    let (a, heard) = resume(&mut h, &welcome);
    assert_eq!(heard, [], "the answer waits for the record of the other");
    h.pass(Duration::from_secs(30));
    h.disk_works_again();
    assert!(h.node_heard(a).iter().any(|message| matches!(message, ToNode::Resumed(_))));
    assert!(matches!(h.node_heard(joining)[..], [ToNode::Welcome(_), ..]));
    assert!(!h.closed.contains(&a) && !h.closed.contains(&joining));
}

#[test]
fn a_stranger_resumes_nothing_and_an_old_state_grants_nothing() {
    let mut h = Harness::new();
    let (_, first) = h.join("a");
    let old = h.restart();
    let secret = h.join("b").1.secret.clone();
    let (forger, heard) = resume(&mut h, &Welcome { secret, ..first.clone() });
    assert!(h.closed.contains(&forger) && matches!(heard[..], [ToNode::Refused { .. }]));
    // The node has seen a later manager than the one that knows only the old state.
    let mut h = Harness::with(Config::default(), old);
    let (conn, heard) = resume(&mut h, &Welcome { epoch: 7, ..first });
    assert!(h.closed.contains(&conn) && heard.is_empty(), "it tries another manager: {heard:?}");
    let (_, refused) = h.try_join(crate::support::join("c"));
    assert!(matches!(&refused, ToNode::Refused { reason } if reason.contains("too old")), "{refused:?}");
}

/// Starts a job on one node; returns the node's connection and welcome, the client and the job.
fn job(h: &mut Harness, lens: &[u64]) -> (ConnId, Welcome, ConnId, JobId) {
    let (node, welcome) = h.join("a");
    let client = h.client();
    h.say(client, &submit(0, lens));
    let Some(ToNode::JobStart(JobStart { job, .. })) = h.node_heard(node).pop() else { panic!("no start") };
    h.say(node, &ToManager::JobAccepted { job });
    h.say(node, &ToManager::JobInputCredit { job, bytes: ToManager::MAX_CREDIT });
    assert!(matches!(h.client_heard(client)[..], [ToClient::Accepted { .. }]));
    (node, welcome, client, job)
}

#[test]
fn a_job_that_computes_goes_on_at_the_next_manager() {
    let mut h = Harness::new();
    let (node, welcome, _, job) = job(&mut h, &[]);
    assert!(h.node_heard(node).contains(&ToNode::JobInputEnd { job }));
    h.say(node, &ToManager::JobOutput { job, offset: 0, bytes: vec![1; 10] });

    let mut h = restarted(&h);
    let (node, _) = resume(&mut h, &welcome);
    h.say(node, &ToManager::Jobs { jobs: vec![(job, JobStanding::Running)], kept: vec![] });
    let client = h.client();
    h.say(client, &FromClient::Attach { job, output: 4 });
    let from = [ToNode::JobOutputAck { job, bytes: 4 }, ToNode::JobOutputFrom { job, offset: 4 }];
    assert_eq!(h.node_heard(node), from);
    h.say(node, &ToManager::JobOutput { job, offset: 4, bytes: vec![1; 6] });
    h.say(node, &ToManager::JobDone { job, report: JobReport::default() });
    let heard = h.client_heard(client);
    assert!(
        matches!(&heard[..], [ToClient::Output { bytes }, ToClient::Report { .. }, ToClient::Done { .. }]
        if bytes.len() == 6)
    );

    // The manager dies before the client has read that.
    let mut h = restarted(&h);
    let client = h.client();
    h.say(client, &FromClient::Attach { job, output: 10 });
    assert!(matches!(h.client_heard(client)[..], [ToClient::Report { .. }, ToClient::Done { .. }]));
    h.drop(client);
    assert!(restarted(&h).restart().jobs.is_empty(), "nobody waits for it any more");
}

#[test]
fn a_job_whose_input_was_on_its_way_begins_anew_when_its_nodes_have_ended_it() {
    let mut h = Harness::new();
    let (_, welcome, _, job) = job(&mut h, &[10]);
    let mut h = restarted(&h);
    let client = h.client();
    h.say(client, &FromClient::Attach { job, output: 0 });
    assert_eq!(h.client_heard(client), [], "the node is silent");
    let (node, _) = resume(&mut h, &welcome);
    // The node still has the former part: it must end it first.
    let started = |heard: &[ToNode]| heard.iter().any(|message| matches!(message, ToNode::JobStart(_)));
    assert!(!started(&h.node_heard(node)));
    h.say(node, &ToManager::Jobs { jobs: vec![(job, JobStanding::Loading)], kept: vec![] });
    assert!(matches!(&h.node_heard(node)[..], [ToNode::JobCancel { job: of, .. }] if *of == job));
    h.say(node, &ToManager::JobOver { job });
    let heard = h.node_heard(node);
    let [ToNode::JobStart(start)] = &heard[..] else { panic!("{heard:?}") };
    assert!(start.job > job);
    h.say(node, &ToManager::JobAccepted { job: start.job });
    assert!(
        matches!(&h.client_heard(client)[..], [ToClient::Accepted { job: now, .. }] if *now == start.job)
    );
    // Input for the former number is ignored, and the new one counts.
    h.say(client, &FromClient::Input { job, bytes: vec![1; 10] });
    h.say(client, &FromClient::Input { job: start.job, bytes: vec![1; 10] });
    h.say(node, &ToManager::JobInputCredit { job: start.job, bytes: ToManager::MAX_CREDIT });
    assert_eq!(h.node_heard(node).len(), 2, "the input and its end, once");
}

#[test]
fn an_order_to_a_node_that_falls_silent_fails_unless_the_node_leaves() {
    let mut h = Harness::new();
    let (a, welcome) = h.join("a");
    let image = BootImage { len: 10, sha256: [5; 32] };
    let boot = FromClient::Boot { node: "a".into(), image };
    let client = h.client();
    h.say(client, &boot);
    h.drop(a);
    assert_eq!(h.failure(client), "node 1 (a): connection lost");
    let client = h.client();
    h.say(client, &boot);
    assert_eq!(h.failure(client), "node 1 (a) is silent");
    // The node drops the pieces that it has.
    let (a, heard) = resume(&mut h, &welcome);
    assert_eq!(heard.last(), Some(&ToNode::ImageDrop));
    // A node that leaves may do so on another connection.
    let client = h.client();
    h.say(client, &FromClient::Power { node: "a".into(), action: PowerAction::Off });
    h.drop(a);
    let (a, heard) = resume(&mut h, &welcome);
    assert_eq!(heard.last(), Some(&ToNode::AskJobs));
    assert_eq!(h.client_heard(client), []);
    h.say(a, &ToManager::Leave);
    assert_eq!(h.client_heard(client), [ToClient::NodeLeft]);
}
