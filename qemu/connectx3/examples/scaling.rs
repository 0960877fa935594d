//! Simulates the cost of many regions and much memory to native verbs, and the saving by a single physical
//! key: WRITEs between two emulated cards with the [cost model](connectx3::device::cost), in virtual time.
//! The caches' sizes and the cost of a miss are parameters. The program writes one JSON object; `cargo xtask
//! bench scaling` draws it.
//!
//! All pages of a region may map to the same memory, because a card's cost depends on its table entries and
//! not on the addresses in them. Therefore a gigabyte of regions costs this program only two megabytes of
//! table.

use anyhow::{Context, Result};
use clap::Parser;
use connectx3::device::cost::{CacheParameters, Costs, Parameters};
use connectx3::device::{Card, Profile};
use connectx3_testdriver::driver::{self, KEY, Node, PD, Queue, Sizes};
use fastrand::Rng;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use verbs::MacAddr;

/// Simulates WRITEs between two emulated cards, with the cost of each to a card
#[derive(Parser)]
struct Options {
    /// Number of WRITEs per measured point
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    writes: u32,
    /// Entries of the cache of regions
    #[arg(long, default_value_t = Parameters::default().mpt.entries)]
    regions_cached: usize,
    /// Entries of the cache of pages
    #[arg(long, default_value_t = Parameters::default().mtt.entries)]
    pages_cached: usize,
    /// Cost of a cache miss, in nanoseconds
    #[arg(long, default_value_t = Parameters::default().mpt.miss_ns)]
    miss_ns: u64,
    /// Seed of the generator that chooses each WRITE's region and page
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to which the figures are written, as JSON
    #[arg(long)]
    json: PathBuf,
}

impl Options {
    fn parameters(&self) -> Parameters {
        let cache = |entries| CacheParameters { entries, hit_ns: 0, miss_ns: self.miss_ns };
        let (mpt, mtt) = (cache(self.regions_cached), cache(self.pages_cached));
        Parameters { mpt, mtt, ..Parameters::default() }
    }
}

/// The page size of native regions, in bytes.
const PAGE: u64 = 4096;
/// The number of WRITEs posted before completions are polled.
const BATCH: u32 = 32;

/// All measurements.
#[derive(Serialize)]
struct Output {
    writes: u32,
    seed: u64,
    engine_ns: u64,
    miss_ns: u64,
    regions_cached: usize,
    pages_cached: usize,
    /// Points for one region of growing size.
    memory: Vec<Point>,
    /// Points for a growing number of regions of one page each.
    regions: Vec<Point>,
}

/// The throughput for one number of regions or pages.
#[derive(Serialize)]
struct Point {
    /// The position on the axis: total MiB, or the number of regions.
    x: u32,
    /// The length of a WRITE, in bytes.
    size: u32,
    /// Millions of WRITEs per second with one key per region.
    native: f64,
    /// Millions of WRITEs per second with one physical key for all memory.
    physical: f64,
    /// The share of native lookups that missed the cache: of regions, of pages.
    misses: [f64; 2],
}

fn main() -> Result<()> {
    let options = Options::parse();
    let parameters = options.parameters();
    const MEMORY: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
    const REGIONS: [u32; 11] = [1, 10, 30, 100, 200, 300, 1000, 3000, 10_000, 30_000, 100_000];
    let sweep = |axis: &[u32], regions: fn(u32) -> Regions| -> Vec<Point> {
        let points = axis.iter().flat_map(|&x| [64, 1024].map(|size| point(x, size, regions(x), &options)));
        points.collect()
    };
    let output = Output {
        writes: options.writes,
        seed: options.seed,
        engine_ns: parameters.engine_ns,
        miss_ns: options.miss_ns,
        regions_cached: options.regions_cached,
        pages_cached: options.pages_cached,
        memory: sweep(&MEMORY, |mib| Regions { count: 1, pages: mib * 256 }),
        regions: sweep(&REGIONS, |count| Regions { count, pages: 1 }),
    };
    let text = serde_json::to_string(&output)?;
    std::fs::write(&options.json, text).with_context(|| format!("cannot write {}", options.json.display()))
}

/// The native regions of a point: their number, and the pages of each.
#[derive(Clone, Copy)]
struct Regions {
    count: u32,
    pages: u32,
}

/// Two cards with a connection between them.
struct Pair {
    requester: Node,
    responder: Node,
    queue: Queue,
    costs: [Arc<Costs>; 2],
    /// Address of the requester's data, and of the responder's.
    data: [u64; 2],
}

impl Pair {
    fn new(parameters: Parameters) -> Self {
        // Tables for 131,072 regions and 1.9 million pages.
        let sizes = Sizes { log_regions: 17, icm: 16 << 20, ..Sizes::default() };
        let node = |number| {
            let costs = Arc::new(Costs::new(parameters));
            let mut card = Card::new(Profile::pro(MacAddr([2, 0, 0, 0, 0, number])));
            card.set_costs(Arc::clone(&costs));
            (Node::with(card, sizes, number), costs)
        };
        let ((mut requester, a), (mut responder, b)) = (node(1), node(2));
        requester.create_eq(0, 6);
        responder.create_eq(0, 6);
        const QP: u32 = 0x300;
        let queue = requester.connect(QP, 0x80, &responder, QP);
        responder.connect(QP, 0x80, &requester, QP);
        let data = [requester.alloc(PAGE), responder.alloc(PAGE)];
        Self { requester, responder, queue, costs: [a, b], data }
    }

    /// Registers regions that each begin at address 0 and whose pages all map to the one page of data.
    /// Returns their keys.
    fn register(&mut self, regions: Regions) -> Vec<u32> {
        const FLAGS: u32 = 0x0002_7d00;
        let mut first = 0;
        for page in 0..regions.count * regions.pages {
            let at = self.responder.map_pages(self.data[1], PAGE);
            if page == 0 {
                first = at;
            }
        }
        (0..regions.count)
            .map(|n| {
                // Lower indices belong to the firmware and to the driver itself.
                let index = 0x200 + n;
                let bytes = u64::from(regions.pages) * PAGE;
                let mtt = first + n * regions.pages * 8;
                self.responder.command(
                    0x00d,
                    0,
                    index,
                    &[
                        (0x00, FLAGS),
                        (0x08, index),
                        (0x0c, PD),
                        (0x18, (bytes >> 32) as u32),
                        (0x1c, bytes as u32),
                        (0x30, mtt),
                        (0x38, 12),
                    ],
                );
                index << 8
            })
            .collect()
    }

    /// Returns the rate of WRITEs to the addresses and keys that `target` returns, in millions per second,
    /// measured after the caches are warm.
    fn throughput(&mut self, size: u32, writes: u32, mut target: impl FnMut() -> (u64, u32)) -> f64 {
        const WRITE: u32 = 0x08;
        for measured in [false, true] {
            if measured {
                self.costs.iter().for_each(|costs| costs.clear());
            }
            for batch in 0..writes.div_ceil(BATCH) {
                let n = BATCH.min(writes - batch * BATCH);
                for _ in 0..n {
                    let (at, key) = target();
                    let words = [driver::remote(at, key), driver::data(self.data[0], size)].concat();
                    self.requester.post_send(&mut self.queue, WRITE, 0, &words);
                }
                driver::exchange(&mut self.requester, &mut self.responder, |_| false);
                for _ in 0..n {
                    let entry = self.requester.poll(&mut self.queue).expect("each WRITE has ended");
                    assert_eq!(entry.syndrome, 0, "each WRITE succeeds");
                }
            }
        }
        let busy = self.costs.iter().map(|costs| costs.account().busy_ns()).max().unwrap_or(1);
        f64::from(writes) * 1e3 / busy as f64
    }
}

fn point(x: u32, size: u32, regions: Regions, options: &Options) -> Point {
    let mut random = Rng::with_seed(options.seed);
    let mut pair = Pair::new(options.parameters());
    let keys = pair.register(regions);
    let native = pair.throughput(size, options.writes, || {
        let key = keys[random.u32(..regions.count) as usize];
        (u64::from(random.u32(..regions.pages)) * PAGE, key)
    });
    let account = pair.costs[1].account();
    let share = |lookups: connectx3::device::cost::Lookups| {
        lookups.misses as f64 / (lookups.hits + lookups.misses).max(1) as f64
    };
    let misses = [share(account.mpt), share(account.mtt)];
    let mut pair = Pair::new(options.parameters());
    let at = pair.data[1];
    let physical = pair.throughput(size, options.writes, || (at, KEY));
    Point { x, size, native, physical, misses }
}
