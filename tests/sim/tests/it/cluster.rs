//! Four nodes use everything that LITE offers, with and without faults. The same seed gives the same trace.

use lite::{Error, Lite, NodeId, Permissions, RpcOptions};
use netfault::Faults;
use sim::{Cluster, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use verbs::LinkKind;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(120);
const ROUNDS: u64 = 25;

/// Prints the seed if the test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failing seed: {}", self.0);
        }
    }
}

fn faulty() -> Faults {
    Faults::parse("loss=0.01,dup=0.005,reorder=0.01,corrupt=0.005,delay_us=5").unwrap()
}

/// Runs the work of one node: everything that LITE offers, with all other nodes.
async fn member(lite: Lite, rank: u64, count: u64) -> u64 {
    let server = lite.register(1, RpcOptions::default()).unwrap();
    let platform = lite.platform().clone();
    platform.spawn(
        "echo",
        Box::pin(async move {
            while let Ok(call) = server.receive().await {
                let mut reply = call.request().to_vec();
                reply.reverse();
                // The caller may have left.
                let _ = call.reply(&reply).await;
            }
        }),
    );
    // Each node allocates a region on the next node and publishes it. All nodes map all regions.
    let next = NodeId((rank as u16 + 1) % count as u16 + 1);
    let own = lite.alloc(next, 300_000, Permissions::all() - Permissions::ADMIN).await.unwrap();
    own.publish(&format!("region-{rank}")).await.unwrap();
    let nodes: Vec<NodeId> = (1..=count as u16).map(NodeId).collect();
    let mut all = Vec::new();
    for r in 0..count {
        all.push(lite.map_wait(&format!("region-{r}"), RW | Permissions::ATOMIC).await.unwrap());
    }
    lite.barrier("mapped", &nodes).await.unwrap();
    for (r, lmr) in all.iter().enumerate() {
        // Each rank has its own stripe of each region.
        let data: Vec<u8> = (0..70_000).map(|i| (i as u64 * (rank + 3) + r as u64) as u8).collect();
        let at = 8 + rank * 70_001;
        lmr.write(at, &data).await.unwrap();
        let mut got = vec![0; data.len()];
        lmr.read(at, &mut got).await.unwrap();
        assert!(got == data, "read differs from write");
        for _ in 0..ROUNDS {
            lmr.fetch_add(0, rank + 1).await.unwrap();
        }
        let request = vec![rank as u8; 10 + 5000 * r];
        let reply = lite.call(NodeId(r as u16 + 1), 1, &request, request.len()).await.unwrap();
        assert_eq!(reply, request);
    }
    lite.barrier("written", &nodes).await.unwrap();
    let mut sum = 0;
    for lmr in &all {
        sum += lmr.fetch_add(0, 0).await.unwrap();
        for r in 0..count {
            let mut byte = [0];
            lmr.read(8 + r * 70_001 + 9, &mut byte).await.unwrap();
            let region = all.iter().position(|l| std::ptr::eq(l, lmr)).unwrap() as u64;
            assert_eq!(u64::from(byte[0]), (9 * (r + 3) + region) & 0xff);
        }
    }
    lite.barrier("done", &nodes).await.unwrap();
    own.free().await.unwrap();
    assert_eq!(all[rank as usize].read(0, &mut [0]).await, Err(Error::Freed));
    sum
}

/// Runs [`member`] on all nodes, and returns the hash and length of the trace.
fn run_all(seed: u64, faults: Faults) -> (u64, u64) {
    run(seed, faults).trace.hash()
}

/// Runs [`member`] on all nodes.
fn run(seed: u64, faults: Faults) -> Cluster {
    let _seed = Seed(seed);
    let mut c = Cluster::new(Options { seed, faults, ..Options::default() });
    let (done, sums) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for i in 1..=4 {
        let (lite, done, sums) = (c.lite(i), done.clone(), sums.clone());
        let task = async move {
            sums.fetch_add(member(lite, i as u64 - 1, 4).await, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
        };
        c.lite(i).platform().spawn("member", Box::pin(task));
    }
    let end = c.world.now() + LIMIT;
    assert!(c.world.run_until(end, || done.load(Ordering::SeqCst) == 4), "not done: {:?}", c.manager.log());
    // Four nodes each add 1+2+3+4 per round to four words, and each reads all four.
    assert_eq!(sums.load(Ordering::SeqCst), 4 * 4 * 10 * ROUNDS);
    c
}

#[test]
fn everything_on_a_perfect_wire() {
    run_all(1, Faults { delay_ns: 5_000, ..Faults::NONE });
}

#[test]
fn everything_under_faults_and_the_same_seed_the_same_trace() {
    let first = run_all(7, faulty());
    assert_eq!(run_all(7, faulty()), first);
    assert_ne!(run_all(8, faulty()), first);
}

/// All nodes share one slow link that marks congestion early. The senders reduce their rate, and no frame is
/// dropped.
#[test]
fn everything_over_a_congested_link() {
    let faults = Faults::parse("rate_mbit=500,delay_us=20,queue=512,ecn_queue=16").unwrap();
    let cluster = run(3, faults);
    let counters = cluster.wire.counters();
    // RoCE v1 has no mark, and one node alone has no peer with which it could use v2.
    let speaks_v2 = |i: &usize| cluster.rnic(*i).attributes().links.contains(&LinkKind::RoceV2);
    let marked = (1..=cluster.joined()).filter(speaks_v2).count() > 1;
    assert_eq!(counters.marked > 0, marked, "{counters:?}");
    assert_eq!(counters.overflowed, 0, "{counters:?}");
}

#[test]
fn several_seeds_under_faults() {
    for seed in 100..106 {
        run_all(seed, faulty());
    }
}

/// Fresh seeds run for an hour, so a run must not keep its nodes' memory.
#[test]
fn a_cluster_that_is_dropped_gives_its_memory_back() {
    let cluster = Cluster::new(Options::default());
    let memory: Vec<_> = (1..=cluster.joined()).map(|i| Arc::downgrade(&cluster.host(i).arena())).collect();
    assert!(!memory.is_empty());
    drop(cluster);
    assert!(memory.iter().all(|arena| arena.strong_count() == 0));
}
