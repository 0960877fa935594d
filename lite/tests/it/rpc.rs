//! Calls, messages and mailboxes over the instant RNIC.

use crate::spawn;
use lite::testing::Cluster;
use lite::{Config, Error, Lite, NodeId, Permissions, RpcOptions, RpcServer};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::Gid;

const LIMIT: Duration = Duration::from_secs(120);
const TWO: NodeId = NodeId(2);

fn cluster(count: u8, config: &Config) -> Cluster {
    Cluster::new(1, count, 64 << 20, config)
}

fn counter(lite: &Lite, name: &str) -> u64 {
    let mut value = None;
    lite.counters(&mut |(n, v)| value = if n == name { Some(v) } else { value });
    value.expect("a known counter")
}

/// Replies with the request, after `pause`, from a task of its own.
fn echo(lite: &Lite, server: Arc<RpcServer>, pause: Duration, served: Arc<AtomicU64>) {
    let l = lite.clone();
    spawn(lite, async move {
        while let Ok(mut call) = server.receive().await {
            served.fetch_add(1, Ordering::SeqCst);
            if !pause.is_zero() {
                l.sleep(pause).await;
            }
            let request = call.take_request();
            // The caller may have departed.
            let _ = call.reply(&request).await;
        }
    });
}

/// Any number of calls at once, many tasks that serve, on another node and on the own one: each is served
/// once.
#[test]
fn any_number_of_calls_and_many_servers() {
    const CALLS: u32 = 10_000;
    let mut c = cluster(2, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    for target in [&b, &a] {
        let (seen, twice) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicU64::new(0)));
        let by = Arc::new(Mutex::new(BTreeSet::new()));
        let server = Arc::new(target.register(1, RpcOptions::default()).unwrap());
        for task in 0..8 {
            let (server, seen, twice, by) = (server.clone(), seen.clone(), twice.clone(), by.clone());
            spawn(target, async move {
                while let Ok(call) = server.receive().await {
                    let new = seen.lock().unwrap().insert(call.request().to_vec());
                    twice.fetch_add(u64::from(!new), Ordering::SeqCst);
                    by.lock().unwrap().insert(task);
                    let request = call.request().to_vec();
                    call.reply(&request).await.unwrap();
                }
            });
        }
        let done = Arc::new(AtomicU64::new(0));
        for i in 0..CALLS {
            let (a, to, done) = (a.clone(), target.node_id(), done.clone());
            spawn(&a.clone(), async move {
                let mut reply = [0; 4];
                assert_eq!(a.call_into(to, 1, &i.to_le_bytes(), &mut reply).await, Ok(4));
                assert_eq!(u32::from_le_bytes(reply), i);
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        let end = c.world.now() + LIMIT;
        assert!(c.world.run_until(end, || done.load(Ordering::SeqCst) == u64::from(CALLS)), "{done:?}");
        assert_eq!((seen.lock().unwrap().len(), twice.load(Ordering::SeqCst)), (CALLS as usize, 0));
        assert_eq!(by.lock().unwrap().len(), 8, "all tasks serve");
    }
    // No call was told to try again: those without a slot waited in the queue.
    assert_eq!(counter(&a, "lite_busy"), 0);
}

/// Waiters for a slot get it in the order in which they came, whatever the others in the queue do.
#[test]
fn the_line_is_fair_and_survives_who_leaves_it() {
    let config = Config { calls: 1, ..Config::default() };
    let mut c = cluster(2, &config);
    let (a, b) = (c.lite(1), c.lite(2));
    let served = Arc::new(AtomicU64::new(0));
    let server = Arc::new(b.register(1, RpcOptions::default()).unwrap());
    echo(&b, server, Duration::from_millis(1), served.clone());
    let order = Arc::new(Mutex::new(Vec::new()));
    c.world.run(LIMIT, {
        let a = a.clone();
        async move { a.call(TWO, 1, b"", 0).await.unwrap() }
    });
    for i in 0..40u64 {
        // Each fourth gives up while it waits.
        let timeout = if i % 4 == 3 { Duration::from_micros(500 * i) } else { LIMIT };
        let (caller, order) = (a.with_deadline(timeout), order.clone());
        spawn(&a, async move {
            match caller.call(TWO, 1, &[i as u8], 1).await {
                Ok(reply) => order.lock().unwrap().push(reply[0]),
                Err(error) => assert_eq!((error, i % 4), (Error::Deadline, 3)),
            }
        });
        c.world.run_for(Duration::from_micros(10));
    }
    c.world.run_for(Duration::from_secs(1));
    let order = order.lock().unwrap();
    assert_eq!(order.len(), 30);
    // The seed runs tasks in any order: waiters that were woken together may change places, no more.
    let expected = (0..40).filter(|i| i % 4 != 3);
    for (at, i) in expected.enumerate() {
        let got = order.iter().position(|o| *o == i).unwrap();
        assert!(got.abs_diff(at) <= 8, "{i} was served as {got}, not {at}: {order:?}");
    }
    assert_eq!(served.load(Ordering::SeqCst), 1 + 30);
}

/// Calls of applications hold all their slots, and their handlers wait for events that only LITE's internal
/// messages bring.
#[test]
fn lites_own_questions_pass_calls_of_applications() {
    let mut c = cluster(2, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    let server = Arc::new(b.register(1, RpcOptions::default()).unwrap());
    let done = Arc::new(AtomicU64::new(0));
    let event = c.world.run(LIMIT, {
        let a = a.clone();
        async move { a.create_event(NodeId(1), "go").await.unwrap() }
    });
    for _ in 0..100 {
        let (server, b) = (server.clone(), b.clone());
        spawn(&b.clone(), async move {
            let event = b.open_event("go").await.unwrap();
            while let Ok(call) = server.receive().await {
                event.wait(0).await.unwrap();
                call.reply(b"").await.unwrap();
            }
        });
        let (a, done) = (a.clone(), done.clone());
        spawn(&a.clone(), async move {
            a.call(TWO, 1, b"", 0).await.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    c.world.run_for(Duration::from_millis(10));
    assert_eq!(done.load(Ordering::SeqCst), 0);
    c.world.run(LIMIT, async move {
        let lmr = a.alloc(TWO, 100, Permissions::READ).await.unwrap();
        lmr.free().await.unwrap();
        event.signal().await.unwrap();
    });
    c.world.run_for(Duration::from_millis(10));
    assert_eq!(done.load(Ordering::SeqCst), 100);
}

/// Requests and replies of half a node's memory, which is free only in parts; and all of it is free again
/// afterwards.
#[test]
fn requests_and_replies_need_no_memory_in_one_piece() {
    let mut c = cluster(2, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    const LEN: usize = 20 << 20;
    let options = RpcOptions { max_request: LEN, ..RpcOptions::default() };
    let server = Arc::new(b.register(1, options).unwrap());
    echo(&b, server, Duration::ZERO, Arc::default());
    c.world.run(LIMIT, {
        let a = a.clone();
        async move { a.call(TWO, 1, b"", 0).await.unwrap() }
    });
    let before = a.platform().memory().stats();
    let lite = a.clone();
    c.world.run(LIMIT, async move {
        // Holes of 2 MiB.
        let rights = Permissions::READ;
        let mut all = Vec::new();
        while let Ok(lmr) = lite.alloc(NodeId(1), 2 << 20, rights).await {
            all.push(lmr);
        }
        for (i, lmr) in all.drain(..).enumerate().collect::<Vec<_>>() {
            match i % 6 {
                0 => all.push(lmr),
                _ => lmr.free().await.unwrap(),
            }
        }
        let longest = lite.platform().memory().largest_free();
        assert!(longest < LEN as u64, "{longest}");
        let request: Vec<u8> = (0..LEN).map(|i| (i / 3) as u8).collect();
        let mut reply = vec![0; LEN];
        assert_eq!(lite.call_into(TWO, 1, &request, &mut reply).await, Ok(LEN));
        assert!(reply == request);
        // A short reply to a caller that accepts a long one.
        assert_eq!(lite.call(TWO, 1, b"short", LEN).await.unwrap(), b"short");
        assert_eq!(lite.call(TWO, 1, b"short", 4).await, Err(Error::TooLarge { max: 4 }));
        assert_eq!(lite.call(TWO, 1, &request, 9).await, Err(Error::TooLarge { max: 9 }));
        let huge = lite.call(TWO, 1, b"", 1 << 40).await;
        assert!(matches!(huge, Err(Error::NoMemory { asked, .. }) if asked == 1 << 40), "{huge:?}");
        for lmr in all {
            lmr.free().await.unwrap();
        }
    });
    assert_eq!(a.platform().memory().stats(), before);
}

/// A client sends as much as it can to functions that no task serves: the memory for it at the server is
/// bounded.
#[test]
fn the_memory_that_a_client_holds_is_bounded() {
    let config = Config { calls: 4000, ring: 1 << 18, backlog: 1 << 18, ..Config::default() };
    let mut c = cluster(2, &config);
    let (a, b) = (c.lite(1), c.lite(2));
    let options = RpcOptions { max_request: 1 << 20, queue: 1 << 20 };
    let servers: Vec<_> = (0..4).map(|f| b.register(f, options).unwrap()).collect();
    let before = b.platform().memory().stats().free;
    let failed = Arc::new(AtomicU64::new(0));
    let flood = allocation_counter::measure(|| {
        for i in 0..3000usize {
            let (hasty, failed) = (a.with_deadline(Duration::from_millis(50)), failed.clone());
            spawn(&a, async move {
                let request = vec![1; [10, 1000, 30_000, 500_000][i % 4]];
                // Long requests stay here; most others must try again.
                let error = hasty.call(TWO, (i / 4 % 4) as u32, &request, 10).await.unwrap_err();
                assert!(
                    matches!(error, Error::Deadline | Error::Unknown | Error::NoMemory { .. }),
                    "{error}"
                );
                failed.fetch_add(1, Ordering::SeqCst);
            });
        }
        c.world.run_for(Duration::from_millis(200));
    });
    assert_eq!(failed.load(Ordering::SeqCst), 3000);
    assert_eq!(before - b.platform().memory().stats().free, config.peer_memory());
    assert!(counter(&a, "lite_busy") > 0);
    // Only the server's share is still held: the rest has been dropped with its tasks.
    assert!(flood.bytes_current < 4 << 20, "{flood:?}");
    let held = allocation_counter::measure(|| drop(servers));
    assert!(-held.bytes_current <= i64::from(config.backlog) + (64 << 10), "{held:?}");
    assert!(-held.bytes_current > 100_000, "the test sees nothing: {held:?}");
}

/// Messages that no task receives count against the backlog of their sender, also after their sender has been
/// told that they have arrived.
#[test]
fn messages_that_nobody_receives_are_limited() {
    const LEN: usize = 1000;
    /// The bytes that a waiting request counts for in addition to its length.
    const OVERHEAD: usize = 256;
    let config = Config { backlog: 1 << 14, ..Config::default() };
    let mut c = cluster(2, &config);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let options = RpcOptions { max_request: LEN, queue: 1 << 20 };
        let mailbox = b.open_mailbox(5, options).unwrap();
        let hasty = a.with_deadline(Duration::from_millis(50));
        let room = (1 << 14) / (LEN + OVERHEAD);
        for _ in 0..2 {
            for _ in 0..room {
                hasty.send(TWO, 5, &[7; LEN]).await.unwrap();
            }
            assert_eq!(hasty.send(TWO, 5, &[7; LEN]).await, Err(Error::Deadline));
            for _ in 0..room {
                assert_eq!(mailbox.receive().await.unwrap().data().len(), LEN);
            }
        }
    });
}

/// Calls are counted where they begin and where tasks receive them: short and long ones, those to the own
/// node, and those of functions that have ended.
#[test]
fn calls_are_counted_on_both_sides() {
    let mut c = cluster(2, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    let served = Arc::new(AtomicU64::new(0));
    let options = RpcOptions { max_request: 100_000, queue: 8 };
    for round in 1..=3 {
        for (node, to) in [(&a, &a), (&a, &b)] {
            let server = Arc::new(to.register(1, options).unwrap());
            echo(to, server.clone(), Duration::ZERO, served.clone());
            let (caller, id) = (node.clone(), to.node_id());
            let before = counter(node, "lite_calls");
            c.world.run(LIMIT, async move {
                for i in 0..10 {
                    let request = vec![7; if i == 4 { 90_000 } else { 4 }];
                    assert_eq!(caller.call(id, 1, &request, 100_000).await.unwrap(), request);
                }
            });
            assert_eq!(counter(node, "lite_calls") - before, 10);
            let caller = node.clone();
            c.world.run(LIMIT, async move {
                server.unregister().await.unwrap();
                assert_eq!(caller.call(id, 1, b"late", 4).await, Err(Error::NoSuchFunction));
            });
            assert_eq!(counter(to, "lite_served"), 10 * round);
        }
        assert_eq!(served.load(Ordering::SeqCst), 20 * round);
    }
}

/// Messages are received once and in order, also when the mailbox is full for long, and short and long ones
/// mix.
#[test]
fn messages_come_once_and_in_order() {
    let mut c = cluster(2, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    for to in [b.clone(), a.clone()] {
        let a = a.clone();
        c.world.run(LIMIT, async move {
            let id = to.node_id();
            assert_eq!(a.send(id, 5, b"x").await, Err(Error::NoSuchFunction));
            let mailbox = to.open_mailbox(5, RpcOptions { max_request: 100_000, queue: 4 }).unwrap();
            assert_eq!(to.register(5, RpcOptions::default()).unwrap_err(), Error::NameTaken);
            // A mailbox has no replies.
            assert_eq!(a.call(id, 5, b"x", 1).await, Err(Error::NoSuchFunction));
            assert_eq!(a.send(id, 5, &[0; 100_001]).await, Err(Error::TooLarge { max: 100_000 }));
            let sender = a.clone();
            spawn(&a, async move {
                for i in 0..200u32 {
                    let mut message = vec![i as u8; if i % 50 == 49 { 90_000 } else { 4 }];
                    message[..4].copy_from_slice(&i.to_le_bytes());
                    sender.send(id, 5, &message).await.unwrap();
                }
            });
            for i in 0..200u32 {
                if i % 40 == 0 {
                    to.sleep(Duration::from_millis(20)).await;
                }
                let message = mailbox.receive_within(Duration::from_secs(1)).await.unwrap();
                assert_eq!(message.from(), a.node_id());
                assert_eq!(message.data()[..4], i.to_le_bytes());
                assert_eq!(message.data().len(), if i % 50 == 49 { 90_000 } else { 4 });
            }
            let none = mailbox.receive_within(Duration::from_millis(10)).await;
            assert_eq!(none.unwrap_err(), Error::Deadline);
            // Full: the fifth waits, until its deadline.
            let hasty = a.with_deadline(Duration::from_millis(10));
            for i in 0..4 {
                hasty.send(id, 5, &[i]).await.unwrap();
            }
            assert_eq!(hasty.send(id, 5, b"five").await, Err(Error::Deadline));
            mailbox.close();
            assert_eq!(hasty.send(id, 5, b"late").await, Err(Error::NoSuchFunction));
            // A function accepts messages too.
            let server = to.register(5, RpcOptions::default()).unwrap();
            a.send(id, 5, b"to a function").await.unwrap();
            let call = server.receive().await.unwrap();
            assert!(call.is_one_way());
            call.reply(b"nobody hears that").await.unwrap();
        });
    }
}

/// Several tasks answer and receive calls at once until the function is unregistered, which waits for the
/// calls in progress.
#[test]
fn unregister_waits_for_what_is_under_way() {
    let mut c = cluster(2, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    for to in [b.clone(), a.clone()] {
        let ended = Arc::new(AtomicU64::new(0));
        let (lite, e) = (a.clone(), ended.clone());
        c.world.run(LIMIT, async move {
            let id = to.node_id();
            let server = Arc::new(
                to.with_deadline(Duration::from_millis(100)).register(3, RpcOptions::default()).unwrap(),
            );
            for _ in 0..3 {
                let (to, server, ended) = (to.clone(), server.clone(), e.clone());
                spawn(&to.clone(), async move {
                    let mut next = server.receive().await;
                    while let Ok(call) = next {
                        to.sleep(Duration::from_millis(u64::from(call.request()[0]))).await;
                        let reply = call.request().to_vec();
                        next = server.reply_and_receive(call, &reply).await;
                    }
                    assert_eq!(next.unwrap_err(), Error::NoSuchFunction);
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            for i in 0..10 {
                assert_eq!(lite.call(id, 3, &[i], 1).await.unwrap(), [i]);
            }
            // The reply is too long: the caller and the server are told, and the server goes on.
            let results = Arc::new(Mutex::new(Vec::new()));
            for i in [150, 50, 50, 50] {
                let (a, results) = (lite.clone(), results.clone());
                spawn(&lite, async move {
                    let result = a.call(id, 3, &[i], 1).await;
                    results.lock().unwrap().push(result);
                });
                lite.sleep(Duration::from_millis(3)).await;
            }
            // One call takes longer than this waits; one waits in the queue, and is told.
            assert_eq!(server.unregister().await, Err(Error::Deadline));
            assert_eq!(lite.call(id, 3, &[0], 1).await, Err(Error::NoSuchFunction));
            let again = to.register(3, RpcOptions::default()).unwrap();
            server.unregister().await.unwrap();
            drop(server);
            lite.sleep(Duration::from_millis(1)).await;
            let mut results = results.lock().unwrap().clone();
            results.sort_by_key(|r| r.clone().unwrap_or_default());
            assert_eq!(results, [Err(Error::NoSuchFunction), Ok(vec![50]), Ok(vec![50]), Ok(vec![150])]);
            // The end of the old function does not end the new one.
            let hasty = lite.with_deadline(Duration::from_millis(5));
            assert_eq!(hasty.call(id, 3, &[0], 1).await, Err(Error::Unknown));
            drop(again);
        });
        assert_eq!(ended.load(Ordering::SeqCst), 3);
    }
}

/// Each target has its own result, in order; one that is cut off or slow delays no other beyond the
/// deadline.
#[test]
fn one_call_to_many_has_a_result_of_each() {
    let mut c = cluster(5, &Config::default());
    let lites: Vec<Lite> = (1..=5).map(|i| c.lite(i)).collect();
    let served = Arc::new(AtomicU64::new(0));
    for (i, lite) in lites.iter().enumerate().take(4) {
        let server = Arc::new(lite.register(1, RpcOptions::default()).unwrap());
        let pause = if i == 2 { Duration::from_secs(5) } else { Duration::ZERO };
        echo(lite, server, pause, served.clone());
    }
    c.hub.declare_dead(NodeId(2));
    c.world.run_for(Duration::from_millis(1));
    let start = c.world.now();
    let a = lites[0].with_deadline(Duration::from_secs(1));
    c.world.run(LIMIT, async move {
        let nodes = [1, 4, 2, 5, 3, 77].map(NodeId);
        let results = a.call_each(&nodes, 1, b"all", 10).await;
        let yes = Ok(b"all".to_vec());
        let expected = [
            yes.clone(),
            yes,
            Err(Error::NodeDown(NodeId(2))),
            Err(Error::NoSuchFunction),
            Err(Error::Unknown),
            Err(Error::NoSuchNode),
        ];
        assert_eq!(results, expected);
        assert_eq!(a.call_each(&[], 1, b"", 0).await, []);
    });
    assert!(c.world.now() - start < Duration::from_millis(1100));
    assert_eq!(served.load(Ordering::SeqCst), 3);
}

/// A handler drops its long reply midway, and its caller takes its memory back when it is told so: the
/// bytes on the wire arrive before.
#[test]
fn no_part_of_a_reply_lands_behind_the_verdict() {
    let mut c = cluster(2, &Config { queue_pairs: 4, ..Config::default() });
    let (a, b) = (c.lite(1), c.lite(2));
    let server = b.register(1, RpcOptions::default()).unwrap();
    const LEN: usize = 1 << 20;
    let result = Arc::new(Mutex::new(None));
    let (caller, place) = (a.clone(), result.clone());
    spawn(&a, async move {
        let got = caller.call(TWO, 1, b"", LEN).await;
        *place.lock().unwrap() = Some(got);
    });
    let lite = b.clone();
    let fabric = c.fabric.clone();
    c.world.run(LIMIT, async move {
        let call = server.receive().await.unwrap();
        fabric.hold(true);
        fabric.record_writes();
        let reply = vec![0x77; LEN];
        // The reply is dropped with its first chunks on the wire.
        let mut reply = Box::pin(call.reply(&reply));
        std::future::poll_fn(|cx| {
            assert!(reply.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        drop(reply);
        lite.sleep(Duration::from_millis(1)).await;
        fabric.hold(false);
    });
    c.world.run_for(Duration::from_millis(1));
    assert!(matches!(*result.lock().unwrap(), Some(Err(Error::Refused(_)))), "{result:?}");
    let writes = c.fabric.writes();
    let last_chunk = writes.iter().rposition(|(imm, len)| imm.is_none() && *len > 0).unwrap();
    let verdict = writes.iter().rposition(|(imm, _)| imm.is_some()).unwrap();
    assert!(last_chunk < verdict, "{writes:?}");
}

/// Over a connection that fails again and again, a call is served at most once, and exactly once if it
/// succeeded; so is a message.
#[test]
fn at_most_once_across_connections() {
    for seed in 0..10 {
        let mut c = Cluster::new(seed, 2, 16 << 20, &Config::default());
        let (a, b) = (c.lite(1), c.lite(2));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mailbox = b.open_mailbox(2, RpcOptions { queue: 3, ..RpcOptions::default() }).unwrap();
        let server = b.register(1, RpcOptions { queue: 3, ..RpcOptions::default() }).unwrap();
        let (s, l) = (seen.clone(), b.clone());
        spawn(&b, async move {
            while let Ok(call) = server.receive().await {
                s.lock().unwrap().push(call.request()[0]);
                l.sleep(Duration::from_micros(30)).await;
                let reply = call.request().to_vec();
                let _ = call.reply(&reply).await;
            }
        });
        let s = seen.clone();
        spawn(&b, async move {
            while let Ok(message) = mailbox.receive().await {
                s.lock().unwrap().push(message.data()[0]);
            }
        });
        let results = Arc::new(Mutex::new(Vec::new()));
        for i in 0..200u8 {
            let (a, results) = (a.clone(), results.clone());
            spawn(&a.clone(), async move {
                a.sleep(Duration::from_micros(u64::from(i) * 20)).await;
                let data = vec![i; [1, 200, 50_000][usize::from(i) % 3]];
                let result = match i % 2 {
                    0 => a.call(TWO, 1, &data, data.len()).await.map(drop),
                    _ => a.send(TWO, 2, &data).await,
                };
                results.lock().unwrap().push((i, result));
            });
        }
        for _ in 0..10 {
            c.world.run_for(Duration::from_micros(400 + 13 * seed));
            c.fabric.cut(Gid::from_ipv4([10, 0, 0, 2]), true);
            c.world.run_for(Duration::from_micros(50));
            c.fabric.cut(Gid::from_ipv4([10, 0, 0, 2]), false);
        }
        c.world.run_for(Duration::from_secs(20));
        let (seen, results) = (seen.lock().unwrap(), results.lock().unwrap());
        assert_eq!(results.len(), 200, "seed {seed}");
        let mut unknown = 0;
        for (i, result) in results.iter() {
            let times = seen.iter().filter(|s| *s == i).count();
            match result {
                Ok(()) => assert_eq!(times, 1, "seed {seed}: {i}"),
                Err(Error::Unknown) => {
                    assert!(times <= 1, "seed {seed}: {i}");
                    unknown += 1;
                }
                other => panic!("seed {seed}: {i}: {other:?}"),
            }
        }
        assert!(unknown > 0 && unknown < 150, "seed {seed}: {unknown}");
    }
}

/// Most messages are posted without a signal: a failure of one ends its connection all the same, at either
/// end, and the call with it, long before its deadline.
#[test]
fn a_message_that_fails_without_a_signal_ends_its_connection() {
    let pause = Duration::from_millis(5);
    for sends in [1, 2] {
        let mut c = cluster(2, &Config::default());
        let (a, b) = (c.lite(1), c.lite(2));
        let served = Arc::new(AtomicU64::new(0));
        echo(&b, Arc::new(b.register(1, RpcOptions::default()).unwrap()), pause, served.clone());
        let fabric = c.fabric.clone();
        c.world.run(LIMIT, async move {
            a.call(TWO, 1, b"before", 10).await.unwrap();
            let gid = Gid::from_ipv4([10, 0, 0, 2]);
            if sends == 1 {
                fabric.cut(gid, true);
            } else {
                // The request arrives, and the reply finds the network cut.
                let fabric = fabric.clone();
                let l = a.clone();
                spawn(&a, async move {
                    l.sleep(pause / 2).await;
                    fabric.cut(gid, true);
                });
            }
            let begun = a.platform().now();
            assert_eq!(a.call(TWO, 1, b"lost", 10).await, Err(Error::Unknown));
            assert!(a.platform().now() - begun < Duration::from_secs(1), "not by the deadline");
            fabric.cut(gid, false);
            assert_eq!(a.call(TWO, 1, b"after", 10).await.unwrap(), b"after");
        });
        assert_eq!(served.load(Ordering::SeqCst), 1 + sends);
    }
}
