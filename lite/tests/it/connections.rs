//! Connections that are closed because another one is wanted, or because they are idle: the only visible
//! effect is the time that this takes.

use crate::spawn;
use lite::testing::Cluster;
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, Placement, RpcOptions};
use platform::Platform;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use verbs::Gid;

const LIMIT: Duration = Duration::from_secs(120);
const MS: Duration = Duration::from_millis(1);

fn cluster(count: u8, peers: u32) -> Cluster {
    Cluster::new(1, count, 16 << 20, &Config { peers, ..Config::default() })
}

fn counter(lite: &Lite, name: &str) -> u64 {
    let mut value = None;
    lite.counters(&mut |(n, v)| value = if n == name { Some(v) } else { value });
    value.expect("a known counter")
}

/// Adds up the numbers that it receives, and replies with the sum; after `pause`.
fn serve(lite: &Lite, sum: Arc<AtomicU64>, pause: Duration) {
    let server = lite.register(1, RpcOptions::default()).unwrap();
    let l = lite.clone();
    spawn(lite, async move {
        while let Ok(call) = server.receive().await {
            let number = call.request().try_into().map(u64::from_le_bytes).unwrap();
            sum.fetch_add(number, Ordering::SeqCst);
            if !pause.is_zero() {
                l.sleep(pause).await;
            }
            // The caller may have departed.
            let _ = call.reply(&number.to_le_bytes()).await;
        }
    });
}

/// Checks that no connection is open anywhere, and nothing is held.
fn all_closed(c: &Cluster) {
    for (i, (_, lite)) in c.nodes.iter().enumerate() {
        assert_eq!(c.fabric.queue_pairs(Gid::from_ipv4([10, 0, 0, i as u8 + 1])), 0, "node {}", i + 1);
        let held: Vec<_> = lite.audit();
        assert!(
            held.iter()
                .all(|(what, _)| ["regions", "mappings", "terms of handles", "objects"].contains(what)),
            "{held:?}"
        );
    }
}

async fn call(lite: &Lite, to: u16, number: u64) -> Result<(), Error> {
    let mut reply = [0; 8];
    lite.call_into(NodeId(to), 1, &number.to_le_bytes(), &mut reply).await.map(drop)
}

/// Seventy nodes all call one node, add to its memory, and are called by it; it has permits for two. Each
/// call is served once, and each sum is right.
#[test]
fn far_more_peers_than_places() {
    crowd(false);
}

/// An RNIC may give a new queue pair the number of a destroyed one whose flushed receives still wait to be
/// taken. These receives do not end the new connection.
#[test]
fn flushed_receives_of_a_former_queue_pair_with_the_same_number_change_nothing() {
    crowd(true);
}

fn crowd(reuse_numbers: bool) {
    const NODES: u8 = 70;
    const ROUNDS: u64 = 4;
    let two = Config { peers: 2, ..Config::default() };
    let mut c = Cluster::new(1, 1, 64 << 20, &two);
    if reuse_numbers {
        c.fabric.reuse_queue_pair_numbers();
    }
    let small = Config { peers: 2, ring: 16 << 10, operations: 64, calls: 4, ..Config::default() };
    for i in 2..=NODES {
        c.join(i, 4 << 20, &small);
    }
    c.world.run_for(MS);
    let patient = |lite: Lite| lite.with_deadline(Duration::from_secs(60));
    let a = patient(c.lite(1));
    let sum = Arc::new(AtomicU64::new(0));
    for (_, lite) in &c.nodes {
        serve(lite, sum.clone(), Duration::ZERO);
    }
    let made = a.clone();
    c.world.run(LIMIT, async move {
        let lmr = made.alloc(NodeId(1), 64, Permissions::all()).await.unwrap();
        lmr.publish("sum").await.unwrap();
    });
    let done = Arc::new(AtomicU64::new(0));
    for i in 2..=NODES {
        let (b, ended) = (patient(c.lite(i.into())), done.clone());
        spawn(&b.clone(), async move {
            let lmr = b.map("sum", Permissions::all()).await.unwrap();
            for round in 0..ROUNDS {
                call(&b, 1, 1).await.unwrap();
                lmr.fetch_add(8 * (round % 8), 1).await.unwrap();
            }
            drop(lmr);
            ended.fetch_add(1, Ordering::SeqCst);
        });
        let (a, ended, to) = (a.clone(), done.clone(), u16::from(i));
        spawn(&a.clone(), async move {
            for _ in 0..ROUNDS {
                call(&a, to, 1).await.unwrap();
            }
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    let all = 2 * (u64::from(NODES) - 1);
    let end = c.world.now() + LIMIT;
    let most = AtomicU64::new(0);
    let finished = c.world.run_until(end, || {
        most.fetch_max(c.fabric.queue_pairs(Gid::from_ipv4([10, 0, 0, 1])) as u64, Ordering::SeqCst);
        done.load(Ordering::SeqCst) == all
    });
    assert!(finished, "{done:?} of {all}");
    assert!(
        most.load(Ordering::SeqCst) <= 5,
        "two peers of two queue pairs each, and one for its own: {most:?}"
    );
    assert_eq!(sum.load(Ordering::SeqCst), all * ROUNDS);
    let lmr = c.world.run(LIMIT, async move { a.map("sum", Permissions::all()).await.unwrap() });
    let total = c.world.run(LIMIT, async move {
        let mut bytes = [0; 64];
        lmr.read(0, &mut bytes).await.unwrap();
        bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).sum::<u64>()
    });
    assert_eq!(total, (u64::from(NODES) - 1) * ROUNDS);
    assert!(counter(&c.lite(1), "lite_closed") > 60);
}

/// The connection that is closed is the one that was not used for longest, by this node or by its peer.
#[test]
fn the_least_recently_used_gives_way() {
    let mut c = cluster(5, 3);
    for (_, lite) in &c.nodes {
        serve(lite, Arc::default(), Duration::ZERO);
    }
    let (a, three) = (c.lite(1), c.lite(3));
    c.world.run(LIMIT, async move {
        for to in [2, 3, 4] {
            call(&a, to, 1).await.unwrap();
        }
        a.sleep(400 * MS).await;
        // One connection is used from here, one from the other end, one not at all.
        call(&a, 4, 1).await.unwrap();
        call(&three, 1, 1).await.unwrap();
        a.sleep(400 * MS).await;
        call(&a, 5, 1).await.unwrap();
    });
    let closed: Vec<_> = (1..=5).map(|i| counter(&c.lite(i), "lite_closed")).collect();
    assert_eq!(closed, [1, 1, 0, 0, 0]);
}

/// While a call is in flight its connection stays; a task that wants another peer waits until its deadline.
/// A call without a waiter keeps no connection open.
#[test]
fn what_is_in_use_stays() {
    let mut c = cluster(4, 2);
    let sum = Arc::new(AtomicU64::new(0));
    serve(&c.lite(2), sum.clone(), 300 * MS);
    serve(&c.lite(3), Arc::default(), Duration::ZERO);
    serve(&c.lite(4), sum.clone(), 300 * MS);
    let a = c.lite(1);
    let answered = Arc::new(AtomicU64::new(0));
    for to in [2, 4] {
        let (b, seen) = (a.clone(), answered.clone());
        spawn(&a, async move {
            call(&b, to, 5).await.unwrap();
            seen.fetch_add(1, Ordering::SeqCst);
        });
    }
    let b = a.clone();
    c.world.run(LIMIT, async move {
        b.sleep(MS).await;
        let hasty = b.with_deadline(100 * MS);
        assert_eq!(call(&hasty, 3, 1).await, Err(Error::Deadline));
        call(&b, 3, 1).await.unwrap();
    });
    assert!(answered.load(Ordering::SeqCst) > 0 && c.world.now().as_nanos() >= 300_000_000);
    let b = a.clone();
    c.world.run(LIMIT, async move {
        let before = b.platform().now();
        for to in [2, 4] {
            assert_eq!(call(&b.with_deadline(50 * MS), to, 6).await, Err(Error::Unknown));
        }
        call(&b.with_deadline(50 * MS), 3, 1).await.unwrap();
        assert!(b.platform().now() - before < 250 * MS, "it does not wait for a reply that nobody wants");
    });
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(sum.load(Ordering::SeqCst), 22, "each was served once");
    assert!(c.lite(1).audit().is_empty(), "{:?}", c.lite(1).audit());
}

/// An idle connection is closed at both ends. Handles, locks, functions and mappings stay valid.
#[test]
fn idle_connections_are_closed_and_all_goes_on() {
    let config = Config { idle: Some(20 * MS), ..Config::default() };
    let mut c = Cluster::new(1, 2, 16 << 20, &config);
    let (a, b) = (c.lite(1), c.lite(2));
    let sum = Arc::new(AtomicU64::new(0));
    serve(&b, sum.clone(), Duration::ZERO);
    let (lmr, lock) = c.world.run(LIMIT, {
        let a = a.clone();
        async move {
            let lmr = a.alloc(NodeId(2), 1 << 16, Permissions::all()).await.unwrap();
            let lock = a.create_lock(NodeId(2), "lock").await.unwrap();
            call(&a, 2, 1).await.unwrap();
            lmr.write(8, b"kept").await.unwrap();
            (lmr, lock)
        }
    });
    let guard = c.world.run(LIMIT, async move { lock.lock().await.unwrap() });
    for round in 1..=5 {
        c.world.run_for(200 * MS);
        all_closed(&c);
        assert_eq!(counter(&a, "lite_closed"), round);
        let (a, b, lmr) = (a.clone(), b.clone(), lmr.clone());
        c.world.run(LIMIT, async move {
            match round % 4 {
                0 => {
                    let lock = b.open_lock("lock").await.unwrap();
                    let taken = lock.try_lock().await.unwrap();
                    assert!(taken.is_none(), "it is held");
                    call(&a, 2, 1).await.unwrap();
                }
                1 => {
                    let mut bytes = [0; 4];
                    lmr.read(8, &mut bytes).await.unwrap();
                    assert_eq!(&bytes, b"kept");
                }
                2 => assert_eq!(lmr.fetch_add(0, 1).await, Ok(0)),
                _ => call(&a, 2, 1).await.unwrap(),
            }
        });
    }
    c.world.run(LIMIT, async move {
        guard.unlock().await.unwrap();
        lmr.free().await.unwrap();
    });
    assert_eq!(sum.load(Ordering::SeqCst), 3);
    // A connection in use is not idle.
    let before = counter(&a, "lite_closed");
    let user = a.clone();
    c.world.run(LIMIT, async move {
        call(&user, 2, 1).await.unwrap();
        let (closed, made) = (counter(&user, "lite_closed"), counter(&user, "lite_connections"));
        for _ in 0..30 {
            user.sleep(10 * MS).await;
            call(&user, 2, 1).await.unwrap();
        }
        assert_eq!((counter(&user, "lite_closed"), counter(&user, "lite_connections")), (closed, made));
    });
    assert!(counter(&a, "lite_closed") <= before + 1);
}

/// A part of a write or memset is on this node, and the rest on a node that does not answer: the error
/// allows that something has happened.
#[test]
fn what_is_done_in_part_is_not_called_undone() {
    let config = Config { idle: Some(20 * MS), ..Config::default() };
    let mut c = Cluster::new(1, 2, 16 << 20, &config);
    let a = c.lite(1);
    let lmr = c.world.run(LIMIT, async move {
        let striped = Placement::Striped { nodes: vec![NodeId(1), NodeId(2)], stripe: 4096 };
        a.alloc(striped, 8192, Permissions::all()).await.unwrap()
    });
    c.world.run_for(200 * MS);
    c.nodes[1].0.pause(true);
    let hasty = lmr.with_deadline(50 * MS);
    // The node has no memory for a connection.
    let host = c.nodes[0].0.clone();
    let mut taken = Vec::new();
    while let free @ 1.. = host.memory().largest_free() {
        taken.push(host.memory().lend(free).unwrap());
    }
    let patient = lmr.clone();
    c.world.run(LIMIT, async move {
        assert_eq!(patient.memset(4000, 200, 2).await, Err(Error::Unknown));
        assert!(matches!(patient.memset(4096, 200, 2).await, Err(Error::NoMemory { .. })));
    });
    drop(taken);
    c.world.run(LIMIT, async move {
        assert_eq!(hasty.write(4000, &[1; 200]).await, Err(Error::Unknown));
        assert_eq!(hasty.write(4096, &[1; 200]).await, Err(Error::Deadline));
        let mut part = [0; 96];
        hasty.read(4000, &mut part).await.unwrap();
        assert_eq!(part, [1; 96]);
    });
}

/// A memset reaches the node that holds the bytes, the answer is lost with the connection, and there is no
/// memory for another connection: the error allows that the bytes are set.
#[test]
fn what_was_done_before_memory_ran_out_is_not_called_undone() {
    let [first, second] = [1, 2].map(|i| Gid::from_ipv4([10, 0, 0, i]));
    let mut c = cluster(2, 4);
    let a = c.lite(1);
    let owner = a.clone();
    let lmr = c.world.run(LIMIT, async move {
        let striped = Placement::Striped { nodes: vec![NodeId(1), NodeId(2)], stripe: 4096 };
        let lmr = owner.alloc(striped, 8192, Permissions::all()).await.unwrap();
        lmr.memset(4096, 200, 1).await.unwrap();
        lmr
    });
    c.fabric.hold_between(second, first, true);
    let (writer, outcome) = (lmr.clone(), Arc::new(std::sync::Mutex::new(None)));
    let ended = outcome.clone();
    spawn(&a, async move {
        let result = writer.memset(4096, 200, 2).await;
        *ended.lock().unwrap() = Some(result);
    });
    c.world.run_for(MS);
    // The answer fails, and the connection with it. From then on no memory is free.
    c.fabric.cut(first, true);
    c.fabric.hold_between(second, first, false);
    let host = c.nodes[0].0.clone();
    let mut taken = Vec::new();
    for _ in 0..2000 {
        c.world.run_for(Duration::from_micros(20));
        while let free @ 1.. = host.memory().largest_free() {
            taken.push(host.memory().lend(free).unwrap());
        }
    }
    drop(taken);
    c.fabric.cut(first, false);
    let until = c.world.now() + LIMIT;
    assert!(c.world.run_until(until, || outcome.lock().unwrap().is_some()));
    assert_eq!(*outcome.lock().unwrap(), Some(Err(Error::Unknown)));
    c.world.run(LIMIT, async move {
        let mut bytes = [0; 200];
        lmr.read(4096, &mut bytes).await.unwrap();
        assert_eq!(bytes, [2; 200]);
    });
}

/// The outcome of a write is lost while its region is being freed, and the write arrives after all: the error
/// allows that.
#[test]
fn what_was_lost_before_the_region_was_freed_is_not_called_undone() {
    let [first, second] = [1, 2].map(|i| Gid::from_ipv4([10, 0, 0, i]));
    let mut c = cluster(3, 4);
    let (writer, owner) = (c.lite(1), c.lite(3));
    let (far, near) = c.world.run(LIMIT, {
        let (writer, owner) = (writer.clone(), owner.clone());
        async move {
            let placement = Placement::Shares(vec![(NodeId(3), 8), (NodeId(2), 4096)]);
            let near = owner.alloc(placement, 4104, Permissions::all()).await.unwrap();
            near.publish("region").await.unwrap();
            let far = writer.map("region", Permissions::all()).await.unwrap();
            far.write(8, &[1; 64]).await.unwrap();
            (far, near)
        }
    });
    c.fabric.hold_between(first, second, true);
    let outcome = Arc::new(std::sync::Mutex::new(None));
    let ended = outcome.clone();
    spawn(&writer, async move {
        let result = far.write(8, &[2; 64]).await;
        *ended.lock().unwrap() = Some(result);
    });
    spawn(&owner, async move { near.free().await.unwrap() });
    c.world.run_for(MS);
    // The writer is told that the region is freed, and its write is still in flight.
    assert_eq!(*outcome.lock().unwrap(), None);
    c.fabric.delay_between(first, second, true);
    let until = c.world.now() + LIMIT;
    assert!(c.world.run_until(until, || outcome.lock().unwrap().is_some()));
    assert_eq!(*outcome.lock().unwrap(), Some(Err(Error::Unknown)));
}

/// Polls `future` at most `polls` times, `apart` from each other, then drops it. Returns `true` if it ended
/// before.
async fn cut<F: Future>(lite: Lite, future: F, polls: usize, apart: Duration) -> bool {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        if std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await {
            return true;
        }
        lite.sleep(apart).await;
    }
    false
}

async fn all_kinds(a: Lite, lmrs: Vec<Lmr>) {
    for (lmr, to) in lmrs.iter().zip([2, 3, 4]) {
        let _ = lmr.write(0, &[1; 200_000]).await;
        let _ = lmr.fetch_add(0, 1).await;
        let _ = call(&a, to, 1).await;
        let _ = a.send(NodeId(to), 1, &1u64.to_le_bytes()).await;
    }
}

/// Futures are dropped wherever they wait for a connection that is being closed or opened; nothing stays
/// behind.
#[test]
fn futures_may_be_dropped_while_connections_close() {
    for polls in 1.. {
        let mut c = cluster(4, 2);
        for (_, lite) in &c.nodes {
            serve(lite, Arc::default(), Duration::ZERO);
        }
        let a = c.lite(1);
        let b = a.clone();
        let lmrs = c.world.run(LIMIT, async move {
            let mut lmrs = Vec::new();
            for to in [2, 3, 4] {
                lmrs.push(b.alloc(NodeId(to), 200_000, Permissions::all()).await.unwrap());
            }
            lmrs
        });
        let work = all_kinds(a.clone(), lmrs.clone());
        let ended = c.world.run(LIMIT, cut(a.clone(), work, polls, MS / 2));
        c.world.run(LIMIT, async move {
            // A dropped future does not keep other tasks from their connections either.
            for (lmr, to) in lmrs.into_iter().zip([2, 3, 4]) {
                call(&a, to, 1).await.unwrap();
                lmr.free().await.unwrap();
            }
        });
        c.world.run_for(Duration::from_secs(5));
        for (_, lite) in &c.nodes {
            assert!(lite.audit().is_empty(), "cut at {polls}: {:?}", lite.audit());
        }
        if ended {
            assert!(polls > 10, "it waits");
            break;
        }
    }
}

/// A peer that is stopped does not answer: another connection is closed instead. If there is no other, the
/// task waits for the peer until it goes on or is dead.
#[test]
fn a_peer_that_stands_still() {
    for dies in [false, true] {
        let mut c = cluster(4, 2);
        for (_, lite) in &c.nodes {
            serve(lite, Arc::default(), Duration::ZERO);
        }
        let a = c.lite(1);
        let b = a.clone();
        c.world.run(LIMIT, async move {
            call(&b, 2, 1).await.unwrap();
            b.sleep(600 * MS).await;
            call(&b, 3, 1).await.unwrap();
            b.sleep(600 * MS).await;
        });
        c.nodes[1].0.pause(true);
        let b = a.clone();
        c.world.run(LIMIT, async move {
            let before = b.platform().now();
            call(&b, 4, 1).await.unwrap();
            assert!(b.platform().now() - before < 200 * MS);
        });
        c.nodes[2].0.pause(true);
        c.nodes[3].0.pause(true);
        let b = a.clone();
        c.world.run(LIMIT, async move {
            b.sleep(10 * MS).await;
            assert_eq!(call(&b.with_deadline(100 * MS), 3, 1).await, Err(Error::Deadline));
        });
        if dies {
            c.nodes[1].0.kill();
            c.hub.declare_dead(NodeId(2));
            c.nodes[2].0.pause(false);
        } else {
            for node in [1, 2, 3] {
                c.nodes[node].0.pause(false);
            }
        }
        let b = a.clone();
        c.world.run(LIMIT, async move {
            call(&b, 3, 1).await.unwrap();
            let two = call(&b, 2, 1).await;
            assert_eq!(two, if dies { Err(Error::NodeDown(NodeId(2))) } else { Ok(()) });
        });
        c.nodes[3].0.pause(false);
        c.world.run(LIMIT, async move { call(&a, 4, 1).await.unwrap() });
        c.world.run_for(Duration::from_secs(5));
        for (i, (_, lite)) in c.nodes.iter().enumerate() {
            assert!(lite.audit().is_empty() || (dies && i == 1), "{:?}", lite.audit());
        }
    }
}

/// All nodes have two permits, and all want all others: circles of waiting nodes resolve.
#[test]
fn circles_come_loose() {
    for seed in 1..=20 {
        let mut c = Cluster::new(seed, 6, 16 << 20, &Config { peers: 2, ..Config::default() });
        let sum = Arc::new(AtomicU64::new(0));
        for (_, lite) in &c.nodes {
            serve(lite, sum.clone(), Duration::ZERO);
        }
        let done = Arc::new(AtomicU64::new(0));
        for from in 1..=6u16 {
            for to in (1..=6u16).filter(|to| *to != from) {
                let (lite, done) = (c.lite(from.into()).with_deadline(Duration::from_secs(30)), done.clone());
                spawn(&lite.clone(), async move {
                    for _ in 0..10 {
                        call(&lite, to, 1).await.unwrap();
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
        }
        let end = c.world.now() + LIMIT;
        assert!(c.world.run_until(end, || done.load(Ordering::SeqCst) == 30), "seed {seed}: {done:?}");
        assert_eq!(sum.load(Ordering::SeqCst), 300);
    }
}
