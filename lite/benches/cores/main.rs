//! The speed of several cores: each runs a task of its own, and no two tasks have a region or a function in
//! common. One core, two cores of the same nodes, and two cores with nodes of their own are measured in turn:
//! the last ones show what the machine loses when two of its processors work.
//!
//! `cargo bench -p lite --bench cores [-- --json FILE] [--quick]`. It is a program of its own, so that its
//! calls do not change what the compiler does with those of the benchmark `native`.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

use lite::testing::{Cores, Native};
use lite::{Config, Lmr, NodeId, Permissions, RpcOptions};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::cell::Cell;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::Instant;

/// The number of cores beside one.
const CORES: usize = 2;

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// A clock of each thread, so that the threads have nothing in common.
fn clock() -> u64 {
    NOW.set(NOW.get() + 1);
    NOW.get()
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Two nodes, and for each core a region of the second node and a function there.
struct Setting {
    native: Native,
    regions: Vec<Lmr>,
}

/// The seconds of all cores together, and of the clock on the wall.
#[derive(Clone, Copy)]
struct Taken {
    processor: f64,
    wall: f64,
}

impl Setting {
    fn new() -> Self {
        let cores = Cores { count: CORES, present: || CORE.get() };
        let native = Native::with_cores(&[64 << 20, 64 << 20], clock, &Config::default(), cores);
        let lite = native.nodes[0].lite.clone();
        let rights = Permissions::READ | Permissions::WRITE | Permissions::ATOMIC;
        let regions =
            (0..CORES).map(|_| native.run(lite.alloc(NodeId(2), 1 << 20, rights)).expect("memory")).collect();
        for core in 0..CORES {
            let server =
                native.nodes[1].lite.register(core as u32, RpcOptions::default()).expect("a free function");
            CORE.set(core);
            native.spawn(2, async move {
                while let Ok(call) = server.receive().await {
                    if call.reply(&[7; 64]).await.is_err() {
                        return;
                    }
                }
            });
        }
        CORE.set(0);
        Self { native, regions }
    }
}

/// Does `count` operations at once on as many cores as there are settings. Each core works in its own one of
/// these settings, which may all be the same.
fn run_on(settings: &[&Setting], operation: Operation, count: u32) -> Taken {
    let (ready, now) = (Barrier::new(settings.len()), NOW.get());
    let begun = Instant::now();
    let one = |core: usize, setting: &Setting| {
        CORE.set(core);
        NOW.set(now);
        ready.wait();
        let before = processor_time();
        operation(setting, core, count);
        (processor_time() - before, NOW.get())
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (settings.iter().enumerate())
            .map(|(core, &setting)| {
                let one = &one;
                scope.spawn(move || one(core, setting))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let wall = begun.elapsed().as_secs_f64();
    // Time goes on in the next threads.
    NOW.set(ended.iter().map(|(_, now)| *now).max().unwrap_or(now));
    Taken { processor: ended.iter().map(|(processor, _)| processor).sum(), wall }
}

type Operation = fn(&Setting, usize, u32);

const OPERATIONS: [(&str, Operation); 4] =
    [("write 64 B", writes), ("read 64 B", reads), ("fetch-add", adds), ("call 64 B, both ends", calls)];

fn writes(setting: &Setting, core: usize, count: u32) {
    setting.native.run_here(1, async {
        for _ in 0..count {
            setting.regions[core].write(64, &[7; 64]).await.unwrap();
        }
    });
}

fn reads(setting: &Setting, core: usize, count: u32) {
    setting.native.run_here(1, async {
        for _ in 0..count {
            setting.regions[core].read(64, &mut [0; 64]).await.unwrap();
        }
    });
}

fn adds(setting: &Setting, core: usize, count: u32) {
    setting.native.run_here(1, async {
        for _ in 0..count {
            setting.regions[core].fetch_add(64, 1).await.unwrap();
        }
    });
}

fn calls(setting: &Setting, core: usize, count: u32) {
    let lite = &setting.native.nodes[0].lite;
    setting.native.run_here(2, async {
        let mut reply = [0; 64];
        for _ in 0..count {
            lite.call_into(NodeId(2), core as u32, &[7; 64], &mut reply).await.unwrap();
        }
    });
}

/// Measures and prints all rows, in rounds of `count` operations on each core.
fn measure(rounds: u32, count: u32) -> Vec<Value> {
    let (setting, other) = (Setting::new(), Setting::new());
    // The first use opens connections and grows all buffers.
    for core in 0..CORES {
        CORE.set(core);
        for setting in [&setting, &other] {
            OPERATIONS.iter().for_each(|(_, operation)| operation(setting, core, 2000));
        }
    }
    println!("operations per second, medians of {rounds} rounds of {count} on each core");
    println!("two: two cores of the same nodes; apart: two cores, each with two nodes of its own");
    println!(
        "{:<22}{:>12}{:>14}{:>14}{:>16}{:>14}",
        "operation", "one core", "two, busy", "two, wall", "apart, busy", "apart, wall"
    );
    let row = |&(name, operation): &(&str, Operation)| {
        let (mut speeds, mut ratios) = (Vec::new(), [const { Vec::new() }; 4]);
        for _ in 0..rounds {
            let one = run_on(&[&setting], operation, count);
            let two = run_on(&[&setting, &setting], operation, count);
            let apart = run_on(&[&setting, &other], operation, count);
            speeds.push(f64::from(count) / one.processor);
            let ratio = |taken: Taken| {
                [one.processor / taken.processor, one.wall / taken.wall].map(|ratio| CORES as f64 * ratio)
            };
            let [[processor, wall], [apart, apart_wall]] = [ratio(two), ratio(apart)];
            let all = ratios.iter_mut().zip([processor, wall, apart, apart_wall]);
            all.for_each(|(all, ratio)| all.push(ratio));
        }
        let speed = median(&mut speeds);
        let [processor, wall, apart, apart_wall] = ratios.each_mut().map(|all| median(all));
        println!("{name:<22}{speed:>12.0}{processor:>13.2}x{wall:>13.2}x{apart:>15.2}x{apart_wall:>13.2}x");
        json!({
            "operation": name,
            "one_per_s": speed,
            "processor": processor,
            "wall": wall,
            "apart_processor": apart,
            "apart_wall": apart_wall,
        })
    };
    OPERATIONS.iter().map(row).collect()
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn run() -> Result<(), String> {
    let (mut file, mut rounds, mut count) = (None, 51, 400_000);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            // An argument that cargo passes to every benchmark.
            "--bench" => {}
            "--quick" => (rounds, count) = (7, 100_000),
            "--json" => file = Some(words.next().ok_or("--json needs a file")?),
            other => return Err(format!("unknown option {other}: there are --quick, --json FILE")),
        }
    }
    let report = json!({ "cores": measure(rounds, count) });
    let Some(file) = file else { return Ok(()) };
    std::fs::write(&file, format!("{report:#}\n")).map_err(|e| format!("cannot write {file}: {e}"))
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
