//! Each bug that is planted in the manager is found by the random test, from fresh seeds.
//!
//! There is only one test, because a planted bug applies to the whole process.
#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "it/seed.rs"]
mod seed;

use hostile_manager::drive;
use manager::{Bug, plant};
use std::hash::{BuildHasher, RandomState};
use std::panic;

/// The number of seeds within which a bug must be found.
const SEEDS: u64 = 2000;

#[test]
fn each_planted_bug_is_found() {
    let first = RandomState::new().hash_one(0) >> 1;
    println!("seeds from {first}");
    // A bug is found by a panic, whose message is printed below.
    let print = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for &bug in Bug::ALL {
        plant(bug);
        let finds = |seed: u64| panic::catch_unwind(|| drive(&seed::bytes(first + seed))).err();
        let found = (0..SEEDS).find_map(|seed| Some((seed, finds(seed)?)));
        let Some((seed, why)) = found else {
            missed.push(bug.name());
            continue;
        };
        let text = why.downcast_ref::<&str>().copied().or_else(|| why.downcast_ref::<String>().map(|s| &**s));
        println!("{}: after {} seeds: {}", bug.name(), seed + 1, text.unwrap_or("no message"));
    }
    panic::set_hook(print);
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
