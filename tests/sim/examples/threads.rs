//! The throughput of one node by the number of its threads, each with one operation at a time:
//! writes and calls to one other node over softroce; and by the number of queue pairs to that node.
//! All times are virtual: the network has a latency and a rate, and a processor's work takes no
//! time. `cargo xtask bench figures --figure threads --figure queue-pairs` runs it.
//!
//! `cargo run --release -p sim --example threads -- [--operations N] [--json FILE]`
#![forbid(unsafe_code)]

use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, RpcOptions};
use netfault::Faults;
use serde_json::{Value, json};
use sim::{Cluster, Options};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The numbers of threads.
const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The latency of the network in one direction, in nanoseconds.
const LATENCY_NS: u64 = 1000;
/// The rate of a link, in bits per second.
const RATE_BPS: u64 = 40_000_000_000;
/// The number of the function that echoes.
const ECHO: u32 = 1;
/// The virtual time that a measurement may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The numbers of queue pairs, and of the threads that use them.
const QUEUE_PAIRS: [usize; 4] = [1, 2, 3, 4];
const THREADS_OF_QUEUE_PAIRS: usize = 64;
/// The probability with which a lossy network loses a frame.
const LOSS: f64 = 1e-3;
/// The bytes of a small operation, and of a large one.
const SIZES: [usize; 2] = [64, 4096];

/// An operation that all threads repeat.
#[derive(Clone, Copy)]
enum Operation {
    Write(usize),
    Call(usize),
}

const OPERATIONS: [Operation; 3] =
    [Operation::Write(SIZES[0]), Operation::Write(SIZES[1]), Operation::Call(SIZES[0])];

fn arguments() -> Result<(usize, Option<String>), String> {
    let (mut operations, mut json) = (20_000, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        match word.as_str() {
            "--operations" => match value.parse() {
                Ok(n @ 64..=10_000_000) => operations = n,
                _ => return Err(format!("--operations wants a number from 64 to 10000000, not `{value}`")),
            },
            "--json" => json = Some(value),
            _ => return Err(format!("unknown argument `{word}`")),
        }
    }
    Ok((operations, json))
}

/// Starts two nodes with `queue_pairs` to each other, of which the second one echoes. `loss` is the
/// probability with which the network loses a frame.
fn cluster(queue_pairs: usize, loss: f64) -> Result<Cluster, String> {
    let faults = Faults { delay_ns: LATENCY_NS, rate_bps: RATE_BPS, queue: 1 << 20, loss, ..Faults::NONE };
    let options = Options::default();
    let cluster = Cluster::new(Options {
        nodes: 2,
        nics: "softroce".parse()?,
        lease: Duration::from_secs(600),
        faults,
        config: Config { queue_pairs, ..options.config.clone() },
        ..options
    });
    let lite = cluster.lite(2);
    let server = lite.register(ECHO, RpcOptions::default()).map_err(|e| e.to_string())?;
    let serve = async move {
        while let Ok(call) = server.receive().await {
            let request = call.request().to_vec();
            // The caller waits, or has failed itself.
            let _ = call.reply(&request).await;
        }
    };
    lite.platform().spawn("echo", Box::pin(serve));
    Ok(cluster)
}

/// Does an operation `count` times.
async fn repeat(lite: &Lite, region: &Lmr, operation: Operation, count: usize) -> Result<(), Error> {
    let data = [7; SIZES[1]];
    for _ in 0..count {
        match operation {
            Operation::Write(len) => region.write(0, &data[..len]).await?,
            Operation::Call(len) => {
                let reply = lite.call(NodeId(2), ECHO, &data[..len], len).await?;
                assert_eq!(reply, data[..len]);
            }
        }
    }
    Ok(())
}

/// Returns the operations per virtual second of `threads` threads that together do `operations`.
fn rate(
    cluster: &mut Cluster,
    threads: usize,
    operation: Operation,
    operations: usize,
) -> Result<f64, String> {
    let (lite, each) = (cluster.lite(1), operations / threads);
    let rights = Permissions::READ | Permissions::WRITE;
    let mut regions = Vec::new();
    for _ in 0..threads {
        let alloc = lite.clone();
        let region =
            cluster.world.run(LIMIT, async move { alloc.alloc(NodeId(2), SIZES[1] as u64, rights).await });
        regions.push(region.map_err(|e| e.to_string())?);
    }
    // The first operation of each thread does not count, because it may open the connection.
    let mut took = Duration::ZERO;
    for count in [1, each] {
        let (left, begun) = (Arc::new(AtomicUsize::new(threads)), cluster.world.now());
        for region in &regions {
            let (lite, region, left) = (lite.clone(), region.clone(), left.clone());
            let work = async move {
                repeat(&lite, &region, operation, count).await.expect("nothing fails here");
                left.fetch_sub(1, Ordering::Relaxed);
            };
            cluster.lite(1).platform().spawn("thread", Box::pin(work));
        }
        let end = cluster.world.now() + LIMIT;
        if !cluster.world.run_until(end, || left.load(Ordering::Relaxed) == 0) {
            return Err(format!("{threads} threads do not end"));
        }
        took = cluster.world.now() - begun;
    }
    for region in regions {
        cluster.world.run(LIMIT, async move { region.free().await }).map_err(|e| e.to_string())?;
    }
    Ok((threads * each) as f64 / took.as_secs_f64())
}

/// Measures each operation with a growing number of threads.
fn by_threads(operations: usize) -> Result<Vec<Value>, String> {
    let mut cluster = cluster(Config::default().queue_pairs, 0.0)?;
    println!("{:<12} {:>12} {:>12} {:>12}", "threads", "writes", "4 KiB writes", "calls");
    let mut rows = Vec::new();
    for threads in THREADS {
        let mut rates = [0.0; OPERATIONS.len()];
        for (rate_of, operation) in rates.iter_mut().zip(OPERATIONS) {
            *rate_of = rate(&mut cluster, threads, operation, operations)?;
        }
        let [writes, large, calls] = rates;
        println!("{threads:<12} {writes:>12.0} {large:>12.0} {calls:>12.0}");
        rows.push(json!({ "threads": threads, "writes": writes, "large": large, "calls": calls }));
    }
    Ok(rows)
}

/// Measures small writes with a growing number of queue pairs: alone, and over a network that loses frames.
fn by_queue_pairs(operations: usize) -> Result<Vec<Value>, String> {
    println!("\n{:<12} {:>12} {:>12}", "queue pairs", "writes", "with loss");
    let mut rows = Vec::new();
    for count in QUEUE_PAIRS {
        let measure = |loss| {
            let small = Operation::Write(SIZES[0]);
            rate(&mut cluster(count, loss)?, THREADS_OF_QUEUE_PAIRS, small, operations)
        };
        let (writes, lossy) = (measure(0.0)?, measure(LOSS)?);
        println!("{count:<12} {writes:>12.0} {lossy:>12.0}");
        rows.push(json!({ "queue_pairs": count, "writes": writes, "lossy": lossy }));
    }
    Ok(rows)
}

fn run() -> Result<(), String> {
    let (operations, file) = arguments()?;
    let report = json!({ "threads": by_threads(operations)?, "queue_pairs": by_queue_pairs(operations)? });
    let Some(file) = file else { return Ok(()) };
    std::fs::write(&file, format!("{report:#}\n")).map_err(|e| format!("{file}: {e}"))
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("threads: {why}");
            ExitCode::FAILURE
        }
    }
}
