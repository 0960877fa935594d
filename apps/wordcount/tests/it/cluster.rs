//! Tests of whole jobs on clusters of the real runtime, framework and LITE, in one process under virtual
//! time. The RNIC completes work at once, and the test plays the manager.

use grep::Grep;
use mapreduce::{Job, MapReduce, Split, run_local};
use proto::{CutRule, JobId, JobReport, NodeId, ToManager, ToNode};
use runtime::testing::{JobCluster, Outcome};
use runtime::{App, End};
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use wordcount::WordCount;

/// Bytes of LITE memory per node.
const MEMORY: u64 = 48 << 20;

/// Nodes that serve word count and grep. Input files are called `f0`, `f1` and so on.
struct Cluster(JobCluster);

impl Deref for Cluster {
    type Target = JobCluster;
    fn deref(&self) -> &JobCluster {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut JobCluster {
        &mut self.0
    }
}

fn apps() -> Vec<Box<dyn App>> {
    vec![Box::new(Job::<WordCount>::default()), Box::new(Job::<Grep>::default())]
}

const NAMES: [&str; 3] = ["f0", "f1", "f2"];

fn named<'a>(files: &[&'a [u8]]) -> Vec<(&'static str, &'a [u8])> {
    assert!(files.len() <= NAMES.len());
    NAMES.into_iter().zip(files.iter().copied()).collect()
}

impl Cluster {
    fn new(seed: u64, count: u8) -> Self {
        Self::with_cpus(seed, &vec![1; count.into()])
    }

    /// Starts a cluster whose nodes have these numbers of processors.
    fn with_cpus(seed: u64, cpus: &[usize]) -> Self {
        Self(JobCluster::new(seed, MEMORY, cpus, apps))
    }

    /// Starts a job. The error is a refusal.
    fn start(&mut self, app: &str, args: &[&str], files: &[&[u8]], share: u64) -> Result<JobId, String> {
        self.0.start(app, args, &named(files), share)
    }

    /// Sends the input, cut at the first permitted byte behind every `size` bytes.
    fn load(&self, job: JobId, files: &[&[u8]], rule: &CutRule, size: usize) {
        self.0.load(job, &named(files), rule, |_| size);
    }

    fn run<M: MapReduce>(
        &mut self,
        args: &[&str],
        files: &[&[u8]],
        size: usize,
    ) -> (Vec<u8>, Vec<JobReport>) {
        let job = self.start(M::NAME, args, files, 1000).unwrap();
        self.load(job, files, &M::cut(), size);
        match self.finish(job) {
            Outcome::Done { output, reports } => (output, reports),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the word counts of a text as one processor computes them.
fn counts(text: &[u8]) -> Vec<u8> {
    run_local(&WordCount, &[Split { file: 0, offset: 0, bytes: text }]).unwrap()
}

/// Returns text with many different words, some longer than 16 letters.
fn text(words: u64) -> Vec<u8> {
    let mut text = Vec::new();
    for i in 0..words {
        let mut word = (i * i % 10_007).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 5;
        for _ in 0..2 + word % 19 {
            text.push(b'A' + (word % 26) as u8 + (word & 0x20) as u8);
            word = word.rotate_right(5);
        }
        text.extend_from_slice([&b" "[..], b"\n", b", ", b"\xff"][i as usize % 4]);
    }
    text
}

fn sum(reports: &[JobReport], name: &str) -> u64 {
    reports.iter().flat_map(|r| &r.counts).filter(|(n, _)| n == name).map(|(_, count)| count).sum()
}

#[test]
fn words_are_counted_by_any_number_of_nodes() {
    let text = text(60_000);
    let expected = counts(&text);
    for nodes in [1, 2, 4, 7] {
        let mut cluster = Cluster::new(u64::from(nodes), nodes);
        let (output, reports) = cluster.run::<WordCount>(&[], &[&text], 50_000);
        assert!(output == expected, "{nodes} nodes");
        assert_eq!(sum(&reports, "words"), 60_000);
        assert_eq!(sum(&reports, "mapped_bytes"), text.len() as u64);
        let lines = expected.iter().filter(|&&b| b == b'\n').count() as u64;
        assert_eq!(sum(&reports, "distinct"), lines);
        assert_eq!(sum(&reports, "reduced_keys"), lines);
        let phases: Vec<_> = reports[0].times_us.iter().map(|(phase, _)| phase.as_str()).collect();
        assert_eq!(phases, ["map", "shuffle", "reduce", "merge", "input"]);
    }
}

#[test]
fn nodes_may_have_different_numbers_of_processors() {
    let text = text(30_000);
    let expected = counts(&text);
    for (nodes, cpus) in [(1, [2, 0, 0]), (1, [20, 0, 0]), (3, [1, 3, 8]), (3, [16, 1, 5])] {
        let mut cluster = Cluster::with_cpus(7, &cpus[..nodes]);
        let (output, reports) = cluster.run::<WordCount>(&[], &[&text], 10_000);
        assert!(output == expected, "{nodes} {cpus:?}");
        assert_eq!(sum(&reports, "words"), 30_000);
    }
}

#[test]
fn corner_cases_and_no_memory_is_lost() {
    let mut cluster = Cluster::new(1, 3);
    let mut word = vec![b'w'; 3_000_000];
    word[7] = b'W';
    // The first job opens the connections, which keep memory.
    assert_eq!(cluster.run::<WordCount>(&[], &[b"a b c d e f g"], 1).0, counts(b"a b c d e f g"));
    let free = cluster.free();
    for text in [&b""[..], b"a", b"\n", b"No Newline", &[0, 255, b'x', 0], &word] {
        assert!(cluster.run::<WordCount>(&[], &[text], 1000).0 == counts(text), "{} bytes", text.len());
        assert_eq!(cluster.free(), free);
    }
    assert_eq!(cluster.run::<WordCount>(&[], &[], 1000).0, b"");
    assert_eq!(cluster.run::<WordCount>(&[], &[b"one", b"", b"one two"], 1000).0, b"one\t2\ntwo\t1\n");
}

#[test]
fn lines_are_found_in_the_order_of_the_input() {
    let mut cluster = Cluster::new(2, 3);
    let files: [&[u8]; 3] = [include_bytes!("cluster.rs"), b"", include_bytes!("../../src/lib.rs")];
    let (output, _) = cluster.run::<Grep>(&["-i", "WORD"], &files, 300);
    let mut expected = String::new();
    for (number, file) in files.iter().enumerate() {
        let mut offset = 0;
        for line in std::str::from_utf8(file).unwrap().split_inclusive('\n') {
            if line.to_ascii_lowercase().contains("word") {
                expected += &format!("f{number}:{offset}:{line}");
            }
            offset += line.len();
        }
    }
    assert_eq!(String::from_utf8(output).unwrap(), expected);
}

#[test]
fn jobs_that_cannot_be_are_refused() {
    let mut cluster = Cluster::new(3, 2);
    let refusal = cluster.start("nope", &[], &[], 0).unwrap_err();
    assert_eq!(refusal, "unknown application \"nope\"; this node has: wordcount, grep");
    assert!(
        cluster
            .start("wordcount", &["x"], &[], 0)
            .unwrap_err()
            .contains("unknown argument \"x\"; usage: no arguments")
    );
    let refusal = cluster.start("wordcount", &[], &[], 4_000_000_000_000_000_000).unwrap_err();
    assert!(refusal.starts_with("too little memory: needs 6000000000003 MB, has "), "{refusal}");
    // The next job works as if nothing had happened.
    assert_eq!(cluster.run::<WordCount>(&[], &[b"a"], 10).0, b"a\t1\n");
}

#[test]
fn the_death_of_a_node_fails_the_job_and_names_it() {
    let text = text(20_000);
    let expected = counts(&text);
    // The fabric counts work requests, so each death comes at another point of the job.
    let mut quiet = Cluster::new(4, 3);
    quiet.run::<WordCount>(&[], &[&text], 1000);
    let first = quiet.fabric.posts();
    quiet.run::<WordCount>(&[], &[&text], 1000);
    let posts = quiet.fabric.posts() - first;
    assert!(posts > 20, "{posts}");
    for victim in 0..3 {
        for step in 0..20 {
            let mut cluster = Cluster::new(4, 3);
            assert!(cluster.run::<WordCount>(&[], &[&text], 1000).0 == expected);
            let free = cluster.free();
            let job = cluster.start("wordcount", &[], &[&text], 1000).unwrap();
            let (host, lite) = cluster.nodes[victim].clone();
            cluster.load(job, &[&text], &WordCount::cut(), 1000);
            let (fabric, start) = (cluster.fabric.clone(), cluster.fabric.posts());
            let end = cluster.world.now() + Duration::from_secs(60);
            let there = cluster.world.run_until(end, || fabric.posts() - start >= posts * step / 20);
            assert!(there, "{step}");
            host.kill();
            cluster.world.run_for(Duration::from_millis(5));
            cluster.hub.declare_dead(lite.node_id());
            match cluster.finish(job) {
                Outcome::Failed { node: by, reason, .. } => {
                    assert_ne!(by, lite.node_id());
                    assert!(reason.contains(&format!("{} is down", lite.node_id())), "{step}: {reason}");
                    cluster.tell_all(&ToNode::JobCancel { job, reason });
                }
                // The node died after its work was done, before it could report: the real manager handles
                // this.
                Outcome::Silent(done) => {
                    assert!(step > 15, "{step}");
                    assert_eq!(done.len(), 2);
                    assert!(!done.contains(&lite.node_id()));
                }
                // The node died after all nodes had reported.
                Outcome::Done { output: result, .. } => {
                    assert!(step > 15, "{step}");
                    assert!(result == expected, "{step}");
                }
            }
            // Memory that the dead node had allocated on other nodes is freed as well.
            let others = free.iter().enumerate().filter(|(node, _)| *node != victim);
            for (now, (_, before)) in cluster.free().iter().zip(others) {
                assert!(now >= before, "{step}: memory is still taken: {now} < {before}");
            }
        }
    }
}

#[test]
fn output_waits_for_the_manager_and_a_cancelled_job_leaves_nothing() {
    let mut cluster = Cluster::new(5, 2);
    let text: Vec<u8> = (0..200_000u64)
        .flat_map(|i| {
            let word: [u8; 8] = std::array::from_fn(|k| b'a' + ((i >> (3 * k)) & 7) as u8);
            [&word[..], b" "].concat()
        })
        .collect();
    let expected = counts(&text);
    assert!(expected.len() > ToManager::OUTPUT_WINDOW * 3 / 2);
    assert!(cluster.run::<WordCount>(&[], &[&text], 100_000).0 == expected);
    let free = cluster.free();
    let job = cluster.start("wordcount", &[], &[&text], 1000).unwrap();
    cluster.load(job, &[&text], &WordCount::cut(), 100_000);
    let mut output = Vec::new();
    while let Some((_, message)) = cluster.next_message() {
        match message {
            ToManager::JobOutput { bytes, .. } => output.extend(bytes),
            other => panic!("{other:?}"),
        }
    }
    assert!(output.len() <= ToManager::OUTPUT_WINDOW && output.len() > ToManager::OUTPUT_WINDOW - (64 << 10));
    assert!(expected.starts_with(&output));
    cluster.tell_all(&ToNode::JobCancel { job, reason: "a test".into() });
    let mut ended: Vec<_> = (0..2).map(|_| cluster.next_message().unwrap()).collect();
    ended.sort_by_key(|(node, _)| *node);
    let over = ToManager::JobOver { job };
    assert_eq!(ended, cluster.ids().into_iter().map(|node| (node, over.clone())).collect::<Vec<_>>());
    assert_eq!(cluster.free(), free, "nothing is left when the nodes have said so");
    // A node that is told a second time answers a second time.
    cluster.tell_all(&ToNode::JobCancel { job, reason: "a test".into() });
    assert!((0..2).all(|_| cluster.next_message().unwrap().1 == over));
    // The nodes then accept the next job.
    assert_eq!(cluster.run::<WordCount>(&[], &[b"a"], 10).0, b"a\t1\n");
}

#[test]
fn a_node_is_ready_for_a_window_beyond_what_it_has_taken() {
    let mut cluster = Cluster::new(8, 1);
    let text = vec![b'x'; 3_000_000];
    let job = cluster.start("wordcount", &[], &[&text], 3_000_000).unwrap();
    let node = NodeId(1);
    cluster.world.run_for(Duration::from_millis(10));
    assert_eq!(cluster.credit(node, job), Some((ToNode::INPUT_WINDOW, 1)));
    let piece = 48u64 << 10;
    let mut taken = 0;
    for (number, bytes) in (0..).zip(text.chunks(48 << 10).take(40)) {
        let offset = number * piece;
        let message = ToNode::JobInput { job, file: 0, offset, bytes: bytes.into(), end_of_split: false };
        cluster.hub.send(node, &message);
        taken += piece;
        cluster.world.run_for(Duration::from_millis(1));
        let (credit, _) = cluster.credit(node, job).unwrap();
        assert!(credit <= taken + ToNode::INPUT_WINDOW && credit >= taken + ToNode::INPUT_WINDOW * 3 / 4);
    }
    assert!(cluster.credit(node, job).unwrap().1 <= 10, "not a message for each piece");
}

#[test]
fn serving_ends_with_the_membership() {
    let mut cluster = Cluster::new(6, 2);
    cluster.hub.send(NodeId(1), &ToNode::Shutdown);
    cluster.hub.cut(NodeId(2));
    cluster.world.run_for(Duration::from_secs(1));
    assert_eq!(cluster.ends(), [(NodeId(1), End::Shutdown), (NodeId(2), End::Lost)]);
}
