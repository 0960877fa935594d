//! The cost of regions and memory for LITE over this driver: WRITEs between two LITE nodes on two emulated
//! cards with the [cost model](connectx3::device::cost), in virtual time. This is a simulation: the sizes of
//! the caches and the cost of a miss are parameters. Writes one JSON object; `cargo xtask bench scaling`
//! draws it next to native verbs, for which connectx3's example `scaling` has the same points. The processor
//! time of LITE and the driver is not included (see docs/performance/cards.md).
#![allow(clippy::unwrap_used, reason = "a benchmark may fail by panic")]

#[path = "../tests/it/common/mod.rs"]
mod common;

use clap::Parser;
use common::lite::{Cluster, cluster};
use connectx3::device::cost::{CacheParameters, Costs, Parameters};
use fastrand::Rng;
use futures_util::future::join_all;
use lite::testing::World;
use lite::{Lite, Lmr, NodeId, Permissions};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// WRITEs between two LITE nodes on emulated cards, with their cost on a card
#[derive(Parser)]
struct Options {
    /// Number of WRITEs for each point
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    writes: u32,
    /// Entries of the card's cache of regions
    #[arg(long, default_value_t = Parameters::default().mpt.entries)]
    regions_cached: usize,
    /// Entries of the card's cache of pages
    #[arg(long, default_value_t = Parameters::default().mtt.entries)]
    pages_cached: usize,
    /// Cost of a cache miss, in nanoseconds
    #[arg(long, default_value_t = Parameters::default().mpt.miss_ns)]
    miss_ns: u64,
    /// Seed of the choice of region and page for each WRITE
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File to write the figures to
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

const MEMORY_MIB: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const REGIONS: [u32; 11] = [1, 10, 30, 100, 200, 300, 1000, 3000, 10_000, 30_000, 100_000];
/// The sizes of a WRITE, in bytes.
const SIZES: [u32; 2] = [64, 1024];
const PAGE: u64 = 4096;
/// The number of tasks, each with one WRITE in flight.
const TASKS: u32 = 32;
/// The memory of a node, in bytes: the regions, and LITE's own memory.
const NODE: u64 = (1024 << 20) + (64 << 20);
/// The limit of virtual time.
const LIMIT: Duration = Duration::from_secs(3600);
const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE);

/// The results.
#[derive(Serialize)]
struct Output {
    /// The points measured with one region of growing size.
    memory: Vec<Point>,
    /// The points measured with a growing number of regions of one page.
    regions: Vec<Point>,
}

/// The throughput at one point of the axis.
#[derive(Serialize)]
struct Point {
    /// The position on the axis: MiB of memory, or the number of regions.
    x: u32,
    /// The size of a WRITE, in bytes.
    size: u32,
    /// Millions of WRITEs per second.
    lite: f64,
    /// Shares of lookups that missed: of regions, of pages.
    misses: [f64; 2],
}

/// Two nodes, the first of which writes to the second.
struct Pair {
    world: World,
    lite: Lite,
    costs: [Arc<Costs>; 2],
}

impl Pair {
    fn new(parameters: Parameters) -> Self {
        let Cluster { world, nodes, cards } = cluster(&["pro", "pro"], false, 0, NODE);
        let costs = [0, 1].map(|n: usize| {
            let costs = Arc::new(Costs::new(parameters));
            cards[n].0.card.lock().unwrap().set_costs(costs.clone());
            costs
        });
        Self { world, lite: nodes[0].1.clone(), costs }
    }

    fn alloc(&mut self, count: u32, len: u64) -> Vec<Lmr> {
        let lite = self.lite.clone();
        self.world.run(LIMIT, async move {
            let mut all = Vec::new();
            for _ in 0..count {
                all.push(lite.alloc(NodeId(2), len, RIGHTS).await.unwrap());
            }
            all
        })
    }

    /// Writes to regions of `pages` pages each, `writes` times after the caches have warmed up.
    fn point(&mut self, x: u32, size: u32, all: &Arc<Vec<Lmr>>, pages: u32, options: &Options) -> Point {
        for _ in 0..2 {
            self.costs.iter().for_each(|costs| costs.clear());
            let (all, seed, each) = (all.clone(), options.seed, options.writes.div_ceil(TASKS));
            self.world.run(LIMIT, async move {
                let all = &all;
                join_all((0..TASKS).map(|task| async move {
                    let mut random = Rng::with_seed(seed << 32 | u64::from(task));
                    let bytes = vec![7; size as usize];
                    for _ in 0..each {
                        let lmr = &all[random.usize(..all.len())];
                        lmr.write(u64::from(random.u32(..pages)) * PAGE, &bytes).await.unwrap();
                    }
                }))
                .await;
            });
        }
        let busy = self.costs.iter().map(|costs| costs.account().busy_ns()).max().unwrap();
        let account = self.costs[1].account();
        let share = |lookups: connectx3::device::cost::Lookups| {
            lookups.misses as f64 / (lookups.hits + lookups.misses).max(1) as f64
        };
        let writes = options.writes.div_ceil(TASKS) * TASKS;
        let misses = [share(account.mpt), share(account.mtt)];
        Point { x, size, lite: f64::from(writes) * 1e3 / busy as f64, misses }
    }
}

fn main() {
    let options = Options::parse();
    let mut pair = Pair::new(options.parameters());
    let mut memory = Vec::new();
    for mib in MEMORY_MIB {
        let len = u64::from(mib) << 20;
        let all = Arc::new(pair.alloc(1, len));
        memory.extend(SIZES.map(|size| pair.point(mib, size, &all, (len / PAGE) as u32, &options)));
        let lmr = Arc::into_inner(all).unwrap().pop().unwrap();
        pair.world.run(LIMIT, async move { lmr.free().await.unwrap() });
    }
    let (mut regions, mut all) = (Vec::new(), Vec::new());
    for count in REGIONS {
        all.extend(pair.alloc(count - all.len() as u32, PAGE));
        let shared = Arc::new(all);
        regions.extend(SIZES.map(|size| pair.point(count, size, &shared, 1, &options)));
        all = Arc::into_inner(shared).unwrap();
    }
    let text = serde_json::to_string(&Output { memory, regions }).unwrap();
    std::fs::write(&options.json, text).unwrap();
}
