//! Regions on several nodes, and moves, under loss and death.

use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, Placement};
use netfault::Faults;
use platform::Platform;
use sim::{Cluster, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const USE: Permissions = RW.union(Permissions::ATOMIC);
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(1);

fn faulty() -> Faults {
    Faults::parse("loss=0.01,dup=0.005,reorder=0.01,corrupt=0.005,delay_us=5").unwrap()
}

fn cluster(seed: u64, faults: Faults) -> Cluster {
    cluster_of(seed, faults, Options::default().config)
}

fn cluster_of(seed: u64, faults: Faults, config: Config) -> Cluster {
    let mut c = Cluster::new(Options { seed, faults, lease: LEASE, config, ..Options::default() });
    // The nodes are connected, so that rings and slots are already allocated.
    let lites: Vec<Lite> = (1..=4).map(|i| c.lite(i)).collect();
    c.world.run(LIMIT, async move {
        for lite in &lites {
            for other in &lites {
                lite.alloc(other.node_id(), 1, RW).await.unwrap().free().await.unwrap();
            }
        }
    });
    c
}

fn free(c: &Cluster) -> Vec<u64> {
    (1..=4).map(|i| c.host(i).memory().stats().free).collect()
}

fn striped(nodes: &[u16]) -> Placement {
    Placement::Striped { nodes: nodes.iter().copied().map(NodeId).collect(), stripe: 4096 }
}

/// Counts and writes until told to stop or until an operation fails. Returns the count and the error.
async fn work(lite: &Lite, lmr: Lmr, stop: Arc<AtomicU64>, slot: u64) -> (u64, Option<Error>) {
    let mut counted = 0;
    while stop.load(Ordering::SeqCst) == 0 {
        let round = async {
            lmr.fetch_add(slot * 8, 1).await?;
            let (at, data) = (4096 + slot * 30_000, vec![counted as u8; 25_000]);
            lmr.write(at, &data).await?;
            let mut got = vec![0; data.len()];
            lmr.read(at, &mut got).await?;
            assert!(got == data, "round {counted} of {slot}");
            Ok(())
        };
        match round.await {
            Ok(()) => counted += 1,
            Err(error) => return (counted, Some(error)),
        }
        lite.sleep(Duration::from_millis(1)).await;
    }
    (counted, None)
}

type Outcomes = Arc<std::sync::Mutex<Vec<(usize, u64, Option<Error>)>>>;

/// Lets nodes work on the region `name`. Returns the flag that stops them, and their results.
fn workers(c: &Cluster, nodes: &[usize], name: &'static str) -> (Arc<AtomicU64>, Outcomes) {
    let (stop, outcomes) = (Arc::new(AtomicU64::new(0)), Outcomes::default());
    for &i in nodes {
        let (lite, stop, outcomes) = (c.lite(i), stop.clone(), outcomes.clone());
        let task = async move {
            let lmr = lite.map_wait(name, USE).await.unwrap();
            let (counted, error) = work(&lite, lmr, stop, i as u64).await;
            outcomes.lock().unwrap().push((i, counted, error));
        };
        c.host(i).spawn("works", Box::pin(task));
    }
    (stop, outcomes)
}

/// Moves under loss: all counts and bytes are present at the end, and all memory is free again.
#[test]
fn moves_lose_nothing_under_loss() {
    for seed in 0..4 {
        eprintln!("seed {seed}");
        // Every second region moves in many windows, where its columns stay.
        let move_window = if seed % 2 == 0 { 4 << 20 } else { 5000 };
        let mut c = cluster_of(seed, faulty(), Config { move_window, ..Options::default().config });
        let before = free(&c);
        let master = c.lite(1);
        let lmr = c.world.run(LIMIT, async move {
            let lmr = master.alloc(striped(&[2, 3]), 200_000, USE | Permissions::SHARE).await.unwrap();
            lmr.publish("moves").await.unwrap();
            lmr
        });
        let (stop, outcomes) = workers(&c, &[2, 3, 4], "moves");
        let (mover, lite) = (lmr.clone(), c.lite(1));
        c.world.run(LIMIT, async move {
            let other = striped(&[4, 2]);
            for to in [other, Placement::Node(NodeId(4)), striped(&[1, 4, 3]), Placement::Anywhere] {
                lite.sleep(Duration::from_millis(5)).await;
                // An answer may be lost with its connection. Then the owner continues the move by itself.
                let moved = mover.move_to(to).await;
                assert!(matches!(moved, Ok(()) | Err(Error::Unknown)), "{moved:?}");
            }
        });
        stop.store(1, Ordering::SeqCst);
        let end = c.world.now() + LIMIT;
        assert!(c.world.run_until(end, || outcomes.lock().unwrap().len() == 3));
        let done = outcomes.lock().unwrap().clone();
        c.world.run(LIMIT, async move {
            for (i, counted, error) in done {
                let now = lmr.fetch_add(i as u64 * 8, 0).await.unwrap();
                // An atomic whose connection failed may have happened.
                match error {
                    None => assert_eq!(now, counted),
                    Some(Error::Unknown) => assert!(now == counted || now == counted + 1),
                    Some(error) => panic!("node {i}: {error}"),
                }
            }
            lmr.free().await.unwrap();
        });
        c.world.run_for(Duration::from_secs(5));
        assert_eq!(free(&c), before, "seed {seed}");
    }
}

/// The owner dies. The region is void for all nodes, at once for a node that asks. The nodes that held its
/// shares free that memory once no node can reach it.
#[test]
fn when_the_owner_dies_the_region_is_void_and_its_memory_free() {
    for (seed, faults) in [(1, Faults::NONE), (2, faulty())] {
        let mut c = cluster(seed, faults);
        let before = free(&c);
        let master = c.lite(1);
        let lmr = c.world.run(LIMIT, async move {
            let lmr = master.alloc(striped(&[4, 2, 3]), 200_000, USE | Permissions::SHARE).await.unwrap();
            lmr.publish("region").await.unwrap();
            lmr
        });
        let (_stop, outcomes) = workers(&c, &[2, 3], "region");
        c.world.run_for(Duration::from_millis(5));
        assert!(free(&c)[2] < before[2]);
        c.host(4).kill();
        let end = c.world.now() + LIMIT;
        assert!(c.world.run_until(end, || outcomes.lock().unwrap().len() == 2), "{outcomes:?}");
        for (_, counted, error) in outcomes.lock().unwrap().iter() {
            assert!(*counted > 0);
            let error = error.clone().unwrap();
            assert!(matches!(error, Error::NodeDown(NodeId(4)) | Error::Unknown), "{error}");
        }
        c.world.run_for(Duration::from_secs(3));
        let a = c.lite(1);
        c.world.run(LIMIT, async move {
            // This includes the shares on nodes that live.
            assert_eq!(lmr.read(4096, &mut [0]).await, Err(Error::NodeDown(NodeId(4))));
            assert_eq!(a.map("region", RW).await.unwrap_err(), Error::NoSuchName);
        });
        c.world.run_for(Duration::from_secs(1));
        let now = free(&c);
        // The memory of connections to the dead node is free as well.
        assert!(now[..3].iter().zip(&before[..3]).all(|(now, then)| now >= then), "{before:?} {now:?}");
    }
}

/// A node that holds a share dies. That share is lost, the others are not, and the region can be freed.
#[test]
fn when_a_part_dies_the_others_live() {
    let mut c = cluster(3, Faults::NONE);
    let before = free(&c);
    let a = c.lite(1);
    let parts = Placement::Shares(vec![(NodeId(2), 8192), (NodeId(4), 8192), (NodeId(3), 8192)]);
    let lmr = c.world.run(LIMIT, async move {
        let lmr = a.alloc(parts, 3 * 8192, USE | Permissions::SHARE).await.unwrap();
        lmr.write(0, &[5; 3 * 8192]).await.unwrap();
        lmr
    });
    c.host(4).kill();
    c.world.run_for(Duration::from_secs(3));
    c.world.run(LIMIT, async move {
        let mut got = [0; 8192];
        for at in [0, 2 * 8192] {
            lmr.read(at, &mut got).await.unwrap();
            assert_eq!(got, [5; 8192]);
        }
        let down = Error::NodeDown(NodeId(4));
        assert_eq!(lmr.read(8192, &mut got).await, Err(down.clone()));
        assert_eq!(lmr.write(8191, &[1, 2]).await, Err(down.clone()));
        assert_eq!(lmr.memset(8000, 9000, 1).await, Err(down.clone()));
        // The region cannot be moved without the lost bytes. It stays as it is.
        assert_eq!(lmr.move_to(NodeId(1)).await, Err(down));
        lmr.read(0, &mut got[..10]).await.unwrap();
        lmr.free().await.unwrap();
    });
    c.world.run_for(Duration::from_secs(1));
    let now = free(&c);
    assert!(now[..3].iter().zip(&before[..3]).all(|(now, then)| now >= then), "{before:?} {now:?}");
}

/// A death in the middle of a move, at many moments: of the target, of a holder, of the owner. The whole
/// region is in one of the two locations, or void if its owner died. All other nodes continue.
#[test]
fn a_death_during_a_move_ends_in_one_of_two_states() {
    let (mut moved, mut stayed) = (0, 0);
    for seed in 0..24u64 {
        // Node 4 is the target, node 3 a holder, node 2 the owner.
        let dies = [4, 3, 2][seed as usize % 3];
        eprintln!("seed {seed}: node {dies} dies");
        let mut c = cluster(seed, Faults { delay_ns: 5_000, ..Faults::NONE });
        let before = free(&c);
        let master = c.lite(1);
        let lmr = c.world.run(LIMIT, async move {
            let lmr = master.alloc(NodeId(2), 1 << 20, USE | Permissions::SHARE).await.unwrap();
            lmr.write(500_000, &[7; 500_000]).await.unwrap();
            lmr.publish("moves").await.unwrap();
            lmr
        });
        let (stop, outcomes) = workers(&c, &[3], "moves");
        let (outcome, mover) = (Arc::new(std::sync::Mutex::new(None)), lmr.clone());
        let place = outcome.clone();
        let task = async move {
            let result = mover.move_to(NodeId(4)).await;
            *place.lock().unwrap() = Some(result);
        };
        c.world.run_for(Duration::from_millis(2));
        c.host(1).spawn("moves", Box::pin(task));
        c.world.run_for(Duration::from_micros(20 + 700 * (seed / 3) * (seed / 3)));
        c.host(dies).kill();
        let end = c.world.now() + LIMIT;
        assert!(c.world.run_until(end, || outcome.lock().unwrap().is_some()));
        let result = outcome.lock().unwrap().clone().unwrap();
        c.world.run_for(Duration::from_secs(3));
        if dies == 2 {
            c.world.run(LIMIT, async move {
                assert_eq!(lmr.read(0, &mut [0]).await, Err(Error::NodeDown(NodeId(2))));
            });
        } else {
            let in_new = lmr.node() == NodeId(4);
            match &result {
                Ok(()) => assert!(in_new),
                Err(Error::NodeDown(NodeId(4))) => assert!(!in_new),
                other => panic!("{other:?}"),
            }
            let state = if in_new { &mut moved } else { &mut stayed };
            *state += 1;
            stop.store(1, Ordering::SeqCst);
            if dies != 3 {
                let end = c.world.now() + LIMIT;
                assert!(c.world.run_until(end, || outcomes.lock().unwrap().len() == 1));
                let (_, _, error) = outcomes.lock().unwrap()[0].clone();
                // The target may have died after the move. Then the region exists there, and is down.
                assert!(error.is_none() || in_new, "the holder failed: {error:?}");
            }
            c.world.run(LIMIT, async move {
                let mut got = vec![0; 500_000];
                let read = lmr.read(500_000, &mut got).await;
                if in_new && dies == 4 {
                    assert_eq!(read, Err(Error::NodeDown(NodeId(4))));
                } else {
                    read.unwrap();
                    assert!(got.iter().all(|b| *b == 7), "bytes were lost");
                }
                lmr.free().await.unwrap();
            });
        }
        c.world.run_for(Duration::from_secs(2));
        let now = free(&c);
        for i in (1..=4).filter(|i| *i != dies) {
            assert!(now[i - 1] >= before[i - 1], "memory of node {i}: {before:?} {now:?}");
        }
    }
    assert!(moved > 0 && stayed > 0, "{moved} moved and {stayed} stayed: the test shows one state only");
}

/// A paused holder prevents the reuse of a region's memory until it is declared dead, on any node.
#[test]
fn a_paused_holder_holds_up_memory_on_other_nodes_too() {
    let mut c = cluster(5, Faults::NONE);
    let before = free(&c);
    let (a, b) = (c.lite(1), c.lite(2));
    let (lmr, _held) = c.world.run(LIMIT, async move {
        let lmr = a.alloc(striped(&[3, 4]), 100_000, USE | Permissions::SHARE).await.unwrap();
        lmr.publish("held").await.unwrap();
        (lmr, b.map("held", RW).await.unwrap())
    });
    c.host(2).pause(true);
    let paused = c.world.now();
    c.world.run(LIMIT, async move { lmr.free().await.unwrap() });
    assert!(c.world.now() - paused >= LEASE / 2, "freed while the holder was a member");
    c.world.run_for(Duration::from_secs(1));
    let now = free(&c);
    assert!(now[2] >= before[2] && now[3] >= before[3], "{before:?} {now:?}");
}

#[test]
fn a_region_is_given_up_once_its_owner_has_memory_for_a_connection() {
    let mut c = cluster(9, Faults::NONE);
    let (a, before) = (c.lite(1), free(&c));
    let (lmr, lite) = c.world.run(LIMIT, async move {
        let lmr = a.alloc(NodeId(2), 10_000, RW).await.unwrap();
        (lmr, a)
    });
    // The connection fails at both ends, and the owner has no memory for another one. Memory that an attempt
    // frees is allocated too.
    c.part(1, 2, true);
    let lost = lmr.with_deadline(LEASE);
    c.world.run(LIMIT, async move { assert!(lost.write(0, &[1]).await.is_err()) });
    let memory = c.host(2);
    let mut taken = Vec::new();
    for _ in 0..400 {
        while let all @ 1.. = memory.memory().largest_free() {
            taken.push(memory.memory().lend(all).unwrap());
        }
        c.world.run_for(LEASE / 100);
    }
    c.part(1, 2, false);
    drop(lmr);
    c.world.run_for(Duration::from_secs(5));
    assert!(!c.lite(2).audit().is_empty(), "the owner could not be told");
    drop(taken);
    c.world.run_for(Duration::from_secs(5));
    assert_eq!(c.lite(2).audit(), []);
    // The other end of the failed connection is detected by its next use.
    c.world.run(LIMIT, async move { drop(lite.alloc(NodeId(2), 1, RW).await.unwrap().free().await) });
    assert_eq!(free(&c)[2..], before[2..]);
}

#[test]
fn a_write_whose_first_part_lies_here_may_have_happened() {
    let mut c = cluster(10, Faults::NONE);
    let a = c.lite(1);
    let lmr = c.world.run(LIMIT, async move { a.alloc(striped(&[1, 2]), 8192, RW).await.unwrap() });
    // Without its connection and the manager, node 1 cannot even issue the second part.
    c.part(1, 2, true);
    let hasty = lmr.with_deadline(LEASE / 4);
    let broken = c.world.run(LIMIT, {
        let hasty = hasty.clone();
        async move { hasty.write(4096, &[1]).await }
    });
    assert_eq!(broken, Err(Error::Unknown));
    c.world.run_for(LEASE * 3);
    c.manager.stall(NodeId(1), true);
    c.world.run(LIMIT, async move {
        assert_eq!(hasty.write(4090, &[2; 12]).await, Err(Error::Unknown));
        let mut here = [0; 6];
        hasty.read(4090, &mut here).await.unwrap();
        assert_eq!(here, [2; 6]);
        assert_eq!(hasty.write(4096, &[3]).await, Err(Error::Deadline), "nothing of it has");
    });
}

/// A wait for a name reports that the name does not exist, even if the last question for it is not answered
/// in time.
#[test]
fn a_name_that_is_waited_for_in_vain_is_missing() {
    let mut c = cluster(1, Faults::NONE);
    let lite = c.lite(1).with_deadline(Duration::from_millis(200));
    let (manager, sleeper) = (c.manager.clone(), c.lite(2));
    let stalls = async move {
        sleeper.sleep(Duration::from_millis(100)).await;
        manager.stall(NodeId(1), true);
    };
    c.host(2).spawn("stalls", Box::pin(stalls));
    let result = c.world.run(LIMIT, async move { lite.map_wait("never", RW).await.map(drop) });
    assert_eq!(result, Err(Error::NoSuchName));
}
