//! The rate of transfers over several nodes, in the time of the simulation.

use lite::{Config, Lite, LocalMemory, NodeId, Permissions, Placement};
use sim::{Cluster, Nics, Options};
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
/// The nodes that have the memory; node 1 reads and writes it.
const NODES: [NodeId; 4] = [NodeId(2), NodeId(3), NodeId(4), NodeId(5)];
/// The bytes of a single stream. A stream over all nodes has as many for each of them.
const LEN: u64 = 8 << 20;
/// The bytes of the long stream over all nodes.
const LONG: u64 = 1 << 30;
/// The bytes of the memory that the long stream is read into and written from.
const CHUNK: u64 = 64 << 20;

/// The rates of reads and writes, in bytes per second.
#[derive(Debug)]
struct Rates([f64; 2]);

fn seconds(since: platform::Instant, lite: &Lite) -> f64 {
    (lite.platform().now() - since).as_secs_f64()
}

/// Writes a region of `len` bytes from `memory`, and reads it again, each in as many transfers as the memory
/// is shorter than the region.
async fn stream(lite: &Lite, placement: Placement, memory: &mut LocalMemory, len: u64) -> Rates {
    let lmr = lite.alloc(placement, len, RW).await.unwrap();
    let chunk = len.min(memory.len());
    let chunks = || (0..len).step_by(chunk as usize);
    // The connections exist before the time is taken.
    lmr.read_to(0, memory, 0..chunk).await.unwrap();
    let begin = lite.platform().now();
    for at in chunks() {
        lmr.write_from(at, memory, 0..chunk).await.unwrap();
    }
    let write = len as f64 / seconds(begin, lite);
    let begin = lite.platform().now();
    for at in chunks() {
        lmr.read_to(at, memory, 0..chunk).await.unwrap();
    }
    let read = len as f64 / seconds(begin, lite);
    lmr.free().await.unwrap();
    Rates([read, write])
}

/// Returns a cluster of node 1 and the nodes that have the memory, `memory` bytes each.
fn cluster(memory: u64) -> Cluster {
    let config = Config { deadline: LIMIT, ..Options::default().config };
    let nics: Nics = "softroce".parse().unwrap();
    Cluster::new(Options { nodes: 5, memory, nics, config, ..Options::default() })
}

/// Returns the sum of the rates of single streams of `len` bytes, one to each node.
async fn sum_of_single(lite: &Lite, memory: &mut LocalMemory, len: u64) -> [f64; 2] {
    let mut sum = [0.0; 2];
    for node in NODES {
        let Rates(rates) = stream(lite, node.into(), memory, len).await;
        sum.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate);
    }
    sum
}

/// Returns the least ratio of a rate to the sum of those of single streams.
fn least(sum: [f64; 2], all: Vec<(u64, Rates)>) -> f64 {
    let mut least = f64::INFINITY;
    for (stripe, Rates(rates)) in all {
        for ((rate, sum), what) in rates.iter().zip(sum).zip(["read", "write"]) {
            let ratio = rate / sum;
            eprintln!("stripes of {stripe}: {what} {:.0} MB/s, {ratio:.2} of the sum", rate / 1e6);
            least = least.min(ratio);
        }
    }
    least
}

/// A stream over four nodes is almost as fast as a stream to each of them alone would be.
#[test]
fn a_striped_stream_has_the_rate_of_its_nodes() {
    let mut c = cluster(64 << 20);
    let lite = c.lite(1);
    let (sum, all) = c.world.run(10 * LIMIT, async move {
        let mut memory = lite.local_memory(4 * LEN).await.unwrap();
        let sum = sum_of_single(&lite, &mut memory, LEN).await;
        let mut all = Vec::new();
        for stripe in [4096, 65_536, 1 << 20] {
            let wide = Placement::Striped { nodes: NODES.to_vec(), stripe };
            all.push((stripe, stream(&lite, wide, &mut memory, 4 * LEN).await));
        }
        let quarters = Placement::Shares(NODES.iter().map(|node| (*node, LEN)).collect());
        all.push((LEN, stream(&lite, quarters, &mut memory, 4 * LEN).await));
        (sum, all)
    });
    let least = least(sum, all);
    assert!(least >= 0.9, "the slowest has {least:.2} of the sum of single streams");
}

/// A stream over a region of 1 GiB on four nodes is almost as fast as well.
#[test]
fn a_gibibyte_over_four_nodes_has_the_rate_of_its_nodes() {
    let mut c = cluster(LONG / 4 + 2 * CHUNK);
    let lite = c.lite(1);
    let (sum, all) = c.world.run(10 * LIMIT, async move {
        let mut memory = lite.local_memory(CHUNK).await.unwrap();
        let sum = sum_of_single(&lite, &mut memory, LONG / 4).await;
        let wide = Placement::Striped { nodes: NODES.to_vec(), stripe: 65_536 };
        (sum, vec![(65_536, stream(&lite, wide, &mut memory, LONG).await)])
    });
    let least = least(sum, all);
    assert!(least >= 0.9, "the slowest has {least:.2} of the sum of single streams");
}
