//! A manager that is silent for longer than the lease: the node waits, and loses nothing.

use lite::testing::{Cluster, Host};
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, RpcOptions};
use platform::Platform;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;
use verbs::Gid;

const LIMIT: Duration = Duration::from_secs(60);
const LEASE_MS: u32 = 1000;
const LEASE: Duration = Duration::from_millis(LEASE_MS as u64);
const ALL: Permissions = Permissions::all();
/// The function of node 2.
const COUNT: u32 = 1;

fn gid(i: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, i])
}

/// Two nodes with short leases; the second node's lease is renewed once for the whole test.
struct Pair {
    c: Cluster,
    a: Lite,
    b: Lite,
    /// A region of the second node, as the first and as the second map it.
    far: Lmr,
    near: Lmr,
    /// The calls and messages that the second node has served.
    served: Arc<AtomicU64>,
}

impl Pair {
    fn new(config: &Config) -> Self {
        let mut c = Cluster::new(1, 0, 16 << 20, config);
        c.hub.set_lease(LEASE_MS);
        for i in 1..=2 {
            c.join(i, 16 << 20, config);
        }
        let (a, b) = (c.lite(1), c.lite(2));
        let end = c.world.now() + Duration::from_secs(1 << 20);
        c.hub.renew(NodeId(2), end);
        c.world.run_for(Duration::from_millis(1));
        let server = b.register(COUNT, RpcOptions::default()).unwrap();
        let served = Arc::new(AtomicU64::new(0));
        let count = served.clone();
        b.platform().spawn(
            "counts",
            Box::pin(async move {
                while let Ok(call) = server.receive().await {
                    count.fetch_add(1, Ordering::SeqCst);
                    // No caller waits for a reply to a message.
                    let _ = call.reply(b"counted").await;
                }
            }),
        );
        let (far, near) = c.world.run(LIMIT, {
            let (a, b) = (a.clone(), b.clone());
            async move {
                let near = b.alloc(NodeId(2), 1 << 20, ALL).await.unwrap();
                near.publish("region").await.unwrap();
                let far = a.map("region", ALL).await.unwrap();
                // The nodes are connected.
                far.write(0, &[1]).await.unwrap();
                a.call(NodeId(2), COUNT, b"", 10).await.unwrap();
                (far, near)
            }
        });
        served.store(0, Ordering::SeqCst);
        Self { c, a, b, far, near, served }
    }

    /// Keeps the manager silent until the lease of the first node has passed, and for some time beyond.
    fn silence(&mut self) {
        self.c.world.run_for(LEASE + Duration::from_millis(300));
        assert!(self.a.is_suspended() && self.a.is_member());
    }

    /// Acknowledges a heartbeat of the first node, as the manager.
    fn answer(&mut self) {
        let until = self.c.world.now() + LEASE;
        self.c.hub.renew(NodeId(1), until);
        self.c.world.run_for(Duration::from_millis(1));
        assert!(!self.a.is_suspended() && self.a.is_member());
    }

    /// Runs something on the first node; returns the place of its result.
    fn begin<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Arc<Mutex<Option<T>>> {
        let place = Arc::new(Mutex::new(None));
        let result = place.clone();
        let task = async move {
            let done = task.await;
            *result.lock().unwrap() = Some(done);
        };
        self.a.platform().spawn("test", Box::pin(task));
        place
    }

    /// Returns the first bytes of the region, as its node sees them.
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let near = self.near.clone();
        self.c.world.run(LIMIT, async move {
            let mut bytes = [0; N];
            near.read(0, &mut bytes).await.unwrap();
            bytes
        })
    }

    fn host(&self, i: usize) -> &Arc<Host> {
        &self.c.nodes[i - 1].0
    }
}

fn taken<T>(place: &Mutex<Option<T>>) -> Option<T> {
    place.lock().unwrap().take()
}

type Operation = (&'static str, fn(Lite, Lmr) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>);

/// One operation of each kind.
fn operations() -> Vec<Operation> {
    vec![
        ("write", |_, r| Box::pin(async move { r.write(0, &[7; 8]).await })),
        ("long write", |_, r| Box::pin(async move { r.write(0, &[7; 300_000]).await })),
        ("read", |_, r| Box::pin(async move { r.read(0, &mut [0; 8]).await })),
        ("atomic", |_, r| Box::pin(async move { r.fetch_add(0, 1 << 40).await.map(drop) })),
        ("memset", |_, r| Box::pin(async move { r.memset(0, 100, 9).await })),
        ("call", |l, _| Box::pin(async move { l.call(NodeId(2), COUNT, b"?", 10).await.map(drop) })),
        ("long call", |l, _| {
            Box::pin(async move { l.call(NodeId(2), COUNT, &[1; 60_000], 60_000).await.map(drop) })
        }),
        ("message", |l, _| Box::pin(async move { l.send(NodeId(2), COUNT, b"!").await })),
        ("alloc", |l, _| Box::pin(async move { l.alloc(NodeId(2), 100, ALL).await.map(drop) })),
        ("lock", |l, _| {
            Box::pin(async move {
                let lock = l.create_lock(NodeId(2), "lock").await?;
                lock.lock().await?.unlock().await
            })
        }),
        ("own lock", |l, _| Box::pin(async move { l.create_lock(NodeId(1), "own").await.map(drop) })),
        ("own memory", |l, _| Box::pin(async move { l.alloc(NodeId(1), 100, ALL).await.map(drop) })),
        ("name", |l, _| Box::pin(async move { l.map("region", ALL).await.map(drop) })),
        ("queue", |l, r| {
            Box::pin(async move {
                let queue = l.completion_queue(4);
                let op = lite::Op { lmr: &r, offset: 0, kind: lite::OpKind::Write(&[8; 8]), tag: 1 };
                queue.post(&[op]).await?;
                queue.next(&mut []).await.map_or(Ok(()), |done| done.result.map(drop))
            })
        }),
    ]
}

#[test]
fn operations_wait_for_the_managers_answer_and_then_succeed() {
    for (what, operation) in operations() {
        let mut p = Pair::new(&Config::default());
        let free = |p: &Pair| (p.host(1).memory().stats().free, p.c.fabric.queue_pairs(gid(1)));
        let (before, incarnation) = (free(&p), p.a.incarnation());
        p.silence();
        let result = p.begin(operation(p.a.clone(), p.far.clone()));
        p.c.world.run_for(2 * LEASE);
        assert_eq!(taken(&result), None, "{what} does not wait");
        assert_eq!(p.bytes(), [1, 0, 0, 0, 0, 0, 0, 0], "{what} changes memory of another node");
        assert_eq!(p.served.load(Ordering::SeqCst), 0, "{what} reaches another node");
        // Nothing has been torn down.
        assert_eq!((free(&p), p.a.incarnation()), (before, incarnation), "{what}");
        p.answer();
        p.c.world.run_for(Duration::from_millis(10));
        assert_eq!(taken(&result), Some(Ok(())), "{what}");
    }
}

#[test]
fn an_operation_whose_deadline_passes_meanwhile_has_no_effect() {
    for (what, operation) in operations() {
        let mut p = Pair::new(&Config::default());
        p.silence();
        let (hasty, far) = (p.a.with_deadline(LEASE), p.far.with_deadline(LEASE));
        let result = p.begin(operation(hasty, far));
        p.c.world.run_for(2 * LEASE);
        assert_eq!(taken(&result), Some(Err(Error::Deadline)), "{what}");
        p.answer();
        p.c.world.run_for(Duration::from_millis(10));
        assert_eq!(p.bytes(), [1, 0, 0, 0, 0, 0, 0, 0], "{what} changes memory of another node");
        assert_eq!(p.served.load(Ordering::SeqCst), 0, "{what} reaches another node");
    }
}

/// Peers go on with the memory of a suspended node, and its answers to their calls wait.
#[test]
fn peers_reach_the_memory_and_their_calls_are_answered_later() {
    let mut p = Pair::new(&Config::default());
    let server = p.a.register(COUNT, RpcOptions::default()).unwrap();
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    p.begin(async move {
        while let Ok(call) = server.receive().await {
            count.fetch_add(1, Ordering::SeqCst);
            call.reply(b"later").await.unwrap();
        }
    });
    let (own, theirs) = p.c.world.run(LIMIT, {
        let (a, b) = (p.a.clone(), p.b.clone());
        async move {
            let own = a.alloc(NodeId(1), 4096, ALL).await.unwrap();
            own.publish("own").await.unwrap();
            (own, b.map("own", ALL).await.unwrap())
        }
    });
    p.silence();
    p.c.world.run(LIMIT, async move {
        theirs.write(0, b"news").await.unwrap();
        let mut bytes = [0; 4];
        theirs.read(0, &mut bytes).await.unwrap();
        assert_eq!(&bytes, b"news");
    });
    let reply = Arc::new(Mutex::new(None));
    let (caller, place) = (p.b.clone(), reply.clone());
    p.b.platform().spawn(
        "calls",
        Box::pin(async move {
            let got = caller.call(NodeId(1), COUNT, b"?", 10).await;
            *place.lock().unwrap() = Some(got);
        }),
    );
    p.c.world.run_for(LEASE);
    assert_eq!(handled.load(Ordering::SeqCst), 1, "a suspended node takes calls in");
    assert_eq!(taken(&reply), None, "it answers none");
    p.answer();
    p.c.world.run_for(Duration::from_millis(10));
    assert_eq!(taken(&reply), Some(Ok(b"later".to_vec())));
    drop(own);
}

#[test]
fn what_is_on_the_wire_when_the_lease_passes_ends() {
    let mut p = Pair::new(&Config::default());
    p.c.fabric.hold(true);
    let (far, caller) = (p.far.clone(), p.a.clone());
    let written = p.begin(async move { far.write(0, &[5; 8]).await });
    let called = p.begin(async move { caller.call(NodeId(2), COUNT, b"?", 10).await });
    p.silence();
    assert_eq!((taken(&written), taken(&called)), (None, None));
    p.c.fabric.hold(false);
    p.c.world.run_for(Duration::from_millis(50));
    assert!(p.a.is_suspended());
    assert_eq!(taken(&written), Some(Ok(())));
    assert_eq!(taken(&called), Some(Ok(b"counted".to_vec())));
    assert_eq!(p.bytes(), [5; 8]);
}

/// A write is lost on the wire while its node is suspended, and its deadline passes before the manager
/// answers: the error allows that the write arrives.
#[test]
fn what_was_lost_before_the_deadline_passes_is_not_called_undone() {
    let mut p = Pair::new(&Config::default());
    p.c.fabric.hold(true);
    let far = p.far.with_deadline(3 * LEASE);
    let written = p.begin(async move { far.write(0, &[5; 8]).await });
    p.silence();
    p.c.fabric.delay_between(gid(1), gid(2), true);
    p.c.fabric.hold(false);
    p.c.world.run_for(4 * LEASE);
    assert_eq!(taken(&written), Some(Err(Error::Unknown)));
}

/// Without the manager no connection can be made: a task that needs one waits, and asks once the manager
/// answers.
#[test]
fn a_connection_that_breaks_meanwhile_is_made_anew_later() {
    let mut p = Pair::new(&Config::default());
    p.c.fabric.cut(gid(2), true);
    let far = p.far.clone();
    let written = p.begin(async move { far.write(0, &[6; 8]).await });
    p.silence();
    p.c.world.run_for(3 * LEASE);
    assert_eq!(taken(&written), None);
    p.c.fabric.cut(gid(2), false);
    p.c.world.run_for(LEASE);
    assert_eq!(taken(&written), None, "it cannot be told of a new connection");
    p.answer();
    p.c.world.run_for(Duration::from_millis(100));
    assert_eq!(taken(&written), Some(Ok(())));
    assert_eq!(p.bytes(), [6; 8]);
}

/// The manager is back, and has given the node up: it ends the node's connection, as it does to nodes that
/// it declares dead.
#[test]
fn a_node_that_was_declared_dead_meanwhile_is_told_so_and_ends() {
    let mut p = Pair::new(&Config::default());
    p.silence();
    let far = p.far.clone();
    let written = p.begin(async move { far.write(0, &[9; 8]).await });
    p.c.world.run_for(LEASE);
    let caller = p.b.clone();
    p.c.hub.cut(NodeId(1));
    p.c.hub.declare_dead(NodeId(1));
    p.c.world.run_for(Duration::from_millis(1));
    assert_eq!(taken(&written), Some(Err(Error::LinkDown)));
    assert!(!p.a.is_member() && !p.a.is_suspended());
    assert_eq!(p.bytes(), [1, 0, 0, 0, 0, 0, 0, 0]);
    let called = p.c.world.run(LIMIT, async move { caller.call(NodeId(1), COUNT, b"", 0).await });
    assert_eq!(called, Err(Error::NodeDown(NodeId(1))));
}

#[test]
fn a_manager_that_is_silent_for_too_long_is_given_up() {
    let config = Config { silence: Some(Duration::from_secs(30)), ..Config::default() };
    let mut p = Pair::new(&config);
    let patient = p.far.with_deadline(Duration::from_secs(1000));
    p.silence();
    let written = p.begin(async move { patient.write(0, &[9; 8]).await });
    p.c.world.run_for(Duration::from_secs(29));
    assert!(p.a.is_suspended() && taken(&written).is_none());
    p.c.world.run_for(Duration::from_secs(2));
    assert!(!p.a.is_member());
    assert_eq!(taken(&written), Some(Err(Error::LinkDown)));

    // Without a limit the node waits for ever.
    let mut p = Pair::new(&Config { silence: None, ..Config::default() });
    p.silence();
    p.c.world.run_for(Duration::from_secs(100_000));
    p.answer();
}

#[test]
fn a_suspended_node_may_leave() {
    let mut p = Pair::new(&Config::default());
    p.silence();
    let lite = p.a.clone();
    assert_eq!(p.c.world.run(LIMIT, async move { lite.leave().await }), Ok(()));
    assert!(!p.a.is_member());
}

/// A gate that a test opens, also while the machine that waits for it is stopped.
#[derive(Default)]
struct Door {
    open: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Door {
    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    async fn opened(&self) {
        std::future::poll_fn(|cx| {
            *self.waker.lock().unwrap() = Some(cx.waker().clone());
            if self.open.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A machine is stopped for longer than its lease, as a virtual machine can be. When it goes on, its tasks
/// run before its poller has looked at anything, as tasks do on the other processors.
#[test]
fn a_machine_that_stood_still_begins_nothing_before_it_has_looked_at_its_lease() {
    let mut p = Pair::new(&Config::default());
    let server = p.a.register(COUNT, RpcOptions::default()).unwrap();
    let door = Arc::new(Door::default());
    let (far, caller) = (p.far.clone(), p.a.clone());
    let d = door.clone();
    let written = p.begin(async move {
        d.opened().await;
        far.write(0, &[3; 8]).await
    });
    let d = Arc::new(Door::default());
    let second = d.clone();
    let called = p.begin(async move {
        d.opened().await;
        caller.call(NodeId(2), COUNT, b"?", 10).await
    });
    let third = Arc::new(Door::default());
    let d = third.clone();
    let replied = p.begin(async move {
        let call = server.receive().await.unwrap();
        d.opened().await;
        call.reply(b"late").await
    });
    let reply = Arc::new(Mutex::new(None));
    let (lite, place) = (p.b.with_deadline(LIMIT), reply.clone());
    p.b.platform().spawn(
        "calls",
        Box::pin(async move {
            let got = lite.call(NodeId(1), COUNT, b"?", 10).await;
            *place.lock().unwrap() = Some(got);
        }),
    );
    p.c.world.run_for(Duration::from_millis(10));
    assert!(!p.a.is_suspended());
    p.host(1).pause(true);
    p.c.world.run_for(5 * LEASE);
    [&door, &second, &third].iter().for_each(|door| door.open());
    p.host(1).pause(false);
    p.c.world.run_for(Duration::from_millis(10));
    assert!(p.a.is_suspended());
    assert_eq!(p.bytes(), [1, 0, 0, 0, 0, 0, 0, 0], "it wrote");
    assert_eq!(p.served.load(Ordering::SeqCst), 0, "it called");
    assert_eq!(taken(&reply), None, "it answered");
    assert_eq!((taken(&written), taken(&called)), (None, None));
    p.answer();
    p.c.world.run_for(Duration::from_millis(10));
    assert_eq!(p.bytes(), [3; 8]);
    assert_eq!(taken(&written), Some(Ok(())));
    assert_eq!(taken(&called), Some(Ok(b"counted".to_vec())));
    assert_eq!((taken(&replied), taken(&reply)), (Some(Ok(())), Some(Ok(b"late".to_vec()))));
}
