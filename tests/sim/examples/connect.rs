//! Measures the set-up of connections: one node calls each of its peers twice, for the first time and over
//! the connection that the first call has made. `cargo xtask bench connect` runs it.
//!
//! `cargo run --release -p sim --example connect -- [--peers N] [--manager-us US] [--json FILE]`
#![forbid(unsafe_code)]

use lite::{Config, NodeId, RpcOptions};
use sim::{Cluster, ControlLinks, Options};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The memory of a simulated node, in bytes.
const MEMORY: u64 = 16 << 20;
/// The number of the function that echoes.
const ECHO: u32 = 1;
/// The virtual time that the calls may take.
const LIMIT: Duration = Duration::from_secs(60);

struct Arguments {
    peers: u16,
    manager: Duration,
    json: Option<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { peers: 64, manager: Duration::from_micros(100), json: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
        let number = |most: u64| match value.parse::<u64>() {
            Ok(n) if (1..=most).contains(&n) => Ok(n),
            _ => Err(format!("{word} wants a number from 1 to {most}, not `{value}`")),
        };
        match word.as_str() {
            "--peers" => parsed.peers = number(500)? as u16,
            "--manager-us" => parsed.manager = Duration::from_micros(number(1_000_000)?),
            "--json" => parsed.json = Some(value),
            _ => return Err(format!("unknown argument `{word}`")),
        }
    }
    Ok(parsed)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let &Arguments { peers, manager, .. } = arguments;
    let config = Config { peers: u32::from(peers) + 2, ..Options::default().config };
    let control = ControlLinks { latency: manager, rate: 100_000_000 };
    let lease = Duration::from_secs(600);
    let nodes = peers + 1;
    let mut cluster = Cluster::new(Options {
        nodes,
        memory: MEMORY.max(u64::from(peers) << 19),
        lease,
        control,
        config,
        nics: "softroce".parse()?,
        ..Options::default()
    });
    for i in 2..=nodes {
        let lite = cluster.lite(usize::from(i));
        let server = lite.register(ECHO, RpcOptions::default()).map_err(|e| e.to_string())?;
        let task = async move {
            while let Ok(call) = server.receive().await {
                // The caller waits, or has failed itself.
                let _ = call.reply(b"").await;
            }
        };
        lite.platform().spawn("echo", Box::pin(task));
    }
    let times = Arc::new(Mutex::new([const { Vec::new() }; 3]));
    let (lite, told) = (cluster.lite(1), times.clone());
    let start = Instant::now();
    let called = cluster.world.run(LIMIT, async move {
        for node in 2..=nodes {
            for which in 0..3 {
                let from = lite.platform().now();
                if which < 2 {
                    lite.call(NodeId(node), ECHO, b"x", 8).await?;
                } else {
                    // A question to the manager.
                    drop(lite.map("no such name", lite::Permissions::READ).await);
                }
                let took = lite.platform().now() - from;
                told.lock().expect("no panic under the lock")[which].push(took);
            }
        }
        Ok::<(), lite::Error>(())
    });
    let wall = start.elapsed().as_secs_f64() * 1e6 / f64::from(peers);
    called.map_err(|e| e.to_string())?;
    let [first, later, asked] = std::mem::take(&mut *times.lock().expect("no panic under the lock"));
    let all: Duration = first.iter().sum();
    let rate = f64::from(peers) / all.as_secs_f64();
    let (first, later, manager) = (median(first), median(later), median(asked));
    let rows = [
        ("first_us", first),
        ("connected_us", later),
        ("manager_us", manager),
        ("connections_per_s", rate),
        ("wall_us", wall),
    ];
    for (what, value) in rows {
        println!("{what:<20} {value:>12.1}");
    }
    let rows: Vec<String> = rows.iter().map(|(what, value)| format!("  \"{what}\": {value:.3}")).collect();
    match &arguments.json {
        Some(file) => std::fs::write(file, format!("{{\n{}\n}}\n", rows.join(",\n")))
            .map_err(|e| format!("{file}: {e}")),
        None => Ok(()),
    }
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("connect: {why}");
            ExitCode::FAILURE
        }
    }
}
