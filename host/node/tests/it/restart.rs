//! The manager is killed or stopped in the middle of jobs, and started again: nobody loses anything.

use crate::daemon::{daemon, word_count};
use crate::support::{Cluster, LIMIT, Process, reference, text};
use manager::client::{Client, Inputs, Output, Update};
use proto::{Incarnation, JobEnd, JobState, NodeState};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Connects to a manager that is starting.
fn client(cluster: &Cluster) -> Client {
    let deadline = Instant::now() + LIMIT;
    loop {
        match Client::connect(&cluster.address, &cluster.key()) {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < deadline, "no manager: {error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until all three nodes are connected, and returns their names, incarnations and boots.
fn ready(cluster: &Cluster) -> Vec<(String, Incarnation, u64)> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let nodes = client(cluster).nodes().unwrap();
        if nodes.len() == 3 && nodes.iter().all(|node| node.state == NodeState::Ready) {
            return nodes.into_iter().map(|node| (node.name, node.incarnation, node.boot_id)).collect();
        }
        assert!(Instant::now() < deadline, "{nodes:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Ends the manager (SIGKILL, or SIGTERM) three times in each of several word counts: while input is on its
/// way, and while the nodes compute or send the output. Another manager goes on each time.
#[test]
fn a_killed_or_stopped_manager_costs_no_node_its_life_and_no_job_its_output() {
    let (cluster, manager) = Cluster::with_process(3);
    let mut manager = Some(manager);
    let mut nodes: Vec<Process> =
        (0..3).map(|port| Process::start(&mut daemon(&cluster, &format!("host{port}"), port))).collect();
    cluster.wait_nodes(3);
    nodes.iter_mut().for_each(|node| node.says("joined as"));
    let before = ready(&cluster);
    let (input, path) = (cluster.file("in", &text(12 << 20)), cluster.dir.path().join("out"));
    let expected = reference(&input);
    for round in 0..4u64 {
        let (client, given, taken) = (client(&cluster), input.clone(), path.clone());
        let (running, runs) = channel();
        let job = thread::spawn(move || {
            let mut output = Output::create(&taken).unwrap();
            let watch = |update: Update<'_>| {
                if let Update::Accepted { .. } = update {
                    // The test hears of the first time only.
                    let _ = running.send(());
                }
            };
            let done = client.submit(&word_count(), Inputs::open(&[given])?, &mut output, &watch)?;
            output.finish().map(|()| done.reports.len())
        });
        runs.recv_timeout(LIMIT).unwrap();
        for kill in 0..3u64 {
            thread::sleep(Duration::from_millis(150 * round + 400 * kill));
            // Every other one is stopped in good order.
            let (ended, orderly) = (manager.take().unwrap(), kill % 2 == 1);
            ended.signal(if orderly { "-TERM" } else { "-KILL" });
            assert_eq!(ended.wait().0.success(), orderly);
            let mut again = cluster.restart();
            again.says("goes on as process");
            manager = Some(again);
        }
        match job.join().unwrap() {
            Ok(reports) => assert_eq!(reports, 3, "round {round}"),
            Err(error) => {
                let log = manager.take().map(|manager| {
                    manager.signal("-KILL");
                    manager.wait().1
                });
                panic!("round {round}: {error}: {}", log.unwrap_or_default());
            }
        }
        assert!(std::fs::read(&path).unwrap() == expected, "round {round}: another result");
        assert_eq!(ready(&cluster), before, "round {round}");
    }
    client(&cluster).shutdown().unwrap();
    for node in nodes {
        let (status, said) = node.wait();
        assert!(status.success() && said.matches("joined as").count() == 1, "{said}");
    }
}

/// Two jobs without a client, the second of which waits in the queue, outlast three managers: the files were
/// stored before the jobs were acknowledged, and the outputs are fetched from the last manager.
#[test]
fn jobs_without_a_client_outlast_the_manager_with_their_files() {
    let (cluster, manager) = Cluster::with_process(3);
    let mut manager = manager;
    let nodes: Vec<Process> =
        (0..3).map(|port| Process::start(&mut daemon(&cluster, &format!("host{port}"), port))).collect();
    cluster.wait_nodes(3);
    let input = cluster.file("in", &text(12 << 20));
    let expected = reference(&input);
    let jobs = [(); 2].map(|()| {
        let inputs = Inputs::open(std::slice::from_ref(&input)).unwrap();
        client(&cluster).submit_detached(&word_count(), &inputs, &|_| {}).unwrap()
    });
    std::fs::remove_file(&input).unwrap();
    for (pause, orderly) in [(0, false), (300, true), (600, false)] {
        thread::sleep(Duration::from_millis(pause));
        manager.signal(if orderly { "-TERM" } else { "-KILL" });
        assert_eq!(manager.wait().0.success(), orderly);
        manager = cluster.restart();
        manager.says("goes on as process");
    }
    for job in jobs {
        let mut client = client(&cluster);
        let details = client.job_wait(job, LIMIT).unwrap();
        assert!(matches!(details.info.state, JobState::Ended(JobEnd::Done { .. })), "{details:?}");
        let mut output = Vec::new();
        let fetched = client.job_output(job, &mut |bytes| {
            output.extend_from_slice(bytes);
            Ok(())
        });
        fetched.unwrap();
        assert!(output == expected, "another result");
    }
    client(&cluster).shutdown().unwrap();
    for node in nodes {
        let (status, said) = node.wait();
        assert!(status.success(), "{said}");
    }
}

/// A node whose process is killed is silent, then dead; it is dead at once if it joins again.
#[test]
fn a_killed_node_is_silent_until_its_lease_ends_or_it_joins_again() {
    let cluster = Cluster::with_lease(2, Duration::from_secs(8));
    let mut nodes = Vec::new();
    for port in 0..2 {
        nodes.push(Process::start(&mut daemon(&cluster, &format!("host{port}"), port)));
        cluster.wait_nodes(1 + port as u16);
    }
    let first = cluster.client().nodes().unwrap()[1].incarnation;
    nodes.remove(1).signal("-KILL");
    let deadline = Instant::now() + Duration::from_secs(3);
    while cluster.client().nodes().unwrap()[1].state != NodeState::Silent {
        assert!(Instant::now() < deadline, "it is not shown as silent");
        thread::sleep(Duration::from_millis(20));
    }
    let mut again = Process::start(&mut daemon(&cluster, "host1", 1));
    again.says("joined as");
    let listed = cluster.client().nodes().unwrap();
    assert!(listed.len() == 2 && listed[1].incarnation > first, "{listed:?}");
    again.signal("-KILL");
    cluster.wait_members(&["host0"]);
}
