//! Requests that are in progress while a region gets another owner: none is lost.

use lite::testing::Cluster;
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, Placement};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbs::Gid;

const ALL: Permissions = Permissions::all();
const LIMIT: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);
const MIB: u64 = 1 << 20;

fn gid(i: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, i])
}

/// Returns nodes that are connected to each other.
fn cluster(count: u8) -> Cluster {
    let mut c = Cluster::new(1, count, 16 * MIB, &Config::default());
    let lites: Vec<Lite> = (1..=usize::from(count)).map(|i| c.lite(i)).collect();
    c.world.run(LIMIT, async move {
        for lite in &lites {
            for other in &lites {
                lite.alloc(other.node_id(), 1, ALL).await.unwrap().free().await.unwrap();
            }
        }
    });
    c
}

fn free(c: &Cluster, node: usize) -> u64 {
    platform::Platform::memory(&*c.nodes[node - 1].0).stats().free
}

/// Allocates memory of node 2, which becomes the owner.
fn region_of_node_2(c: &mut Cluster, by: usize) -> Lmr {
    let lite = c.lite(by);
    c.world.run(LIMIT, async move { lite.alloc(NodeId(2), MIB, ALL).await.unwrap() })
}

/// Begins to vacate node 2. The flag is true once that has been done.
fn begin_to_vacate(c: &Cluster) -> Arc<AtomicBool> {
    let (b, done) = (c.lite(2).with_deadline(LIMIT), Arc::new(AtomicBool::new(false)));
    let told = done.clone();
    super::spawn(&c.lite(2), async move {
        b.vacate().await.unwrap();
        told.store(true, Ordering::SeqCst);
    });
    done
}

/// Waits until a node has begun to take a region over.
fn is_adopting(c: &mut Cluster, node: usize) {
    let (lite, end) = (c.lite(node), c.world.now() + LIMIT);
    assert!(c.world.run_until(end, || !lite.describe_regions().is_empty()), "nobody takes the region over");
}

fn is_soon(c: &mut Cluster, flag: &AtomicBool) {
    let end = c.world.now() + LIMIT;
    assert!(c.world.run_until(end, || flag.load(Ordering::SeqCst)));
}

/// Fails if a node still has a region.
fn nothing_is_left(c: &mut Cluster) {
    c.world.run_for(Duration::from_secs(10));
    for (_, lite) in &c.nodes {
        assert!(lite.describe_regions().is_empty(), "{}: {:?}", lite.node_id(), lite.describe_regions());
    }
}

#[test]
fn a_region_that_is_freed_during_its_handover_is_freed_by_its_new_owner() {
    for deadline in [Duration::from_secs(5), 10 * MS] {
        let mut c = cluster(2);
        let before = free(&c, 1);
        let lmr = region_of_node_2(&mut c, 1).with_deadline(deadline);
        let done = begin_to_vacate(&c);
        is_adopting(&mut c, 1);
        // The node that frees the region does not learn of the new owner yet.
        c.nodes[1].0.hold("lite-tell", true);
        let freed = Arc::new(std::sync::Mutex::new(None));
        let result = freed.clone();
        super::spawn(&c.lite(1), async move {
            let end = lmr.free().await;
            *result.lock().unwrap() = Some(end);
        });
        c.world.run_for(100 * MS);
        c.nodes[1].0.hold("lite-tell", false);
        is_soon(&mut c, &done);
        nothing_is_left(&mut c);
        let freed = freed.lock().unwrap().take();
        if deadline > 100 * MS {
            assert_eq!(freed, Some(Ok(())));
        } else {
            assert!(matches!(freed, Some(Err(Error::Unknown | Error::Deadline))), "{freed:?}");
        }
        assert!(free(&c, 1) >= before, "the memory is free again");
    }
}

#[test]
fn the_new_owner_learns_that_a_mapping_was_given_up() {
    let mut c = cluster(2);
    let b = c.lite(2);
    let own = c.world.run(LIMIT, async move {
        let own = b.alloc(NodeId(2), MIB, ALL).await.unwrap();
        own.publish("own").await.unwrap();
        own
    });
    // The answer that grants the mapping is late, and so is the word that it is not used.
    c.nodes[0].0.hold("lite-retry_until_done", true);
    let (a, host) = (c.lite(1), c.nodes[1].0.clone());
    let end = c.world.run(LIMIT, async move {
        host.pause(true);
        let mapped = a.with_deadline(10 * MS).map("own", ALL).await;
        host.pause(false);
        mapped.map(drop)
    });
    assert!(end.is_err(), "{end:?}");
    c.world.run_for(10 * MS);
    let done = begin_to_vacate(&c);
    is_soon(&mut c, &done);
    c.nodes[0].0.hold("lite-retry_until_done", false);
    let b = c.lite(2);
    c.world.run(LIMIT, async move { b.unpublish("own").await.unwrap() });
    drop(own);
    nothing_is_left(&mut c);
}

#[test]
fn a_request_that_is_repeated_makes_one_region() {
    let mut c = cluster(2);
    let lmr = region_of_node_2(&mut c, 2);
    // Several requests arrive before the first one is served.
    c.nodes[0].0.hold("lite-answer", true);
    let done = begin_to_vacate(&c);
    c.world.run_for(Duration::from_secs(12));
    c.nodes[0].0.hold("lite-answer", false);
    is_soon(&mut c, &done);
    assert_eq!(c.lite(1).describe_regions().len(), 1, "{:?}", c.lite(1).describe_regions());
    drop(lmr);
    nothing_is_left(&mut c);
}

#[test]
fn memory_is_not_reused_when_the_new_owner_dies_before_all_nodes_know_it() {
    let mut c = cluster(4);
    let a = c.lite(1);
    let (lmr, kept) = c.world.run(LIMIT, async move {
        let shares = Placement::Shares(vec![(NodeId(2), MIB), (NodeId(4), MIB)]);
        let lmr = a.alloc(shares, 2 * MIB, ALL).await.unwrap();
        // Node 3 has the most free memory.
        (lmr, a.alloc(NodeId(1), 4 * MIB, ALL).await.unwrap())
    });
    begin_to_vacate_and_fail(&c);
    is_adopting(&mut c, 3);
    // It claims the memory of node 4. Its answer does not arrive.
    c.fabric.hold_between(gid(3), gid(2), true);
    c.world.run_for(10 * MS);
    let used = free(&c, 4);
    c.nodes[1].0.hold("lite-fence", true);
    c.hub.declare_dead(NodeId(3));
    c.world.run_for(Duration::from_secs(1));
    assert!(free(&c, 4) < used + MIB, "node 1 still uses the memory");
    let mapped = lmr.clone();
    c.world.run(LIMIT, async move { mapped.write(MIB, b"used").await.unwrap() });
    c.nodes[1].0.hold("lite-fence", false);
    c.world.run_for(Duration::from_secs(1));
    assert!(free(&c, 4) >= used + MIB, "the memory is free");
    drop((lmr, kept));
}

/// Begins to vacate node 2, whatever the result.
fn begin_to_vacate_and_fail(c: &Cluster) {
    let b = c.lite(2);
    super::spawn(&c.lite(2), async move { drop(b.vacate().await) });
}
