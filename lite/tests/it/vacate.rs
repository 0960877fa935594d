//! A node that vacates: its memory of regions and its regions go to other nodes, while all nodes use them.

use lite::testing::Cluster;
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, Placement};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const ALL: Permissions = Permissions::all();
const LIMIT: Duration = Duration::from_secs(60);

/// Connects all nodes, so that rings and slots are allocated already.
fn connect(c: &mut Cluster, count: usize) {
    let lites: Vec<Lite> = (1..=count).map(|i| c.lite(i)).collect();
    c.world.run(LIMIT, async move {
        for lite in &lites {
            for other in &lites {
                lite.alloc(other.node_id(), 1, ALL).await.unwrap().free().await.unwrap();
            }
        }
    });
}

fn free(c: &Cluster) -> Vec<u64> {
    c.nodes.iter().map(|(host, _)| platform::Platform::memory(&**host).stats().free).collect()
}

/// Adds and writes to a region until `stop` is set, and counts the additions.
async fn work(lite: Lite, lmr: Lmr, i: u64, stop: Arc<AtomicU64>, sum: Arc<AtomicU64>) {
    let mut round = 0u64;
    while stop.load(Ordering::SeqCst) == 0 {
        round += 1;
        lmr.fetch_add(0, 1).await.unwrap();
        sum.fetch_add(1, Ordering::SeqCst);
        let (at, data) = (i * 60_000, vec![(round * i) as u8; 50_000]);
        lmr.write(at, &data).await.unwrap();
        let mut got = vec![0; data.len()];
        lmr.read(at, &mut got).await.unwrap();
        assert!(got == data, "round {round} of node {i}");
        lmr.memset(at, 100, 1).await.unwrap();
        lite.sleep(Duration::from_micros(300)).await;
    }
    stop.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_node_vacates_and_leaves_and_nobody_notices() {
    for seed in 1..4 {
        // Every second region moves in many windows.
        let move_window = if seed % 2 == 0 { 30_000 + seed * 8 } else { 4 << 20 };
        let mut c = Cluster::new(seed, 4, 64 << 20, &Config { move_window, ..Config::default() });
        connect(&mut c, 4);
        let before = free(&c);
        let (a, b, d) = (c.lite(1), c.lite(2), c.lite(4));
        // Node 2 owns a region of its own, keeps the tables of another, and holds memory of a third.
        let (own, other, third) = c.world.run(LIMIT, async move {
            let shares = Placement::Shares(vec![(NodeId(2), 200_000), (NodeId(3), 100_000), (NodeId(2), 7)]);
            let own = b.alloc(shares, 300_007, ALL).await.unwrap();
            own.write(299_990, &[9; 17]).await.unwrap();
            let nodes = vec![NodeId(2), NodeId(4), NodeId(3)];
            let other = a.alloc(Placement::Striped { nodes, stripe: 4096 }, 300_000, ALL).await.unwrap();
            let nodes = vec![NodeId(4), NodeId(2)];
            let third = d.alloc(Placement::Striped { nodes, stripe: 512 }, 300_000, ALL).await.unwrap();
            for (lmr, name) in [(&own, "own"), (&other, "other"), (&third, "third")] {
                lmr.publish(name).await.unwrap();
            }
            (own, other, third)
        });
        let (stop, sums) = (Arc::new(AtomicU64::new(0)), [(); 3].map(|()| Arc::new(AtomicU64::new(0))));
        for i in [1, 3, 4u64] {
            for (name, sum) in ["own", "other", "third"].into_iter().zip(&sums) {
                let (lite, stop, sum) = (c.lite(i as usize), stop.clone(), sum.clone());
                let task = async move {
                    let lmr = lite.map(name, ALL).await.unwrap();
                    work(lite, lmr, i, stop, sum).await;
                };
                c.nodes[i as usize - 1].1.platform().spawn("works", Box::pin(task));
            }
        }
        // A node maps and unmaps again and again, also while regions are handed over.
        let (lite, mapping) = (c.lite(3), stop.clone());
        let maps = async move {
            while mapping.load(Ordering::SeqCst) == 0 {
                for name in ["own", "other", "third"] {
                    let lmr = lite.map(name, ALL).await.unwrap();
                    lmr.read(299_000, &mut [0; 100]).await.unwrap();
                    drop(lmr);
                    lite.sleep(Duration::from_micros(100)).await;
                }
            }
            mapping.fetch_add(1, Ordering::SeqCst);
        };
        c.nodes[2].1.platform().spawn("maps", Box::pin(maps));
        let b = c.lite(2);
        c.world.run(LIMIT, async move {
            b.sleep(Duration::from_micros(300)).await;
            b.vacate().await.unwrap();
            assert!(b.describe_regions().is_empty(), "{:?}", b.describe_regions());
            // No region is accepted there.
            let refused = b.alloc(NodeId(2), 4096, ALL).await;
            assert!(matches!(refused, Err(Error::NoMemory { .. })), "{refused:?}");
            drop(own);
            b.with_deadline(Duration::from_secs(5)).leave().await.unwrap();
        });
        c.world.run_for(Duration::from_millis(50));
        stop.store(1, Ordering::SeqCst);
        let end = c.world.now() + LIMIT;
        assert!(c.world.run_until(end, || stop.load(Ordering::SeqCst) == 11), "seed {seed}: {stop:?}");
        for lmr in [&other, &third] {
            assert!(lmr.shares().iter().all(|(node, _)| *node != NodeId(2)), "{:?}", lmr.shares());
            assert_ne!(lmr.owner(), NodeId(2));
        }
        let a = c.lite(1);
        c.world.run(LIMIT, async move {
            let own = a.map("own", ALL).await.unwrap();
            let mut last = [0; 17];
            own.read(299_990, &mut last).await.unwrap();
            assert_eq!(last, [9; 17]);
            for (lmr, sum) in [own, other, third].into_iter().zip(&sums) {
                let counted = lmr.fetch_add(0, 0).await.unwrap();
                assert_eq!(counted, sum.load(Ordering::SeqCst), "seed {seed}");
                assert!(counted > 20);
                lmr.free().await.unwrap();
            }
            // The names are free as well.
            for name in ["own", "other", "third"] {
                assert_eq!(a.map(name, ALL).await.unwrap_err(), Error::NoSuchName);
            }
        });
        c.world.run_for(Duration::from_secs(1));
        let now = free(&c);
        // The memory of connections to the node that has left is free as well.
        for node in [0, 2, 3] {
            assert!(now[node] >= before[node], "seed {seed}: {before:?} {now:?}");
        }
    }
}

#[test]
fn a_node_whose_memory_fits_nowhere_stays_as_it_is() {
    let mut c = Cluster::new(1, 3, 16 << 20, &Config::default());
    connect(&mut c, 3);
    let (a, b, c3) = (c.lite(1), c.lite(2), c.lite(3));
    c.world.run(LIMIT, async move {
        let room = |lite: &Lite| lite.platform().memory().stats().free;
        let big = a.alloc(NodeId(2), room(&b) - (1 << 20), ALL).await.unwrap();
        let _here = a.alloc(NodeId(1), room(&a) - (1 << 20), ALL).await.unwrap();
        let taken = a.alloc(NodeId(3), room(&c3) - (1 << 20), ALL).await.unwrap();
        big.write(5, b"stays").await.unwrap();
        let refused = b.vacate().await;
        assert!(matches!(refused, Err(Error::NoMemory { .. })), "{refused:?}");
        let mut got = [0; 5];
        big.read(5, &mut got).await.unwrap();
        assert_eq!((&got, big.owner()), (b"stays", NodeId(2)));
        // Regions are accepted again.
        a.alloc(NodeId(2), 4096, ALL).await.unwrap().free().await.unwrap();
        taken.free().await.unwrap();
        b.vacate().await.unwrap();
        assert_eq!((big.node(), big.owner()), (NodeId(3), NodeId(3)));
        big.read(5, &mut got).await.unwrap();
        assert_eq!(&got, b"stays");
        big.free().await.unwrap();
        assert!(matches!(a.alloc(NodeId(2), 4096, ALL).await, Err(Error::NoMemory { .. })));
        b.accept_regions();
        a.alloc(NodeId(2), 4096, ALL).await.unwrap().free().await.unwrap();
    });
}

#[test]
fn a_region_outlives_its_master_if_that_wants_it() {
    let mut c = Cluster::new(1, 3, 16 << 20, &Config::default());
    connect(&mut c, 3);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let rights = Permissions::all();
        for (name, stays) in [("stays", true), ("ends", false)] {
            let lmr = b.alloc(NodeId(3), 4096, rights).await.unwrap();
            lmr.write(0, b"here").await.unwrap();
            lmr.publish(name).await.unwrap();
            if stays {
                lmr.outlive().await.unwrap();
            }
        }
        let lent = a.map("stays", Permissions::READ).await.unwrap();
        b.with_deadline(Duration::from_secs(5)).leave().await.unwrap();
        a.sleep(Duration::from_millis(50)).await;
        assert_eq!(a.map("ends", rights).await.unwrap_err(), Error::NoSuchName);
        let mut got = [0; 4];
        lent.read(0, &mut got).await.unwrap();
        assert_eq!(&got, b"here");
        // A node that has the right frees it.
        a.map("stays", rights).await.unwrap().free().await.unwrap();
        assert_eq!(lent.read(0, &mut got).await, Err(Error::Freed));
    });
}

/// The rate of each RNIC, in bytes per second.
const RATE: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

/// Writes, reads and adds in a region until `stop` is set. Returns the number of rounds, and the longest time
/// of an operation.
async fn time_operations(
    lite: Lite,
    lmr: Lmr,
    i: u64,
    stop: Arc<AtomicU64>,
) -> Result<(u64, Duration), Error> {
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    let mut data = vec![0; 4096];
    while stop.load(Ordering::SeqCst) == 0 {
        rounds += 1;
        data.fill((rounds * i) as u8);
        // All parts of the region have their turn.
        let at = (rounds * 12_345_678_912 + i * (GIB / 4)) % (GIB / 4 - 8192) / 8 * 8 + i * (GIB / 4);
        let mut got = vec![0; data.len()];
        let begun = lite.platform().now();
        lmr.write(at, &data).await?;
        let written = lite.platform().now();
        lmr.read(at, &mut got).await?;
        let read = lite.platform().now();
        lmr.fetch_add(0, 1).await?;
        let added = lite.platform().now();
        assert!(got == data, "round {rounds} of node {i}");
        longest = longest.max(written - begun).max(read - written).max(added - read);
        lite.sleep(Duration::from_micros(200)).await;
    }
    Ok((rounds, longest))
}

#[test]
fn the_owner_of_a_gibibyte_in_use_is_vacated_and_no_operation_waits_for_long() {
    let mut c = Cluster::paced(1, 3, GIB + (192 << 20), &Config::default(), Some(RATE));
    connect(&mut c, 3);
    let (b, third) = (c.lite(2), c.lite(3));
    c.world.run(LIMIT, async move {
        b.alloc(NodeId(2), GIB, ALL).await.unwrap().publish("large").await.unwrap();
        // The region must go to one of the others whole.
        drop(third.map("large", ALL).await.unwrap());
    });
    let stop = Arc::new(AtomicU64::new(0));
    let results = Arc::new(std::sync::Mutex::new(Vec::new()));
    for i in [1, 3u64] {
        let (lite, stop, results) = (c.lite(i as usize), stop.clone(), results.clone());
        let task = async move {
            let lmr = lite.map("large", ALL).await.unwrap();
            let result = time_operations(lite, lmr, i, stop).await;
            results.lock().unwrap().push(result);
        };
        c.nodes[i as usize - 1].1.platform().spawn("times", Box::pin(task));
    }
    c.world.run_for(Duration::from_millis(50));
    let begun = c.world.now();
    c.hub.send(NodeId(2), &proto::ToNode::Vacate { begin: true });
    let b = c.lite(2);
    let end = begun + LIMIT;
    assert!(c.world.run_until(end, || b.describe_regions().is_empty()), "{:?}", b.describe_regions());
    let took = c.world.now() - begun;
    c.world.run_for(Duration::from_millis(50));
    c.world.run(LIMIT, async move { b.with_deadline(Duration::from_secs(5)).leave().await.unwrap() });
    c.world.run_for(Duration::from_millis(50));
    stop.store(1, Ordering::SeqCst);
    let end = c.world.now() + LIMIT;
    assert!(c.world.run_until(end, || results.lock().unwrap().len() == 2));
    let results: Vec<(u64, Duration)> =
        results.lock().unwrap().iter().map(|result| result.clone().expect("no operation fails")).collect();
    println!("moved in {took:?} of virtual time; rounds and longest operations {results:?}");
    assert!(took > Duration::from_secs(1), "no RNIC is that fast: {took:?}");
    for (rounds, longest) in results {
        assert!(rounds > 1000, "{rounds} rounds in {took:?}");
        assert!(longest < Duration::from_secs(1), "an operation has waited for {longest:?}");
    }
}
