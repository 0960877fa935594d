//! Priorities and limits, in virtual time, over links of 1 GB/s.

use futures_util::future::{join, join_all};
use lite::testing::Cluster;
use lite::{App, Config, Error, Limits, Lite, NodeId, Op, OpKind, Permissions, Priority, RpcOptions, Scheme};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const RW: Permissions = Permissions::READ.union(Permissions::WRITE);
const LIMIT: Duration = Duration::from_secs(60);
const RATE: u64 = 1_000_000_000;

fn cluster(queue_pairs: usize) -> Cluster {
    Cluster::paced(1, 2, 64 << 20, &Config { queue_pairs, ..Config::default() }, Some(RATE))
}

/// The service that high priority got beside a flood of low priority.
#[derive(Debug)]
struct Got {
    /// The mean time of a write of 64 bytes.
    latency: Duration,
    /// The share of high priority in the bytes that 4 writers of high priority and 8 of low have written.
    share: f64,
    /// The bytes that operations of low priority moved during the measurement.
    low: u64,
}

fn beside_a_flood(scheme: Scheme, queue_pairs: usize) -> Got {
    const LOW: usize = 8;
    let mut c = cluster(queue_pairs);
    let a = c.lite(1);
    a.configure_qos(scheme);
    c.world.run(LIMIT, async move {
        let lmr = a.alloc(NodeId(2), 1 << 20, RW).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let [low, high] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let flood = |priority, count: &Arc<AtomicU64>, stop: &Arc<AtomicBool>| {
            let (lmr, count, stop) = (lmr.with_priority(priority), count.clone(), stop.clone());
            let task = async move {
                while !stop.load(Ordering::Relaxed) {
                    lmr.write(0, &[1; 16384]).await.unwrap();
                    count.fetch_add(16384, Ordering::Relaxed);
                }
            };
            a.platform().spawn("flood", Box::pin(task));
        };
        (0..LOW).for_each(|_| flood(Priority::Low, &low, &stop));
        a.sleep(Duration::from_millis(1)).await;
        let urgent = lmr.with_priority(Priority::High);
        let begun = a.platform().now();
        const WRITES: u32 = 200;
        for _ in 0..WRITES {
            urgent.write(0, &[2; 64]).await.unwrap();
        }
        let latency = (a.platform().now() - begun) / WRITES;
        (0..4).for_each(|_| flood(Priority::High, &high, &stop));
        a.sleep(Duration::from_millis(1)).await;
        let before = [&low, &high].map(|n| n.load(Ordering::Relaxed));
        a.sleep(Duration::from_millis(20)).await;
        let after = [&low, &high].map(|n| n.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        a.sleep(Duration::from_millis(5)).await;
        let [low, high] = [after[0] - before[0], after[1] - before[1]];
        Got { latency, share: high as f64 / (low + high) as f64, low }
    })
}

#[test]
fn high_priority_gets_its_way() {
    let none = beside_a_flood(Scheme::None, 3);
    let apart = beside_a_flood(Scheme::HwSep, 3);
    let yields = beside_a_flood(Scheme::SW_PRI, 3);
    println!("without: {none:?}\nHW-Sep: {apart:?}\nSW-Pri: {yields:?}");
    // Without a scheme all wait alike: 4 of 12 writers.
    assert!((0.25..0.45).contains(&none.share), "{none:?}");
    // On a queue pair of its own it waits for one work request of the flood, not for all.
    assert!(apart.latency * 2 < none.latency, "{none:?} {apart:?}");
    assert!(apart.share > 0.45, "{apart:?}");
    assert!(yields.latency * 3 < none.latency * 2, "{none:?} {yields:?}");
    assert!(yields.share > none.share + 0.1, "{none:?} {yields:?}");
    // No priority starves.
    assert!(apart.low > 0 && yields.low > 0);
    // With two queue pairs the other one is that of RPC, and it does as well.
    let two = beside_a_flood(Scheme::HwSep, 2);
    assert!(two.latency * 2 < none.latency, "{two:?}");
}

async fn writers(lite: &Lite, count: usize, time: Duration) -> u64 {
    let lmr = lite.alloc(NodeId(2), 1 << 20, RW).await.unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let end = lite.platform().now() + time;
    for _ in 0..count {
        let (lmr, written, platform) = (lmr.clone(), written.clone(), lite.platform().clone());
        let task = async move {
            while platform.now() < end {
                lmr.write(0, &[1; 1000]).await.unwrap();
                written.fetch_add(1000, Ordering::Relaxed);
            }
        };
        lite.platform().spawn("writer", Box::pin(task));
    }
    lite.sleep(time).await;
    written.load(Ordering::Relaxed)
}

#[test]
fn limits_hold_and_accounts_are_kept() {
    let mut c = cluster(2);
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        // Bandwidth: 10 MB/s for 100 ms, and the burst.
        let slow =
            App::new("slow", Limits { bytes_per_second: Some(10_000_000), burst: 5000, ..Limits::default() });
        let free = App::new("free", Limits::default());
        let got = writers(&a.for_app(&slow), 4, Duration::from_millis(100)).await;
        assert!((900_000..=1_010_000).contains(&got), "{got}");
        let usage = slow.usage();
        assert!(usage.bytes >= got && usage.bytes <= got + 5000 && usage.delayed > 0, "{usage:?}");
        let got = writers(&a.for_app(&free), 4, Duration::from_millis(10)).await;
        assert!(got > 4_000_000, "{got}");
        a.sleep(Duration::from_millis(10)).await;
        assert_eq!(
            (free.usage().outstanding, free.usage().delayed, free.usage().bytes),
            (0, 0, free.usage().operations * 1000)
        );
        // An operation that would come too late is refused, and has not happened.
        let lmr = a
            .for_app(&slow)
            .with_deadline(Duration::from_millis(1))
            .alloc(NodeId(2), 1 << 20, RW)
            .await
            .unwrap();
        let refused = slow.usage().refused;
        lmr.write(0, &[7; 20_000]).await.unwrap();
        assert_eq!(lmr.write(0, &[7; 20_000]).await, Err(Error::Deadline));
        assert!(slow.usage().refused > refused);
        // Outstanding: of many at once two are in flight.
        let narrow = App::new("narrow", Limits { outstanding: Some(2), ..Limits::default() });
        let most = Arc::new(AtomicU64::new(0));
        let lmr = a.for_app(&narrow).alloc(NodeId(2), 1 << 20, RW).await.unwrap();
        let work = (0..10).map(|_| {
            let (lmr, narrow, most) = (lmr.clone(), narrow.clone(), most.clone());
            async move {
                lmr.write(0, &[1; 10_000]).await.unwrap();
                most.fetch_max(u64::from(narrow.usage().outstanding), Ordering::Relaxed);
            }
        });
        join_all(work).await;
        let usage = narrow.usage();
        assert_eq!((usage.operations, usage.outstanding, usage.bytes), (10, 0, 100_000));
        assert!(usage.delayed >= 8 && most.load(Ordering::Relaxed) <= 2, "{usage:?}");
        // A task that writes all the time lets others have their turn.
        let done = Arc::new(AtomicBool::new(false));
        let flood = (0..3).map(|_| {
            let (lmr, done) = (lmr.clone(), done.clone());
            async move {
                let mut writes = 0;
                while writes < 200 && !done.load(Ordering::Relaxed) {
                    lmr.write(0, &[1; 1000]).await.unwrap();
                    writes += 1;
                }
                writes
            }
        });
        let one = async {
            lmr.write(0, &[2; 1000]).await.unwrap();
            done.store(true, Ordering::Relaxed);
        };
        let (writes, ()) = join(join_all(flood), one).await;
        assert!(writes.iter().all(|writes| *writes < 200), "{writes:?}");
        // A completion queue accepts as many as may be in flight, and goes on when they are taken.
        let queue = a.completion_queue(8);
        let op = Op { tag: 1, lmr: &lmr, offset: 0, kind: OpKind::Write(&[1; 100]) };
        assert_eq!(queue.post(&[op; 5]).await, Ok(2));
        assert_eq!(narrow.usage().outstanding, 2);
        assert!(queue.next(&mut []).await.unwrap().result.is_ok());
        assert_eq!(queue.post(&[op; 5]).await, Ok(1));
        drop(queue);
        assert_eq!(narrow.usage().outstanding, 0);
        // Memory: counted until the handle is dropped.
        let small = App::new("small", Limits { memory: Some(10_000), ..Limits::default() });
        let mine = a.for_app(&small);
        let one = mine.alloc(NodeId(2), 6000, RW).await.unwrap();
        let asked = mine.alloc(NodeId(2), 5000, RW).await.unwrap_err();
        assert_eq!(asked, Error::NoMemory { asked: 5000, free: 4000 });
        assert_eq!((small.usage().memory, small.usage().refused), (6000, 1));
        one.free().await.unwrap();
        assert_eq!(small.usage().memory, 0);
        small.set_limits(Limits::default());
        drop(mine.alloc(NodeId(2), 1 << 20, RW).await.unwrap());
        // So do memset, messages and calls.
        let narrow = App::new("narrow", Limits { outstanding: Some(1), ..Limits::default() });
        let (lite, lmr) =
            (a.for_app(&narrow), a.for_app(&narrow).alloc(NodeId(2), 1 << 20, RW).await.unwrap());
        let mailbox = b.open_mailbox(2, RpcOptions::default()).unwrap();
        let both = join(lmr.memset(0, 1 << 20, 5), lite.send(NodeId(2), 2, b"hello")).await;
        assert_eq!(both, (Ok(()), Ok(())));
        let usage = narrow.usage();
        assert_eq!((usage.operations, usage.outstanding, usage.bytes, usage.delayed), (2, 0, 5, 1));
        drop(mailbox);
        let server = b.register(1, RpcOptions::default()).unwrap();
        let serve = async move {
            while let Ok(call) = server.receive().await {
                call.reply(b"yes").await.unwrap();
            }
        };
        b.platform().spawn("server", Box::pin(serve));
        let before = free.usage();
        assert_eq!(a.for_app(&free).call(NodeId(2), 1, b"why", 10).await.unwrap(), b"yes");
        assert_eq!(free.usage().operations, before.operations + 1);
        assert_eq!(free.usage().bytes, before.bytes + 3);
    });
}

/// Calls and messages count as operations: those of low priority wait while those of high priority are in
/// use, and hold up no others while they are in flight.
#[test]
fn calls_and_messages_of_low_priority_give_way() {
    const MESSAGES: u32 = 20;
    let mut c =
        Cluster::paced(1, 2, 64 << 20, &Config { scheme: Scheme::SW_PRI, ..Config::default() }, Some(RATE));
    let (a, b) = (c.lite(1), c.lite(2));
    c.world.run(LIMIT, async move {
        let mailbox = b.open_mailbox(1, RpcOptions::default()).unwrap();
        let take = async move { while mailbox.receive().await.is_ok() {} };
        b.platform().spawn("mailbox", Box::pin(take));
        // A function that never replies.
        let silent = b.register(2, RpcOptions::default()).unwrap();
        let keep = async move {
            let mut calls = Vec::new();
            while let Ok(call) = silent.receive().await {
                calls.push(call);
            }
        };
        b.platform().spawn("silent", Box::pin(keep));
        let (low, high) = (a.with_priority(Priority::Low), a.with_priority(Priority::High));
        let send = async |lite: &Lite| {
            let begun = a.platform().now();
            for _ in 0..MESSAGES {
                lite.send(NodeId(2), 1, b"message").await.unwrap();
            }
            a.platform().now() - begun
        };
        send(&low).await;
        let alone = send(&low).await;
        // Of low priority, one call waits for its reply, which nobody else waits for.
        let waiting = low.with_deadline(Duration::from_millis(900));
        let lost = async move { assert_eq!(waiting.call(NodeId(2), 2, b"", 1).await, Err(Error::Unknown)) };
        a.platform().spawn("lost", Box::pin(lost));
        // Two of high priority count as busy.
        for _ in 0..2 {
            let waiting = high.with_deadline(Duration::from_millis(900));
            let lost = async move { drop(waiting.call(NodeId(2), 2, b"", 1).await) };
            a.platform().spawn("lost", Box::pin(lost));
        }
        a.sleep(Duration::from_millis(1)).await;
        let urgent = send(&high).await;
        let beside = send(&low).await;
        assert!(urgent < Duration::from_micros(20) * MESSAGES, "{alone:?} {urgent:?}");
        assert!(beside >= Duration::from_micros(96) * MESSAGES, "{alone:?} {beside:?}");
        assert!(beside < alone + Duration::from_micros(300) * MESSAGES, "{alone:?} {beside:?}");
    });
}
