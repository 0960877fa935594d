//! Measures the transport at native speed: two queue pairs back to back in one thread, without a network or
//! RNIC around them, so that a figure is the cost of both ends together, from posting to completion.
//!
//! `cargo bench -p roce [-- --json FILE] [--quick]`
//!
//! Each operation is measured twice. As **packets**: one end passes parsed packets to the other, without
//! network headers and ICRC, but with the whole transport and its copies from and to memory. Packets between
//! queue pairs of one RNIC take this path. As **frames**: whole frames are emitted with their ICRC, then
//! parsed and checked. The **ICRC** column is the share of the ICRC, measured separately over as many bytes.
//!
//! Every figure is the best of many short runs, so that it is the cost of the code on an idle machine.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

mod icrc;
mod pair;

use pair::{Operation, Pair, Via};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// The duration of one run, and the number of runs.
#[derive(Clone, Copy)]
struct Effort {
    run: Duration,
    runs: u32,
}

/// Returns the least nanoseconds per unit of work, the number of which `f` returns.
fn best(effort: Effort, mut f: impl FnMut() -> u64) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..effort.runs {
        let (mut done, begun) = (0, std::time::Instant::now());
        let elapsed = loop {
            done += f();
            let elapsed = begun.elapsed();
            if elapsed >= effort.run {
                break elapsed;
            }
        };
        best = best.min(elapsed.as_nanos() as f64 / done as f64);
    }
    best
}

const OPERATIONS: [(Operation, u32, u32); 9] = [
    (Operation::Write, 8, 1),
    (Operation::Write, 64, 1),
    (Operation::Write, 64, 32),
    (Operation::Write, 1024, 32),
    (Operation::Write, 4096, 32),
    (Operation::Read, 64, 1),
    (Operation::Read, 4096, 8),
    (Operation::Send, 64, 32),
    (Operation::FetchAdd, 8, 1),
];

fn transport(effort: Effort) -> Vec<Value> {
    println!("transport, both ends, ns per operation; path MTU 4096");
    println!(
        "{:<10} {:>6} {:>10} {:>9} {:>9} {:>9} {:>13} {:>12}",
        "operation", "bytes", "in flight", "packets", "frames", "ICRC", "packets GB/s", "frames GB/s"
    );
    let row = |&(operation, bytes, in_flight): &(Operation, u32, u32)| {
        let [packets, frames] = [Via::Packets, Via::Frames].map(|via| {
            let mut pair = Pair::new(via);
            best(effort, || pair.run(operation, bytes, in_flight))
        });
        let mut pair = Pair::new(Via::Frames);
        pair.run(operation, bytes, in_flight);
        let icrc = icrc::of_frames(effort, &pair.frame_lens, u64::from(in_flight));
        let speed = |ns: f64| f64::from(bytes) / ns;
        println!(
            "{:<10} {bytes:>6} {in_flight:>10} {packets:>9.1} {frames:>9.1} {icrc:>9.1} {:>13.2} {:>12.2}",
            operation.name(),
            speed(packets),
            speed(frames)
        );
        json!({
            "operation": operation.name(), "bytes": bytes, "in_flight": in_flight,
            "packets_ns": packets, "frames_ns": frames, "icrc_ns": icrc,
            "packets_gb_per_s": speed(packets), "frames_gb_per_s": speed(frames),
        })
    };
    OPERATIONS.iter().map(row).collect()
}

struct Options {
    json: Option<String>,
    effort: Effort,
}

fn options() -> Result<Options, String> {
    let mut options = Options { json: None, effort: Effort { run: Duration::from_millis(2), runs: 100 } };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            // Cargo passes this to every benchmark.
            "--bench" => {}
            "--quick" => options.effort = Effort { run: Duration::from_micros(200), runs: 5 },
            "--json" => options.json = Some(words.next().ok_or("--json needs a file")?),
            other => return Err(format!("unknown option {other}: there are --quick and --json FILE")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let report = options().and_then(|options| {
        let icrc = icrc::speeds(options.effort);
        println!();
        let report = json!({
            "icrc_method": format!("{:?}", roce::wire::Method::best()),
            "icrc": icrc,
            "transport": transport(options.effort),
        });
        let Some(file) = options.json else { return Ok(()) };
        std::fs::write(&file, format!("{report:#}\n")).map_err(|e| format!("cannot write {file}: {e}"))
    });
    match report {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
