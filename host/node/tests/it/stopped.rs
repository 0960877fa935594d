//! Processes whose manager's process is suspended (SIGSTOP), with the default lease of 5 s.

use crate::daemon::{daemon, word_count};
use crate::support::{Cluster, LIMIT, Process, reference, text};
use manager::client::{Inputs, Output, Update};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Suspends the manager during a job on two nodes, and a third node from then on for ever. The job ends well
/// and the two go on as the same members; the manager declares the third dead when it is back.
fn stands_still(pause: Duration) {
    let (cluster, mut manager) = Cluster::with_process(3);
    let names = ["a", "b", "silent"];
    let mut nodes: Vec<Process> =
        (0..3).map(|port| Process::start(&mut daemon(&cluster, names[port], port))).collect();
    cluster.wait_nodes(3);
    nodes.iter_mut().for_each(|node| node.says("joined as"));
    let (input, path) = (cluster.file("in", &text(24 << 20)), cluster.dir.path().join("out"));
    let (client, given, taken) = (cluster.client(), input.clone(), path.clone());
    let (running, runs) = channel();
    let job = thread::spawn(move || {
        let mut output = Output::create(&taken).unwrap();
        let watch = |update: Update<'_>| {
            if let Update::Accepted { .. } = update {
                running.send(()).unwrap();
            }
        };
        let mut job = word_count();
        job.on = vec!["a".into(), "b".into()];
        let done = client.submit(&job, Inputs::open(&[given]).unwrap(), &mut output, &watch);
        let reports = done.map(|done| done.reports.len());
        output.finish().unwrap();
        reports
    });
    runs.recv_timeout(LIMIT).unwrap();
    manager.signal("-STOP");
    nodes[2].signal("-STOP");
    thread::sleep(pause);
    let (silent, live) = nodes.split_last_mut().unwrap();
    if pause > Duration::from_secs(5) {
        live.iter_mut().for_each(|node| node.says("posts nothing until it answers"));
    }
    manager.signal("-CONT");
    let listed = cluster.client().nodes().unwrap();
    assert_eq!(listed.len(), 3, "the pause itself ends no lease");
    if pause > Duration::from_secs(5) {
        live.iter_mut().for_each(|node| node.says("goes on after"));
    }
    assert_eq!(job.join().unwrap().unwrap(), 2);
    assert!(std::fs::read(&path).unwrap() == reference(&input), "another result");
    manager.says("(silent) is gone: lease expired");
    cluster.wait_members(&["a", "b"]);
    // The silent node finds its membership lost when it runs again.
    silent.signal("-CONT");
    silent.says("this node ends: ");
    cluster.client().shutdown().unwrap();
    for node in nodes.drain(..2) {
        let (status, said) = node.wait();
        assert!(status.success() && said.matches("joined as").count() == 1, "{said}");
    }
    let gone: Vec<&str> = manager.said().lines().filter(|line| line.contains("expired")).collect();
    assert_eq!(gone.len(), 1, "{gone:?}");
}

#[test]
fn a_manager_that_stands_still_for_less_than_a_lease_costs_no_member() {
    stands_still(Duration::from_secs(4));
}

#[test]
fn a_manager_that_stands_still_for_many_leases_costs_only_the_silent() {
    stands_still(Duration::from_secs(30));
}
