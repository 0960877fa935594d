//! A process in Rust as a node of the cluster: remote memory, a remote procedure call and a barrier,
//! against nodes that run the job `echo` (see apps/echo). Every value that comes back is compared with what
//! it must be.
//!
//! ```text
//! cargo run -p lite-node --features libibverbs --example demo -- \
//!     10.0.0.1:18500 cluster.key me ibverbs node0 node1
//! ```
//!
//! `softroce=SOCKET` in the place of `ibverbs` takes the software RNIC on a fabric's socket. With `end` as
//! the last word the nodes end the job afterwards.

use anyhow::{Context, Result, bail, ensure};
use futures_lite::future::block_on;
use lite::{Lite, NodeId, Permissions};
use lite_node::{Clock, Nic, Node, Options};
use manager::key;
use std::path::Path;
use std::time::Duration;

const SIZE: u64 = 1 << 20;
const MEMORY: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [manager, key_file, name, nic, peers @ ..] = &words[..] else {
        bail!("usage: demo MANAGER KEY_FILE NAME softroce=SOCKET|ibverbs[=DEVICE] PEER... [end]");
    };
    let (end, peers) = match peers {
        [peers @ .., last] if last == "end" => (true, peers),
        _ => (false, peers),
    };
    let clock = Clock::start();
    let nic = match nic.split_once('=').unwrap_or((nic, "")) {
        ("softroce", socket) => Nic::softroce(Path::new(socket), MEMORY)?,
        ("ibverbs", device) => Nic::ibverbs(Some(device.to_owned()).filter(|d| !d.is_empty()), None, MEMORY)?,
        (other, _) => bail!("no RNIC is called {other}"),
    };
    let options = Options {
        manager: manager.clone(),
        key: key::load(Path::new(key_file))?,
        name: name.clone(),
        keep_id: false,
        cpus: 1,
        apps: Vec::new(),
        lite: lite::Config::default(),
        join_within: PATIENCE,
    };
    let node = Node::join(clock, nic, options)?;
    block_on(demonstrate(&node.lite().with_deadline(PATIENCE), peers, end))?;
    println!("all is well");
    Ok(())
}

async fn demonstrate(lite: &Lite, names: &[String], end: bool) -> Result<()> {
    let members = lite.members();
    let find = |name: &String| {
        let member = members.iter().find(|member| member.name == *name);
        member.map(|member| member.node).with_context(|| format!("no node is called {name}"))
    };
    let peers: Vec<NodeId> = names.iter().map(find).collect::<Result<_>>()?;

    let peer = *peers.first().context("no peer")?;
    let region = lite.alloc(peer, SIZE, Permissions::all()).await?;
    region.memset(0, SIZE, 0x5a).await?;
    let mut bytes = vec![0; SIZE as usize];
    region.read(0, &mut bytes).await?;
    ensure!(bytes.iter().all(|byte| *byte == 0x5a), "memset wrote something else");
    region.write(0, &0u64.to_ne_bytes()).await?;
    ensure!(region.fetch_add(0, 40).await? == 0 && region.compare_swap(0, 40, 42).await? == 40, "atomics");
    region.free().await?;
    println!("remote memory");

    let mut group = peers.clone();
    group.push(lite.node_id());
    for &peer in &peers {
        ensure!(lite.call(peer, echo::ECHO, b"hello", 64).await? == b"hello", "an echo is something else");
        lite.call(peer, echo::BARRIER, &echo::barrier_request(&group, "demo-rs"), 0).await?;
    }
    println!("calls");
    lite.barrier("demo-rs", &group).await?;
    println!("a barrier");
    for peer in peers.into_iter().filter(|_| end) {
        lite.call(peer, echo::END, &[], 0).await?;
    }
    Ok(())
}
