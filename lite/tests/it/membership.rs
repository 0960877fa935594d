//! Leaving in good order, and joining again.

use crate::{keep, spawn};
use lite::testing::{Cluster, Device};
use lite::{Change, Config, Error, Lite, NodeId, Permissions, RpcOptions};
use platform::{Instant, IoAddr, Platform};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{Gid, MacAddr, PortAddress, Rnic};

const LIMIT: Duration = Duration::from_secs(60);
const RWS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::SHARE);

/// Leases last a day here, so that a wait for one would be seen.
#[test]
fn a_node_leaves_the_others_go_on_and_it_joins_again() {
    let config = Config::default();
    let mut c = Cluster::new(1, 3, 16 << 20, &config);
    let (a, b, d) = (c.lite(1), c.lite(2), c.lite(3));
    let mut watcher = a.watch();
    let free = |l: &Lite| l.platform().memory().stats().free;
    // All are connected, so that memory can be compared.
    c.world.run(LIMIT, {
        let all = [a.clone(), b.clone(), d.clone()];
        async move {
            for l in &all {
                for n in 1..=3 {
                    l.alloc(NodeId(n), 1, RWS).await.unwrap().free().await.unwrap();
                }
            }
        }
    });
    let before = (free(&a), free(&d));
    let _lock = c.world.run(LIMIT, {
        let a = a.clone();
        async move { a.create_lock(NodeId(1), "lock").await.unwrap() }
    });
    let server = b.register(1, RpcOptions::default()).unwrap();
    let l = b.clone();
    spawn(&b, async move {
        while let Ok(call) = server.receive().await {
            l.sleep(Duration::from_millis(20)).await;
            call.reply(b"in time").await.unwrap();
        }
    });
    let log = Arc::new(Mutex::new(Vec::new()));
    let held = c.world.run(LIMIT, {
        let b = b.clone();
        let (caller, waiter, place) = (a.clone(), d.clone(), log.clone());
        async move {
            // Node 2 gets regions on other nodes, other nodes map its memory, and it holds locks.
            for home in [1, 3] {
                let lmr = b.alloc(NodeId(home), 1 << 20, RWS).await.unwrap();
                lmr.publish(&format!("on {home}")).await.unwrap();
                // Leaving ends it, whether its handle is dropped or not.
                keep(&b, lmr);
            }
            let held = b.open_lock("lock").await.unwrap().lock().await.unwrap();
            let p = place.clone();
            spawn(&caller.clone(), async move {
                let lmr = caller.alloc(NodeId(2), 100, RWS).await.unwrap();
                assert_eq!(caller.call(NodeId(2), 1, b"", 10).await.unwrap(), b"in time");
                p.lock().unwrap().push("replied");
                let queued = caller.call(NodeId(2), 1, b"", 10).await;
                assert!(matches!(queued, Err(Error::NoSuchFunction | Error::NodeDown(_))), "{queued:?}");
                caller.sleep(Duration::from_millis(5)).await;
                assert_eq!(lmr.write(0, b"x").await, Err(Error::NodeDown(NodeId(2))));
                p.lock().unwrap().push("went on");
            });
            spawn(&waiter.clone(), async move {
                let guard = waiter.open_lock("lock").await.unwrap().lock().await.unwrap();
                place.lock().unwrap().push(if guard.after_death() { "after" } else { "held" });
                guard.unlock().await.unwrap();
            });
            b.sleep(Duration::from_millis(5)).await;
            held
        }
    });
    assert_eq!(*log.lock().unwrap(), [""; 0]);
    let start = c.world.now();
    c.world.run(LIMIT, {
        let b = b.clone();
        async move {
            b.leave().await.unwrap();
            assert!(held.is_lost());
            assert_eq!(b.leave().await, Err(Error::LinkDown));
            assert_eq!(b.alloc(NodeId(1), 1, RWS).await.unwrap_err(), Error::LinkDown);
            assert_eq!(b.call(NodeId(2), 1, b"", 0).await, Err(Error::LinkDown));
            assert!(b.register(9, RpcOptions::default()).unwrap().receive().await.is_err());
        }
    });
    assert!(c.world.now() - start < Duration::from_millis(30), "{:?}", c.world.now() - start);
    c.world.run_for(Duration::from_millis(20));
    assert_eq!(*log.lock().unwrap(), ["replied", "after", "went on"]);
    let change = c.world.run(LIMIT, async move { watcher.next().await.unwrap() });
    assert!(
        matches!(&change, Change::Left { node: NodeId(2), reason, .. } if reason == "left"),
        "{change:?}"
    );
    assert_eq!(a.members().iter().map(|m| m.node.0).collect::<Vec<_>>(), [1, 3]);
    // The memory that it held is free, and so is that of its connections.
    assert_eq!((free(&a), free(&d)), (before.0 + config.peer_memory(), before.1 + config.peer_memory()));

    // The machine of node 2 starts again and joins. It is another incarnation with the same number, because
    // that number is the lowest free one.
    c.nodes[1].0.kill();
    let again = c.join(2, 16 << 20, &config).clone();
    let (first, second) = (b.incarnation(), again.incarnation());
    assert!(second > first && again.node_id() == NodeId(2));
    let served = Arc::new(AtomicU64::new(0));
    let server = again.register(1, RpcOptions::default()).unwrap();
    let s = served.clone();
    spawn(&again, async move {
        while let Ok(call) = server.receive().await {
            s.fetch_add(1, Ordering::SeqCst);
            call.reply(b"again").await.unwrap();
        }
    });
    c.world.run_for(Duration::from_millis(1));
    c.world.run(LIMIT, async move {
        for l in [&a, &d, &again] {
            assert_eq!(l.call(NodeId(2), 1, b"", 10).await.unwrap(), b"again");
            assert_eq!(l.map("on 1", RWS).await.unwrap_err(), Error::NoSuchName);
            let lmr = l.alloc(NodeId(2), 8, RWS).await.unwrap();
            lmr.write(0, &[1; 8]).await.unwrap();
        }
        // The names of the node are free.
        let lmr = again.alloc(NodeId(3), 8, RWS).await.unwrap();
        lmr.publish("on 1").await.unwrap();
        drop(lmr);
    });
    assert_eq!(served.load(Ordering::SeqCst), 3);
}

/// A node hears at the same time that a peer has died and that another node has joined under its number. A
/// request meant for the old incarnation must not be sent to the new one, which would allocate memory for a
/// caller that no longer exists.
#[test]
fn a_question_to_one_life_is_not_put_to_the_next() {
    let config = Config::default();
    let mut c = Cluster::new(1, 2, 16 << 20, &config);
    let a = c.lite(1);
    c.nodes[1].0.pause(true);
    let result = Arc::new(Mutex::new(None));
    let (place, l) = (result.clone(), a.clone());
    spawn(&a, async move {
        let got = l.alloc(NodeId(2), 100, RWS).await.map(drop);
        *place.lock().unwrap() = Some(got);
    });
    c.world.run_for(Duration::from_millis(1));
    c.nodes[0].0.pause(true);
    c.nodes[1].0.kill();
    c.hub.declare_dead(NodeId(2));
    let again = c.join(2, 16 << 20, &config).clone();
    assert_eq!(again.node_id(), NodeId(2));
    c.nodes[0].0.pause(false);
    c.world.run_for(Duration::from_secs(1));
    assert_eq!(*result.lock().unwrap(), Some(Err(Error::NodeDown(NodeId(2)))));
    assert_eq!(again.describe_regions(), [""; 0]);
    // The next request is for the new incarnation.
    c.world.run(LIMIT, async move { a.alloc(NodeId(2), 100, RWS).await.unwrap().free().await.unwrap() });
}

/// A handler that takes longer than the node waits is cut off; the node has left, and its caller does not
/// know the outcome.
#[test]
fn what_outlasts_the_deadline_is_cut_off() {
    let mut c = Cluster::new(1, 2, 16 << 20, &Config::default());
    let (a, b) = (c.lite(1), c.lite(2));
    let server = b.register(1, RpcOptions::default()).unwrap();
    let result = Arc::new(Mutex::new(None));
    let place = result.clone();
    let caller = a.clone();
    spawn(&a, async move {
        let got = caller.call(NodeId(2), 1, b"", 0).await;
        *place.lock().unwrap() = Some(got);
    });
    let start = c.world.now();
    c.world.run(LIMIT, async move {
        let call = server.receive().await.unwrap();
        assert_eq!(b.with_deadline(Duration::from_millis(100)).leave().await, Err(Error::Deadline));
        assert_eq!(server.receive().await.unwrap_err(), Error::LinkDown);
        assert_eq!(call.reply(b"").await, Err(Error::Unknown));
    });
    assert!(c.world.now() - start < Duration::from_millis(110));
    c.world.run_for(Duration::from_millis(1));
    let result = result.lock().unwrap().clone();
    assert!(matches!(result, Some(Err(Error::Unknown | Error::NodeDown(_)))), "{result:?}");
}

/// A machine that joins and leaves repeatedly.
struct Guest {
    rnic: Arc<dyn Rnic>,
    lite: Mutex<Option<Lite>>,
}

impl Device for Guest {
    fn poll(&self, now: Instant) -> bool {
        let progress = self.rnic.progress(now, 64);
        self.lite.lock().unwrap().as_ref().is_some_and(|lite| lite.poll(now)) | progress
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.lite.lock().unwrap().as_ref().and_then(Lite::next_deadline)
    }
}

/// A machine leaves and joins again, with the same RNIC: once its handles are dropped, nothing of the
/// former incarnation is left in it.
#[test]
fn a_former_life_leaves_nothing_in_the_rnic() {
    let mut c = Cluster::new(1, 1, 16 << 20, &Config::default());
    let gid = Gid::from_ipv4([10, 0, 0, 9]);
    let host = c.world.host(IoAddr(9 << 32), 16 << 20);
    let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, 9]), gid, lid: 0 };
    let rnic = c.fabric.rnic(port, host.clone());
    let guest = Arc::new(Guest { rnic: rnic.clone(), lite: Mutex::default() });
    c.world.attach(&host, guest.clone());
    let free = host.memory().stats().free;
    for round in 0..5 {
        let (link, welcome) = c.hub.join(&*rnic);
        let lite = Lite::start(host.clone(), rnic.clone(), link, welcome, Config::default()).unwrap();
        *guest.lite.lock().unwrap() = Some(lite.clone());
        c.world.run(LIMIT, async move {
            let lmr = lite.alloc(NodeId(1), 8, RWS).await.unwrap();
            lmr.write(0, &[1; 8]).await.unwrap();
            let own = lite.alloc(NodeId(2), 8, RWS | Permissions::ATOMIC).await.unwrap();
            own.fetch_add(0, 1).await.unwrap();
            drop((lmr, own));
            // Every second node stops without leaving.
            if round % 2 == 0 {
                lite.leave().await.unwrap();
            }
        });
        assert_eq!(c.fabric.completion_queues(gid), 1);
        c.hub.cut(NodeId(2));
        c.world.run_for(Duration::from_millis(1));
        let last = guest.lite.lock().unwrap().take();
        drop(last);
        c.world.run_for(Duration::from_secs(5));
        assert_eq!((c.fabric.completion_queues(gid), c.fabric.queue_pairs(gid)), (0, 0), "round {round}");
        assert_eq!(host.memory().stats().free, free);
        c.hub.declare_dead(NodeId(2));
    }
}
