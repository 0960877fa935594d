//! A small cluster at work, traced: `cargo xtask trace`.
//!
//! Three simulated nodes write, read, count and call each other, partly at the same time, over a network
//! that sometimes loses a frame. Prints the timeline; `--json FILE` writes it for a browser. The seed decides
//! all of it.
#![allow(clippy::unwrap_used, reason = "a run that fails has nothing to show")]

use lite::{NodeId, Op, OpKind, Permissions, RpcOptions};
use netfault::Faults;
use sim::{Cluster, NodeTrace, Options, chrome, text};
use std::process::ExitCode;
use std::time::Duration;

fn run(seed: u64, loss: f64) -> Vec<NodeTrace> {
    let faults = Faults { delay_ns: 5_000, loss, ..Faults::NONE };
    let mut cluster = Cluster::new(Options { seed, nodes: 3, faults, ..Options::default() });
    let lites = [1, 2, 3].map(|i| cluster.lite(i));
    lites.iter().for_each(|lite| lite.set_tracing(true));
    let all = lites.clone();
    cluster.world.run(Duration::from_secs(60), async move {
        let [a, b, _] = &all;
        let server = b.register(7, RpcOptions::default()).unwrap();
        let serve = async move {
            while let Ok(call) = server.receive().await {
                let reply: Vec<u8> = call.request().iter().rev().copied().collect();
                if call.reply(&reply).await.is_err() {
                    return;
                }
            }
        };
        b.platform().spawn("server", Box::pin(serve));
        let rights = Permissions::READ | Permissions::WRITE | Permissions::ATOMIC;
        let near = a.alloc(NodeId(2), 1 << 20, rights).await.unwrap();
        let far = a.alloc(NodeId(3), 1 << 20, rights).await.unwrap();
        near.write(0, &[1; 100_000]).await.unwrap();
        far.read(0, &mut [0; 4096]).await.unwrap();
        near.fetch_add(8, 1).await.unwrap();
        a.call(NodeId(2), 7, b"what is going on", 100).await.unwrap();
        let queue = a.completion_queue(8);
        let op = |tag, lmr| Op { tag, lmr, offset: 4096, kind: OpKind::Write(&[3; 512]) };
        queue.post(&[op(1, &near), op(2, &near), op(3, &far), op(4, &far)]).await.unwrap();
        while queue.next(&mut []).await.is_some() {}
        near.memmove(0, &far, 0, 50_000).await.unwrap();
    });
    lites.iter().map(|lite| NodeTrace { node: lite.node_id(), events: lite.traced() }).collect()
}

fn main() -> ExitCode {
    let (mut seed, mut loss, mut json) = (1, 0.01, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next();
        let read = match (word.as_str(), &value) {
            ("--seed", Some(v)) => v.parse().map(|v| seed = v).is_ok(),
            ("--loss", Some(v)) => v.parse().map(|v| loss = v).is_ok(),
            ("--json", Some(v)) => {
                json = Some(v.clone());
                true
            }
            _ => false,
        };
        if !read {
            eprintln!("error: {word}: there are --seed N, --loss SHARE and --json FILE");
            return ExitCode::from(2);
        }
    }
    let traces = run(seed, loss);
    print!("{}", text(&traces));
    if let Some(file) = json
        && let Err(error) = std::fs::write(&file, chrome(&traces))
    {
        eprintln!("error: cannot write {file}: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
