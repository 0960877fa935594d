//! Random members and clients, with the invariants of `hostile_manager`.
//!
//! The seeds differ from run to run. A failure prints its seed; `MANAGER_SEED=N cargo test -p
//! hostile-manager` runs it alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod seed;

use hostile_manager::{Report, drive};
use seed::bytes;
use std::hash::{BuildHasher, RandomState};

/// The number of runs, if no seed is given.
const RUNS: u64 = 400;
/// The environment variable with a seed to run alone.
const SEED: &str = "MANAGER_SEED";

/// Prints the seed if the test panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was {}: {SEED}={} runs it alone", self.0, self.0);
        }
    }
}

fn run(seed: u64) -> Report {
    let seed = Seed(seed);
    drive(&bytes(seed.0))
}

#[test]
fn whatever_members_and_clients_do() {
    if let Ok(seed) = std::env::var(SEED) {
        println!("{:?}", run(seed.parse().expect("a number")));
        return;
    }
    let first = RandomState::new().hash_one(0) >> 1;
    println!("seeds from {first}");
    let mut sum = Report::default();
    for report in (first..first + RUNS).map(run) {
        sum.events += report.events;
        sum.actions += report.actions;
        sum.joins += report.joins;
        sum.expired += report.expired;
        sum.restarts += report.restarts;
        sum.jobs += report.jobs;
        sum.done += report.done;
        sum.failed += report.failed;
    }
    println!("{sum:?}");
    // Rare states are reached: each run begins and ends some jobs.
    assert!(sum.joins > 4 * RUNS && sum.expired > RUNS / 4, "{sum:?}");
    assert!(sum.restarts > RUNS / 8, "{sum:?}");
    assert!(sum.jobs > 2 * RUNS && sum.done > RUNS && sum.failed > RUNS, "{sum:?}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in 0..8 {
        assert_eq!(format!("{:?}", run(seed)), format!("{:?}", run(seed)));
    }
}
