//! LITE's settings as options of the daemon: each of these tests observes the effect of one.

use crate::daemon::{daemon, refusal, word_count};
use crate::support::{Cluster, Process, reference, text};
use manager::client::{ClientError, Inputs, Output};

/// Runs word count on nodes with the given options; returns the outcome, and whether the result is right.
fn count_with(options: &[&str], nodes: usize) -> (Result<bool, ClientError>, Vec<Process>, Cluster) {
    let cluster = Cluster::start(nodes);
    let start =
        |n: usize| Process::start(daemon(&cluster, &format!("host{n}"), n).arg("--verbose").args(options));
    let processes = (0..nodes).map(start).collect();
    cluster.wait_nodes(u16::try_from(nodes).unwrap());
    let input = cluster.file("in", &text(1 << 20));
    let path = cluster.dir.path().join("out");
    let mut output = Output::create(&path).unwrap();
    let inputs = Inputs::open(std::slice::from_ref(&input)).unwrap();
    let done = cluster.client().submit(&word_count(), inputs, &mut output, &|_| {});
    let right = done.map(|_| {
        output.finish().unwrap();
        std::fs::read(&path).unwrap() == reference(&input)
    });
    (right, processes, cluster)
}

#[test]
fn peers_bound_the_connections() {
    let (right, processes, _cluster) = count_with(&["--peers", "2"], 4);
    assert!(right.unwrap(), "another result");
    // Each node has three peers.
    for mut process in processes {
        process.says("all 2 connection permits are in use");
    }
}

#[test]
fn pools_take_the_memory_that_they_say() {
    let cluster = Cluster::start(1);
    // A node of these tests has 64 MiB.
    let mut command = daemon(&cluster, "host", 0);
    let (status, said) = Process::start(command.args(["--bounce", "256x8,4Kx8,1Mx100"])).wait();
    assert!(!status.success(), "it started");
    // All three are in one run: a page, 32 KiB and 100 MiB.
    assert!(said.contains("104894464 bytes asked"), "{said}");
}

#[test]
fn bad_values_are_refused_in_one_line() {
    let cluster = Cluster::start(1);
    for (option, value, why) in [
        ("--peers", "1", "lite-node: --peers=1: want a number from 2 to 4095\n"),
        ("--deadline", "30", "lite-node: --deadline=30: want a time from 1us to 576h\n"),
        (
            "--bounce",
            "1",
            "lite-node: --bounce=1: want three pools as SIZExCOUNT, as in 256x256,4Kx64,64Kx16\n",
        ),
    ] {
        assert_eq!(refusal(daemon(&cluster, "host", 0).args([option, value])), why);
    }
}
