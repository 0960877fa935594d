//! The last requests of a node that has died: they are served after its peers have learned of its death, and
//! before all of them have cut it off. Until then its mappings still exist, and none of these requests may
//! have an effect.

use crate::keep;
use lite::testing::Cluster;
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions};
use std::pin::Pin;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);
const READ: Permissions = Permissions::READ.union(Permissions::SHARE);
const WRITE: Permissions = Permissions::WRITE.union(Permissions::SHARE);
/// The length of the region, in bytes.
const LEN: u64 = 64 << 10;

type Work<T = ()> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request of node 2 to node 1, by its handle of a region that node 1 owns, and its effect.
struct Request {
    name: &'static str,
    /// Makes the request at node 2.
    ask: fn(Lite, Lmr) -> Work,
    /// Returns, on node 3, whether the request has had its effect.
    done: fn(Lite) -> Work<bool>,
}

/// Returns true if node 3 can map the named region with the given rights.
async fn maps(lite: Lite, name: &str, rights: Permissions) -> bool {
    match lite.map(name, rights).await {
        Ok(_) => true,
        Err(Error::Permission | Error::NoSuchName | Error::Freed) => false,
        Err(error) => panic!("{error:?}"),
    }
}

fn requests() -> Vec<Request> {
    vec![
        Request {
            name: "a right that is granted",
            ask: |_, r| Box::pin(async move { drop(r.grant(NodeId(3), Permissions::WRITE).await) }),
            done: |l| Box::pin(maps(l, "region", WRITE)),
        },
        Request {
            name: "a right that is revoked",
            ask: |_, r| Box::pin(async move { drop(r.revoke(NodeId(3), Permissions::READ).await) }),
            done: |l| Box::pin(async move { !maps(l, "region", READ).await }),
        },
        Request {
            name: "a secret",
            ask: |_, r| Box::pin(async move { drop(r.set_secret(b"secret").await) }),
            done: |l| Box::pin(async move { !maps(l, "region", READ).await }),
        },
        Request {
            name: "another master",
            ask: |_, r| Box::pin(async move { drop(r.hand_over(NodeId(3)).await) }),
            // A master may map the region with all rights.
            done: |l| Box::pin(maps(l, "region", WRITE)),
        },
        Request {
            name: "a new name",
            ask: |_, r| Box::pin(async move { drop(r.publish("more").await) }),
            done: |l| Box::pin(maps(l, "more", READ)),
        },
        Request {
            name: "a name that is freed",
            ask: |l, r| {
                Box::pin(async move {
                    drop(l.unpublish("region").await);
                    drop(r);
                })
            },
            done: |l| Box::pin(async move { !maps(l, "region", READ).await }),
        },
        Request {
            name: "a move",
            ask: |_, r| Box::pin(async move { drop(r.move_to(NodeId(3)).await) }),
            done: |l| {
                Box::pin(async move { l.map("region", READ).await.unwrap().shares() != [(NodeId(1), LEN)] })
            },
        },
        Request {
            name: "a region that is freed",
            ask: |_, r| Box::pin(async move { drop(r.free().await) }),
            done: |l| Box::pin(async move { !maps(l, "region", READ).await }),
        },
        Request {
            name: "a memset",
            ask: |_, r| Box::pin(async move { drop(r.memset(0, LEN, 1).await) }),
            done: |l| {
                Box::pin(async move {
                    let mut first = [0];
                    l.map("region", READ).await.unwrap().read(0, &mut first).await.unwrap();
                    first != [0]
                })
            },
        },
        Request {
            name: "a signal",
            ask: |l, r| {
                Box::pin(async move {
                    drop(l.open_event("event").await.unwrap().signal().await);
                    drop(r);
                })
            },
            done: |l| Box::pin(async move { l.open_event("event").await.unwrap().signal().await != Ok(1) }),
        },
        Request {
            name: "a new lock",
            ask: |l, r| {
                Box::pin(async move {
                    drop(l.create_lock(NodeId(1), "new").await);
                    drop(r);
                })
            },
            done: |l| Box::pin(async move { l.open_lock("new").await.is_ok() }),
        },
        Request {
            name: "a new event",
            ask: |l, r| {
                Box::pin(async move {
                    drop(l.create_event(NodeId(1), "new").await);
                    drop(r);
                })
            },
            done: |l| Box::pin(async move { l.open_event("new").await.is_ok() }),
        },
    ]
}

/// Returns three nodes that are connected with each other. Node 1 has a region, with node 2's handle of it,
/// and an event.
fn scene() -> (Cluster, Lmr) {
    let mut c = Cluster::new(1, 3, 8 << 20, &Config::default());
    let [a, b, d] = [c.lite(1), c.lite(2), c.lite(3)];
    let region = c.world.run(LIMIT, async move {
        for lite in [&a, &b, &d] {
            for other in [&a, &b, &d] {
                lite.alloc(other.node_id(), 1, READ).await.unwrap().free().await.unwrap();
            }
        }
        let region = a.alloc(NodeId(1), LEN, READ).await.unwrap();
        region.publish("region").await.unwrap();
        region.grant(NodeId(2), Permissions::all()).await.unwrap();
        keep(&a, (region, a.create_event(NodeId(1), "event").await.unwrap()));
        // The name of the event is known before the requests.
        drop(b.open_event("event").await.unwrap());
        b.map("region", Permissions::all()).await.unwrap()
    });
    (c, region)
}

/// Returns whether a request has its effect. `dies`: node 2 dies before node 1 serves it, and node 3 has not
/// seen that by then.
fn takes_effect(request: &Request, dies: bool) -> bool {
    let (mut c, region) = scene();
    let [home, witness] = [0, 2].map(|i| c.nodes[i].0.clone());
    let asker = c.lite(2);
    home.hold("lite-rpc", true);
    asker.platform().spawn("test", (request.ask)(asker.clone(), region));
    c.world.run_for(MS);
    if dies {
        witness.hold("lite-control-in", true);
        c.nodes[1].0.kill();
        c.hub.declare_dead(NodeId(2));
        c.world.run_for(5 * MS);
        assert!(c.lite(1).settled_lives().is_empty(), "node 3 has not seen it");
    }
    home.hold("lite-rpc", false);
    c.world.run_for(100 * MS);
    witness.hold("lite-control-in", false);
    c.world.run_for(100 * MS);
    assert_eq!(c.lite(1).settled_lives().len(), usize::from(dies));
    c.world.run(LIMIT, (request.done)(c.lite(3)))
}

#[test]
fn no_request_of_a_dead_node_has_an_effect() {
    for request in requests() {
        assert!(takes_effect(&request, false), "{} of a live node", request.name);
        assert!(!takes_effect(&request, true), "{} of a dead node", request.name);
    }
}

/// Node 3 makes node 2 copy to a region of node 1, for which node 2 borrows node 3's mapping there. Node 2
/// dies when node 1 has not read some message of this; nothing is lent to it afterwards.
#[test]
fn nothing_is_lent_to_a_dead_node() {
    let mut copied = 0;
    for from in 0..60 {
        let (mut c, _region) = scene();
        let [a, d] = [c.lite(1), c.lite(3)];
        let source = c.world.run(LIMIT, {
            let (a, d) = (a.clone(), d.clone());
            async move {
                let target = a.alloc(NodeId(1), LEN, READ | WRITE).await.unwrap();
                target.publish("target").await.unwrap();
                keep(&a, target);
                (d.alloc(NodeId(2), LEN, READ).await.unwrap(), d.map("target", WRITE).await.unwrap())
            }
        });
        let home = c.nodes[0].0.clone();
        let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let end = ended.clone();
        d.platform().spawn(
            "test",
            Box::pin(async move {
                let (from, to) = source;
                drop(from.memmove(0, &to, 0, LEN).await);
                end.store(true, std::sync::atomic::Ordering::SeqCst);
            }),
        );
        let (stop, rounds) = (c.world.now() + 2 * MS, std::cell::Cell::new(0));
        c.world.run_until(stop, || {
            rounds.set(rounds.get() + 1);
            rounds.get() > from
        });
        copied += usize::from(ended.load(std::sync::atomic::Ordering::SeqCst));
        home.hold("lite-rpc", true);
        c.world.run_until(stop, || false);
        c.nodes[1].0.kill();
        c.hub.declare_dead(NodeId(2));
        c.world.run_for(5 * MS);
        home.hold("lite-rpc", false);
        c.world.run_for(Duration::from_secs(30));
        let left = a.audit();
        assert!(
            left.iter().all(|(what, _)| *what != "entries of lives that have ended"),
            "after {from} rounds: {left:?}"
        );
    }
    assert!(copied > 5, "the copy has ended after most of the rounds: in {copied} runs");
}
