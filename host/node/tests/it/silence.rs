//! Processes whose manager is silent for longer than their lease.

use crate::daemon::{daemon, word_count};
use crate::proxy::{Proxy, Way};
use crate::support::{Cluster, LIMIT, Process, reference, text};
use manager::client::{Inputs, Output, Update};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(1500);
const SUSPENDED: &str = "posts nothing until it answers";

/// Two nodes that reach the manager through a proxy.
fn two(cluster: &Cluster) -> (Proxy, Vec<Process>) {
    let proxy = Proxy::start(&cluster.address);
    // The last value of an option counts.
    let start = |n: usize| {
        Process::start(daemon(cluster, &format!("host{n}"), n).args(["--manager", &proxy.address]))
    };
    let mut processes: Vec<_> = (0..2).map(start).collect();
    cluster.wait_nodes(2);
    // The manager's welcome has passed the proxy before that becomes silent.
    for process in &mut processes {
        process.says("joined as");
    }
    (proxy, processes)
}

/// The manager receives the nodes' heartbeats, but its answers do not reach the nodes.
#[test]
fn a_job_outlasts_a_manager_that_is_silent() {
    let cluster = Cluster::with_lease(2, LEASE);
    let (proxy, mut processes) = two(&cluster);
    let lives = |cluster: &Cluster| -> Vec<_> {
        cluster.client().nodes().unwrap().into_iter().map(|node| (node.node, node.name)).collect()
    };
    let before = lives(&cluster);
    let input = cluster.file("in", &text(24 << 20));
    let path = cluster.dir.path().join("out");
    let (client, given, taken) = (cluster.client(), input.clone(), path.clone());
    let (running, runs) = channel();
    let job = thread::spawn(move || {
        let mut output = Output::create(&taken).unwrap();
        let watch = |update: Update<'_>| {
            if let Update::Accepted { .. } = update {
                running.send(()).unwrap();
            }
        };
        let done = client.submit(&word_count(), Inputs::open(&[given]).unwrap(), &mut output, &watch);
        let reports = done.map(|done| done.reports.len());
        output.finish().unwrap();
        reports
    });
    runs.recv_timeout(LIMIT).unwrap();
    proxy.silent(Way::ToNodes, true);
    for process in &mut processes {
        process.says(SUSPENDED);
    }
    proxy.silent(Way::ToNodes, false);
    for process in &mut processes {
        process.says("goes on after");
    }
    assert_eq!(job.join().unwrap().unwrap(), 2);
    assert!(std::fs::read(&path).unwrap() == reference(&input), "another result");
    assert_eq!(lives(&cluster), before);
    cluster.client().shutdown().unwrap();
    for process in processes {
        let (status, said) = process.wait();
        assert!(status.success(), "{said}");
    }
}

/// Neither side hears the other: the manager gives the nodes up after a lease, and they learn of it when
/// they hear it again.
#[test]
fn a_process_that_is_cut_off_for_too_long_is_dead_and_ends() {
    let cluster = Cluster::with_lease(2, LEASE);
    let (proxy, mut processes) = two(&cluster);
    for way in [Way::ToManager, Way::ToNodes] {
        proxy.silent(way, true);
    }
    cluster.wait_members(&[]);
    for process in &mut processes {
        process.says(SUSPENDED);
    }
    for way in [Way::ToManager, Way::ToNodes] {
        proxy.silent(way, false);
    }
    for process in processes {
        let (status, said) = process.wait();
        assert!(!status.success(), "it goes on");
        assert!(said.contains("this node ends: it has lost its membership"), "{said}");
    }
}

#[test]
fn a_process_gives_up_a_manager_that_is_silent_for_longer_than_the_setting_says() {
    let cluster = Cluster::with_lease(1, LEASE);
    let proxy = Proxy::start(&cluster.address);
    let mut command = daemon(&cluster, "host", 0);
    let mut process = Process::start(command.args(["--manager", &proxy.address, "--silence", "1s"]));
    process.says("joined as");
    proxy.silent(Way::ToNodes, true);
    let (status, said) = process.wait();
    assert!(!status.success(), "it goes on");
    assert!(said.contains(SUSPENDED) && said.contains("the manager has been silent for 1s"), "{said}");
}
