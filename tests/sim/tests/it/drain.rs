//! Nodes that the manager takes out of service: their memory of regions moves away under load, also if the
//! manager dies meanwhile, and nodes of the former release are served as well.

use lite::{Error, Lite, NodeId, Permissions, Placement};
use platform::Platform;
use proto::{FromClient, Hello, NodeView, OLDEST_VERSION, PROTOCOL_VERSION, ToClient};
use sim::{Cluster, ControlLinks, Crash, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

const ALL: Permissions = Permissions::all();
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(1);

fn cluster(seed: u64, versions: &[u16]) -> Cluster {
    let control = ControlLinks { latency: Duration::from_millis(2), rate: 1000 };
    let versions = versions.to_vec();
    Cluster::new(Options { seed, lease: LEASE, control, versions, memory: 16 << 20, ..Options::default() })
}

/// Sends a request of a new client, and returns the answer.
fn ask(c: &mut Cluster, request: &FromClient) -> ToClient {
    let socket = c.manager.connect().expect("the manager runs");
    socket.send(&proto::encode(&Hello::Client { version: PROTOCOL_VERSION }));
    socket.send(&proto::encode(request));
    loop {
        let limit = c.world.now() + LIMIT;
        assert!(c.world.run_until(limit, || socket.has_news()), "no answer to {request:?}");
        let Poll::Ready(Ok(bytes)) = socket.try_recv() else { panic!("no answer to {request:?}") };
        match proto::decode(&bytes).unwrap() {
            ToClient::Hello => {}
            answer => return answer,
        }
    }
}

fn drain(c: &mut Cluster, node: &str) {
    let (node, reason) = (node.to_owned(), "new fan".into());
    let answer = ask(c, &FromClient::Drain { node, reason, deadline_ms: None, force: false });
    assert!(matches!(answer, ToClient::NodeChanged { .. }), "{answer:?}");
}

fn view(c: &mut Cluster, node: &str) -> NodeView {
    match ask(c, &FromClient::NodeList { after: String::new() }) {
        ToClient::NodeList { nodes, .. } => nodes.into_iter().find(|view| view.name == node).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Waits until a node is in a state.
fn is_soon(c: &mut Cluster, node: &str, state: &str) {
    for _ in 0..1000 {
        if view(c, node).standing.word() == state {
            return;
        }
        c.world.run_for(Duration::from_millis(10));
    }
    panic!("{node} is not {state}: {:?} {:?}", view(c, node), c.manager.log());
}

/// Adds to a word of a region, and writes and reads its own part, until `stop` is set. Returns the additions.
async fn work(lite: Lite, name: &'static str, slot: u64, stop: Arc<AtomicU64>) -> Result<u64, Error> {
    let lmr = lite.map_wait(name, ALL).await?;
    let mut counted = 0;
    while stop.load(Ordering::SeqCst) == 0 {
        lmr.fetch_add(0, 1).await?;
        counted += 1;
        let (at, data) = (4096 + slot * 300_000, vec![counted as u8; 250_000]);
        lmr.write(at, &data).await?;
        let mut got = vec![0; data.len()];
        lmr.read(at, &mut got).await?;
        assert!(got == data, "round {counted} of {slot}");
        lite.sleep(Duration::from_millis(1)).await;
    }
    Ok(counted)
}

type Outcomes = Arc<std::sync::Mutex<Vec<Result<u64, Error>>>>;

fn workers(c: &Cluster, nodes: &[usize]) -> (Arc<AtomicU64>, Outcomes) {
    let (stop, outcomes) = (Arc::new(AtomicU64::new(0)), Outcomes::default());
    for &i in nodes {
        let (lite, stop, outcomes) = (c.lite(i), stop.clone(), outcomes.clone());
        let task = async move {
            let outcome = work(lite, "own", i as u64, stop).await;
            outcomes.lock().unwrap().push(outcome);
        };
        c.host(i).spawn("works", Box::pin(task));
    }
    (stop, outcomes)
}

/// Makes a region of node 2 that all nodes use.
fn own(c: &mut Cluster) {
    let b = c.lite(2);
    c.world.run(LIMIT, async move {
        let shares = Placement::Shares(vec![(NodeId(2), 1_500_000), (NodeId(3), 500_000)]);
        b.alloc(shares, 2_000_000, ALL).await.unwrap().publish("own").await.unwrap();
    });
}

fn ends(c: &mut Cluster, (stop, outcomes): (Arc<AtomicU64>, Outcomes), count: usize) {
    c.world.run_for(Duration::from_millis(100));
    stop.store(1, Ordering::SeqCst);
    let limit = c.world.now() + LIMIT;
    assert!(c.world.run_until(limit, || outcomes.lock().unwrap().len() == count), "{outcomes:?}");
    let counts: Vec<u64> = outcomes.lock().unwrap().iter().map(|outcome| outcome.clone().unwrap()).collect();
    let a = c.lite(1);
    let (words, last) = c.world.run(LIMIT, async move {
        let lmr = a.map("own", ALL).await.unwrap();
        (lmr.fetch_add(0, 0).await.unwrap(), lmr.owner())
    });
    assert_eq!(words, counts.iter().sum::<u64>());
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
    assert_ne!(last, NodeId(2));
}

#[test]
fn a_drained_node_leaves_and_no_operation_fails_also_if_the_manager_dies() {
    for seed in 0..6 {
        let mut c = cluster(seed, &[PROTOCOL_VERSION]);
        own(&mut c);
        let work = workers(&c, &[1, 3, 4]);
        c.world.run_for(Duration::from_millis(20));
        drain(&mut c, "sim-2");
        if seed % 2 == 1 {
            c.world.run_for(Duration::from_millis(seed * 3));
            c.manager.crash(Crash::Process, c.world.now() + Duration::from_millis(300));
            c.world.run_for(Duration::from_millis(600));
        }
        is_soon(&mut c, "sim-2", "drained");
        let b = c.lite(2);
        assert!(b.describe_regions().is_empty(), "{:?}", b.describe_regions());
        c.world.run(LIMIT, async move {
            // It accepts no region, and leaves without a loss.
            assert!(matches!(b.alloc(NodeId(2), 4096, ALL).await, Err(Error::NoMemory { .. })));
            b.with_deadline(Duration::from_secs(5)).leave().await.unwrap();
        });
        ends(&mut c, work, 3);
        assert_eq!(view(&mut c, "sim-2").standing.word(), "drained", "it stays so without the node");
        assert_eq!(c.manager.violation(), None, "seed {seed}");
    }
}

#[test]
fn a_node_that_is_put_back_into_service_accepts_regions() {
    let mut c = cluster(1, &[PROTOCOL_VERSION]);
    own(&mut c);
    drain(&mut c, "sim-2");
    is_soon(&mut c, "sim-2", "drained");
    ask(&mut c, &FromClient::Undrain { node: "sim-2".into() });
    c.world.run_for(Duration::from_millis(20));
    let a = c.lite(1);
    c.world.run(LIMIT, async move { a.alloc(NodeId(2), 4096, ALL).await.unwrap().free().await.unwrap() });
}

#[test]
fn a_drain_without_room_elsewhere_says_so_and_ends_when_there_is_room() {
    let mut c = cluster(2, &[PROTOCOL_VERSION]);
    own(&mut c);
    let lites: Vec<Lite> = [1, 3, 4].map(|i| c.lite(i)).to_vec();
    let taken = c.world.run(LIMIT, async move {
        let mut taken = Vec::new();
        for lite in lites {
            let free = lite.platform().memory().stats().free;
            taken.push(lite.alloc(lite.node_id(), free - (1 << 20), ALL).await.unwrap());
        }
        taken
    });
    drain(&mut c, "sim-2");
    c.world.run_for(Duration::from_secs(2));
    let standing = view(&mut c, "sim-2").standing;
    let held = standing.held().cloned().unwrap_or_default();
    assert!(held.starts_with("its memory of regions cannot move: no memory: "), "{standing:?}");
    c.world.run(LIMIT, async move {
        for lmr in taken {
            lmr.free().await.unwrap();
        }
    });
    c.world.run_for(Duration::from_secs(6));
    is_soon(&mut c, "sim-2", "drained");
}

#[test]
fn nodes_of_the_former_release_work_beside_those_of_this_one() {
    // The links of the simulation refuse any message that a node's or the manager's release does not know.
    for seed in 0..4 {
        let mut c = cluster(seed, &[OLDEST_VERSION, PROTOCOL_VERSION]);
        own(&mut c);
        let work = workers(&c, &[1, 3, 4]);
        c.world.run_for(Duration::from_millis(20));
        let a = c.lite(1);
        let refused = c.world.run(LIMIT, async move { a.vacate().await });
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        // The former release cannot move its memory, and has none here.
        drain(&mut c, "sim-1");
        is_soon(&mut c, "sim-1", "drained");
        ask(&mut c, &FromClient::Undrain { node: "sim-1".into() });
        drain(&mut c, "sim-2");
        c.manager.crash(Crash::Machine, c.world.now() + Duration::from_millis(200));
        c.world.run_for(Duration::from_millis(800));
        is_soon(&mut c, "sim-2", "drained");
        ends(&mut c, work, 3);
        assert!((1..=4).all(|i| c.lite(i).is_member()), "{:?}", c.manager.log());
        assert_eq!(c.manager.violation(), None, "seed {seed}");
    }
}
