//! Logs of jobs on a virtual clock: which lines belong to a job, their bounds, and the end of a node.

use crate::support::{Harness, request};
use manager::core::{Config, ConnId, Event, Rules, SpoolFile, SpoolLimits};
use proto::*;
use std::time::Duration;

fn harness() -> Harness {
    Harness::with(
        Config { lease: Duration::from_secs(1_000_000), ..Config::default() },
        manager::core::Saved::default(),
    )
}

/// Reports the time since a node's start.
fn uptime(h: &mut Harness, node: ConnId) {
    let uptime_us = h.now.as_nanos() / 1000;
    h.say(node, &ToManager::Telemetry(Telemetry { uptime_us, ..Telemetry::default() }));
}

/// Sends a line that the node has logged `ago`.
fn line(h: &mut Harness, node: ConnId, ago: Duration, text: &str) {
    let at_us = h.now.as_nanos() / 1000 - u64::try_from(ago.as_micros()).unwrap();
    h.say(node, &ToManager::Log { lines: format!("I {at_us} {text}\n").into_bytes() });
}

/// Submits a job for one node, and accepts it.
fn started(h: &mut Harness, node: ConnId) -> JobId {
    let terms = Terms { wait: true, detach: true, requeue: true, ..Terms::default() };
    let client = h.client();
    h.say(client, &FromClient::SubmitOn { request: request(1, &[]), terms });
    h.drop(client);
    accepted(h, node)
}

fn accepted(h: &mut Harness, node: ConnId) -> JobId {
    let start = |message| match message {
        ToNode::JobStart(start) => Some(start.job),
        _ => None,
    };
    let job = h.node_heard(node).into_iter().find_map(start).expect("a start");
    h.say(node, &ToManager::JobAccepted { job });
    job
}

fn done(h: &mut Harness, node: ConnId, job: JobId) {
    h.say(node, &ToManager::JobDone { job, report: JobReport::default() });
}

/// Returns the log of a job, and true if more lines may come.
fn log(h: &mut Harness, job: JobId) -> (String, bool) {
    let client = h.client();
    let mut all = Vec::new();
    loop {
        h.say(client, &FromClient::JobLog { job, offset: all.len() as u64 });
        match h.client_heard(client).pop() {
            Some(ToClient::JobLog { bytes, open }) if bytes.is_empty() => {
                return (String::from_utf8(all).unwrap(), open);
            }
            Some(ToClient::JobLog { bytes, .. }) => all.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the texts of a log's lines, without times.
fn texts(h: &mut Harness, job: JobId) -> Vec<String> {
    let (text, _) = log(h, job);
    text.lines().map(|line| line.splitn(3, ' ').last().unwrap().to_owned()).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_line_belongs_to_the_job_of_its_time() {
    let mut h = harness();
    let [a, b] = ["a", "b"].map(|name| h.join(name).0);
    h.pass(seconds(100));
    uptime(&mut h, a);
    let first = started(&mut h, a);
    h.pass(seconds(1));
    line(&mut h, a, seconds(2), "before");
    line(&mut h, a, seconds(0), "first");
    line(&mut h, b, seconds(0), "elsewhere");
    assert_eq!(log(&mut h, first), ("1970-01-01 00:01:41.000 a info: first\n".into(), true));
    done(&mut h, a, first);
    let second = started(&mut h, a);
    h.pass(seconds(1));
    line(&mut h, a, Duration::from_millis(1200), "late");
    line(&mut h, a, Duration::from_millis(200), "second");
    assert_eq!(texts(&mut h, first), ["a info: first", "a info: late"]);
    assert!(log(&mut h, first).1, "more may come for some seconds");
    done(&mut h, a, second);
    h.pass(seconds(4));
    line(&mut h, a, seconds(0), "after");
    assert_eq!(texts(&mut h, second), ["a info: second"]);
    assert!(!log(&mut h, second).1);
    let ToClient::JobShown(details) = h.ask(&FromClient::JobShow { job: second }) else { panic!("no job") };
    assert!(details.info.log_bytes.is_some());
    assert_eq!(h.refusal(&FromClient::JobLog { job: JobId(77), offset: 0 }), "there is no job 77");
}

#[test]
fn the_last_line_before_a_panic_and_its_reason_are_in_the_log() {
    let mut h = harness();
    let (a, _) = h.join("a");
    let job = started(&mut h, a);
    line(&mut h, a, seconds(0), "about to fail");
    h.say(a, &ToManager::LastWords { reason: "panicked at x.rs:1".into() });
    let want = ["a info: about to fail", "a error: the node is gone: died: panicked at x.rs:1"];
    assert_eq!(texts(&mut h, job), want);
    // The job starts again, and goes on with its log.
    let (b, _) = h.join("b");
    let again = accepted(&mut h, b);
    line(&mut h, b, seconds(0), "again");
    done(&mut h, b, again);
    assert_eq!(texts(&mut h, job)[2..], ["b info: again"]);
}

#[test]
fn a_flood_is_bounded_and_hides_no_last_line() {
    let mut h = harness();
    let (a, _) = h.join("a");
    let job = started(&mut h, a);
    let many: String = (0..200).map(|line| format!("I 1 {line:0>60}\n")).collect();
    for _ in 0..60 {
        for _ in 0..8 {
            h.say(a, &ToManager::Log { lines: many.clone().into_bytes() });
        }
        h.pass(seconds(1));
    }
    line(&mut h, a, seconds(0), "the last");
    h.say(a, &ToManager::LastWords { reason: "a test".into() });
    let (text, _) = log(&mut h, job);
    // The first lines, up to the last message that has room, and the last ones.
    assert!(text.len() > 1_000_000 && text.len() <= (1 << 20) + (256 << 10), "{}", text.len());
    let lines: Vec<&str> = text.lines().collect();
    let [.., last, gone] = lines[..] else { panic!("no lines") };
    assert!(last.ends_with("a info: the last") && gone.ends_with("the node is gone: died: a test"));
    let missing = lines.iter().find(|line| line.starts_with("-- ")).unwrap();
    assert!(missing.ends_with(" lines are missing; the last lines of a:"), "{missing}");
}

#[test]
fn a_log_outlives_the_manager() {
    let mut h = harness();
    let (a, welcome) = h.join("a");
    let job = started(&mut h, a);
    line(&mut h, a, seconds(0), "one");
    let mut again = Harness::with(Config::default(), h.restart());
    again.spool = h.spool.clone();
    let mut h = again;
    let Welcome { node, incarnation, ref secret, epoch, .. } = welcome;
    let (version, secret) = (PROTOCOL_VERSION, secret.clone());
    let a = h.open();
    h.say(a, &Hello::Resume(Resume { version, node, incarnation, secret, epoch }));
    h.say(a, &ToManager::Jobs { jobs: vec![(job, JobStanding::Running)], kept: vec![] });
    line(&mut h, a, seconds(0), "two");
    done(&mut h, a, job);
    assert_eq!(texts(&mut h, job), ["a info: one", "a info: two"]);
}

#[test]
fn a_log_that_cannot_be_stored_costs_no_job() {
    let mut h = harness();
    let (a, _) = h.join("a");
    let job = started(&mut h, a);
    h.spool.broken = Some("No space left on device".into());
    for text in ["one", "two"] {
        line(&mut h, a, seconds(0), text);
    }
    h.spool.broken = None;
    done(&mut h, a, job);
    let ToClient::JobShown(details) = h.ask(&FromClient::JobShow { job }) else { panic!("no job") };
    assert_eq!(details.info.state.word(), "done");
    let complaints = h.log.iter().filter(|line| line.contains("its log cannot be stored: No space left"));
    assert_eq!(complaints.count(), 1);
}

#[test]
fn a_log_is_kept_as_long_as_the_output() {
    let mut h = harness();
    let (a, _) = h.join("a");
    let job = started(&mut h, a);
    line(&mut h, a, seconds(0), "one");
    done(&mut h, a, job);
    h.pass(seconds(4));
    assert!(h.spool.files.contains_key(&SpoolFile::log(job)));
    let spool = SpoolLimits { keep: seconds(1), ..SpoolLimits::default() };
    h.core.reconfigure(Rules { spool, ..Rules::default() });
    h.event(Event::Tick);
    assert!(!h.spool.files.contains_key(&SpoolFile::log(job)));
    assert!(
        matches!(h.ask(&FromClient::JobLog { job, offset: 0 }), ToClient::JobShown(details) if details.info.expired)
    );
    assert!(h.restart().history[0].expired);
}
