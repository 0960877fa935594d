//! Operations that end without a result may still happen: memory that they could change is not reused
//! before they no longer can.

use crate::{keep, spawn};
use lite::testing::Cluster;
use lite::{Config, Error, Lite, Lmr, LockGuard, NodeId, Op, OpKind, Permissions};
use platform::Platform;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verbs::Gid;

const LIMIT: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

fn gid(i: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, i])
}

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 16 << 20, &Config::default())
}

/// The length of the regions on their second node, in bytes: more than all memory of its connections.
const LARGE: u64 = 4 << 20;

fn free(c: &Cluster, i: usize) -> u64 {
    c.nodes[i - 1].0.memory().stats().free
}

/// Returns whether a region's memory on node `i` is free again; `before` bytes were free while it was
/// allocated.
fn is_freed(c: &Cluster, i: usize, before: u64) -> bool {
    free(c, i) > before + LARGE / 2
}

/// Allocates a region of node `owner`, most of it on node `at`, published and mapped by node `by`, which
/// has written to it and so is connected.
fn shared(c: &mut Cluster, owner: usize, at: u16, by: usize) -> (Lmr, Lmr) {
    let (a, b) = (c.lite(owner), c.lite(by));
    c.world.run(LIMIT, async move {
        let there = lite::Placement::Shares(vec![(a.node_id(), 4096), (NodeId(at), LARGE)]);
        let lmr = a.alloc(there, 4096 + LARGE, Permissions::all()).await.unwrap();
        lmr.publish("shared").await.unwrap();
        let mapped = b.map("shared", Permissions::READ | Permissions::WRITE).await.unwrap();
        mapped.write(4096, &[1; 64]).await.unwrap();
        (lmr, mapped)
    })
}

/// Returns the bytes of a region from 4096.
fn look(c: &mut Cluster, lmr: &Lmr) -> [u8; 64] {
    let lmr = lmr.clone();
    c.world.run(LIMIT, async move {
        let mut bytes = [0; 64];
        lmr.read(4096, &mut bytes).await.unwrap();
        bytes
    })
}

/// Posts one write that is not repeated, and returns its end.
async fn write_once(lite: &Lite, lmr: &Lmr, data: &[u8]) -> Result<u64, Error> {
    let queue = lite.completion_queue(1);
    let op = Op { tag: 0, lmr, offset: 4096, kind: OpKind::Write(data) };
    assert_eq!(queue.post(&[op]).await, Ok(1));
    queue.next(&mut []).await.unwrap().result
}

/// A write is lost with its connection, but its packet is only late: until the node where it would arrive
/// has ended its end of the connection, the memory is not reused.
#[test]
fn freed_memory_waits_for_the_other_end_of_a_broken_connection() {
    let mut c = cluster(3);
    let (lmr, mapped) = shared(&mut c, 1, 3, 2);
    let before = free(&c, 3);
    // The node that must end the connection does not learn of it yet.
    c.fabric.delay_between(gid(2), gid(3), true);
    let b = c.lite(2);
    c.nodes[2].0.pause(true);
    c.world.run(LIMIT, async move {
        assert_eq!(write_once(&b, &mapped, &[7; 64]).await, Err(Error::Unknown));
        keep(&b, mapped);
    });
    let done = Arc::new(AtomicBool::new(false));
    let told = done.clone();
    spawn(&c.lite(1), async move {
        lmr.free().await.unwrap();
        told.store(true, Ordering::SeqCst);
    });
    c.world.run_for(100 * MS);
    assert!(!done.load(Ordering::SeqCst), "the write may still arrive");
    assert_eq!(
        c.lite(2).audit().iter().find(|(what, _)| *what == "operations that may still happen").unwrap().1,
        1
    );
    c.nodes[2].0.pause(false);
    c.world.run_for(100 * MS);
    assert!(done.load(Ordering::SeqCst) && is_freed(&c, 3, before));
    // The next user of the memory keeps its own data.
    assert_eq!(c.fabric.arrive(), (1, 0));
    assert!(!c.lite(2).audit().iter().any(|(what, _)| *what == "operations that may still happen"));
}

/// No node is stopped here: by the time that the memory is free, the late packet finds no queue pair.
#[test]
fn a_late_packet_finds_no_queue_pair_once_memory_is_free() {
    let mut c = cluster(3);
    let (lmr, mapped) = shared(&mut c, 1, 3, 2);
    c.fabric.delay_between(gid(2), gid(3), true);
    let b = c.lite(2);
    c.world.run(LIMIT, async move {
        assert_eq!(write_once(&b, &mapped, &[7; 64]).await, Err(Error::Unknown));
        lmr.free().await.unwrap();
    });
    assert_eq!(c.fabric.arrive(), (1, 0));
}

/// Takes a lock of node 2 and does a write to memory on node 3 that has no result; returns the guard.
fn write_under_lock(c: &mut Cluster, lmr: &Lmr, drops: bool) -> LockGuard {
    let (a, lmr) = (c.lite(1), lmr.clone());
    c.world.run(LIMIT, async move {
        let lock = a.create_lock(NodeId(2), "lock").await.unwrap();
        let guard = lock.lock().await.unwrap();
        if drops {
            let mut write = Box::pin(lmr.write(4096, &[7; 64]));
            std::future::poll_fn(|cx| {
                assert!(write.as_mut().poll(cx).is_pending() && write.as_mut().poll(cx).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        } else {
            assert_eq!(lmr.with_deadline(MS).write(4096, &[7; 64]).await, Err(Error::Unknown));
        }
        guard
    })
}

/// Node 2 waits for the lock, writes to the same location and releases the lock; reports when it has.
fn next_holder(c: &Cluster) -> Arc<AtomicBool> {
    let (b, done) = (c.lite(2), Arc::new(AtomicBool::new(false)));
    let told = done.clone();
    spawn(&c.lite(2), async move {
        let lock = b.open_lock("lock").await.unwrap().with_deadline(LIMIT);
        let lmr = b.map("shared", Permissions::READ | Permissions::WRITE).await.unwrap();
        let held = lock.lock().await.unwrap();
        lmr.write(4096, &[9; 64]).await.unwrap();
        held.unlock().await.unwrap();
        told.store(true, Ordering::SeqCst);
    });
    done
}

/// The next holder of the lock does not see a write that its task has given up, wherever the write was
/// delayed.
#[test]
fn a_lock_is_given_back_after_the_writes_that_were_given_up() {
    for (drops, unlocks, breaks) in [
        (false, true, false),
        (false, false, false),
        (true, true, false),
        (true, false, true),
        (false, true, true),
    ] {
        let mut c = cluster(3);
        let (lmr, mapped) = shared(&mut c, 3, 3, 1);
        c.fabric.hold_between(gid(1), gid(3), true);
        let guard = write_under_lock(&mut c, &mapped, drops);
        let next = next_holder(&c);
        c.world.run_for(10 * MS);
        let given = Arc::new(AtomicBool::new(false));
        let told = given.clone();
        spawn(&c.lite(1), async move {
            if unlocks {
                guard.unlock().await.unwrap();
            } else {
                drop(guard);
            }
            told.store(true, Ordering::SeqCst);
        });
        c.world.run_for(100 * MS);
        assert_eq!(given.load(Ordering::SeqCst), !unlocks, "only a dropped guard is given back by itself");
        assert!(!next.load(Ordering::SeqCst), "the write may still arrive");
        if breaks {
            // The transport gives up, and the packet is still on its way.
            c.fabric.delay_between(gid(1), gid(3), true);
        } else {
            c.fabric.hold_between(gid(1), gid(3), false);
        }
        c.world.run_for(200 * MS);
        assert!(given.load(Ordering::SeqCst) && next.load(Ordering::SeqCst));
        assert_eq!(c.fabric.arrive(), (usize::from(breaks), 0));
        assert_eq!(look(&mut c, &lmr), [9; 64], "drops {drops}, unlocks {unlocks}, breaks {breaks}");
    }
}

/// Operations that were given up before the lock was taken, or that only read, do not delay its release.
#[test]
fn a_lock_waits_only_for_writes_of_its_time() {
    let mut c = cluster(3);
    let (_lmr, mapped) = shared(&mut c, 3, 3, 1);
    c.fabric.hold_between(gid(1), gid(3), true);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        let hasty = mapped.with_deadline(MS);
        assert_eq!(hasty.write(4096, &[7; 64]).await, Err(Error::Unknown));
        let lock = a.create_lock(NodeId(2), "lock").await.unwrap().with_deadline(10 * MS);
        let held = lock.lock().await.unwrap();
        assert_eq!(hasty.read(4096, &mut [0; 64]).await, Err(Error::Deadline));
        held.unlock().await.unwrap();
        // A later one does, and then the lock is released in the background.
        let held = lock.lock().await.unwrap();
        assert_eq!(hasty.write(4096, &[8; 64]).await, Err(Error::Unknown));
        assert_eq!(held.unlock().await, Err(Error::Deadline));
        assert!(lock.try_lock().await.unwrap().is_none());
    });
    c.fabric.hold_between(gid(1), gid(3), false);
    let a = c.lite(1);
    c.world.run(LIMIT, async move {
        a.settled().await.unwrap();
        a.sleep(MS).await;
        drop(a.open_lock("lock").await.unwrap().try_lock().await.unwrap().expect("it was given back"));
    });
}

/// A dead peer sends no confirmation, and no task waits for it; the same holds for a node that is no
/// member.
#[test]
fn nobody_waits_for_the_dead() {
    for dead in [3, 1] {
        let mut c = cluster(3);
        let (_lmr, mapped) = shared(&mut c, 3, 3, 1);
        c.nodes[2].0.pause(true);
        c.fabric.delay_between(gid(1), gid(3), true);
        let a = c.lite(1);
        c.world.run(LIMIT, async move {
            assert_eq!(write_once(&a, &mapped, &[7; 64]).await, Err(Error::Unknown));
            assert_eq!(a.with_deadline(10 * MS).settled().await, Err(Error::Deadline));
        });
        if dead == 3 {
            c.nodes[2].0.kill();
            c.hub.declare_dead(NodeId(3));
        } else {
            c.hub.cut(NodeId(1));
        }
        let a = c.lite(1);
        c.world.run(LIMIT, async move { a.settled().await.unwrap() });
    }
}

/// An RNIC that does not destroy a queue pair may still change memory: until it does, the end of the peer
/// is not acknowledged, and no memory is reused.
#[test]
fn what_an_rnic_still_serves_is_not_used_again() {
    let mut c = cluster(3);
    let (lmr, mapped) = shared(&mut c, 1, 3, 2);
    let before = free(&c, 3);
    c.fabric.keep_queue_pairs(gid(3), true);
    // Node 2 dies. Node 3 has a queue pair to it that is not destroyed, and holds memory that node 2 has
    // mapped.
    c.fabric.delay_between(gid(2), gid(3), true);
    let b = c.lite(2);
    c.world.run(LIMIT, async move {
        assert_eq!(write_once(&b, &mapped, &[7; 64]).await, Err(Error::Unknown));
        keep(&b, mapped);
    });
    c.nodes[1].0.kill();
    c.hub.declare_dead(NodeId(2));
    spawn(&c.lite(1), async move { lmr.free().await.unwrap() });
    c.world.run_for(100 * MS);
    assert!(!is_freed(&c, 3, before), "its RNIC may still write there");
    c.fabric.keep_queue_pairs(gid(3), false);
    c.world.run_for(100 * MS);
    assert!(is_freed(&c, 3, before));
    assert_eq!(c.fabric.arrive(), (1, 0));
}

/// A connection breaks while both ends live: the acknowledgement of its end waits for the RNIC.
#[test]
fn the_end_of_a_connection_is_not_told_while_the_rnic_serves_it() {
    let mut c = cluster(3);
    let (lmr, mapped) = shared(&mut c, 1, 3, 2);
    c.fabric.keep_queue_pairs(gid(3), true);
    c.fabric.delay_between(gid(2), gid(3), true);
    let b = c.lite(2);
    let done = Arc::new(AtomicBool::new(false));
    let told = done.clone();
    c.world.run(LIMIT, async move {
        assert_eq!(write_once(&b, &mapped, &[7; 64]).await, Err(Error::Unknown));
    });
    spawn(&c.lite(1), async move {
        lmr.free().await.unwrap();
        told.store(true, Ordering::SeqCst);
    });
    c.world.run_for(100 * MS);
    assert!(!done.load(Ordering::SeqCst), "the write may still arrive");
    c.fabric.keep_queue_pairs(gid(3), false);
    c.world.run_for(100 * MS);
    assert!(done.load(Ordering::SeqCst));
    assert_eq!(c.fabric.arrive(), (1, 0));
    assert!(c.lite(3).audit().iter().all(|(what, _)| *what != "connections that the RNIC still serves"));
}
