//! The log on nodes that share one thread and a network in memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod basic;
mod holes;

use lite::testing::Cluster;
use lite::{Config, Lite};
use litelog::LogOptions;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Segments of 16 KiB, of which there may be eight.
const SMALL: LogOptions = LogOptions {
    segment: 16 << 10,
    capacity: 128 << 10,
    longest: 4096,
    writers: 4,
    hole_time: Duration::from_millis(5),
};

/// Runs a test on the LITE of each of `count` nodes.
fn run<F>(count: u8, test: impl FnOnce(Vec<Lite>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut c = Cluster::new(1, count, 64 << 20, &Config::default());
    let nodes = (1..=usize::from(count)).map(|i| c.lite(i)).collect();
    c.world.run(LIMIT, test(nodes));
}
