//! No entry is made for an ended incarnation of a node, and nothing is done on its behalf, however late its
//! requests and the answers to it are handled.

use crate::{keep, spawn};
use lite::testing::{Cluster, Host};
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, Placement};
use platform::Platform;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const RWS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::SHARE);
const MIB: u64 = 1 << 20;
/// The length of the regions that are asked for, in bytes.
const LEN: u64 = 64 << 10;
/// The memory of each node, in bytes.
const MEMORY: u64 = 8 << 20;
/// The bytes that are written on behalf of a dead node: several steps of the work that nodes do at once.
const WRITTEN: u64 = 4 * MIB;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs `task` on `host`, but stops it after `polls` polls, until the tasks called `held` go on.
fn spawn_held(host: &Arc<Host>, polls: usize, mut task: Work) {
    let (keeper, mut left) = (host.clone(), polls);
    host.hold("held", polls == 0);
    let counted = poll_fn(move |cx| {
        let polled = task.as_mut().poll(cx);
        left = left.wrapping_sub(1);
        if left == 0 {
            keeper.hold("held", true);
        }
        polled
    });
    host.spawn("held", Box::pin(counted));
}

/// Starts a LITE that uses little memory, because there are many runs.
fn small() -> Config {
    let bounce = [(256, 32), (4096, 16), (65_536, 4)];
    Config { bounce, ring: 16 << 10, calls: 4, ..Config::default() }
}

/// Returns `count` nodes that are all connected and know each other.
fn cluster(count: u8) -> Cluster {
    let mut c = Cluster::new(1, count, MEMORY, &small());
    let lites: Vec<Lite> = c.nodes.iter().map(|(_, lite)| lite.clone()).collect();
    c.world.run(LIMIT, async move {
        for lite in &lites {
            for other in &lites {
                lite.alloc(other.node_id(), 1, RWS).await.unwrap().free().await.unwrap();
            }
        }
    });
    c
}

/// Stops node `i` for ever, and waits until all others have learned of it and its effects are over.
fn die(c: &mut Cluster, i: u16) {
    c.nodes[usize::from(i) - 1].0.kill();
    c.hub.declare_dead(NodeId(i));
    c.world.run_for(Duration::from_millis(5));
}

/// A task of node 1 asks for a mapping of a region of node 2 whose bytes are on node 3, and is stopped at
/// some point. Node 2 dies, and node 3 uses the memory for itself. Whatever the task finds when it runs
/// again, it reaches none of that memory.
#[test]
fn a_mapping_that_comes_after_its_owners_death_reaches_nothing() {
    let mut refused = 0;
    for by_name in [true, false] {
        for polls in 0.. {
            let mut c = cluster(3);
            let (a, b) = (c.lite(1), c.lite(2));
            let placement = Placement::Shares(vec![(NodeId(2), 8), (NodeId(3), LEN)]);
            c.world.run(LIMIT, {
                let placement = placement.clone();
                async move {
                    let region = b.alloc(placement, LEN + 8, RWS).await.unwrap();
                    region.publish("region").await.unwrap();
                    keep(&b, region);
                }
            });
            let result: Arc<Mutex<Option<Result<Lmr, Error>>>> = Arc::default();
            let (place, lite) = (result.clone(), a.clone());
            let ask = async move {
                let mapped = if by_name {
                    lite.map("region", RWS - Permissions::SHARE).await
                } else {
                    lite.alloc(placement, LEN + 8, RWS).await
                };
                *place.lock().unwrap() = Some(mapped);
            };
            spawn_held(&c.nodes[0].0, polls, Box::pin(ask));
            c.world.run_for(Duration::from_millis(1));
            let in_time = result.lock().unwrap().is_some();
            die(&mut c, 2);
            // The memory that node 3 held is free, and node 3 takes it all for itself.
            let there = c.nodes[2].0.clone();
            let memory = Platform::memory(&*there);
            let mut private = Vec::new();
            while let len @ 1.. = memory.largest_free() {
                private.push(memory.lend(len).unwrap());
            }
            c.nodes[0].0.hold("held", false);
            c.world.run_for(Duration::from_millis(5));
            let result = result.lock().unwrap().take().expect("it has ended");
            assert_eq!(result.is_err(), !in_time, "{result:?} after {polls} polls");
            match result {
                Ok(lmr) => {
                    let (written, read) = c.world.run(LIMIT, async move {
                        (lmr.write(100, &[0xff; 64]).await, lmr.read(8, &mut [0; 8]).await)
                    });
                    assert_eq!(
                        (written, read),
                        (Err(Error::NodeDown(NodeId(2))), Err(Error::NodeDown(NodeId(2))))
                    );
                }
                Err(error) => {
                    assert!(matches!(error, Error::NodeDown(NodeId(2)) | Error::NoSuchName), "{error:?}");
                    refused += 1;
                }
            }
            for run in private {
                let mut bytes = vec![1; run.size() as usize];
                run.read(0, &mut bytes).unwrap();
                assert!(
                    bytes.iter().all(|b| *b == 0),
                    "after {polls} polls: memory of node 3's own was written"
                );
            }
            c.world.run_for(Duration::from_secs(1));
            assert!(!a.audit().iter().any(|(what, _)| *what == "mappings"), "{:?}", a.audit());
            if in_time {
                break;
            }
        }
    }
    assert!(refused > 4, "only {refused} points were looked at");
}

/// A named test case: the operations of a node with others.
type Question = (&'static str, fn(Lite) -> Work);

/// Returns the operations of node 2 with the others before it dies.
fn questions() -> Vec<Question> {
    async fn hold(lite: Lite, placement: Placement) {
        if let Ok(region) = lite.alloc(placement, LEN, RWS).await {
            keep(&lite, region);
        }
    }
    vec![
        ("no question", |_| Box::pin(async {})),
        ("a lock", |l| Box::pin(async move { keep(&l, l.open_lock("lock").await.unwrap().lock().await) })),
        ("a shared lock", |l| {
            Box::pin(async move { keep(&l, l.open_lock("lock").await.unwrap().lock_shared().await) })
        }),
        ("an event", |l| Box::pin(async move { drop(l.open_event("event").await.unwrap().wait(9).await) })),
        ("a barrier", |l| Box::pin(async move { drop(l.barrier("b", &[1, 2, 3].map(NodeId)).await) })),
        ("a mapping", |l| Box::pin(async move { keep(&l, l.map("region", RWS).await) })),
        ("a region", |l| Box::pin(hold(l, NodeId(1).into()))),
        ("a region of several nodes", |l| {
            Box::pin(hold(l, Placement::Striped { nodes: vec![NodeId(1), NodeId(3)], stripe: 4096 }))
        }),
        ("a region of its own on others", |l| {
            Box::pin(hold(l, Placement::Shares(vec![(NodeId(2), 8), (NodeId(3), LEN - 8)])))
        }),
        ("a move", |l| {
            Box::pin(async move {
                let Ok(region) = l.map("region", Permissions::ADMIN | Permissions::SHARE).await else {
                    return;
                };
                drop(region.move_to(NodeId(3)).await);
            })
        }),
        ("a copy by another", |l| {
            Box::pin(async move {
                let (Ok(a), Ok(b)) = (l.map("region", RWS).await, l.map("other", RWS).await) else { return };
                drop(a.memmove(0, &b, 0, LEN).await);
            })
        }),
        ("a memset", |l| {
            Box::pin(async move {
                let Ok(region) = l.map("region", RWS).await else { return };
                drop(region.memset(0, LEN, 1).await);
            })
        }),
    ]
}

/// Returns what nodes 1 and 3 hold, and the sum of their free memory.
type Left = (Vec<(&'static str, usize)>, Vec<(&'static str, usize)>, u64);

/// Returns what is left after node 2 has sent a request and died, while the tasks of node `at` called
/// `task` did not run from the `from`th round of work on.
fn left_behind(question: fn(Lite) -> Work, at: usize, task: &'static str, from: u32) -> Left {
    let mut c = cluster(3);
    let (a, d) = (c.lite(1), c.lite(3));
    c.world.run(LIMIT, {
        let (a, d) = (a.clone(), d.clone());
        async move {
            for (lite, name) in [(&a, "region"), (&d, "other")] {
                let region = lite.alloc(lite.node_id(), LEN, RWS | Permissions::ADMIN).await.unwrap();
                region.publish(name).await.unwrap();
                keep(lite, region);
            }
            a.create_lock(NodeId(1), "lock").await.unwrap();
            a.create_event(NodeId(1), "event").await.unwrap();
        }
    });
    let host = c.nodes[at - 1].0.clone();
    spawn(&c.lite(2), question(c.lite(2)));
    let (end, rounds) = (c.world.now() + Duration::from_millis(2), Cell::new(0));
    c.world.run_until(end, || {
        rounds.set(rounds.get() + 1);
        rounds.get() > from
    });
    host.hold(task, true);
    c.world.run_until(end, || false);
    die(&mut c, 2);
    host.hold(task, false);
    c.world.run_for(Duration::from_secs(30));
    // The lock is free for live nodes; a hold of another one is part of the result.
    c.world.run(LIMIT, {
        let d = d.clone();
        async move {
            if let Ok(held) = d.open_lock("lock").await.unwrap().lock().await {
                held.unlock().await.unwrap();
            }
        }
    });
    c.world.run_for(Duration::from_secs(1));
    let free = |i: usize| Platform::memory(&*c.nodes[i].0).stats().free;
    (a.audit(), d.audit(), free(0) + free(2))
}

/// Requests of a node that has died, and the answers to them, are in queues of the other nodes when they
/// clean up after it.
#[test]
fn nothing_is_left_of_what_a_dead_node_has_asked() {
    const HELD: [(usize, &str); 8] = [
        (1, "lite-rpc"),
        (3, "lite-rpc"),
        (1, "lite-alloc"),
        (3, "lite-reserve"),
        (1, "lite-answer"),
        (3, "lite-answer"),
        (1, "lite-tell"),
        (1, "lite-insist"),
    ];
    let expected = left_behind(questions()[0].1, 1, "no task", 0);
    let mut wrong = Vec::new();
    for (what, question) in questions() {
        for (at, task) in HELD {
            for from in [0, 4, 7, 10] {
                let left = left_behind(question, at, task, from);
                if left != expected {
                    wrong.push(format!(
                        "{what}, while {task} of node {at} stood still from {from} on: {left:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "expected {expected:?}, but\n{}", wrong.join("\n"));
}

/// A node comes to a barrier and dies; its next incarnation comes to the same barrier. The message of the
/// first incarnation is handled last.
#[test]
fn a_former_life_stands_at_no_barrier() {
    let mut c = cluster(3);
    let group = [1, 2, 3].map(NodeId);
    let home = c.nodes[0].0.clone();
    home.hold("lite-rpc", true);
    let b = c.lite(2);
    spawn(&c.lite(2), async move { drop(b.barrier("b", &group).await) });
    c.world.run_for(Duration::from_millis(1));
    die(&mut c, 2);
    let again = c.join(2, MEMORY, &small()).clone();
    assert_eq!(again.node_id(), NodeId(2));
    c.world.run_for(Duration::from_millis(1));
    home.hold("lite-rpc", false);
    let passed = Arc::new(AtomicU64::new(0));
    for lite in [c.lite(1), c.lite(3)] {
        let (l, passed) = (lite.clone(), passed.clone());
        spawn(&lite, async move {
            l.barrier("b", &group).await.unwrap();
            passed.fetch_add(1, Ordering::SeqCst);
        });
    }
    c.world.run_for(Duration::from_millis(5));
    assert_eq!(passed.load(Ordering::SeqCst), 0, "the present life of node 2 has not come");
    c.world.run(LIMIT, async move { again.barrier("b", &group).await.unwrap() });
    c.world.run_for(Duration::from_millis(5));
    assert_eq!(passed.load(Ordering::SeqCst), 2);
}

/// A node grants a right to another node that dies before the region's owner receives the request: the next
/// incarnation of that node does not have the right.
#[test]
fn a_right_that_was_granted_to_a_former_life_is_not_the_next_ones() {
    let mut c = cluster(3);
    let a = c.lite(1);
    let region = c.world.run(LIMIT, async move {
        let region = a.alloc(NodeId(3), 8, Permissions::READ | Permissions::SHARE).await.unwrap();
        region.publish("region").await.unwrap();
        region
    });
    let owner = c.nodes[2].0.clone();
    owner.hold("lite-rpc", true);
    let granting = region.clone();
    let result = Arc::new(Mutex::new(None));
    let place = result.clone();
    spawn(&c.lite(1), async move {
        let granted = granting.grant(NodeId(2), Permissions::WRITE).await;
        *place.lock().unwrap() = Some(granted);
    });
    c.world.run_for(Duration::from_millis(1));
    die(&mut c, 2);
    owner.hold("lite-rpc", false);
    c.world.run_for(Duration::from_millis(1));
    assert_eq!(*result.lock().unwrap(), Some(Err(Error::NodeDown(NodeId(2)))));
    let again = c.join(2, MEMORY, &small()).clone();
    c.world.run_for(Duration::from_millis(1));
    c.world.run(LIMIT, async move {
        let mapped = again.map("region", Permissions::WRITE).await;
        assert_eq!(mapped.map(drop), Err(Error::Permission));
        region.grant(NodeId(2), Permissions::WRITE).await.unwrap();
        again.map("region", Permissions::WRITE).await.unwrap();
    });
}

/// A node asks another one for memory, and the other one is replaced by its next incarnation before the
/// request is sent: the next incarnation does not answer it.
#[test]
fn a_request_to_a_former_life_is_not_served_by_the_next_one() {
    for polls in 1..6 {
        let mut c = Cluster::new(1, 2, MEMORY, &small());
        let asker = c.lite(1);
        let host = c.nodes[0].0.clone();
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let task = async move {
            *place.lock().unwrap() = Some(asker.alloc(NodeId(2), 4096, RWS).await.map(drop));
        };
        spawn_held(&host, polls, Box::pin(task));
        c.world.run_for(Duration::from_millis(5));
        if result.lock().unwrap().is_some() {
            assert!(polls > 1, "the request needs a connection");
            return;
        }
        die(&mut c, 2);
        let again = c.join(2, MEMORY, &small()).clone();
        let other = c.lite(1);
        c.world.run_for(Duration::from_millis(5));
        c.world.run(LIMIT, async move {
            other.alloc(NodeId(2), 1, RWS).await.unwrap().free().await.unwrap();
        });
        let free = again.platform().memory().stats().free;
        host.hold("held", false);
        c.world.run_for(Duration::from_millis(50));
        assert_eq!(*result.lock().unwrap(), Some(Err(Error::NodeDown(NodeId(2)))), "after {polls} polls");
        assert_eq!(again.platform().memory().stats().free, free, "after {polls} polls");
    }
}

/// Work that a node does on memory for a holder of a lock: it writes `0xee` to a region of node 1 for some
/// time.
type Errand = fn(Lite) -> Work;

/// Node 2 holds a lock and makes others write the data that the lock protects; it dies when that has begun,
/// or before. Once the lock has passed on, nothing of it is written any more.
fn writes_for_a_dead_holder(errand: Errand, doer: usize, from_the_first: bool) {
    let mut c = cluster(3);
    let (a, b, d) = (c.lite(1), c.lite(2), c.lite(3));
    let region = c.world.run(LIMIT, {
        let (a, b, d) = (a.clone(), b.clone(), d.clone());
        async move {
            let region = a.alloc(NodeId(1), WRITTEN, RWS).await.unwrap();
            region.publish("region").await.unwrap();
            let source = d.alloc(NodeId(3), WRITTEN, RWS).await.unwrap();
            source.memset(0, WRITTEN, 0xee).await.unwrap();
            source.publish("source").await.unwrap();
            d.create_lock(NodeId(3), "lock").await.unwrap();
            keep(&b, b.open_lock("lock").await.unwrap().lock().await.unwrap());
            keep(&d, source);
            region
        }
    });
    let passed = Arc::new(AtomicU64::new(0));
    let (next, p) = (d.clone(), passed.clone());
    spawn(&d, async move {
        let lock = next.open_lock("lock").await.unwrap().with_deadline(Duration::from_secs(60));
        let held = lock.lock().await.unwrap();
        assert!(held.after_death());
        p.store(1, Ordering::SeqCst);
        keep(&next, held);
    });
    let host = c.nodes[doer - 1].0.clone();
    let hold = |held| host.hold("lite-answer", held);
    if from_the_first {
        hold(true);
    }
    spawn(&b, errand(b.clone()));
    if from_the_first {
        c.world.run_for(Duration::from_millis(1));
    } else {
        // The first byte has been written and the last has not.
        let seen = Arc::new(AtomicU64::new(0));
        let (lmr, s) = (region.clone(), seen.clone());
        spawn(&a, async move {
            let mut first = [0];
            while first == [0] {
                lmr.read(0, &mut first).await.unwrap();
                platform::yield_now().await;
            }
            s.store(1, Ordering::SeqCst);
        });
        let end = c.world.now() + Duration::from_secs(1);
        assert!(c.world.run_until(end, || seen.load(Ordering::SeqCst) == 1));
        hold(true);
    }
    die(&mut c, 2);
    let early = passed.load(Ordering::SeqCst) == 1;
    let work = |c: &mut Cluster| {
        let lmr = region.clone();
        c.world.run(LIMIT, async move {
            for mib in 0..WRITTEN / MIB {
                lmr.write(mib * MIB, &vec![0; MIB as usize]).await.unwrap();
            }
        });
    };
    // The next holder works as soon as it has the lock.
    if early {
        work(&mut c);
    }
    hold(false);
    c.world.run_for(Duration::from_secs(5));
    assert_eq!(passed.load(Ordering::SeqCst), 1, "the lock has passed on");
    if !early {
        work(&mut c);
    }
    c.world.run_for(Duration::from_secs(5));
    let mut got = vec![1; WRITTEN as usize];
    let got = c.world.run(LIMIT, async move {
        region.read(0, &mut got).await.unwrap();
        got
    });
    let wrong = got.iter().filter(|b| **b != 0).count();
    assert_eq!(wrong, 0, "bytes that were written after the lock had passed on");
}

#[test]
fn no_memset_goes_on_for_a_holder_whose_lock_has_passed_on() {
    let errand: Errand = |l| {
        Box::pin(async move {
            let region = l.map("region", RWS - Permissions::SHARE).await.unwrap();
            drop(region.memset(0, WRITTEN, 0xee).await);
        })
    };
    for from_the_first in [true, false] {
        writes_for_a_dead_holder(errand, 1, from_the_first);
    }
}

#[test]
fn no_copy_goes_on_for_a_holder_whose_lock_has_passed_on() {
    let errand: Errand = |l| {
        Box::pin(async move {
            let region = l.map("region", RWS - Permissions::SHARE).await.unwrap();
            let source = l.map("source", RWS - Permissions::SHARE).await.unwrap();
            drop(source.memmove(0, &region, 0, WRITTEN).await);
        })
    };
    for from_the_first in [true, false] {
        writes_for_a_dead_holder(errand, 3, from_the_first);
    }
}
