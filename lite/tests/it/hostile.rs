//! A member that sends random answers and requests: no node panics or takes memory without bound because of
//! it, and the work of the others with each other goes on.

use crate::spawn;
use allocation_counter::measure;
use lite::testing::{Cluster, Hostile};
use lite::{Config, Error, Event, Lite, Lmr, Lock, NodeId, Permissions, Placement, RpcOptions};
use platform::{Instant, Platform};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const EVIL: NodeId = NodeId(3);
const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const RWS: Permissions = RW.union(Permissions::SHARE).union(Permissions::ATOMIC);
/// The bytes of the heap that all nodes together may use at once for the hostile node and for their own
/// work.
const MOST_HEAP: u64 = 2 << 20;
/// The deadline of an operation with the hostile node.
const TIMEOUT: Duration = Duration::from_millis(20);
/// The time after its deadline by which an operation must have ended.
const GRACE: Duration = Duration::from_millis(1);
/// Memory of each honest node that any member may write.
const SPARE: u64 = 64 << 10;

/// The counted work of the honest nodes with each other.
struct Honest {
    going: AtomicBool,
    done: AtomicU64,
    tasks: AtomicU64,
}

impl Honest {
    /// Counts a round; returns true if there should be another, a moment later.
    async fn goes_on(&self, lite: &Lite) -> bool {
        self.done.fetch_add(1, Ordering::SeqCst);
        lite.sleep(Duration::from_micros(50)).await;
        self.going.load(Ordering::SeqCst)
    }
}

/// Reads, writes and atomics of a region of another node that no other node writes, memsets, and moves
/// within it.
async fn memory(lite: Lite, lmr: Lmr, honest: Arc<Honest>) {
    let len = lmr.len();
    let mut round = 0u64;
    while honest.goes_on(&lite).await {
        round += 1;
        let data: Vec<u8> = (0..1000).map(|i| (i * 7 + round) as u8).collect();
        let at = 8 + round * 1237 % (len - 1008);
        lmr.write(at, &data).await.unwrap();
        let mut got = vec![0; 1000];
        lmr.read(at, &mut got).await.unwrap();
        assert_eq!(got, data);
        assert_eq!(lmr.fetch_add(0, 1).await, Ok(round - 1));
        lmr.memset(at, 1000, round as u8).await.unwrap();
        lmr.read(at, &mut got).await.unwrap();
        assert!(got.iter().all(|b| *b == round as u8));
    }
    honest.tasks.fetch_sub(1, Ordering::SeqCst);
}

/// Calls that are answered with their request.
async fn calls(lite: Lite, to: NodeId, honest: Arc<Honest>) {
    let mut round = 0u64;
    while honest.goes_on(&lite).await {
        round += 1;
        let request: Vec<u8> = (0..round * 31 % 3000).map(|i| i as u8).collect();
        assert_eq!(lite.call(to, 7, &request, 3000).await.unwrap(), request);
    }
    honest.tasks.fetch_sub(1, Ordering::SeqCst);
}

/// A lock that both nodes take, with a word that it protects.
async fn locks(lite: Lite, lock: Lock, word: Lmr, honest: Arc<Honest>) {
    while honest.goes_on(&lite).await {
        let held = lock.lock().await.unwrap();
        let mut bytes = [0; 8];
        word.read(0, &mut bytes).await.unwrap();
        let next = u64::from_le_bytes(bytes) + 1;
        lite.sleep(Duration::from_micros(3)).await;
        word.write(0, &next.to_le_bytes()).await.unwrap();
        held.unlock().await.unwrap();
        word.fetch_add(8, 1).await.unwrap();
    }
    honest.tasks.fetch_sub(1, Ordering::SeqCst);
}

/// One node signals, the other waits.
async fn events(lite: Lite, event: Event, signals: bool, honest: Arc<Honest>) {
    let mut seen = 0;
    while honest.goes_on(&lite).await {
        if signals {
            let now = event.signal().await.unwrap();
            assert!(now > seen);
            seen = now;
        } else {
            match event.with_deadline(TIMEOUT).wait(seen).await {
                Ok(now) => seen = now,
                Err(error) => assert_eq!(error, Error::Deadline),
            }
        }
    }
    honest.tasks.fetch_sub(1, Ordering::SeqCst);
}

/// Does one thing with the hostile node, with any outcome.
type Dealing = fn(Lite) -> Pin<Box<dyn Future<Output = ()> + Send>>;

async fn use_region(region: Result<Lmr, Error>) {
    let Ok(lmr) = region else { return };
    let mut bytes = [7; 300];
    let _ = lmr.write(0, &bytes).await;
    let _ = lmr.read(5, &mut bytes).await;
    let _ = lmr.fetch_add(8, 1).await;
    let _ = lmr.memset(0, lmr.len().min(5000), 1).await;
    let _ = lmr.memmove(0, &lmr, 64, 64).await;
    let _ = lmr.shares();
    let _ = lmr.grant(EVIL, RW).await;
    let _ = lmr.revoke(EVIL, RW).await;
    let _ = lmr.move_to(EVIL).await;
    if lmr.len() % 3 == 0 {
        let _ = lmr.free().await;
    }
}

fn dealings() -> Vec<Dealing> {
    vec![
        |l| Box::pin(async move { use_region(l.alloc(EVIL, 4096, RWS).await).await }),
        |l| {
            Box::pin(async move {
                let placement = Placement::Striped { nodes: vec![EVIL, l.node_id()], stripe: 4096 };
                use_region(l.alloc(placement, 20_000, RWS).await).await;
            })
        },
        |l| {
            Box::pin(async move {
                let placement = Placement::Shares(vec![(l.node_id(), 4096), (EVIL, 8192), (EVIL, 5)]);
                use_region(l.alloc(placement, 12_293, RWS).await).await;
            })
        },
        |l| Box::pin(async move { use_region(l.map("hostile-region", RW).await).await }),
        |l| Box::pin(async move { use_region(l.map("hostile-nothing", RW).await).await }),
        |l| {
            Box::pin(async move {
                let Ok(lock) = l.open_lock("hostile-lock").await else { return };
                if let Ok(held) = lock.lock().await {
                    let _ = held.fencing_token();
                    let _ = held.unlock().await;
                }
                drop(lock.try_lock().await);
                drop(lock.lock_shared().await);
            })
        },
        |l| {
            Box::pin(async move {
                let Ok(event) = l.open_event("hostile-event").await else { return };
                let _ = event.signal().await;
                let _ = event.wait(3).await;
            })
        },
        |l| {
            Box::pin(async move {
                if let Ok(lock) = l.create_lock(EVIL, "made").await {
                    drop(lock.lock().await);
                    let _ = lock.destroy().await;
                }
            })
        },
        |l| Box::pin(async move { drop(l.barrier("b", &[l.node_id(), EVIL]).await) }),
        |l| Box::pin(async move { drop(l.barrier("b", &[EVIL, NodeId(9)]).await) }),
        |l| Box::pin(async move { drop(l.call(EVIL, 5, b"hello", 100).await) }),
        |l| Box::pin(async move { drop(l.send(EVIL, 5, &[1; 50_000]).await) }),
    ]
}

/// Works with the hostile node again and again; each part of the work ends in time.
async fn deal(lite: Lite, dealing: Dealing, honest: Arc<Honest>) {
    /// The operations of one round, each with its own deadline.
    const MOST: u32 = 14;
    let patient = lite.with_deadline(TIMEOUT);
    while honest.going.load(Ordering::SeqCst) {
        let before = lite.platform().now();
        dealing(patient.clone()).await;
        let took = lite.platform().now() - before;
        assert!(took <= (TIMEOUT + GRACE) * MOST, "it took {took:?}");
        lite.sleep(Duration::from_micros(200)).await;
    }
    honest.tasks.fetch_sub(1, Ordering::SeqCst);
}

/// Returns the seed of this run: a new one each time, unless `LITE_SEED` sets it.
fn seed() -> u64 {
    let chosen = std::env::var("LITE_SEED").ok().and_then(|seed| seed.parse().ok());
    chosen.unwrap_or_else(|| RandomState::new().hash_one(0))
}

fn run(seed: u64, time: Duration) {
    println!("LITE_SEED={seed}");
    let mut c = Cluster::new(seed, 3, 16 << 20, &Config::default());
    let (a, b, evil) = (c.lite(1), c.lite(2), c.lite(3));
    let honest = Arc::new(Honest { going: AtomicBool::new(true), done: 0.into(), tasks: 0.into() });
    let spares = [0, 1].map(|i| {
        let memory = Platform::memory(&*c.nodes[i].0);
        // The memory stays allocated.
        let run = std::mem::ManuallyDrop::new(memory.lend(SPARE).unwrap());
        (NodeId(i as u16 + 1), run.addr(), SPARE)
    });
    let start = |lite: &Lite, task: Pin<Box<dyn Future<Output = ()> + Send>>| {
        honest.tasks.fetch_add(1, Ordering::SeqCst);
        spawn(lite, task);
    };
    let (at_b, at_a, lock, word, event) = c.world.run(LIMIT, {
        let (a, b) = (a.clone(), b.clone());
        async move {
            let at_b = a.alloc(NodeId(2), 1 << 20, RWS).await.unwrap();
            let at_a = b.alloc(NodeId(1), 1 << 20, RWS).await.unwrap();
            let word = a.alloc(NodeId(1), 16, RWS).await.unwrap();
            word.publish("word").await.unwrap();
            let lock = a.create_lock(NodeId(2), "lock").await.unwrap();
            let event = a.create_event(NodeId(1), "event").await.unwrap();
            (at_b, at_a, lock, word, event)
        }
    });
    let (there, second, heard) = c.world.run(LIMIT, {
        let b = b.clone();
        async move {
            let lock = b.open_lock("lock").await.unwrap();
            (b.map("word", RWS).await.unwrap(), lock, b.open_event("event").await.unwrap())
        }
    });
    for lite in [&a, &b] {
        let server = lite.register(7, RpcOptions::default()).unwrap();
        spawn(lite, async move {
            while let Ok(call) = server.receive().await {
                let reply = call.request().to_vec();
                drop(call.reply(&reply).await);
            }
        });
    }
    start(&a, Box::pin(memory(a.clone(), at_b, honest.clone())));
    start(&b, Box::pin(memory(b.clone(), at_a, honest.clone())));
    start(&a, Box::pin(calls(a.clone(), NodeId(2), honest.clone())));
    start(&b, Box::pin(calls(b.clone(), NodeId(1), honest.clone())));
    start(&a, Box::pin(locks(a.clone(), lock, word.clone(), honest.clone())));
    start(&b, Box::pin(locks(b.clone(), second, there, honest.clone())));
    start(&a, Box::pin(events(a.clone(), event, true, honest.clone())));
    start(&b, Box::pin(events(b.clone(), heard, false, honest.clone())));
    c.world.run_for(Duration::from_millis(1));
    let idle = [&a, &b].map(Lite::audit);

    let hostile = Hostile::start(&evil, seed, &spares);
    for lite in [&a, &b] {
        for dealing in dealings() {
            start(lite, Box::pin(deal(lite.clone(), dealing, honest.clone())));
        }
    }
    let end = c.world.now() + time;
    let mut most = 0;
    while c.world.now() < end {
        let done = honest.done.load(Ordering::SeqCst);
        most = most.max(measure(|| c.world.run_for(Duration::from_millis(5))).bytes_max);
        assert!(honest.done.load(Ordering::SeqCst) > done, "nothing goes on between the honest nodes");
        assert!(most < MOST_HEAP, "{most} bytes of the heap at once");
    }
    println!(
        "{} questions, {} answers, {most} bytes of the heap at once",
        hostile.questions(),
        hostile.answers()
    );
    assert!(hostile.questions() > 150 && hostile.answers() > 150);
    honest.going.store(false, Ordering::SeqCst);
    let end: Instant = c.world.now() + Duration::from_secs(20);
    let ended = c.world.run_until(end, || honest.tasks.load(Ordering::SeqCst) == 0);
    assert!(ended, "{} tasks go on", honest.tasks.load(Ordering::SeqCst));
    // The number of grants to both is the number that both have counted.
    let counts = c.world.run(LIMIT, async move {
        let mut counts = [0; 16];
        word.read(0, &mut counts).await.unwrap();
        counts
    });
    assert_eq!(counts[..8], counts[8..]);
    // The hostile node dies, and nothing of it is left.
    c.nodes[2].0.kill();
    c.hub.declare_dead(EVIL);
    c.world.run_for(Duration::from_secs(30));
    for (lite, idle) in [&a, &b].into_iter().zip(idle) {
        let left: Vec<_> = lite.audit();
        let kinds =
            |of: &[(&'static str, usize)], kind| of.iter().find(|(k, _)| *k == kind).map_or(0, |k| k.1);
        for kind in ["regions", "mappings", "barriers", "entries of lives that have ended", "waits", "calls"]
        {
            assert!(kinds(&left, kind) <= kinds(&idle, kind), "{kind}: {left:?}, {idle:?} before");
        }
    }
}

#[test]
fn a_hostile_member_harms_nobody_but_itself() {
    run(seed(), Duration::from_millis(120));
    run(seed(), Duration::from_millis(120));
}
