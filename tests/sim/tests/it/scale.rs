//! More nodes than a byte counts join, connect on demand, call each other and leave. No resource remains in
//! use.

use lite::{Config, Lite, NodeId, RpcOptions};
use platform::Platform;
use sim::{Cluster, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const NODES: u16 = 300;
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the configuration of small nodes, because there are many.
fn config() -> Config {
    Config {
        queue_pairs: 1,
        operations: 32,
        bounce: [(256, 8), (1024, 4), (4096, 4)],
        ring: 16 << 10,
        calls: 2,
        reply_slot: 256,
        deadline: Duration::from_secs(30),
        ..Config::default()
    }
}

async fn calls(lite: Lite) {
    let me = u64::from(lite.node_id().0);
    for i in 1..=5u64 {
        // A node calls near ones and far ones; each is called by as many as it calls.
        let other = NodeId(((me - 1 + i * i * 7) % u64::from(NODES)) as u16 + 1);
        let request = [other.0 as u8; 100];
        assert_eq!(lite.call(other, 1, &request, 100).await.unwrap(), request);
    }
}

#[test]
fn three_hundred_nodes_join_call_and_leave() {
    let lease = Duration::from_secs(600);
    let mut c = Cluster::new(Options {
        nodes: NODES,
        memory: 1 << 20,
        lease,
        config: config(),
        ..Options::default()
    });
    let nodes: Vec<usize> = (1..=usize::from(NODES)).collect();
    let idle = c.host(1).memory().stats().free;
    let (called, left) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for &i in &nodes {
        let (lite, called) = (c.lite(i), called.clone());
        assert_eq!(lite.node_id(), NodeId(i as u16));
        assert_eq!(lite.members().len(), usize::from(NODES));
        assert_eq!(c.host(i).memory().stats().free, idle, "no connection before its first use");
        let server = lite.register(1, RpcOptions::default()).unwrap();
        lite.platform().spawn(
            "echo",
            Box::pin(async move {
                while let Ok(call) = server.receive().await {
                    let request = call.request().to_vec();
                    call.reply(&request).await.unwrap();
                }
            }),
        );
        c.host(i).spawn(
            "calls",
            Box::pin(async move {
                calls(lite).await;
                called.fetch_add(1, Ordering::SeqCst);
            }),
        );
    }
    let end = c.world.now() + LIMIT;
    assert!(c.world.run_until(end, || called.load(Ordering::SeqCst) == u64::from(NODES)), "{called:?}");
    for &i in &nodes {
        let stats = c.host(i).memory().stats();
        let peers = (idle - stats.free) / config().peer_memory();
        assert!((5..=10).contains(&peers), "node {i} has {peers} peers");
        let (lite, left) = (c.lite(i), left.clone());
        c.host(i).spawn(
            "leaves",
            Box::pin(async move {
                lite.leave().await.unwrap();
                left.fetch_add(1, Ordering::SeqCst);
            }),
        );
    }
    assert!(c.world.run_until(end, || left.load(Ordering::SeqCst) == u64::from(NODES)), "{left:?}");
    c.world.run_for(Duration::from_secs(1));
    // The memory of connections is free on all nodes.
    for &i in &nodes {
        assert_eq!(c.host(i).memory().stats().free, idle, "node {i}");
    }
    let gone = c.manager.log().iter().filter(|line| line.ends_with("is gone: left")).count();
    assert_eq!(gone, usize::from(NODES));
}
