//! The checker is checked: bugs put into LITE on purpose are found, each by the property that it breaks.
//!
//! One test, because a planted bug is the whole process's.
#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use lite::testing::{Bug, plant};
use sim::Nics;
use sim::explore::{Scenario, explore};

/// What the first of some seeds to fail says, with its seed.
fn first_failure() -> (u64, &'static str) {
    let failing = (1..40).find_map(|seed| {
        let failure = explore(&Scenario { nodes: 4, nics: Nics::default(), seed, steps: 40 }).err()?;
        Some((seed, failure.violation.property))
    });
    failing.expect("the bug is found")
}

#[test]
fn planted_bugs_are_found() {
    let bugs = [
        (Bug::LostCredit, "a healthy cluster works"),
        (Bug::DoubleGrant, "a lock has one holder"),
        (Bug::NoBoundsCheck, "rights and bounds hold"),
        (Bug::StaleMap, "memory equals the model"),
    ];
    for (bug, property) in bugs {
        plant(bug);
        let (seed, broken) = first_failure();
        println!("{bug:?}: seed {seed} finds that it breaks `{broken}`");
        assert_eq!(broken, property, "{bug:?}, seed {seed}");
    }
}
