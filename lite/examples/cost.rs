//! What LITE itself costs: nanoseconds of one core per operation, over an RNIC that needs no time for the wire.
//!
//! `cargo run --release -p lite --example cost`

use lite::testing::Cluster;
use lite::{Config, Lite, NodeId, Permissions, RpcOptions};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 200_000;

fn main() {
    let mut cluster = Cluster::new(1, 2, 64 << 20, &Config::default());
    let (a, b) = (cluster.lite(1), cluster.lite(2));
    let limit = Duration::from_secs(3600);
    let server = b.register(1, RpcOptions::default()).expect("a free function id");
    let echo = async move {
        while let Ok(call) = server.receive().await {
            let request = call.request().to_vec();
            if call.reply(&request).await.is_err() {
                return;
            }
        }
    };
    b.platform().spawn("echo", Box::pin(echo));
    let rows = cluster.world.run(limit, measure(a));
    println!("ns per operation, both nodes, executor and instant RNIC included; {ROUNDS} rounds");
    for (what, ns) in rows {
        println!("{what:<14}{ns:>8}");
    }
}

async fn measure(lite: Lite) -> Vec<(&'static str, u128)> {
    let rights = Permissions::READ | Permissions::WRITE | Permissions::ATOMIC;
    let lmr = lite.alloc(NodeId(2), 1 << 20, rights).await.expect("memory");
    let own = lite.alloc(NodeId(1), 1 << 20, rights).await.expect("memory");
    let mut rows = Vec::new();
    let mut buf = vec![7; 65536];
    macro_rules! measure {
        ($what:literal, $op:expr) => {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                $op.await.expect("the operation succeeds");
            }
            rows.push(($what, start.elapsed().as_nanos() / u128::from(ROUNDS)));
        };
    }
    measure!("write 64 B", lmr.write(0, &buf[..64]));
    measure!("write 4 KiB", lmr.write(0, &buf[..4096]));
    measure!("read 64 B", lmr.read(0, &mut buf[..64]));
    measure!("read 4 KiB", lmr.read(0, &mut buf[..4096]));
    measure!("fetch-add", lmr.fetch_add(0, 1));
    measure!("local write", own.write(0, &buf[..64]));
    measure!("call 64 B", lite.call(NodeId(2), 1, &buf[..64], 64));
    measure!("call 2 KiB", lite.call(NodeId(2), 1, &buf[..2048], 2048));
    rows
}
