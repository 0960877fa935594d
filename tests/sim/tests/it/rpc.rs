//! Calls and messages under loss, over connections that fail, and when nodes are paused or die: each is
//! served at most once, exactly once if it succeeded, and each caller gets a result in time.

use lite::{Config, Error, Lite, NodeId, Retransmission, RpcOptions};
use netfault::Faults;
use sim::{Cluster, Options};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(3);
const LEASE: Duration = Duration::from_secs(1);
const NODES: u16 = 4;
const EACH: u32 = 60;

/// The number of times that each request was served, by caller and number.
type Served = Arc<Mutex<BTreeMap<(NodeId, u32), u32>>>;

fn serve(lite: &Lite, served: &Served) {
    // The queue is short, so that callers are put off as well.
    let options = RpcOptions { queue: 4, ..RpcOptions::default() };
    let server = Arc::new(lite.register(1, options).unwrap());
    for _ in 0..3 {
        let (server, served, l) = (server.clone(), served.clone(), lite.clone());
        let task = async move {
            while let Ok(call) = server.receive().await {
                let number = u32::from_le_bytes(call.request()[..4].try_into().unwrap());
                *served.lock().unwrap().entry((call.from(), number)).or_default() += 1;
                l.sleep(Duration::from_micros(u64::from(number) * 7 % 100)).await;
                let reply = call.request().to_vec();
                let _ = call.reply(&reply).await;
            }
        };
        lite.platform().spawn("serve", Box::pin(task));
    }
}

/// The outcome of each request: caller, number, result, and time.
type Results = Arc<Mutex<Vec<(NodeId, u32, Result<(), Error>, Duration)>>>;

fn call(lite: &Lite, results: &Results) {
    let me = lite.node_id();
    for number in 0..EACH {
        let (host, lite, results) = (lite, lite.with_deadline(PATIENCE), results.clone());
        let task = async move {
            lite.sleep(Duration::from_micros(u64::from(number) * 300)).await;
            let other = NodeId((me.0 - 1 + number as u16) % NODES + 1);
            let mut request = vec![7; [4, 300, 5000, 70_000][number as usize / 4 % 4]];
            request[..4].copy_from_slice(&number.to_le_bytes());
            let start = lite.platform().now();
            let result = if number % 3 == 0 {
                lite.send(other, 1, &request).await
            } else {
                lite.call(other, 1, &request, request.len()).await.map(|reply| assert_eq!(reply, request))
            };
            results.lock().unwrap().push((me, number, result, lite.platform().now() - start));
        };
        host.platform().spawn("call", Box::pin(task));
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mishap {
    Nothing,
    Dies,
    Pauses,
}

fn run(seed: u64, faults: &str, mishap: Mishap) {
    eprintln!("seed {seed}, {faults}, {mishap:?}");
    // The queue pairs give up soon, so that connections fail and are replaced.
    let ack_timeout = Duration::from_micros(500);
    let retransmission = Retransmission { ack_timeout, retries: 2, ..Retransmission::default() };
    let config = Config { retransmission, ..Config::default() };
    let faults = Faults::parse(faults).unwrap();
    let mut c =
        Cluster::new(Options { seed, faults, nodes: NODES, lease: LEASE, config, ..Options::default() });
    let (served, results) = (Served::default(), Results::default());
    for i in 1..=usize::from(NODES) {
        serve(&c.lite(i), &served);
    }
    for i in 1..=usize::from(NODES) {
        call(&c.lite(i), &results);
    }
    c.world.run_for(Duration::from_millis(4));
    match mishap {
        Mishap::Nothing => {}
        Mishap::Dies => c.host(4).kill(),
        Mishap::Pauses => {
            // The pause lasts until after the node has been declared dead.
            c.host(4).pause(true);
            c.world.run_for(2 * LEASE);
            c.host(4).pause(false);
        }
    }
    c.world.run_for(Duration::from_secs(20));
    let (served, results) = (served.lock().unwrap(), results.lock().unwrap());
    let expected = u32::from(NODES) * EACH;
    let fails = AtomicU64::new(0);
    for (from, number, result, took) in results.iter() {
        let times = served.get(&(*from, *number)).copied().unwrap_or(0);
        let who = format!("seed {seed}: {from}'s {number}: {result:?} after {took:?}");
        match result {
            Ok(()) => assert_eq!(times, 1, "{who}"),
            Err(Error::Deadline) => assert_eq!(times, 0, "{who}"),
            Err(Error::Unknown | Error::NodeDown(_) | Error::LinkDown) => {
                assert!(times <= 1, "{who}");
                fails.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{who}: {other:?}"),
        }
        let slept = if *from == NodeId(4) && mishap == Mishap::Pauses { 2 * LEASE } else { Duration::ZERO };
        assert!(*took <= PATIENCE + slept + Duration::from_millis(1), "{who}");
    }
    assert!(served.values().all(|times| *times == 1), "seed {seed}");
    let dead = if mishap == Mishap::Dies { EACH } else { 0 };
    assert!(results.len() as u32 >= expected - dead, "seed {seed}: {} of {expected}", results.len());
    if mishap != Mishap::Nothing {
        assert!(fails.load(Ordering::Relaxed) > 0, "seed {seed}: the mishap was none");
    }
}

#[test]
fn under_loss() {
    for seed in 0..6 {
        run(seed, "loss=0.02,dup=0.01,reorder=0.02,corrupt=0.01,delay_us=5", Mishap::Nothing);
    }
}

#[test]
fn when_a_node_dies() {
    for seed in 10..14 {
        run(seed, "loss=0.005,delay_us=5", Mishap::Dies);
    }
}

#[test]
fn when_a_node_is_paused_and_comes_back_too_late() {
    for seed in 20..24 {
        run(seed, "loss=0.005,delay_us=5", Mishap::Pauses);
    }
}
