//! The cost of LITE itself at native speed: two nodes in one thread over an RNIC that completes at once.
//!
//! `cargo bench -p lite [-- --json FILE] [--quick]`, or `-- --count OPERATION REGIONS COUNT` to do that
//! many operations under a tool that counts instructions, and to print the number of work requests that both
//! nodes have posted, and of the calls that have posted them. The operations are `write`, `random-write`,
//! `read`, `fetch-add` and `call`, and the same work by verbs alone: `bare-write`, `bare-read`,
//! `bare-fetch-add` and `bare-call`. Only the first three use several regions.
//!
//! Each figure stands beside that of the same work by verbs alone (a task of the same executor over the
//! same RNIC, with the same copies, one poll of each completion queue, one read of the clock); the cost of
//! LITE is the difference. The clock is a counter, so that its own cost does not count: LITE reads it once
//! more for an operation's deadline. All figures of a table are taken in turn, many times, and medians are
//! printed. Nothing is allocated meanwhile, which is counted.
//!
//! The heap is in pages of 2 MiB, as memory is on the appliance: the cost of 100,000 handles then does not
//! include that of the machine's 4 KiB pages.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

mod bare;
mod cost;
mod pace;
mod scale;

use serde_json::json;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::Rnic;

/// The number of rounds, and of operations in each.
#[derive(Clone, Copy)]
struct Effort {
    rounds: u32,
    operations: u32,
}

/// A clock that costs next to nothing.
fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let now = NOW.load(Ordering::Relaxed) + 1;
    NOW.store(now, Ordering::Relaxed);
    now
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Returns the nanoseconds of each of the `count` operations of `f`.
///
/// # Panics
/// If it allocates more than the executor's one waker.
fn time(count: u32, f: impl FnOnce()) -> f64 {
    let mut nanoseconds = 0;
    let allocated = allocation_counter::measure(|| {
        let begun = std::time::Instant::now();
        f();
        nanoseconds = begun.elapsed().as_nanos();
    });
    assert!(allocated.count_total <= 1, "{count} operations have allocated: {allocated:?}");
    nanoseconds as f64 / f64::from(count)
}

/// Prints the number of work requests that the nodes have posted so far, and of the calls that have posted
/// them.
fn print_wire(native: &lite::testing::Native) {
    let (mut posts, mut doorbells) = (0, 0);
    for node in &native.nodes {
        node.rnic.counters(&mut |(name, value)| match name {
            "direct_posts" => posts += value,
            "direct_doorbells" => doorbells += value,
            _ => {}
        });
    }
    println!("wire: {posts} work requests, {doorbells} doorbells");
}

enum Work {
    All { json: Option<String>, effort: Effort },
    Count { operation: String, regions: u32, count: u32 },
}

fn options() -> Result<Work, String> {
    let (mut file, mut effort) = (None, Effort { rounds: 101, operations: 2000 });
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            // Arguments that cargo passes to every benchmark.
            "--bench" => {}
            "--quick" => effort = Effort { rounds: 11, operations: 500 },
            "--json" => file = Some(words.next().ok_or("--json needs a file")?),
            "--count" => {
                let mut next = || words.next().ok_or("--count needs an operation, regions and a count");
                let operation = next()?;
                let number = |word: String| word.parse().map_err(|_| format!("`{word}` is not a number"));
                return Ok(Work::Count { operation, regions: number(next()?)?, count: number(next()?)? });
            }
            other => return Err(format!("unknown option {other}: there are --quick, --json FILE, --count")),
        }
    }
    Ok(Work::All { json: file, effort })
}

/// Restarts this program with large pages for its heap, unless it has been restarted.
fn take_large_pages() -> Result<(), String> {
    const NAME: &str = "GLIBC_TUNABLES";
    // One heap in such pages serves all allocations; it grows by 64 MiB and never shrinks.
    const LARGE: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.top_pad=67108864:\
                         glibc.malloc.trim_threshold=17179869184";
    if std::env::var_os(NAME).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let mut again = std::process::Command::new(program);
    again.args(std::env::args_os().skip(1)).env(NAME, LARGE);
    Err(format!("cannot start anew: {}", std::os::unix::process::CommandExt::exec(&mut again)))
}

fn run() -> Result<(), String> {
    match options()? {
        Work::Count { operation, count, .. } if cost::count(&operation, count) => Ok(()),
        Work::Count { operation, regions, count } => scale::count(&operation, regions, count),
        Work::All { json, effort } => {
            take_large_pages()?;
            let cost = cost::measure(effort);
            println!();
            let scale = scale::measure(effort);
            println!();
            let report = json!({ "cost": cost, "scale": scale, "pace": pace::measure(effort) });
            let Some(file) = json else { return Ok(()) };
            std::fs::write(&file, format!("{report:#}\n")).map_err(|e| format!("cannot write {file}: {e}"))
        }
    }
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
