//! Whole jobs on simulated clusters: the result is the same for any number of nodes.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use runtime::testing::Cluster;

const TEXT: &[u8] = b"one\n\nthree\nand the last without an end";

#[test]
fn any_number_of_nodes_gives_the_same_result() {
    for nodes in 1..=4 {
        let mut cluster = Cluster::new(1, nodes, 1, template::apps);
        let (output, reports) = cluster.run("template", &[], &[("text", TEXT)]).unwrap();
        assert_eq!(output, b"lines\t4\nlongest\t27\n");
        assert_eq!(reports.len(), usize::from(nodes));
        // The first job has opened the connections.
        let before = cluster.free();
        let (output, _) = cluster.run("template", &["least=4"], &[("text", TEXT)]).unwrap();
        assert_eq!(output, b"lines\t2\nlongest\t27\n");
        let (output, _) = cluster.run("template", &[], &[("empty", b"")]).unwrap();
        assert_eq!(output, b"lines\t0\nlongest\t0\n");
        assert_eq!(cluster.free(), before, "memory is left behind");
    }
}

#[test]
fn wrong_arguments_are_refused_with_a_reason() {
    let mut cluster = Cluster::new(1, 2, 1, template::apps);
    let mut refusal = |arg| cluster.run("template", &[arg], &[("text", TEXT)]).unwrap_err();
    assert!(refusal("most=4").ends_with(": unknown argument \"most=4\"; usage: [least=BYTES]"));
    assert!(refusal("least=four").contains(": least=four: want a number from 0 to "));
}
