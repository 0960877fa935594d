//! The cost of commits at native speed, beside a bare fetch-add and write by the same tasks: three nodes in
//! one thread over an RNIC that completes at once. The log lies on the third node; writers are on the others.
//!
//! `cargo bench -p litelog [-- --json FILE] [--quick]`; `cargo xtask bench log` calls it. The bare side
//! writes as many bytes as a frame has into one region of LITE, at the same stride. Both sides are measured
//! in turn, many times; medians of each and of the ratios are printed. The clock of LITE is a counter.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark may fail")]

use lite::testing::Native;
use lite::{Config, Lmr, NodeId, Permissions};
use litelog::{Log, LogOptions, Position, Writer};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Instant;

/// The bytes that one side writes in a round, at most.
const BYTES: usize = 1 << 20;
/// The length of the bare side's region, and of a segment.
const REGION: u64 = 16 << 20;

/// A clock that costs next to nothing.
fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let now = NOW.load(Ordering::Relaxed) + 1;
    NOW.store(now, Ordering::Relaxed);
    now
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The tasks of a round that have not ended.
#[derive(Default)]
struct Left(Mutex<(usize, Option<Waker>)>);

impl Left {
    fn end_one(&self) {
        let mut left = self.0.lock().unwrap();
        left.0 -= 1;
        if left.0 == 0
            && let Some(waker) = left.1.take()
        {
            waker.wake();
        }
    }
}

/// Runs one task on each of the first `writers` nodes, and returns the nanoseconds that all take.
fn time<F>(native: &Native, writers: usize, task: impl Fn(usize) -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let left = Arc::new(Left(Mutex::new((writers, None))));
    let begun = Instant::now();
    for i in 1..=writers {
        let (task, left) = (task(i), left.clone());
        native.spawn(i, async move {
            task.await;
            left.end_one();
        });
    }
    native.run(poll_fn(|cx| {
        let mut left = left.0.lock().unwrap();
        left.1 = Some(cx.waker().clone());
        if left.0 == 0 { Poll::Ready(()) } else { Poll::Pending }
    }));
    begun.elapsed().as_nanos() as f64
}

struct Bench {
    native: Native,
    log: Log,
    writers: Vec<Writer>,
    /// For each writer's node, the word and the memory of the bare side.
    bare: Vec<Lmr>,
}

impl Bench {
    fn new() -> Self {
        let native = Native::new(&[8 << 20, 8 << 20, 256 << 20], clock, &Config::default());
        let lites: Vec<_> = native.nodes.iter().map(|node| node.lite.clone()).collect();
        let (log, writers, bare) = native.run(async move {
            let options = LogOptions { longest: 80 << 10, segment: REGION, ..LogOptions::default() };
            let log = Log::create(&lites[0], "bench", &[NodeId(3)], options).await.unwrap();
            let all = Permissions::all();
            let region = lites[0].alloc(NodeId(3), 64 + REGION, all).await.unwrap();
            region.publish("bare").await.unwrap();
            let (mut writers, mut bare) = (Vec::new(), Vec::new());
            for lite in &lites[..2] {
                writers.push(Log::open(lite, "bench").await.unwrap().writer().await.unwrap());
                bare.push(lite.map("bare", all).await.unwrap());
            }
            (log, writers, bare)
        });
        Self { native, log, writers, bare }
    }

    /// Goes on to the next segment if a round would reach the second half of the present one. There the
    /// writer makes the next segment, and this cluster zeroes its memory word by word, which is very slow.
    fn make_room(&self) {
        let (log, writer) = (self.log.clone(), self.writers[0].clone());
        self.native.run(async move {
            let segment = REGION / 64;
            let begun = log.tail().await.unwrap().to_u64();
            while begun % segment > segment / 4
                && log.tail().await.unwrap().to_u64() / segment == begun / segment
            {
                writer.append(&[0; 64 << 10]).await.unwrap();
            }
            log.truncate(log.tail().await.unwrap()).await.unwrap();
        });
    }

    /// Returns the nanoseconds of a round of commits.
    fn commits(&self, writers: usize, (entries, size): (usize, usize), count: usize) -> f64 {
        self.make_room();
        time(&self.native, writers, |i| {
            let writer = self.writers[i - 1].clone();
            async move {
                let entry = vec![i as u8; size];
                let all = vec![&entry[..]; entries];
                for _ in 0..count {
                    writer.commit(&all).await.unwrap();
                }
            }
        })
    }

    /// Returns the nanoseconds of as many fetch-adds, each with a write of `bytes` bytes.
    fn bare(&self, writers: usize, bytes: usize, count: usize) -> f64 {
        time(&self.native, writers, |i| {
            let region = self.bare[i - 1].clone();
            async move {
                let data = vec![i as u8; bytes];
                let stride = bytes.next_multiple_of(64) as u64;
                let room = REGION / stride;
                for _ in 0..count {
                    let n = region.fetch_add(0, 1).await.unwrap();
                    region.write(64 + n % room * stride, &data).await.unwrap();
                }
            }
        })
    }

    /// Checks that a last record can be read and that the log has been truncated.
    fn verify(&self) {
        let (log, writer) = (self.log.clone(), self.writers[1].clone());
        self.native.run(async move {
            let at = writer.commit(&[b"last"]).await.unwrap();
            let found = log.scan(at).next().await.unwrap().unwrap();
            assert_eq!(found.entries().next(), Some(&b"last"[..]));
            assert!(log.head().await.unwrap() > Position::START);
        });
    }
}

fn main() {
    let mut given = std::env::args().skip(1);
    let (mut quick, mut json) = (false, None);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--json" => json = given.next(),
            _ => {}
        }
    }
    let bench = Bench::new();
    let (rounds, most) = if quick { (5, 500) } else { (31, 4000) };
    let mut rows = Vec::new();
    println!(
        "{:>7} {:>7} {:>6} {:>7} {:>12} {:>12} {:>7}",
        "writers", "entries", "bytes", "frame", "commits/s", "bare/s", "ratio"
    );
    for writers in [1, 2] {
        for size in [16, 256, 4096] {
            for entries in [1, 4, 16] {
                // A bare write of 64 bytes stands beside the smallest commits. A frame is written in whole
                // words.
                let frame: usize = 32 + entries * (4 + size);
                let (bytes, count) = (frame.next_multiple_of(8).max(64), (BYTES / frame).min(most));
                let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..rounds {
                    let bare = bench.bare(writers, bytes, count);
                    let commits = bench.commits(writers, (entries, size), count);
                    let each = (writers * count) as f64 * 1e9;
                    ours.push(each / commits);
                    theirs.push(each / bare);
                    ratios.push(bare / commits);
                }
                let (ours, theirs, ratio) = (median(ours), median(theirs), median(ratios));
                println!(
                    "{writers:>7} {entries:>7} {size:>6} {frame:>7} {ours:>12.0} {theirs:>12.0} {ratio:>7.3}"
                );
                rows.push(format!(
                    "{{\"writers\":{writers},\"entries\":{entries},\"size\":{size},\"commits\":{ours:.0},\"bare\":{theirs:.0},\"ratio\":{ratio:.4}}}"
                ));
            }
        }
    }
    bench.verify();
    if let Some(file) = json {
        std::fs::write(file, format!("[{}]\n", rows.join(","))).unwrap();
    }
}
