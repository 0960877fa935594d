//! Dropped futures, failing connections, deadlines: nothing leaks, nothing hangs, and no error claims too
//! much.

use lite::testing::Cluster;
use lite::{Config, Error, Lite, NodeId, Permissions, RpcOptions};
use platform::Platform;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use verbs::Gid;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);

fn gid(i: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, i])
}

fn counter(lite: &Lite, name: &str) -> u64 {
    let mut value = None;
    lite.counters(&mut |(n, v)| {
        if n == name {
            value = Some(v);
        }
    });
    value.expect("a known counter")
}

/// Returns a name that was not used before.
fn fresh(what: &str) -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("{what}-{}", LAST.fetch_add(1, Ordering::Relaxed))
}

/// Polls `future` at most `polls` times, then drops it. Returns `true` if it ended before.
async fn cut<F: Future>(future: F, polls: usize) -> bool {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

type Operation = Box<dyn Fn(Lite) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

fn operations() -> Vec<(&'static str, Operation)> {
    fn op<F: Future<Output = ()> + Send + 'static>(
        f: impl Fn(Lite) -> F + Send + Sync + 'static,
    ) -> Operation {
        Box::new(move |lite| Box::pin(f(lite)))
    }
    vec![
        ("alloc", op(|l| async move { drop(l.alloc(NodeId(2), 5000, RW).await) })),
        (
            "write and read",
            op(|l| async move {
                if let Ok(lmr) = l.alloc(NodeId(2), 600_000, RW).await {
                    let _ = lmr.write(0, &[7; 600_000]).await;
                    let _ = lmr.read(0, &mut [0; 600_000]).await;
                }
            }),
        ),
        (
            "atomic, memset, free",
            op(|l| async move {
                if let Ok(lmr) = l.alloc(NodeId(2), 8, Permissions::all()).await {
                    let _ = lmr.fetch_add(0, 1).await;
                    let _ = lmr.memset(0, 8, 1).await;
                    let _ = lmr.free().await;
                }
            }),
        ),
        (
            "pieces and moves",
            op(|l| async move {
                let wide = lite::Placement::Striped { nodes: vec![NodeId(2), NodeId(1)], stripe: 4096 };
                if let Ok(lmr) = l.alloc(wide.clone(), 20_000, Permissions::all()).await {
                    let _ = lmr.write(0, &[7; 20_000]).await;
                    let _ = lmr.move_to(NodeId(1)).await;
                    let _ = lmr.memset(0, 20_000, 1).await;
                    let _ = lmr.move_to(wide).await;
                }
                drop(l.alloc(lite::Placement::Anywhere, 5000, RW).await);
                if let Ok(memory) = l.local_memory(5000).await {
                    drop(l.register_memory(memory, RW).await);
                }
            }),
        ),
        (
            "locks",
            op(|l| async move {
                if let Ok(lock) = l.create_lock(NodeId(2), &fresh("lock")).await {
                    if let Ok(held) = lock.lock().await {
                        let waiter = lock.clone();
                        let _ = waiter.with_deadline(Duration::from_micros(50)).lock_shared().await;
                        let _ = held.unlock().await;
                    }
                    drop(lock.lock_shared().await);
                    let _ = lock.destroy().await;
                }
            }),
        ),
        (
            "events and counters",
            op(|l| async move {
                if let Ok(event) = l.create_event(NodeId(2), &fresh("event")).await {
                    let _ = event.with_deadline(Duration::from_micros(50)).wait(0).await;
                    let _ = event.signal().await;
                    let _ = event.wait(0).await;
                    let _ = event.destroy().await;
                }
                if let Ok(counter) = l.create_counter(NodeId(2), &fresh("counter")).await {
                    let _ = counter.add(1).await;
                    let _ = counter.destroy().await;
                }
            }),
        ),
        (
            "calls",
            op(|l| async move {
                let _ = l.call(NodeId(2), 1, b"short", 10).await;
                let _ = l.call(NodeId(2), 1, &[3; 100_000], 100_000).await;
                let _ = l.call_into(NodeId(1), 1, &[3; 100_000], &mut [0; 10]).await;
                let _ = l.call_each(&[NodeId(2), NodeId(1)], 1, &[3; 50_000], 50_000).await;
            }),
        ),
        (
            "messages",
            op(|l| async move {
                if let Ok(mailbox) = l.open_mailbox(9, RpcOptions { queue: 1, ..RpcOptions::default() }) {
                    let _ = l.send(NodeId(1), 9, b"short").await;
                    let hasty = l.with_deadline(Duration::from_micros(50));
                    let _ = hasty.send(NodeId(1), 9, b"late").await;
                    let _ = mailbox.receive().await;
                    let _ = mailbox.receive_within(Duration::from_micros(50)).await;
                }
                let _ = l.send(NodeId(2), 1, b"short").await;
                let _ = l.send(NodeId(2), 1, &[3; 100_000]).await;
            }),
        ),
        (
            "serving",
            op(|l| async move {
                if let Ok(server) = l.register(9, RpcOptions::default()) {
                    let caller = l.clone();
                    let call = async move { drop(caller.call(NodeId(1), 9, &[1; 1000], 1000).await) };
                    l.platform().spawn("calls", Box::pin(call));
                    if let Ok(call) = server.receive().await {
                        let hasty = server.receive_within(Duration::from_micros(50));
                        let _ = hasty.await;
                        let _ = call.reply(&[1; 1000]).await;
                    }
                    let _ = server.unregister().await;
                }
            }),
        ),
        (
            "names and barrier",
            op(|l| async move {
                if let Ok(lmr) = l.alloc(NodeId(2), 8, Permissions::all()).await {
                    let _ = lmr.publish("name").await;
                    let _ = lmr.grant(NodeId(1), Permissions::ATOMIC).await;
                    let _ = lmr.revoke(lite::Grantee::Everyone, Permissions::ATOMIC).await;
                    let _ = l.map("name", RW).await;
                    let _ = l.unpublish("name").await;
                    let _ = lmr.free().await;
                }
                let _ = l.barrier("alone", &[l.node_id()]).await;
            }),
        ),
    ]
}

/// Every future is dropped at every await point, and all memory is free again.
#[test]
fn futures_may_be_dropped_anywhere() {
    for (what, operation) in operations() {
        let operation = Arc::new(operation);
        for polls in 1.. {
            let mut c = Cluster::new(polls as u64, 2, 16 << 20, &Config::default());
            let (a, b) = (c.lite(1), c.lite(2));
            let server = b.register(1, RpcOptions::default()).unwrap();
            let echo = async move {
                while let Ok(call) = server.receive().await {
                    let request = call.request().to_vec();
                    call.reply(&request).await.unwrap();
                }
            };
            b.platform().spawn("echo", Box::pin(echo));
            // Connected, so that rings and slots are allocated already.
            c.world.run(LIMIT, {
                let (a, b) = (a.clone(), b.clone());
                async move {
                    a.alloc(NodeId(2), 1, RW).await.unwrap().free().await.unwrap();
                    b.barrier("connected", &[b.node_id()]).await.unwrap();
                }
            });
            let free = |c: &Cluster| {
                c.nodes.iter().map(|(host, _)| platform::Platform::memory(&**host).stats().free).sum::<u64>()
            };
            let before = free(&c);
            let ended = c.world.run(LIMIT, cut(operation(a.clone()), polls));
            c.world.run_for(Duration::from_secs(30));
            // Regions that are published and never freed stay.
            let unpublished = async move { drop(a.unpublish("name").await) };
            c.world.run(LIMIT, unpublished);
            let lost = before - free(&c);
            assert!(
                lost == 0 || (["names and barrier", "events and counters"].contains(&what) && lost == 4096),
                "{what} cut at {polls}: {lost}"
            );
            if ended {
                assert!(polls > 1, "{what} never waits");
                break;
            }
        }
    }
}

/// Abandoned operations keep their buffers until they have completed, and then release them.
#[test]
fn abandoned_operations_are_in_quarantine() {
    let config = Config { operations: 16, bounce: [(256, 4), (4096, 4), (65536, 4)], ..Config::default() };
    let mut c = Cluster::new(1, 2, 16 << 20, &config);
    let a = c.lite(1);
    let lmr = c.world.run(LIMIT, {
        let a = a.clone();
        async move { a.alloc(NodeId(2), 1 << 20, RW).await.unwrap() }
    });
    c.fabric.hold(true);
    let hasty = lmr.with_deadline(Duration::from_millis(1));
    c.world.run(LIMIT, async move {
        assert_eq!(hasty.write(0, &[1; 300_000]).await, Err(Error::Unknown));
        assert_eq!(hasty.read(0, &mut [1; 300_000]).await, Err(Error::Deadline));
        // No buffer is left for a write.
        for _ in 0..30 {
            let result = hasty.write(0, &[2; 1000]).await;
            assert!(matches!(result, Err(Error::Unknown | Error::Deadline)), "{result:?}");
        }
        assert_eq!(hasty.write(0, &[3; 1000]).await, Err(Error::Deadline));
    });
    assert_eq!(counter(&a, "lite_deadline_misses"), 33);
    c.fabric.hold(false);
    c.world.run(LIMIT, async move {
        let data: Vec<u8> = (0..1 << 20).map(|i| (i / 5) as u8).collect();
        lmr.write(0, &data).await.unwrap();
        let mut got = vec![0; 1 << 20];
        lmr.read(0, &mut got).await.unwrap();
        assert_eq!(got, data);
    });
}

/// A call that was never sent releases its slot.
#[test]
fn calls_given_up_before_they_left_hold_nothing() {
    let config = Config { send_depth: 8, calls: 32, ..Config::default() };
    let mut c = Cluster::new(1, 2, 16 << 20, &config);
    let (a, b) = (c.lite(1), c.lite(2));
    let server = b.register(1, RpcOptions::default()).unwrap();
    let serve = async move {
        while let Ok(call) = server.receive().await {
            // Some callers have given up.
            let _ = call.reply(b"!").await;
        }
    };
    b.platform().spawn("serve", Box::pin(serve));
    let call = |lite: Lite| async move { lite.call(NodeId(2), 1, b"?", 1).await };
    c.world.run(LIMIT, call(a.clone())).unwrap();
    c.fabric.hold(true);
    let hasty = a.with_deadline(Duration::from_millis(1));
    c.world.run(LIMIT, async move {
        // The first ones are in flight, and leave no resources for the others.
        let results = futures_util::future::join_all((0..32).map(|_| call(hasty.clone()))).await;
        assert!(
            results.contains(&Err(Error::Unknown)) && results.contains(&Err(Error::Deadline)),
            "{results:?}"
        );
    });
    c.fabric.hold(false);
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(a.audit(), []);
}

/// Memory is freed only after abandoned operations have completed.
#[test]
fn free_waits_for_what_is_on_the_wire() {
    let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
    let a = c.lite(1);
    let lmr = c.world.run(LIMIT, async move { a.alloc(NodeId(2), 8192, RW).await.unwrap() });
    let free = |c: &Cluster| platform::Platform::memory(&*c.nodes[1].0).stats().free;
    let before = free(&c);
    c.fabric.hold(true);
    let (other, hasty) = (lmr.clone(), lmr.with_deadline(Duration::from_millis(1)));
    c.world.run(LIMIT, async move {
        assert_eq!(hasty.write(0, &[1; 1000]).await, Err(Error::Unknown));
        assert_eq!(hasty.free().await, Err(Error::Unknown));
        assert_eq!(other.read(0, &mut [0]).await, Err(Error::Freed));
    });
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(free(&c), before, "not while the write may still land");
    c.fabric.hold(false);
    c.world.run_for(Duration::from_secs(10));
    assert_eq!(free(&c), before + 8192);
    drop(lmr);
}

#[test]
fn reads_and_writes_survive_a_connection_and_others_tell() {
    let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    let served = Arc::new(AtomicU64::new(0));
    let server = b.register(1, RpcOptions::default()).unwrap();
    let count = served.clone();
    let serve = async move {
        while let Ok(call) = server.receive().await {
            count.fetch_add(1, Ordering::SeqCst);
            // The caller may be cut off.
            let _ = call.reply(b"done").await;
        }
    };
    b.platform().spawn("serve", Box::pin(serve));
    let lmr = c.world.run(LIMIT, {
        let a = a.clone();
        async move { a.alloc(NodeId(2), 1 << 20, Permissions::all()).await.unwrap() }
    });
    // Each operation finds the connection broken.
    for round in 0..4 {
        let result = Arc::new(spin::Mutex::new(None));
        let (place, lmr, a) = (result.clone(), lmr.clone(), a.clone());
        c.fabric.cut(gid(2), true);
        let task = async move {
            let r = match round {
                0 => lmr.write(0, &[9; 300_000]).await.map(|()| 0),
                1 => lmr.read(0, &mut [9; 300_000]).await.map(|()| 0),
                2 => lmr.fetch_add(0, 1).await,
                _ => a.call(NodeId(2), 1, b"x", 10).await.map(|r| r.len() as u64),
            };
            *place.lock() = Some(r);
        };
        c.nodes[0].1.platform().spawn("operation", Box::pin(task));
        c.world.run_for(Duration::from_millis(5));
        c.fabric.cut(gid(2), false);
        c.world.run_for(Duration::from_secs(5));
        let expected = if round < 2 { Ok(0) } else { Err(Error::Unknown) };
        assert_eq!(*result.lock(), Some(expected), "round {round}");
    }
    assert!(counter(&a, "lite_retries") >= 2);
    assert_eq!(served.load(Ordering::SeqCst), 0);
    c.world.run(LIMIT, async move {
        let mut got = [0; 16];
        lmr.read(299_990, &mut got).await.unwrap();
        assert_eq!(got, [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0]);
        assert_eq!(a.call(NodeId(2), 1, b"x", 10).await.unwrap(), b"done");
    });
    assert_eq!(served.load(Ordering::SeqCst), 1);
}

/// The connection breaks during the request for a mapping, before or after the answer: the mapping is
/// granted all the same, once.
#[test]
fn mapping_and_allocating_survive_a_connection() {
    for (what, answered) in [("alloc", false), ("alloc", true), ("map", false), ("map", true)] {
        let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
        let (a, b) = (c.lite(1), c.lite(2));
        let owner = b.clone();
        let region = c.world.run(LIMIT, async move {
            let region = owner.alloc(NodeId(2), 64, Permissions::all()).await.unwrap();
            region.publish("shared").await.unwrap();
            region
        });
        let asker = a.clone();
        c.world.run(LIMIT, async move { drop(asker.alloc(NodeId(2), 8, RW).await.unwrap()) });
        c.world.run_for(Duration::from_secs(1));
        let free = c.nodes[1].0.memory().stats().free;
        let result = Arc::new(spin::Mutex::new(None));
        let (place, asker) = (result.clone(), a.with_deadline(Duration::from_secs(40)));
        c.fabric.cut(gid(2), !answered);
        // The owner grants the mapping, and its answer finds the connection broken.
        c.nodes[1].0.hold("lite-answer", answered);
        c.fabric.hold_between(gid(2), gid(1), answered);
        c.nodes[0].1.platform().spawn(
            "ask",
            Box::pin(async move {
                let lmr = match what {
                    "map" => asker.map("shared", RW).await,
                    _ => asker.alloc(NodeId(2), 64, RW).await,
                };
                *place.lock() = Some(lmr);
            }),
        );
        c.world.run_for(Duration::from_millis(5));
        c.fabric.cut(gid(2), true);
        c.nodes[1].0.hold("lite-answer", false);
        c.fabric.hold_between(gid(2), gid(1), false);
        c.world.run_for(Duration::from_millis(5));
        c.fabric.cut(gid(2), false);
        c.world.run_for(Duration::from_secs(50));
        let lmr = result.lock().take().unwrap_or_else(|| panic!("{what}, answered: {answered}: no end"));
        let lmr = lmr.unwrap_or_else(|error| panic!("{what}, answered: {answered}: {error}"));
        let lmr = c.world.run(LIMIT, async move {
            lmr.write(0, &[7; 64]).await.unwrap();
            lmr
        });
        drop(lmr);
        c.world.run_for(Duration::from_secs(10));
        assert_eq!(c.nodes[1].0.memory().stats().free, free, "{what}, answered: {answered}: memory is left");
        drop(region);
    }
}

/// Each node of a cluster connects to all others at the same time, in many orders of events.
#[test]
fn both_may_connect_at_the_same_time() {
    for seed in 0..50 {
        let mut c = Cluster::new(seed, 4, 16 << 20, &Config::default());
        let done = Arc::new(AtomicU64::new(0));
        for i in 1..=4 {
            for j in 1..=4 {
                let (lite, done) = (c.lite(i), done.clone());
                let task = async move {
                    let lmr = lite.alloc(NodeId(j), 4096, RW).await.unwrap();
                    lmr.write(5, &[i as u8; 1000]).await.unwrap();
                    done.fetch_add(1, Ordering::SeqCst);
                };
                c.nodes[i - 1].1.platform().spawn("connects", Box::pin(task));
            }
        }
        let end = c.world.now() + Duration::from_millis(100);
        assert!(c.world.run_until(end, || done.load(Ordering::SeqCst) == 16), "seed {seed}: {done:?}");
    }
}

#[test]
fn without_the_manager_there_is_no_membership() {
    let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    let server = a.register(1, RpcOptions::default()).unwrap();
    let lmr = c.world.run(LIMIT, {
        let a = a.clone();
        async move { a.alloc(NodeId(2), 4096, Permissions::all()).await.unwrap() }
    });
    let waits = Arc::new(AtomicU64::new(0));
    let (l, w) = (a.clone(), waits.clone());
    let task = async move {
        assert_eq!(l.barrier("never", &[NodeId(1), NodeId(2)]).await, Err(Error::LinkDown));
        w.fetch_add(1, Ordering::SeqCst);
    };
    a.platform().spawn("barrier", Box::pin(task));
    c.world.run_for(Duration::from_millis(1));
    c.hub.cut(NodeId(1));
    c.world.run(LIMIT, async move {
        assert_eq!(server.receive().await.unwrap_err(), Error::LinkDown);
        assert_eq!(lmr.write(0, &[1]).await, Err(Error::LinkDown));
        assert_eq!(lmr.fetch_add(0, 1).await, Err(Error::LinkDown));
        assert_eq!(a.call(NodeId(2), 1, b"", 0).await, Err(Error::LinkDown));
        assert_eq!(a.map("x", RW).await.unwrap_err(), Error::LinkDown);
        assert_eq!(a.control_messages().next().await, None);
    });
    c.world.run_for(Duration::from_millis(1));
    assert_eq!(waits.load(Ordering::SeqCst), 1);
    c.hub.declare_dead(NodeId(1));
    c.world.run(LIMIT, async move {
        b.sleep(Duration::from_millis(1)).await;
        assert_eq!(b.call(NodeId(1), 1, b"", 0).await, Err(Error::NodeDown(NodeId(1))));
        b.barrier("alone", &[b.node_id()]).await.unwrap();
    });
}

/// The connection breaks while a node comes to a barrier, before or after the home has noted it, as the
/// first of the group or as the last: the barrier opens all the same, and once. The next barrier of that
/// name waits for both nodes again.
#[test]
fn a_barrier_survives_a_connection() {
    for (noted, last) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("noted: {noted}, last: {last}");
        let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
        let (a, b) = (c.lite(1), c.lite(2));
        let asker = b.clone();
        c.world.run(LIMIT, async move { drop(asker.alloc(NodeId(1), 8, RW).await.unwrap()) });
        let opened = Arc::new(AtomicU64::new(0));
        let enter = |c: &Cluster, lite: &Lite| {
            let (lite, opened) = (lite.with_deadline(Duration::from_secs(600)), opened.clone());
            let place = usize::from(lite.node_id().0) - 1;
            let task = async move {
                lite.barrier("b", &[NodeId(1), NodeId(2)]).await.unwrap();
                opened.fetch_add(1, Ordering::SeqCst);
            };
            c.nodes[place].1.platform().spawn("enter", Box::pin(task));
        };
        if last {
            enter(&c, &a);
            c.world.run_for(Duration::from_millis(1));
        }
        // The home hears the request or not; in neither case does its answer arrive.
        c.fabric.cut(gid(2), !noted);
        c.fabric.hold_between(gid(1), gid(2), noted);
        enter(&c, &b);
        c.world.run_for(Duration::from_millis(5));
        c.fabric.cut(gid(2), true);
        c.fabric.hold_between(gid(1), gid(2), false);
        c.world.run_for(Duration::from_millis(5));
        c.fabric.cut(gid(2), false);
        c.world.run_for(Duration::from_secs(5));
        if !last {
            assert_eq!(opened.load(Ordering::SeqCst), 0, "{case}: one node is not there yet");
            enter(&c, &a);
            c.world.run_for(Duration::from_secs(5));
        }
        assert_eq!(opened.load(Ordering::SeqCst), 2, "{case}: the barrier is open");
        enter(&c, &a);
        c.world.run_for(Duration::from_secs(5));
        assert_eq!(opened.load(Ordering::SeqCst), 2, "{case}: nothing of the former barrier is left");
        enter(&c, &b);
        c.world.run_for(Duration::from_secs(5));
        assert_eq!(opened.load(Ordering::SeqCst), 4, "{case}: the next barrier opens");
    }
}
