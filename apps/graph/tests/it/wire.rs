//! The messages of supersteps on the wire.

use super::cluster::edge_list;
use super::support::{self, counter, run};
use graph::Model;
use runtime::testing::JobCluster;

/// The counters of LITE that are compared, and the READs of the RNICs.
const COUNTERS: [&str; 7] = [
    "lite_sends",
    "lite_calls",
    "lite_served",
    "lite_writes",
    "lite_atomics",
    "lite_memsets",
    "lite_bytes_written",
];

fn counts(cluster: &mut JobCluster, iterations: &str, files: &[(&str, &[u8])]) -> ([u64; 7], u64) {
    let now = |cluster: &JobCluster| (COUNTERS.map(|name| counter(cluster, name)), cluster.fabric.reads());
    let before = now(cluster);
    run(cluster, "pagerank", &[iterations], files).unwrap();
    let (after, reads) = now(cluster);
    (std::array::from_fn(|n| after[n] - before.0[n]), reads - before.1)
}

/// Returns what 20 supersteps add to each counter.
fn of_20_supersteps(nodes: u8, text: &str) -> ([u64; 7], u64) {
    let files: &[(&str, &[u8])] = &[("g", text.as_bytes())];
    let mut cluster = support::cluster(5, nodes, 1);
    // The first job opens the connections.
    counts(&mut cluster, "iterations=1", files);
    let (few, few_reads) = counts(&mut cluster, "iterations=10", files);
    let (many, many_reads) = counts(&mut cluster, "iterations=30", files);
    (std::array::from_fn(|n| many[n] - few[n]), many_reads - few_reads)
}

/// Short signals travel in the messages: nothing else is on the wire.
#[test]
fn a_superstep_is_one_message_for_each_ordered_pair() {
    let text = edge_list(Model::Uniform, 6);
    for nodes in 2..=4 {
        let messages = 20 * u64::from(nodes) * u64::from(nodes - 1);
        // A message counts as a call too. There is no other call.
        let expected = [messages, messages, messages, 0, 0, 0, 0];
        assert_eq!(of_20_supersteps(nodes, &text), (expected, 0), "{nodes} nodes");
    }
}

/// Long signals are written to the receivers' inboxes, each by one WRITE of LITE, before the messages.
#[test]
fn long_signals_are_written_before_the_messages() {
    let text = edge_list(Model::Uniform, 12);
    let nodes = 3;
    let (added, reads) = of_20_supersteps(nodes, &text);
    let messages = 20 * u64::from(nodes) * u64::from(nodes - 1);
    assert_eq!(added[..6], [messages, messages, messages, messages, 0, 0]);
    assert!(added[6] > messages * 4096, "{added:?}");
    assert_eq!(reads, 0);
}
