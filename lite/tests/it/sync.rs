//! Locks, events, counters and barriers over the instant RNIC.

use crate::{keep, spawn};
use lite::testing::Cluster;
use lite::{Config, Error, Lite, Lock, NodeId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::Gid;

const LIMIT: Duration = Duration::from_secs(120);
/// The number of tasks that wait at once. It exceeds the number of calls that can be outstanding to one peer,
/// because a wait must not hold a slot of a call.
const TASKS: u64 = 100;

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 16 << 20, &Config::default())
}

/// Counts that tasks share, which the lock keeps right.
#[derive(Default)]
struct Shared {
    writers: AtomicU64,
    readers: AtomicU64,
    most_readers: AtomicU64,
    done: AtomicU64,
}

async fn write(lite: Lite, lock: Lock, shared: Arc<Shared>) {
    let held = lock.lock().await.unwrap();
    assert_eq!(shared.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
    assert_eq!(shared.readers.load(Ordering::SeqCst), 0, "a reader beside a writer");
    lite.sleep(Duration::from_micros(3)).await;
    shared.writers.fetch_sub(1, Ordering::SeqCst);
    assert!(!held.after_death() && !held.is_lost());
    held.unlock().await.unwrap();
    shared.done.fetch_add(1, Ordering::SeqCst);
}

async fn read(lite: Lite, lock: Lock, shared: Arc<Shared>) {
    let held = lock.lock_shared().await.unwrap();
    let readers = shared.readers.fetch_add(1, Ordering::SeqCst) + 1;
    shared.most_readers.fetch_max(readers, Ordering::SeqCst);
    assert_eq!(shared.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
    lite.sleep(Duration::from_micros(5)).await;
    shared.readers.fetch_sub(1, Ordering::SeqCst);
    drop(held);
    shared.done.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn many_tasks_of_many_nodes_share_a_lock() {
    let mut c = cluster(3);
    let shared = Arc::new(Shared::default());
    let lites: Vec<Lite> = (1..=3).map(|i| c.lite(i)).collect();
    let s = shared.clone();
    c.world.run(LIMIT, async move {
        let lock = lites[0].create_lock(NodeId(2), "one").await.unwrap();
        assert_eq!(lites[1].create_lock(NodeId(3), "one").await.unwrap_err(), Error::NameTaken);
        for lite in &lites {
            let lock = lite.open_lock("one").await.unwrap();
            for n in 0..TASKS {
                let (l, lock, s) = (lite.clone(), lock.clone(), s.clone());
                if n % 3 == 0 { spawn(lite, write(l, lock, s)) } else { spawn(lite, read(l, lock, s)) }
            }
        }
        while s.done.load(Ordering::SeqCst) < 3 * TASKS {
            lites[0].sleep(Duration::from_micros(50)).await;
        }
        // Nothing is left behind, so the lock is free.
        assert!(lock.try_lock().await.unwrap().is_some());
    });
    assert!(shared.most_readers.load(Ordering::SeqCst) > 1, "readers share");
}

#[test]
fn a_lock_is_waited_for_as_long_as_asked_and_ends_when_destroyed() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let lock = a.create_lock(NodeId(1), "x").await.unwrap();
        let there = b.open_lock("x").await.unwrap();
        let held = lock.lock().await.unwrap();
        assert!(there.try_lock().await.unwrap().is_none());
        let brief = there.with_deadline(Duration::from_millis(2));
        assert_eq!(brief.lock().await.unwrap_err(), Error::Deadline);
        assert_eq!(brief.lock_shared().await.unwrap_err(), Error::Deadline);
        held.unlock().await.unwrap();
        b.sleep(Duration::from_millis(1)).await;
        // Waiters that gave up are not in the queue.
        let held = there.try_lock().await.unwrap().unwrap();
        let waiter = lock.clone();
        let end = Arc::new(AtomicU64::new(0));
        let e = end.clone();
        spawn(&a, async move {
            assert_eq!(waiter.lock().await.unwrap_err(), Error::Freed);
            e.store(1, Ordering::SeqCst);
        });
        b.sleep(Duration::from_millis(1)).await;
        there.clone().destroy().await.unwrap();
        b.sleep(Duration::from_millis(1)).await;
        assert_eq!(end.load(Ordering::SeqCst), 1);
        drop(held);
        assert_eq!(lock.lock().await.unwrap_err(), Error::Freed);
        assert_eq!(b.open_lock("x").await.unwrap_err(), Error::NoSuchName);
        // The name can be used again, for another kind of object.
        let event = b.create_event(NodeId(2), "x").await.unwrap();
        assert!(matches!(a.open_lock("x").await, Err(Error::Refused(why)) if why.contains("is an event")));
        event.destroy().await.unwrap();
    });
}

#[test]
fn the_death_of_a_holder_is_told_to_the_next_once_all_know() {
    let mut c = cluster(4);
    let lites: Vec<Lite> = (1..=4).map(|i| c.lite(i)).collect();
    let hub = c.hub.clone();
    c.world.run(LIMIT, async move {
        let lock = lites[1].create_lock(NodeId(1), "x").await.unwrap();
        let dying = lites[3].open_lock("x").await.unwrap();
        keep(&lites[3], dying.lock().await.unwrap());
        let waiting = lites[3].open_lock("x").await.unwrap();
        spawn(&lites[3], async move {
            let _ = waiting.lock().await;
        });
        let got = Arc::new(AtomicU64::new(0));
        let g = got.clone();
        let third = lites[2].open_lock("x").await.unwrap();
        spawn(&lites[2], async move {
            let held = third.lock().await.unwrap();
            assert!(held.after_death());
            g.store(1, Ordering::SeqCst);
            held.unlock().await.unwrap();
            assert!(!third.lock().await.unwrap().after_death(), "told once");
            g.store(2, Ordering::SeqCst);
        });
        lites[0].sleep(Duration::from_millis(1)).await;
        assert_eq!(got.load(Ordering::SeqCst), 0);
        hub.declare_dead(NodeId(4));
        lites[0].sleep(Duration::from_millis(5)).await;
        assert_eq!(got.load(Ordering::SeqCst), 2);
        // The home dies: holders see it, and no task hangs.
        let held = lock.lock().await.unwrap();
        hub.declare_dead(NodeId(1));
        lites[1].sleep(Duration::from_millis(1)).await;
        assert!(held.is_lost());
        assert_eq!(held.unlock().await, Err(Error::NodeDown(NodeId(1))));
        assert_eq!(lock.lock().await.unwrap_err(), Error::NodeDown(NodeId(1)));
        let after = lites[1].open_lock("x").await.unwrap_err();
        assert_eq!(after, Error::NoSuchName, "a name goes with its home");
    });
}

/// Each grant has a larger token than all before: of shared and exclusive holders, after a death, and of a
/// lock that is created again under the name, on any node, after its home has died or it was destroyed.
#[test]
fn fencing_tokens_only_grow() {
    let mut c = cluster(4);
    let lites: Vec<Lite> = (1..=4).map(|i| c.lite(i)).collect();
    let hub = c.hub.clone();
    c.world.run(LIMIT, async move {
        let mut newest = None;
        let mut grows = |token| {
            assert!(newest < Some(token), "{newest:?} {token:?}");
            newest = Some(token);
            token
        };
        // The node that joins last is the first home, so that the number of a later home's incarnation is
        // smaller.
        let lock = lites[0].create_lock(NodeId(4), "x").await.unwrap();
        for lite in &lites[..3] {
            let there = lite.open_lock("x").await.unwrap();
            let held = there.lock().await.unwrap();
            assert_eq!(grows(held.fencing_token()), held.fencing_token());
            held.unlock().await.unwrap();
            let (a, b) = (there.lock_shared().await.unwrap(), there.lock_shared().await.unwrap());
            grows(a.fencing_token());
            grows(b.fencing_token());
            a.unlock().await.unwrap();
            b.unlock().await.unwrap();
            let held = lock.try_lock().await.unwrap().unwrap();
            grows(held.fencing_token());
            held.unlock().await.unwrap();
        }
        // The home dies while the lock is held: the holder does not know it, and another task holds a lock
        // of that name.
        let stale = lock.lock().await.unwrap();
        let former = grows(stale.fencing_token());
        hub.declare_dead(NodeId(4));
        lites[1].sleep(Duration::from_millis(1)).await;
        for home in [1, 3] {
            let anew = lites[1].create_lock(NodeId(home), "x").await.unwrap();
            let held = lites[2].open_lock("x").await.unwrap().lock().await.unwrap();
            let token = grows(held.fencing_token());
            assert!(former < token && former.to_u128() < token.to_u128());
            drop(held);
            anew.destroy().await.unwrap();
            lites[1].sleep(Duration::from_millis(1)).await;
        }
        assert!(stale.is_lost());
    });
}

/// The answer that grants a lock has arrived, its home dies, and then the task reads the answer: it does
/// not have the lock.
#[test]
fn a_lock_that_is_granted_by_a_home_that_has_died_is_none() {
    let mut c = cluster(3);
    let a = c.lite(1);
    let lock = c.world.run(LIMIT, async move { a.create_lock(NodeId(2), "x").await.unwrap() });
    let (host, result) = (c.nodes[0].0.clone(), Arc::new(Mutex::new(None)));
    let place = result.clone();
    let posts = c.fabric.posts();
    let task = async move {
        let got = lock.lock().await.map(drop);
        *place.lock().unwrap() = Some(got);
    };
    c.lite(1).platform().spawn("held", Box::pin(task));
    let (end, fabric) = (c.world.now() + Duration::from_millis(1), c.fabric.clone());
    assert!(c.world.run_until(end, || fabric.posts() > posts), "the claim is on its way");
    host.hold("held", true);
    c.world.run_for(Duration::from_millis(1));
    c.nodes[1].0.kill();
    c.hub.declare_dead(NodeId(2));
    c.world.run_for(Duration::from_millis(1));
    host.hold("held", false);
    c.world.run_for(Duration::from_millis(1));
    assert_eq!(*result.lock().unwrap(), Some(Err(Error::NodeDown(NodeId(2)))));
}

#[test]
fn events_wake_all_who_wait_and_miss_nobody_who_comes_late() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let event = a.create_event(NodeId(2), "ready").await.unwrap();
        let woken = Arc::new(AtomicU64::new(0));
        for lite in [&a, &b] {
            let event = lite.open_event("ready").await.unwrap();
            for n in 0..TASKS {
                let (event, woken) = (event.clone(), woken.clone());
                spawn(lite, async move {
                    let past = n % 2;
                    assert!(event.wait(past).await.unwrap() > past);
                    woken.fetch_add(1, Ordering::SeqCst);
                });
            }
        }
        a.sleep(Duration::from_millis(5)).await;
        assert_eq!(woken.load(Ordering::SeqCst), 0);
        assert_eq!(event.signal().await, Ok(1));
        a.sleep(Duration::from_millis(5)).await;
        assert_eq!(woken.load(Ordering::SeqCst), TASKS);
        assert_eq!(event.signal().await, Ok(2));
        a.sleep(Duration::from_millis(5)).await;
        assert_eq!(woken.load(Ordering::SeqCst), 2 * TASKS);
        assert_eq!(event.wait(0).await, Ok(2), "late, and it has happened");
        let brief = event.with_deadline(Duration::from_millis(1));
        assert_eq!(brief.wait(2).await, Err(Error::Deadline));
        event.destroy().await.unwrap();
        assert_eq!(brief.signal().await, Err(Error::Freed));
    });
}

#[test]
fn counters_count_from_everywhere() {
    let mut c = cluster(3);
    let lites: Vec<Lite> = (1..=3).map(|i| c.lite(i)).collect();
    c.world.run(LIMIT, async move {
        let counter = lites[0].create_counter(NodeId(2), "tickets").await.unwrap();
        let mut seen = Vec::new();
        for round in 0..4 {
            for lite in &lites {
                seen.push(lite.open_counter("tickets").await.unwrap().add(round + 1).await.unwrap());
            }
        }
        assert_eq!(seen.len(), 12);
        assert!(seen.is_sorted_by(|a, b| a < b));
        assert_eq!(counter.get().await, Ok(30));
        assert_eq!(counter.compare_swap(30, 5).await, Ok(30));
        assert_eq!(counter.compare_swap(30, 6).await, Ok(5));
        lites[1].create_lock(NodeId(1), "lock").await.unwrap();
        assert!(lites[0].open_counter("lock").await.is_err());
        counter.destroy().await.unwrap();
    });
}

#[test]
fn many_barriers_are_waited_at_at_once() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    let passed = Arc::new(AtomicU64::new(0));
    let p = passed.clone();
    c.world.run(LIMIT, async move {
        for lite in [&b, &a] {
            for n in 0..TASKS {
                let (l, p) = (lite.clone(), p.clone());
                spawn(lite, async move {
                    l.barrier(&format!("b{n}"), &[NodeId(1), NodeId(2)]).await.unwrap();
                    p.fetch_add(1, Ordering::SeqCst);
                });
            }
            lite.sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(passed.load(Ordering::SeqCst), 2 * TASKS);
}

/// A claim whose connection breaks is made again; the first one blocks no other claim.
#[test]
fn claims_and_waits_outlive_a_connection() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    let (lock, event) = c.world.run(LIMIT, async move {
        (a.create_lock(NodeId(2), "lock").await.unwrap(), a.create_event(NodeId(2), "event").await.unwrap())
    });
    let got = Arc::new(AtomicU64::new(0));
    let (l, e) = (lock.clone(), event.clone());
    let (locked, seen) = (got.clone(), got.clone());
    c.fabric.cut(Gid::from_ipv4([10, 0, 0, 2]), true);
    spawn(&c.lite(1), async move {
        drop(l.lock().await.unwrap());
        locked.fetch_add(1, Ordering::SeqCst);
    });
    spawn(&c.lite(1), async move {
        assert_eq!(e.wait(0).await, Ok(1));
        seen.fetch_add(1, Ordering::SeqCst);
    });
    c.world.run_for(Duration::from_millis(5));
    c.fabric.cut(Gid::from_ipv4([10, 0, 0, 2]), false);
    c.world.run(LIMIT, async move {
        b.sleep(Duration::from_secs(5)).await;
        b.open_event("event").await.unwrap().signal().await.unwrap();
        b.sleep(Duration::from_millis(5)).await;
        assert_eq!(got.load(Ordering::SeqCst), 2);
        assert!(lock.try_lock().await.unwrap().is_some(), "nothing is left of the first claim");
    });
}

/// A claim whose future is dropped before the lock's home, the same node, has served it.
#[test]
fn a_claim_that_is_given_up_before_its_own_node_serves_it_leaves_the_lock_free() {
    let mut c = cluster(2);
    let (home, other) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let lock = home.create_lock(NodeId(1), "one").await.unwrap();
        let theirs = other.open_lock("one").await.unwrap();
        let mut claim = Box::pin(lock.lock());
        let once = std::future::poll_fn(|cx| std::task::Poll::Ready(claim.as_mut().poll(cx).is_pending()));
        assert!(once.await, "the claim waits for its home's task");
        drop(claim);
        theirs.lock().await.unwrap().unlock().await.unwrap();
        lock.lock().await.unwrap().unlock().await.unwrap();
    });
}
