//! Measures how LITE scales with the number of nodes: all join, connect on demand, call each other and leave,
//! in one process under virtual time. Prints the wall time, and the cost of a node and of a connected peer.
//!
//! `cargo run --release -p sim --example scale -- [--nodes N] [--calls N] [--seed S] [--json FILE]`
#![forbid(unsafe_code)]

use lite::{Config, Lite, NodeId, Retransmission, RpcOptions};
use platform::Platform;
use sim::{Cluster, Options};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The memory of a simulated node, in bytes.
const MEMORY: u64 = 2 << 20;
/// The number of the function that echoes.
const ECHO: u32 = 1;
/// The virtual time that a stage may take.
const LIMIT: Duration = Duration::from_secs(60);

struct Arguments {
    nodes: u16,
    calls: u32,
    seed: u64,
    json: Option<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { nodes: 1000, calls: 10, seed: 1, json: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        let number = |most: u64| match value.parse::<u64>() {
            Ok(n) if n <= most => Ok(n),
            _ => Err(format!("{word} wants a number up to {most}, not `{value}`")),
        };
        match word.as_str() {
            "--nodes" => parsed.nodes = number(4095)? as u16,
            "--calls" => parsed.calls = number(1_000_000)? as u32,
            "--seed" => parsed.seed = number(u64::MAX)?,
            "--json" => parsed.json = Some(value),
            _ => return Err(format!("unknown argument `{word}`")),
        }
    }
    if parsed.nodes < 2 {
        return Err("at least 2 nodes call each other".into());
    }
    Ok(parsed)
}

/// Returns the configuration of small nodes, because there are many.
fn config() -> Config {
    Config {
        queue_pairs: 1,
        operations: 64,
        bounce: [(256, 16), (1024, 8), (4096, 8)],
        ring: 16 << 10,
        calls: 4,
        reply_slot: 256,
        backlog: 64 << 10,
        peers: 128,
        // All nodes connect at once through one simulated manager.
        connect_timeout: Duration::from_secs(10),
        retransmission: Retransmission {
            ack_timeout: Duration::from_millis(50),
            ..Retransmission::default()
        },
        deadline: Duration::from_secs(30),
        ..Config::default()
    }
}

/// Returns the bytes of arena that all nodes have allocated.
fn taken(cluster: &Cluster, nodes: u16) -> u64 {
    (1..=nodes).map(|i| cluster.host(usize::from(i)).memory().stats()).map(|s| s.total - s.free).sum()
}

/// One row of the report.
type Row = (&'static str, f64, &'static str);

struct Report(Vec<Row>);

impl Report {
    fn add(&mut self, what: &'static str, value: f64, unit: &'static str) {
        println!("{what:<52} {value:>14.1} {unit}");
        self.0.push((what, value, unit));
    }

    fn json(&self, arguments: &Arguments) -> String {
        let rows = self.0.iter().map(|(what, value, unit)| format!("    \"{what} ({unit})\": {value:.3}"));
        let rows: Vec<String> = rows.collect();
        let Arguments { nodes, calls, seed, .. } = arguments;
        format!(
            "{{\n    \"nodes\": {nodes},\n    \"calls\": {calls},\n    \"seed\": {seed},\n{}\n}}\n",
            rows.join(",\n")
        )
    }
}

async fn calls(lite: Lite, peers: Vec<NodeId>) -> Result<(), String> {
    let mut reply = [0; 64];
    for peer in peers {
        let request = [peer.0 as u8; 64];
        let len = lite
            .call_into(peer, ECHO, &request, &mut reply)
            .await
            .map_err(|e| format!("call to {peer}: {e}"))?;
        if reply.get(..len) != Some(&request[..]) {
            return Err(format!("{peer} replied something else"));
        }
    }
    Ok(())
}

fn serve(lite: &Lite) -> Result<(), String> {
    let server = lite.register(ECHO, RpcOptions::default()).map_err(|e| e.to_string())?;
    let task = async move {
        while let Ok(call) = server.receive().await {
            let request = call.request().to_vec();
            // The caller may have left.
            let _ = call.reply(&request).await;
        }
    };
    lite.platform().spawn("echo", Box::pin(task));
    Ok(())
}

/// Runs `work` on all nodes at once, and returns the virtual time that it took.
fn all<F>(cluster: &mut Cluster, nodes: u16, mut work: impl FnMut(Lite) -> F) -> Result<Duration, String>
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let (done, failures) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let start = cluster.world.now();
    for i in 1..=nodes {
        let lite = cluster.lite(usize::from(i));
        let (done, failures, task) = (done.clone(), failures.clone(), work(lite.clone()));
        let task = async move {
            if let Err(why) = task.await {
                failures.lock().expect("no panic under the lock").push(format!("node {i}: {why}"));
            }
            done.fetch_add(1, Ordering::SeqCst);
        };
        lite.platform().spawn("scale", Box::pin(task));
    }
    let ended = cluster.world.run_until(start + LIMIT, || done.load(Ordering::SeqCst) == u64::from(nodes));
    let failures = failures.lock().expect("no panic under the lock");
    match failures.first() {
        Some(first) => Err(format!("{} of {nodes} nodes failed; {first}", failures.len())),
        None if !ended => {
            Err(format!("only {} of {nodes} nodes ended in {LIMIT:?}", done.load(Ordering::SeqCst)))
        }
        None => Ok(cluster.world.now() - start),
    }
}

/// Returns the largest resident size of this process so far, in MiB, or 0 if the system does not report it.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// Runs `stage`. Returns its result, its wall time in seconds, and the growth of the heap in bytes.
fn measured<T>(stage: impl FnOnce() -> T) -> (T, f64, f64) {
    let (start, mut result) = (Instant::now(), None);
    let heap = allocation_counter::measure(|| result = Some(stage()));
    (result.expect("the stage has run"), start.elapsed().as_secs_f64(), heap.bytes_current as f64)
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let &Arguments { nodes, calls: count, seed, .. } = arguments;
    let n = f64::from(nodes);
    let mut report = Report(Vec::new());
    let lease = Duration::from_secs(600);
    let options =
        |nodes| Options { seed, nodes, memory: MEMORY, lease, config: config(), ..Options::default() };
    println!("{nodes} nodes, {count} calls each, seed {seed}");

    let (_, _, alone) = measured(|| Cluster::new(options(1)));
    let (mut cluster, seconds, heap) = measured(|| Cluster::new(options(nodes)));
    let alone = alone - MEMORY as f64;
    let idle = heap / n - MEMORY as f64;
    report.add("all join and know each other: wall time", seconds, "s");
    report.add("idle node: arena", taken(&cluster, nodes) as f64 / n, "B");
    report.add("idle node, alone in the cluster: heap", alone, "B");
    report.add("idle node: heap", idle, "B");
    report.add("idle node: heap for each other member", (idle - alone) / (n - 1.0), "B");

    for i in 1..=nodes {
        serve(&cluster.lite(usize::from(i)))?;
    }
    let arena = taken(&cluster, nodes);
    let mut random = seed;
    let mut pairs = BTreeSet::new();
    let (took, seconds, heap) = measured(|| {
        all(&mut cluster, nodes, |lite| {
            let me = lite.node_id();
            let mut next = || {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let other = ((random >> 33) % u64::from(nodes - 1)) as u16 + 1;
                NodeId(if other < me.0 { other } else { other + 1 })
            };
            let peers: Vec<NodeId> = (0..count).map(|_| next()).collect();
            pairs.extend(peers.iter().map(|p| (me.min(*p), me.max(*p))));
            calls(lite, peers)
        })
    });
    let ends = 2.0 * pairs.len() as f64;
    report.add("calls, connecting on demand: wall time", seconds, "s");
    report.add("calls, connecting on demand: virtual time", took?.as_secs_f64() * 1e3, "ms");
    report.add("connected peers of a node", ends / n, "");
    report.add("connected peer: arena", (taken(&cluster, nodes) - arena) as f64 / ends, "B");
    report.add("connected peer: heap", heap / ends, "B");

    let (took, seconds, _) = measured(|| {
        all(&mut cluster, nodes, |lite| async move { lite.leave().await.map_err(|e| e.to_string()) })
    });
    report.add("all leave: wall time", seconds, "s");
    report.add("all leave: virtual time", took?.as_secs_f64() * 1e3, "ms");
    cluster.world.run_for(Duration::from_millis(10));
    let left = cluster.manager.log().iter().filter(|l| l.ends_with("is gone: left")).count();
    if left != usize::from(nodes) {
        return Err(format!("the manager saw {left} of {nodes} nodes leave"));
    }
    report.add("largest resident size of the process", peak_mib(), "MiB");
    match &arguments.json {
        Some(file) => std::fs::write(file, report.json(arguments)).map_err(|e| format!("{file}: {e}")),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("scale: {why}");
            ExitCode::FAILURE
        }
    }
}
