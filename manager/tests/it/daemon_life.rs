//! The real daemon when it is paused, when jobs are cancelled or limited, and with many members.

use crate::daemon::{Daemon, Directory, credit, error_line, join_as};
use crate::support;
use manager::client::Connection;
use proto::channel::Role;
use proto::*;
use std::fs;
use std::io::BufRead;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A member that sends ten heartbeats per lease until it is told to be silent, and receives all messages to
/// it.
struct Beating {
    silent: Arc<AtomicBool>,
}

impl Beating {
    fn join(daemon: &Daemon, name: &str, lease: Duration) -> Self {
        let (Connection { mut sending, mut receiving }, _) = join_as(daemon, name);
        let silent = Arc::new(AtomicBool::new(false));
        let stop = silent.clone();
        std::thread::spawn(move || while receiving.receive_encoded(None).is_ok() {});
        std::thread::spawn(move || {
            for seq in 0.. {
                if !stop.load(Ordering::Relaxed) && sending.send(&ToManager::Heartbeat { seq }).is_err() {
                    return;
                }
                std::thread::sleep(lease / 10);
            }
        });
        Self { silent }
    }
}

/// Suspends the manager's process for some time. No member loses its lease by that, except one that sends
/// nothing any more.
fn stands_still(test: &str, pause: Duration) {
    let lease = Duration::from_secs(5);
    let directory = Directory::new(test);
    let mut daemon = Daemon::start(&directory, &["--lease-ms", "5000"]);
    let members = ["a", "b", "silent"].map(|name| Beating::join(&daemon, name, lease));
    assert_eq!(daemon.client().wait_nodes(3, Duration::from_secs(10)).unwrap().len(), 3);
    daemon.signal("-STOP");
    members[2].silent.store(true, Ordering::Relaxed);
    std::thread::sleep(pause);
    daemon.signal("-CONT");
    let listed = daemon.client().nodes().unwrap();
    assert_eq!(listed.len(), 3, "the pause itself ends no lease");
    let mut gone = Vec::new();
    while gone.is_empty() {
        let mut line = String::new();
        assert!(daemon.log.read_line(&mut line).unwrap() > 0, "the daemon has ended");
        gone.extend(line.contains("is gone").then_some(line));
    }
    assert!(gone[0].contains("(silent) is gone: lease expired"), "{gone:?}");
    let listed = daemon.client().nodes().unwrap();
    assert_eq!(listed.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_manager_that_stood_still_for_less_than_a_lease_declares_only_the_silent_dead() {
    stands_still("still-4", Duration::from_secs(4));
}

#[test]
fn a_manager_that_stood_still_for_many_leases_declares_only_the_silent_dead() {
    stands_still("still-30", Duration::from_secs(30));
}

#[test]
fn jobs_are_listed_cancelled_and_limited() {
    let directory = Directory::new("cancel");
    let daemon = Daemon::start(&directory, &[]);
    let (mut node, _) = join_as(&daemon, "a");
    let input = directory.file("in", b"x\n");
    let submit = |more: &[&str]| {
        let mut command = daemon.command("submit");
        command.args(["--app", "lines", "--input"]).arg(&input).arg("--output").arg(directory.join("out"));
        command.args(more).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Accepts its part of a job, and receives input up to the end.
    let take = |node: &mut Connection| loop {
        match node.receiving.receive(Some(Duration::from_secs(10))).unwrap() {
            ToNode::JobStart(start) => {
                node.sending.send(&ToManager::JobAccepted { job: start.job }).unwrap();
                node.sending.send(&credit(start.job, 0)).unwrap();
            }
            ToNode::JobInputEnd { job } => return job,
            _ => {}
        }
    };
    let reason = |submission: Child| {
        let ended = submission.wait_with_output().unwrap();
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).unwrap().lines().last().unwrap().to_owned()
    };
    let first = submit(&[]);
    let job = take(&mut node);
    let json = directory.join("jobs.json");
    let listed = daemon.command("jobs").arg("--json").arg(&json).output().unwrap();
    let table = String::from_utf8(listed.stdout).unwrap();
    assert!(
        table.lines().nth(1).unwrap().starts_with(&format!("{}    lines        running", job.0)),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!((&json["jobs"][0]["nodes"][0], &json["jobs"][0]["state"]), (&"a".into(), &"running".into()));

    let cancel = |job: &str| daemon.command("cancel").arg(job).output().unwrap();
    assert!(error_line(&cancel("999")).contains("there is no job 999"));
    let job_number = job.0.to_string();
    assert!(cancel(&job_number).status.success());
    assert!(reason(first).contains("cancelled by 127.0.0.1:"));
    assert_eq!(daemon.client().job_list(false).unwrap()[0].state.word(), "ending");
    assert!(error_line(&cancel(&job_number)).contains("has ended, but not yet on node 1 (a)"));

    // The next job waits for the node, and then has its whole time limit.
    let second = submit(&["--time", "1s"]);
    node.sending.send(&ToManager::JobOver { job }).unwrap();
    assert!(take(&mut node) > job);
    assert!(reason(second).contains("the job has taken longer than its limit of 1 s"));
    assert_eq!(directory.names(), ["in", "jobs.json", "state"]);
}

/// The list of members comes in pages, each of which fits into a connection: three hundred members with
/// descriptions of the maximum length.
#[test]
fn a_list_of_any_length_reaches_the_client() {
    let directory = Directory::new("pages");
    let daemon = Daemon::start(&directory, &[]);
    let mut members = Vec::new();
    for index in 0..300u16 {
        let mut connection = Connection::open(&daemon.address, &daemon.key(), Role::Node).unwrap();
        let mut wish = support::join(&format!("n{index}"));
        wish.rnic.mac.0[4..].copy_from_slice(&index.to_be_bytes());
        wish.apps = (0..40)
            .map(|i| AppManifest { name: format!("app{i}"), about: "x".repeat(256), ..support::lines() })
            .collect();
        connection.sending.send(&Hello::Node(wish)).unwrap();
        let answer = connection.receiving.receive(Some(Duration::from_secs(10))).unwrap();
        assert!(matches!(answer, ToNode::Welcome(_)), "{answer:?}");
        members.push(connection);
    }
    let listed = daemon.client().wait_nodes(300, Duration::from_secs(10)).unwrap();
    assert_eq!(listed.len(), 300);
    let bytes: usize = listed.iter().map(|status| encode(status).len()).sum();
    assert!(bytes > 2 * channel::MAX_MESSAGE, "{bytes}");
    assert_eq!(daemon.client().nodes().unwrap().len(), 300);
    drop(members);
}
