//! The queue: order, backfill, reasons, and restarts of the manager.

use crate::support::{Harness, request, submit};
use manager::core::{Config, ConnId, Event, JobRecord, Saved, Spec, Stage, Ticket, Wanted};
use proto::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

fn harness() -> Harness {
    Harness::with(config(), Saved::default())
}

fn config() -> Config {
    Config { lease: Duration::from_secs(100_000), ..Config::default() }
}

/// Makes a submission that waits.
fn queued(nodes: u16, limit_ms: Option<u64>, terms: Terms) -> FromClient {
    let request = JobRequest { limit_ms, ..request(nodes, &[]) };
    FromClient::SubmitOn { request, terms: Terms { wait: true, ..terms } }
}

fn plain(nodes: u16) -> FromClient {
    queued(nodes, None, Terms::default())
}

/// Makes a submission of a job without a client.
fn detached(keep: &str) -> FromClient {
    let request = JobRequest { keep: Some(keep.into()), ..request(1, &[]) };
    FromClient::SubmitOn { request, terms: Terms { wait: true, detach: true, ..Terms::default() } }
}

/// Returns the jobs that the manager lists.
fn list(h: &mut Harness, ended: bool) -> Vec<JobInfo> {
    let client = h.client();
    h.say(client, &FromClient::JobList { after: JobId(0), ended });
    let Some(ToClient::JobList { jobs, more: false }) = h.client_heard(client).pop() else {
        panic!("no list")
    };
    h.drop(client);
    jobs
}

fn reason(h: &mut Harness, job: u64) -> String {
    let found = list(h, false).into_iter().find(|info| info.job == JobId(job)).expect("the job is listed");
    match found.state {
        JobState::Queued { reason } => reason,
        other => panic!("{other:?}"),
    }
}

/// Returns the jobs that a node was told to start, and accepts them.
fn starts(h: &mut Harness, node: ConnId) -> Vec<JobStart> {
    let heard = h.node_heard(node).into_iter();
    let starts: Vec<JobStart> =
        heard.filter_map(|m| if let ToNode::JobStart(start) = m { Some(start) } else { None }).collect();
    for start in &starts {
        h.say(node, &ToManager::JobAccepted { job: start.job });
    }
    starts
}

fn done(h: &mut Harness, node: ConnId, job: JobId) {
    h.say(node, &ToManager::JobDone { job, report: JobReport::default() });
}

#[test]
fn a_job_waits_with_a_reason_and_starts_in_its_turn() {
    let mut h = harness();
    let (node, _) = h.join("a");
    let first = h.client();
    h.say(first, &plain(1));
    assert_eq!(starts(&mut h, node)[0].job, JobId(1));
    assert!(matches!(h.client_heard(first)[..], [ToClient::Accepted { job: JobId(1), .. }]));
    let second = h.client();
    h.say(second, &plain(1));
    let why = "1 nodes wanted, but 0 are idle: job 1 runs";
    assert_eq!(h.client_heard(second), [ToClient::Queued { job: JobId(2), reason: why.into() }]);
    assert_eq!(reason(&mut h, 2), why);
    // A submission that does not wait is refused with the same reason.
    let third = h.client();
    h.say(third, &submit(1, &[]));
    assert_eq!(h.failure(third), why);
    done(&mut h, node, JobId(1));
    assert!(matches!(h.client_heard(first)[..], [.., ToClient::Done { .. }]));
    assert_eq!(starts(&mut h, node)[0].job, JobId(2));
    assert!(matches!(h.client_heard(second)[..], [ToClient::Accepted { job: JobId(2), .. }]));
    done(&mut h, node, JobId(2));
    let states: Vec<&str> = list(&mut h, true).iter().map(|info| info.state.word()).collect();
    assert_eq!(states, ["done", "done"]);
}

#[test]
fn a_job_waits_for_a_drained_node_with_its_reason() {
    let mut h = harness();
    let [a, b] = ["a", "b"].map(|name| h.join(name).0);
    let drain =
        FromClient::Drain { node: "a".into(), reason: "new fan".into(), deadline_ms: None, force: false };
    h.ask(&drain);
    let [wide, narrow] = [0; 2].map(|_| h.client());
    h.say(wide, &plain(2));
    let why = "2 nodes wanted, but 1 are idle: node 1 (a) is drained by test: new fan";
    assert_eq!(reason(&mut h, 1), why);
    h.say(narrow, &queued(1, Some(1000), Terms::default()));
    let busy = "2 nodes wanted, but 0 are idle: job 2 runs, node 1 (a) is drained by test: new fan";
    assert_eq!(reason(&mut h, 1), busy);
    assert_eq!(starts(&mut h, b)[0].job, JobId(2), "nothing is kept for a job that cannot start");
    assert_eq!(starts(&mut h, a), []);
    done(&mut h, b, JobId(2));
    h.say(a, &ToManager::Vacated { result: Ok(()) });
    assert_eq!(reason(&mut h, 1), why);
    h.ask(&FromClient::Undrain { node: "a".into() });
    for node in [a, b] {
        assert_eq!(starts(&mut h, node)[0].job, JobId(1));
    }
}

#[test]
fn priorities_exclusions_and_predecessors_are_kept() {
    let mut h = harness();
    let nodes = ["a", "b"].map(|name| h.join(name).0);
    let clients: Vec<ConnId> = (0..5).map(|_| h.client()).collect();
    h.say(clients[0], &plain(2));
    h.say(clients[1], &plain(1));
    h.say(clients[2], &queued(1, None, Terms { priority: 5, exclude: vec!["a".into()], ..Terms::default() }));
    h.say(clients[3], &queued(1, None, Terms { after: Some(JobId(3)), ..Terms::default() }));
    h.say(clients[4], &queued(1, None, Terms { after: Some(JobId(9)), ..Terms::default() }));
    assert_eq!(h.failure(clients[4]), "there is no job 9, after which it was to run");
    assert_eq!(reason(&mut h, 4), "it runs after job 3, which waits");
    for node in nodes {
        assert_eq!(starts(&mut h, node)[0].job, JobId(1));
    }
    nodes.iter().for_each(|&node| done(&mut h, node, JobId(1)));
    assert_eq!(starts(&mut h, nodes[1])[0].job, JobId(3), "by priority, on the node that is not excluded");
    assert_eq!(starts(&mut h, nodes[0])[0].job, JobId(2));
    assert_eq!(reason(&mut h, 4), "it runs after job 3, which runs");
    // The job that it waits for fails, and so does it.
    h.drop(clients[2]);
    assert_eq!(h.failure(clients[3]), "it was to run after job 3, which has ended: failed");
}

#[test]
fn a_restarted_manager_has_its_queue() {
    let mut h = harness();
    let (node, welcome) = h.join_keeping("a");
    let [first, second, third] = [0; 3].map(|_| h.client());
    h.say(first, &plain(1));
    starts(&mut h, node);
    h.say(second, &plain(1));
    h.say(third, &detached("d"));
    assert_eq!(h.client_heard(third), [ToClient::Submitted { job: JobId(3) }]);
    let mut h = Harness::with(config(), h.restart());
    let node = h.open();
    let (epoch, secret) = (welcome.epoch, welcome.secret);
    let resume = Resume {
        version: PROTOCOL_VERSION,
        node: welcome.node,
        incarnation: welcome.incarnation,
        secret,
        epoch,
    };
    h.say(node, &Hello::Resume(resume));
    h.say(node, &ToManager::Jobs { jobs: vec![(JobId(1), JobStanding::Running)], kept: vec![] });
    assert_eq!(reason(&mut h, 2), "its client has not come back");
    assert_eq!(reason(&mut h, 3), "1 nodes wanted, but 0 are idle: job 1 runs");
    let second = h.client();
    h.say(second, &FromClient::Attach { job: JobId(2), output: 0 });
    let why = "1 nodes wanted, but 0 are idle: job 1 runs";
    assert_eq!(h.client_heard(second), [ToClient::Queued { job: JobId(2), reason: why.into() }]);
    done(&mut h, node, JobId(1));
    assert_eq!(starts(&mut h, node)[0].job, JobId(2));
    // A client that does not come back loses its place; a job without a client does not.
    h.drop(second);
    h.say(node, &ToManager::JobOver { job: JobId(2) });
    assert_eq!(starts(&mut h, node)[0].job, JobId(3));
}

#[test]
fn a_job_without_a_client_runs_on_and_is_waited_for() {
    let mut h = harness();
    let (node, _) = h.join("a");
    let [client, waiting, late, other] = [0; 4].map(|_| h.client());
    h.say(client, &detached("d"));
    assert_eq!(h.client_heard(client), [ToClient::Submitted { job: JobId(1) }]);
    h.drop(client);
    assert_eq!(starts(&mut h, node)[0].job, JobId(1));
    h.say(other, &FromClient::Attach { job: JobId(1), output: 0 });
    assert_eq!(h.failure(other), "job 1 has no client");
    h.say(waiting, &FromClient::JobWait { job: JobId(1), timeout_ms: 200_000 });
    h.say(late, &FromClient::JobWait { job: JobId(1), timeout_ms: 50_000 });
    h.pass(Duration::from_secs(100));
    let reason = "job 1 has not ended in time".into();
    assert_eq!(h.client_heard(late), [ToClient::Refused { kind: Refusal::TimedOut, reason }]);
    h.say(
        node,
        &ToManager::JobDone { job: JobId(1), report: JobReport { kept: vec![5], ..JobReport::default() } },
    );
    let Some(ToClient::JobShown(shown)) = h.client_heard(waiting).pop() else { panic!("not shown") };
    assert_eq!((shown.info.state.word(), shown.info.nodes), ("done", vec!["a".to_owned()]));
    h.say(waiting, &FromClient::Datasets);
    assert!(matches!(&h.client_heard(waiting)[..], [ToClient::Datasets(all)] if all[0].bytes == 5));
}

#[test]
fn a_job_goes_back_to_the_queue_when_its_node_dies() {
    let mut h = harness();
    let (node, _) = h.join_keeping("a");
    let client = h.client();
    h.say(client, &queued(1, None, Terms { requeue: true, ..Terms::default() }));
    for life in 0..=5u64 {
        let node = if life == 0 { node } else { h.join_keeping("a").0 };
        assert_eq!(starts(&mut h, node).len(), 1, "life {life}");
        assert!(h.client_heard(client).iter().any(|m| matches!(m, ToClient::Accepted { .. })));
        h.dies(node);
    }
    assert_eq!(h.failure(client), "node 1 (a): died: a test; it has gone back to the queue 5 times");
}

#[test]
fn a_job_starts_again_only_when_its_former_part_has_ended() {
    let mut h = harness();
    let [(a, welcome), (b, other)] = ["a", "b"].map(|name| h.join_keeping(name));
    let client = h.client();
    h.say(client, &plain(1));
    assert!(matches!(h.node_heard(a).last(), Some(ToNode::JobStart(_))));
    let why = "it starts again once its former part has ended on node 1 (a)";
    // The node falls silent before it has accepted the job.
    // The other node is idle, and does not start the job.
    h.drop(a);
    assert_eq!(reason(&mut h, 1), why);
    assert_eq!(starts(&mut h, b), []);
    // The restarted manager waits for the node as well.
    let mut h = Harness::with(config(), h.restart());
    let again = h.client();
    h.say(again, &FromClient::Attach { job: JobId(1), output: 0 });
    let b = h.resumes(&other);
    assert_eq!(reason(&mut h, 1), why);
    assert_eq!(starts(&mut h, b), []);
    let a = h.resumes(&welcome);
    let begun = [a, b].map(|node| starts(&mut h, node).len());
    assert_eq!(begun.iter().sum::<usize>(), 1);
}

#[test]
fn a_late_list_of_jobs_starts_no_job_again() {
    let mut h = harness();
    let (former, welcome) = h.join_keeping("a");
    h.drop(former);
    // The node answers the question of this connection, and has answered that of the former one before.
    let node = h.resumes(&welcome);
    let client = h.client();
    h.say(client, &plain(1));
    assert_eq!(starts(&mut h, node).len(), 1);
    h.say(node, &ToManager::Jobs { jobs: Vec::new(), kept: Vec::new() });
    assert_eq!(starts(&mut h, node), []);
    done(&mut h, node, JobId(1));
    assert!(h.client_heard(client).iter().any(|m| matches!(m, ToClient::Done { .. })));
}

#[test]
fn a_waiting_job_is_cancelled_and_remembered() {
    let mut h = harness();
    let (node, _) = h.join("a");
    let [first, second, other] = [0; 3].map(|_| h.client());
    h.say(first, &plain(1));
    h.say(second, &plain(1));
    h.say(other, &FromClient::Cancel { job: JobId(2) });
    assert_eq!(h.client_heard(other), [ToClient::Cancelled { job: JobId(2) }]);
    assert_eq!(h.failure(second), "cancelled by test");
    starts(&mut h, node);
    done(&mut h, node, JobId(1));
    h.say(other, &FromClient::JobShow { job: JobId(2) });
    let Some(ToClient::JobShown(shown)) = h.client_heard(other).pop() else { panic!("not shown") };
    assert_eq!(shown.info.state, JobState::Ended(JobEnd::Cancelled { by: "test".into() }));
    // A restarted manager has the history, and forgets it after its time.
    let mut h = Harness::with(config(), h.restart());
    assert_eq!(list(&mut h, true).len(), 2);
    h.join("b");
    h.pass(Duration::from_secs(8 * 24 * 3600));
    h.event(Event::Tick);
    assert_eq!(list(&mut h, true), []);
}

#[test]
fn the_queue_is_bounded() {
    let mut h = Harness::with(Config { queue: 2, ..config() }, Saved::default());
    h.join("a");
    for _ in 0..3 {
        let client = h.client();
        h.say(client, &plain(1));
    }
    let client = h.client();
    h.say(client, &plain(1));
    assert_eq!(h.failure(client), "the queue is full: 2 jobs wait");
}

/// Connects a user as a client.
fn client_of(h: &mut Harness, user: &UserStatus) -> ConnId {
    let conn = h.open();
    h.event(Event::Identified { conn, user: user.key });
    h.say(conn, &Hello::Client { version: PROTOCOL_VERSION });
    assert_eq!(h.client_heard(conn), [ToClient::Hello]);
    conn
}

#[test]
fn a_job_belongs_to_the_user_who_submits_it() {
    let roles = [UserRole::Viewer, UserRole::User, UserRole::User, UserRole::Operator, UserRole::Admin];
    let user = |(number, role): (u8, UserRole)| UserStatus {
        name: format!("u{number}"),
        role,
        key: proto::channel::UserId([number; 32]),
    };
    let users: Vec<UserStatus> = (0..).zip(roles).map(user).collect();
    let mut h = Harness::with(config(), Saved { users: users.clone(), ..Saved::default() });
    h.join("a");
    let [viewer, ann, bob, operator] = [0, 1, 2, 3].map(|number| users[number].clone());
    let refused = |h: &mut Harness, user: &UserStatus, request: &FromClient, needed: &str| {
        let conn = client_of(h, user);
        h.say(conn, request);
        let role = user.role;
        assert_eq!(h.failure(conn), format!("{} has the role {role}, and this needs {needed}", user.name));
    };
    let urgent = queued(1, None, Terms { priority: 1, ..Terms::default() });
    refused(&mut h, &viewer, &plain(1), "user");
    refused(&mut h, &ann, &urgent, "operator");
    let [first, second] = ["d", "e"].map(|keep| {
        let conn = client_of(&mut h, &ann);
        h.say(conn, &detached(keep));
        let Some(ToClient::Submitted { job }) = h.client_heard(conn).pop() else { panic!("not submitted") };
        job
    });
    let important = client_of(&mut h, &operator);
    h.say(important, &urgent);
    assert!(matches!(h.client_heard(important)[..], [ToClient::Queued { .. }]));
    // A viewer sees all jobs, whose owners are named.
    let conn = client_of(&mut h, &viewer);
    h.say(conn, &FromClient::JobList { after: JobId(0), ended: false });
    let Some(ToClient::JobList { jobs, .. }) = h.client_heard(conn).pop() else { panic!("no list") };
    let by: Vec<&str> = jobs.iter().map(|job| job.by.as_str()).collect();
    assert_eq!(by, ["u1 at test", "u1 at test", "u3 at test"]);
    refused(&mut h, &bob, &FromClient::Cancel { job: first }, "operator");
    refused(&mut h, &bob, &FromClient::Attach { job: second, output: 0 }, "operator");
    refused(&mut h, &viewer, &FromClient::Cancel { job: second }, "operator");
    // A restarted manager knows the owners.
    let saved = Saved { users: users.clone(), ..h.restart() };
    let mut h = Harness::with(config(), saved);
    refused(&mut h, &bob, &FromClient::Cancel { job: second }, "operator");
    let conn = client_of(&mut h, &ann);
    h.say(conn, &FromClient::Cancel { job: second });
    assert_eq!(h.client_heard(conn), [ToClient::Cancelled { job: second }]);
    let conn = client_of(&mut h, &operator);
    h.say(conn, &FromClient::Cancel { job: first });
    assert_eq!(h.client_heard(conn), [ToClient::Cancelled { job: first }]);
    // A job that has ended still has its owner.
    refused(&mut h, &bob, &FromClient::Cancel { job: first }, "operator");
    let conn = client_of(&mut h, &ann);
    h.say(conn, &FromClient::Cancel { job: first });
    assert_eq!(h.failure(conn), format!("job {} has ended: cancelled", first.0));
}

#[test]
fn a_job_that_the_former_release_has_recorded_is_read() {
    let wanted = Wanted::Named(vec!["a".into()]);
    let spec = Spec {
        app: "lines".into(),
        args: vec![],
        wanted,
        inputs: vec![],
        datasets: vec![],
        keep: None,
        limit: None,
    };
    let nodes = vec![(NodeId(1), Incarnation(2))];
    let former = encode(&(JobId(7), JobId(5), &spec, &nodes, Stage::Running));
    let (job, first, stage, ticket) = (JobId(7), JobId(5), Stage::Running, Ticket::default());
    let qos = JobQos::default();
    let earlier = encode(&(job, first, &spec, &nodes, Stage::Running, &ticket));
    let record = JobRecord { job, first, spec, nodes, stage, ticket, qos };
    assert_eq!(JobRecord::decode(&earlier), Some(record.clone()));
    assert_eq!(JobRecord::decode(&former), Some(record.clone()));
    assert_eq!(JobRecord::decode(&encode(&record)), Some(record));
}

#[test]
fn the_history_is_bounded_in_bytes() {
    let history_bytes = 4000;
    let mut h = Harness::with(Config { history_bytes, ..config() }, Saved::default());
    let (node, _) = h.join("a");
    for job in 1..=9 {
        let client = h.client();
        h.say(client, &plain(1));
        assert_eq!(starts(&mut h, node)[0].job, JobId(job));
        let counts = vec![("a count with a long name".into(), job); 20];
        h.say(
            node,
            &ToManager::JobDone { job: JobId(job), report: JobReport { counts, ..JobReport::default() } },
        );
    }
    let kept: Vec<u64> = list(&mut h, true).iter().map(|info| info.job.0).collect();
    assert_eq!(kept, [7, 8, 9], "the oldest are forgotten first");
    assert_eq!(h.restart().history.len(), 3);
}

/// A generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }
}

/// A run of many jobs.
struct Run {
    h: Harness,
    nodes: Vec<ConnId>,
    random: Random,
    /// The jobs that run: the time of the end, and the connections of the nodes.
    running: BTreeMap<JobId, (u64, Vec<ConnId>)>,
    times: BTreeMap<JobId, u64>,
    starts: Vec<Value>,
    reasons: Vec<Value>,
}

impl Run {
    fn now_ms(&self) -> u64 {
        self.h.now.as_nanos() / 1_000_000
    }

    /// Notes the jobs that have started, in the order in which the nodes were told.
    fn note_starts(&mut self) {
        let now = self.now_ms();
        let mut begun: BTreeMap<JobId, (Vec<u16>, Vec<ConnId>)> = BTreeMap::new();
        for node in self.nodes.clone() {
            for start in starts(&mut self.h, node) {
                let nodes = start.nodes.iter().map(|node| node.0).collect();
                begun.entry(start.job).or_insert((nodes, Vec::new())).1.push(node);
            }
        }
        for (job, (nodes, conns)) in begun {
            self.running.insert(job, (now + self.times[&job], conns));
            self.starts.push(json!([now, job.0, nodes]));
        }
    }

    /// Passes time until `until`, with the ends of jobs.
    fn pass(&mut self, until: u64) {
        loop {
            let next = self.running.iter().map(|(&job, (end, _))| (*end, job)).min();
            let Some((end, job)) = next.filter(|(end, _)| *end <= until) else { break };
            self.h.pass(Duration::from_millis(end - self.now_ms()));
            let (_, conns) = self.running.remove(&job).unwrap();
            conns.into_iter().for_each(|conn| done(&mut self.h, conn, job));
            self.note_starts();
        }
        self.h.pass(Duration::from_millis(until - self.now_ms()));
    }

    fn note_reasons(&mut self) {
        let now = self.now_ms();
        for info in list(&mut self.h, false) {
            if let JobState::Queued { reason } = info.state {
                self.reasons.push(json!([now, info.job.0, reason]));
            }
        }
    }
}

/// Runs 200 jobs of five users on eight nodes, and lets the model judge each start and each reason.
fn judged(seed: u64) {
    let mut h = harness();
    let nodes: Vec<ConnId> = (0..8).map(|n| h.join(&format!("n{n}")).0).collect();
    let (running, times) = (BTreeMap::new(), BTreeMap::new());
    let mut run =
        Run { h, nodes, random: Random(seed), running, times, starts: Vec::new(), reasons: Vec::new() };
    let mut jobs = Vec::new();
    let unlimited = seed % 2 == 1;
    for number in 1..=200u64 {
        let until = run.now_ms() + run.random.below(400);
        run.pass(until);
        if run.random.below(4) == 0 {
            run.note_reasons();
            run.pass(run.now_ms() + 1);
        }
        let width = 1 + if run.random.below(8) == 0 { 7 } else { run.random.below(6) };
        let time = 10 + run.random.below(1500);
        let limit = time + 1 + run.random.below(700);
        let limit = (!unlimited || run.random.below(10) > 0).then_some(limit);
        // Each of the users has an urgency.
        let priority = [0i16, 0, 0, 0, 7][run.random.below(5) as usize];
        let submitted = run.now_ms();
        run.times.insert(JobId(number), time);
        let client = run.h.client();
        run.h.say(client, &queued(width as u16, limit, Terms { priority, ..Terms::default() }));
        run.note_starts();
        jobs.push(json!({
            "number": number, "submitted": submitted, "width": width, "priority": priority,
            "limit": limit, "time": time,
        }));
        run.pass(submitted + 1);
    }
    run.pass(10_000_000);
    assert_eq!(run.starts.len(), 200, "each job has started");
    assert!(run.reasons.len() > 100, "{} reasons", run.reasons.len());
    let input = json!({
        "nodes": [1, 2, 3, 4, 5, 6, 7, 8], "jobs": jobs, "starts": run.starts, "reasons": run.reasons,
    });
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model/queue.py");
    let mut python = Command::new("python3");
    python.arg(model).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut python = python.spawn().expect("python3 judges this test: install it");
    python.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let judged = python.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&judged.stderr);
    assert!(judged.status.success(), "seed {seed}: {error}");
    println!("seed {seed}: {}", String::from_utf8_lossy(&judged.stdout).trim());
}

#[test]
fn two_hundred_jobs_start_as_the_model_says() {
    (1..=6).for_each(judged);
}
