//! Whole jobs on simulated clusters.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use runtime::testing::Cluster;

fn counts(text: &[u8]) -> Vec<(String, u64)> {
    let text = std::str::from_utf8(text).unwrap();
    let pair = |line: &str| line.split_once('\t').map(|(name, count)| (name.into(), count.parse().unwrap()));
    text.lines().map(|line| pair(line).unwrap()).collect()
}

#[test]
fn all_nodes_append_read_scan_follow_and_truncate() {
    for nodes in 1..=4u8 {
        let mut cluster = Cluster::new(1, nodes, 1, logjob::apps);
        cluster.run("log", &["commits=1"], &[]).unwrap();
        let free = cluster.free();
        for args in [&["commits=300"][..], &["commits=40", "entries=7", "bytes=1000", "tasks=3"]] {
            let (output, reports) = cluster.run("log", args, &[]).unwrap();
            let counts = counts(&output);
            let commits = u64::from(nodes) * if args.len() == 1 { 300 } else { 40 };
            assert_eq!(counts[0], ("nodes".into(), nodes.into()));
            assert_eq!(counts[1], ("commits".into(), commits));
            assert_eq!(counts[4], ("scanned by each node".into(), commits));
            let phases: Vec<_> = reports[0].times_us.iter().map(|(phase, _)| phase.as_str()).collect();
            assert_eq!(phases[..6], ["open", "append", "read", "scan", "follow", "truncate"]);
            assert_eq!(cluster.free(), free, "memory is left behind");
        }
        for (_, lite) in &cluster.nodes {
            assert_eq!(lite.audit(), []);
        }
    }
}

/// Each commit is one fetch-add and one write, as LITE counts them.
#[test]
fn a_commit_is_a_fetch_add_and_a_write() {
    let mut cluster = Cluster::new(1, 2, 1, logjob::apps);
    let mut used = |commits: &str| {
        let before = ["lite_atomics", "lite_writes"].map(|name| cluster.counter(name));
        cluster.run("log", &[commits, "bytes=100"], &[]).unwrap();
        let after = ["lite_atomics", "lite_writes"].map(|name| cluster.counter(name));
        [after[0] - before[0], after[1] - before[1]]
    };
    used("commits=8");
    let (few, many) = (used("commits=8"), used("commits=508"));
    assert_eq!([many[0] - few[0], many[1] - few[1]], [1000, 1000]);
}

#[test]
fn wrong_arguments_are_refused() {
    let mut cluster = Cluster::new(1, 2, 1, logjob::apps);
    for (arg, says) in [
        ("commits=0", "log: commits=0: want a number from 1 to 10000000"),
        ("bytes=15", "log: bytes=15: want a number from 16 to 65536"),
        ("entries=1000", ""),
        ("lines", "log: unknown argument \"lines\""),
    ] {
        let ended = cluster.run(
            "log",
            &[arg, "bytes=16", "commits=1"][..if arg == "entries=1000" { 3 } else { 1 }],
            &[],
        );
        match ended {
            Ok(_) => assert!(says.is_empty(), "{arg}"),
            Err(error) => assert!(error.starts_with(says) && error.contains("; usage: [commits="), "{error}"),
        }
    }
    let error = cluster.run("log", &["entries=1000", "bytes=66"], &[]).unwrap_err();
    assert!(error.contains("at most 65536 bytes"), "{error}");
}
