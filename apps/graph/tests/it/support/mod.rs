//! Jobs of graph algorithms on a cluster of the real runtime and LITE in one process.

use proto::{CutRule, JobReport};
use runtime::testing::{JobCluster, Outcome};

/// Bytes of LITE memory per node.
const MEMORY: u64 = 16 << 20;
/// The most bytes of a split, apart from the rest of its last line.
const SPLIT: usize = 40 << 10;

/// Starts `count` nodes with `cpus` processors each that run graph jobs.
pub(crate) fn cluster(seed: u64, count: u8, cpus: usize) -> JobCluster {
    JobCluster::new(seed, MEMORY, &vec![cpus; count.into()], graph::apps)
}

/// Runs a job on all nodes, with files by name that are cut at the ends of lines. Returns its output and
/// the report of each node, or the reason of its failure, which all nodes have seen the end of.
pub(crate) fn run(
    cluster: &mut JobCluster,
    app: &str,
    args: &[&str],
    files: &[(&str, &[u8])],
) -> Result<(Vec<u8>, Vec<JobReport>), String> {
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let job = cluster.start(app, args, files, total as u64)?;
    let nodes = cluster.nodes.len();
    let lines = CutRule::after(|byte| byte == b'\n');
    cluster.load(job, files, &lines, |len| (len / (2 * nodes)).clamp(1, SPLIT));
    match cluster.finish(job) {
        Outcome::Done { output, reports } => Ok((output, reports)),
        Outcome::Failed { reason, output, .. } => {
            assert!(output.is_empty(), "partial output before: {reason}");
            cluster.cancel(job, &reason);
            Err(reason)
        }
        Outcome::Silent(nodes) => panic!("only {nodes:?} have ended the job"),
    }
}

/// Returns the sum of a LITE counter over all nodes.
pub(crate) fn counter(cluster: &JobCluster, name: &str) -> u64 {
    let mut sum = 0;
    for (_, lite) in &cluster.nodes {
        lite.counters(&mut |(counter, count)| sum += if counter == name { count } else { 0 });
    }
    sum
}
