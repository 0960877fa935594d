//! Nodes that die, and nodes that are paused, declared dead, and resumed.

use lite::{Change, Error, NodeId, Permissions, RpcOptions};
use netfault::Faults;
use platform::Platform;
use sim::{Cluster, Direction, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(1);
/// The maximum time until a death is noticed: its lease ends, and all operations that wait for the node fail
/// at once.
const NOTICED: Duration = Duration::from_millis(1100);

/// The nodes that survive.
const THREE: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

fn faulty() -> Faults {
    Faults::parse("loss=0.01,reorder=0.01,corrupt=0.005,delay_us=5").unwrap()
}

#[test]
fn the_others_are_told_in_time_and_go_on() {
    for (seed, faults) in [(1, Faults::NONE), (2, faulty()), (3, faulty())] {
        eprintln!("seed {seed}");
        let mut c = Cluster::new(Options { seed, faults, lease: LEASE, ..Options::default() });
        let (a, b, d) = (c.lite(1), c.lite(2), c.lite(4));
        let server = d.register(1, RpcOptions::default()).unwrap();
        let (far, near, orphan) = c.world.run(LIMIT, {
            let (a, b, d) = (a.clone(), b.clone(), d.clone());
            async move {
                let far = a.alloc(NodeId(4), 100_000, RW | Permissions::ATOMIC).await.unwrap();
                let near = a.alloc(NodeId(2), 100_000, RW).await.unwrap();
                // A region of the node that is about to die, on a node that lives.
                let mine = d.alloc(NodeId(2), 1000, RW | Permissions::SHARE).await.unwrap();
                mine.publish("mine").await.unwrap();
                let orphan = b.map_wait("mine", RW).await.unwrap();
                (far, near, orphan)
            }
        });
        c.host(4).kill();
        let killed = c.world.now();
        let mut watcher = a.watch();
        let ended = Arc::new(AtomicU64::new(0));
        let spawn = |task: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            let ended = ended.clone();
            let task = async move {
                task.await;
                ended.fetch_add(1, Ordering::SeqCst);
            };
            c.host(1).spawn("waits", Box::pin(task));
        };
        let down = Error::NodeDown(NodeId(4));
        spawn({
            let (far, down) = (far.clone(), down.clone());
            Box::pin(async move { assert_eq!(far.write(0, &[1; 100_000]).await, Err(down)) })
        });
        spawn({
            let (far, down) = (far.clone(), down.clone());
            Box::pin(async move { assert_eq!(far.read(0, &mut [1; 100_000]).await, Err(down)) })
        });
        spawn({
            let far = far.clone();
            // The queue pair may fail before the lease ends. Then no one knows.
            Box::pin(async move {
                let result = far.fetch_add(0, 1).await.unwrap_err();
                assert!(matches!(result, Error::Unknown | Error::NodeDown(NodeId(4))), "{result}");
            })
        });
        spawn({
            let a = a.clone();
            Box::pin(async move {
                let result = a.call(NodeId(4), 1, b"?", 10).await.unwrap_err();
                assert!(matches!(result, Error::Unknown | Error::NodeDown(NodeId(4))), "{result}");
            })
        });
        spawn({
            let (a, down) = (a.clone(), down.clone());
            Box::pin(async move {
                assert_eq!(a.barrier("all", &[NodeId(1), NodeId(2), NodeId(3), NodeId(4)]).await, Err(down));
            })
        });
        let (now, all) = (c.world.now(), ended.clone());
        assert!(c.world.run_until(now + LIMIT, || all.load(Ordering::SeqCst) == 5), "{ended:?} of 5 ended");
        assert!(c.world.now() - killed <= NOTICED, "it took {:?}", c.world.now() - killed);
        let e = c.lite(3);
        c.world.run(LIMIT, async move {
            let change = watcher.next().await.unwrap();
            assert!(matches!(change, Change::Left { node: NodeId(4), .. }), "{change:?}");
            assert_eq!(a.members().iter().map(|m| m.node.0).collect::<Vec<_>>(), [1, 2, 3]);
            assert_eq!(far.read(0, &mut [0]).await, Err(down.clone()));
            assert_eq!(a.alloc(NodeId(4), 1, RW).await.unwrap_err(), down);
            near.write(0, b"on we go").await.unwrap();
            // The master has departed, and with it the name and the region.
            a.sleep(Duration::from_millis(10)).await;
            assert_eq!(orphan.write(0, b"x").await, Err(Error::Freed));
            assert_eq!(a.map("mine", RW).await.unwrap_err(), Error::NoSuchName);
            for lite in [b, e] {
                let platform = a.platform().clone();
                platform
                    .spawn("three", Box::pin(async move { lite.barrier("three", &THREE).await.unwrap() }));
            }
            a.barrier("three", &THREE).await.unwrap();
        });
        drop(server);
    }
}

/// A node is paused in the middle of a write and declared dead. Its target is freed and used again. When it
/// is resumed, its RNIC sends first, but no byte changes.
#[test]
fn a_node_that_wakes_up_late_writes_nothing() {
    let mut sent_late = 0;
    for seed in 0..12u64 {
        eprintln!("seed {seed}");
        let mut c = Cluster::new(Options { seed, nodes: 3, lease: LEASE, ..Options::default() });
        let (writer, master) = (c.lite(1), c.lite(3));
        const LEN: usize = 2 << 20;
        let (region, target) = c.world.run(LIMIT, {
            let (writer, master) = (writer.clone(), master.clone());
            async move {
                let region = master.alloc(NodeId(2), LEN as u64, RW | Permissions::SHARE).await.unwrap();
                region.publish("target").await.unwrap();
                (region, writer.map_wait("target", RW).await.unwrap())
            }
        });
        let results = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = results.clone();
        let task = async move {
            let data = vec![0x11; LEN];
            for _ in 0..100 {
                let result = target.write(0, &data).await;
                log.lock().unwrap().push(result.clone());
                if result.is_err() {
                    return;
                }
            }
        };
        c.host(1).spawn("writer", Box::pin(task));
        c.world.run_for(Duration::from_micros(40 + 97 * seed));
        c.host(1).pause(true);
        let paused = c.world.now();
        // The region is freed, but not before the writer's lease has ended.
        let renewed = c.world.run(LIMIT, async move {
            region.free().await.unwrap();
            let again = master.alloc(NodeId(2), LEN as u64, RW).await.unwrap();
            again.write(0, &vec![0xee; LEN]).await.unwrap();
            again
        });
        assert!(c.world.now() - paused >= LEASE / 2, "freed while the writer was a member");
        let before = c.wire.counters().pushed;
        // The RNIC resumes first, as hardware would, and as a poller in an interrupt does.
        for _ in 0..200 {
            c.progress_rnic(1);
            c.world.run_for(Duration::from_micros(50));
        }
        c.host(1).pause(false);
        c.world.run_for(Duration::from_secs(3));
        sent_late += c.wire.counters().pushed - before;
        let last = results.lock().unwrap().last().cloned();
        assert!(matches!(last, Some(Err(Error::LinkDown | Error::Unknown))), "{last:?}");
        let (got, reader) = (Arc::new(std::sync::Mutex::new(vec![0; LEN])), renewed);
        let place = got.clone();
        c.world.run(LIMIT, async move {
            let mut bytes = vec![0; LEN];
            reader.read(0, &mut bytes).await.unwrap();
            *place.lock().unwrap() = bytes;
        });
        assert!(got.lock().unwrap().iter().all(|b| *b == 0xee), "a dead node wrote");
    }
    assert!(sent_late > 0, "the paused node never sent anything after it woke up: the test shows nothing");
}

/// The allocator returns the freed memory again: so the test above would see a write into it.
#[test]
fn freed_memory_is_used_again() {
    let mut c = Cluster::new(Options { nodes: 2, ..Options::default() });
    let a = c.lite(1);
    let before = c.host(2).memory().stats();
    let (first, second) = c.world.run(LIMIT, {
        let host = c.host(2);
        async move {
            let find = |byte: u8| {
                let (base, len) = host.memory().range();
                let mut bytes = vec![0; len as usize];
                host.memory().read(base, &mut bytes).unwrap();
                bytes.windows(64).position(|w| w.iter().all(|b| *b == byte))
            };
            let region = a.alloc(NodeId(2), 5000, RW).await.unwrap();
            region.write(0, &[0x5a; 5000]).await.unwrap();
            let first = find(0x5a);
            region.free().await.unwrap();
            let region = a.alloc(NodeId(2), 5000, RW).await.unwrap();
            region.write(0, &[0xa5; 5000]).await.unwrap();
            let second = find(0xa5);
            region.free().await.unwrap();
            (first, second)
        }
    });
    assert_eq!(first, second);
    assert!(first.is_some());
    assert!(c.host(2).memory().stats().free < before.free, "rings are taken");
}

#[test]
fn a_node_that_does_not_hear_of_its_lease_waits_and_goes_on() {
    let mut c = Cluster::new(Options { lease: LEASE, ..Options::default() });
    let (a, d) = (c.lite(1), c.lite(4));
    let (incarnation, region) = c.world.run(LIMIT, {
        let d = d.clone();
        async move { (d.incarnation(), d.alloc(NodeId(2), 100, RW).await.unwrap()) }
    });
    // The manager receives all heartbeats of node 4, and so does not end its incarnation, but no answer
    // arrives.
    c.manager.hold(NodeId(4), Direction::FromManager, true);
    c.world.run_for(LEASE + LEASE / 3);
    assert!(d.is_suspended() && d.is_member(), "its lease has passed");
    assert!(a.members().iter().any(|m| m.node == NodeId(4)), "for the others it is a member");
    c.manager.hold(NodeId(4), Direction::FromManager, false);
    c.world.run(LEASE / 10, async move { region.write(0, b"on we go").await.unwrap() });
    assert!(!d.is_suspended() && d.incarnation() == incarnation);
    assert!(a.members().iter().any(|m| (m.node, m.incarnation) == (NodeId(4), incarnation)));
}

/// The manager receives nothing from a node for a lease and ends its incarnation. The node learns of that
/// with the next message of the manager.
#[test]
fn a_node_that_is_cut_off_for_longer_than_its_lease_is_dead() {
    let mut c = Cluster::new(Options { lease: LEASE, ..Options::default() });
    let (a, d) = (c.lite(1), c.lite(4));
    let mut watcher = a.watch();
    c.manager.stall(NodeId(4), true);
    let change = c.world.run(NOTICED, async move { watcher.next().await.unwrap() });
    assert!(matches!(change, Change::Left { node: NodeId(4), .. }), "{change:?}");
    c.world.run_for(LEASE);
    assert!(d.is_suspended() && d.is_member(), "it cannot know");
    c.manager.stall(NodeId(4), false);
    c.world.run_for(LEASE / 10);
    assert!(!d.is_member() && !d.is_suspended());
}

/// The manager does not hear from node 3, which so cannot confirm that it has seen the end of node 4.
#[test]
fn a_watcher_is_told_when_no_late_write_of_a_dead_node_is_possible_anywhere() {
    let mut c = Cluster::new(Options { lease: LEASE, ..Options::default() });
    let a = c.lite(1);
    let dead = c.lite(4).incarnation();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (mut watcher, changes) = (a.watch(), told.clone());
    a.platform().spawn(
        "watch",
        Box::pin(async move {
            while let Ok(change) = watcher.next().await {
                changes.lock().unwrap().push(change);
            }
        }),
    );
    c.host(4).kill();
    c.world.run_for(LEASE * 3 / 4);
    c.manager.stall(NodeId(3), true);
    let (now, seen) = (c.world.now(), told.clone());
    assert!(c.world.run_until(now + LIMIT, || !seen.lock().unwrap().is_empty()), "nobody notices");
    c.world.run_for(LEASE / 4);
    assert!(matches!(told.lock().unwrap()[..], [Change::Left { node: NodeId(4), .. }]), "{told:?}");
    c.manager.stall(NodeId(3), false);
    c.world.run_for(LEASE / 4);
    let told = told.lock().unwrap();
    assert_eq!(told[1..], [Change::Settled { node: NodeId(4), incarnation: dead }], "{told:?}");
}
