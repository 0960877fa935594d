//! Objects that are given up are ended in the end, although their keeper cannot be asked at once, and no
//! task here waits for it.

use crate::keep;
use lite::testing::Cluster;
use lite::{Config, Error, Lite, LockGuard, NodeId, Permissions};
use platform::{Lent, Platform};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::Gid;

const LIMIT: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);
const RWS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::SHARE);

fn cluster(count: u8) -> Cluster {
    Cluster::new(1, count, 16 << 20, &Config::default())
}

/// Runs something on a node; returns the place of its result.
fn begin<T: Send + 'static>(
    lite: &Lite,
    task: impl Future<Output = T> + Send + 'static,
) -> Arc<Mutex<Option<T>>> {
    let place = Arc::new(Mutex::new(None));
    let result = place.clone();
    let task = async move {
        let done = task.await;
        *result.lock().unwrap() = Some(done);
    };
    lite.platform().spawn("test", Box::pin(task));
    place
}

fn taken<T>(place: &Mutex<Option<T>>) -> Option<T> {
    place.lock().unwrap().take()
}

/// Keeps node 1 from connecting to another node: its connections are broken, and it has no memory for a new
/// one.
struct Cut(Vec<Box<dyn Lent>>);

impl Cut {
    fn new(c: &mut Cluster) -> Self {
        c.fabric.cut(Gid::from_ipv4([10, 0, 0, 1]), true);
        let a = c.lite(1).with_deadline(MS);
        c.world.run(LIMIT, async move { a.call(NodeId(2), 1, b"", 0).await.unwrap_err() });
        c.world.run_for(10 * MS);
        let host = c.nodes[0].0.clone();
        let mut held = Vec::new();
        while let len @ 1.. = Platform::memory(&*host).largest_free() {
            held.push(Platform::memory(&*host).lend(len).unwrap());
        }
        Self(held)
    }

    /// Ends the fault, so that the nodes connect again.
    fn end(self, c: &mut Cluster) {
        drop(self.0);
        c.fabric.cut(Gid::from_ipv4([10, 0, 0, 1]), false);
        c.world.run_for(Duration::from_secs(5));
    }
}

/// A future that ends an object.
struct End(Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>);
/// A function that makes an object on node 2, and returns the future that ends the object.
type Make = fn(Lite) -> Pin<Box<dyn Future<Output = End> + Send>>;

fn kinds() -> Vec<(&'static str, Make)> {
    vec![
        ("a region", |l| {
            Box::pin(async move {
                let region = l.alloc(NodeId(2), 4096, RWS).await.unwrap();
                region.publish("region").await.unwrap();
                End(Box::pin(region.free()))
            })
        }),
        ("a counter", |l| {
            Box::pin(async move {
                let counter = l.create_counter(NodeId(2), "counter").await.unwrap();
                End(Box::pin(counter.destroy()))
            })
        }),
        ("a lock", |l| {
            Box::pin(async move {
                let lock = l.create_lock(NodeId(2), "lock").await.unwrap();
                End(Box::pin(lock.destroy()))
            })
        }),
        ("an event", |l| {
            Box::pin(async move {
                let event = l.create_event(NodeId(2), "event").await.unwrap();
                End(Box::pin(event.destroy()))
            })
        }),
    ]
}

/// Returns what is left on node 2.
fn left(c: &mut Cluster, lite: &Lite) -> Vec<(&'static str, usize)> {
    // The peer's end of the broken connection is found when it is used.
    let from = c.lite(2);
    c.world.run(LIMIT, async move { drop(from.alloc(NodeId(1), 8, RWS).await.unwrap()) });
    c.world.run_for(Duration::from_secs(5));
    lite.audit()
}

#[test]
fn what_its_node_could_not_be_asked_to_end_is_ended_later() {
    for (what, make) in kinds() {
        let mut c = cluster(2);
        let (a, b) = (c.lite(1), c.lite(2));
        let End(end) = c.world.run(LIMIT, make(a));
        let cut = Cut::new(&mut c);
        let ended = c.world.run(LIMIT, end);
        assert!(matches!(ended, Err(Error::NoMemory { .. })), "{what}: {ended:?}");
        assert!(b.audit().iter().any(|(kind, _)| ["regions", "objects"].contains(kind)), "{what} is there");
        cut.end(&mut c);
        assert_eq!(left(&mut c, &b), [], "{what}");
    }
}

/// Checks that an object is ended although no task waits for its end.
#[test]
fn what_is_given_up_in_the_middle_of_its_end_is_ended_later() {
    for (what, make) in kinds() {
        let mut c = cluster(2);
        let (a, b) = (c.lite(1), c.lite(2));
        let End(mut end) = c.world.run(LIMIT, make(a));
        c.nodes[1].0.hold("lite-rpc", true);
        c.world.run(LIMIT, async move {
            let once = std::future::poll_fn(|cx| std::task::Poll::Ready(end.as_mut().poll(cx).is_pending()));
            assert!(once.await);
        });
        c.nodes[1].0.hold("lite-rpc", false);
        assert_eq!(left(&mut c, &b), [], "{what}");
    }
}

/// The right to free a region is revoked while the node frees it: its handle is dropped as any other, and
/// does not keep the region for ever.
#[test]
fn a_handle_that_may_not_free_its_region_any_more_is_dropped() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    let (region, mapped) = c.world.run(LIMIT, {
        let a = a.clone();
        async move {
            let region = b.alloc(NodeId(2), 4096, RWS | Permissions::ADMIN).await.unwrap();
            region.publish("region").await.unwrap();
            let mapped = a.map("region", Permissions::ADMIN).await.unwrap();
            (region, mapped)
        }
    });
    // Node 1 does not learn of it at first.
    c.nodes[0].0.hold("lite-rpc", true);
    let revoking = region.clone();
    let revoked = begin(&c.lite(2), async move { revoking.revoke(NodeId(1), Permissions::ADMIN).await });
    c.world.run_for(MS);
    assert_eq!(c.world.run(LIMIT, mapped.free()), Err(Error::Permission));
    c.nodes[0].0.hold("lite-rpc", false);
    c.world.run_for(MS);
    assert_eq!(taken(&revoked), Some(Ok(())));
    assert_eq!(a.audit(), [], "node 1 has no part in the region any more");
    let holders = c.lite(2).describe_regions();
    assert!(holders.len() == 1 && holders[0].matches("Incarnation").count() == 2, "{holders:?}");
    c.world.run(LIMIT, region.free()).unwrap();
}

/// A lock's home has received a claim, but the answer is lost, and nothing can be asked again by the
/// deadline.
#[test]
fn a_claim_that_may_have_been_heard_is_given_back() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    let (lock, there) = c.world.run(LIMIT, {
        let b = b.clone();
        async move {
            let lock = a.create_lock(NodeId(2), "lock").await.unwrap();
            let there = b.open_lock("lock").await.unwrap();
            (lock, there)
        }
    });
    let (one, two) = (Gid::from_ipv4([10, 0, 0, 1]), Gid::from_ipv4([10, 0, 0, 2]));
    c.fabric.hold_between(two, one, true);
    let claimed = begin(&c.lite(1), async move { lock.with_deadline(Duration::from_secs(2)).lock().await });
    c.world.run_for(MS);
    let is_free = |c: &mut Cluster, there: &lite::Lock| {
        let there = there.clone();
        c.world.run(LIMIT, async move { there.try_lock().await.unwrap().is_some() })
    };
    assert!(taken(&claimed).is_none() && !is_free(&mut c, &there), "the answer is under way");
    let cut = Cut::new(&mut c);
    c.fabric.hold_between(two, one, false);
    c.world.run_for(Duration::from_secs(3));
    assert_eq!(taken(&claimed).map(|got| got.map(drop)), Some(Err(Error::Deadline)));
    cut.end(&mut c);
    assert!(is_free(&mut c, &there), "nobody has the lock");
}

/// A holder of a lock dies. The next waiter has given its claim up when it is granted the lock, and the
/// home does not know that yet.
#[test]
fn a_death_is_told_to_the_first_who_has_the_lock_in_fact() {
    let mut c = cluster(3);
    let (a, b, d) = (c.lite(1), c.lite(2), c.lite(3));
    let claimed = c.world.run(LIMIT, {
        let (a, b, d) = (a.clone(), b, d.clone());
        async move {
            a.create_lock(NodeId(1), "lock").await.unwrap();
            keep(&b, b.open_lock("lock").await.unwrap().lock().await.unwrap());
            let lock = d.open_lock("lock").await.unwrap();
            begin(&d, async move { lock.with_deadline(MS).lock().await.map(drop) })
        }
    });
    c.nodes[2].0.hold("lite-insist", true);
    c.world.run_for(2 * MS);
    assert_eq!(taken(&claimed), Some(Err(Error::Deadline)));
    c.nodes[1].0.kill();
    c.hub.declare_dead(NodeId(2));
    c.world.run_for(MS);
    c.nodes[2].0.hold("lite-insist", false);
    c.world.run(LIMIT, async move {
        let lock = a.open_lock("lock").await.unwrap();
        let after_death = |guard: &LockGuard| guard.after_death();
        // Readers are told, and so is the next writer, which must repair what the dead holder has left.
        for _ in 0..2 {
            assert!(after_death(&lock.lock_shared().await.unwrap()));
        }
        assert!(after_death(&lock.lock().await.unwrap()));
        assert!(!after_death(&lock.lock().await.unwrap()), "told once");
    });
}

/// A task that makes its node leave is dropped before the node has left.
#[test]
fn a_node_that_gives_up_waiting_for_its_leave_has_left() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    let server = a.register(1, lite::RpcOptions::default()).unwrap();
    let called = begin(&b, {
        let b = b.clone();
        async move { b.call(NodeId(1), 1, b"", 0).await }
    });
    c.world.run(LIMIT, {
        let a = a.clone();
        async move {
            // A call without a reply keeps the node from leaving at once.
            let call = server.receive().await.unwrap();
            let mut leave = Box::pin(a.leave());
            let once =
                std::future::poll_fn(|cx| std::task::Poll::Ready(leave.as_mut().poll(cx).is_pending()));
            assert!(once.await);
            drop(leave);
            drop(call);
        }
    });
    c.world.run_for(MS);
    assert!(!a.is_member());
    assert_eq!(b.members().len(), 1, "the other one knows it");
    assert!(taken(&called).is_some_and(|got| got.is_err()));
}
