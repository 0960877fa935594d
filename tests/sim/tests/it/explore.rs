//! Seeds that are run with every change. `cargo xtask sim` runs others.

use sim::Nics;
use sim::explore::{Scenario, explore};

fn holds(nodes: u16, seed: u64, steps: u32) {
    if let Err(failure) = explore(&Scenario { nodes, nics: Nics::default(), seed, steps }) {
        failure.log.iter().for_each(|line| eprintln!("{line}"));
        panic!("nodes {nodes}, seed {seed}, steps {steps}: {}", failure.violation);
    }
}

#[test]
fn what_must_hold_holds() {
    (1..25).for_each(|seed| holds(4, seed, 30));
    (1..4).for_each(|seed| holds(9, seed, 20));
}

#[test]
fn the_same_scenario_gives_the_same_run() {
    let scenario = Scenario { nodes: 5, nics: Nics::default(), seed: 7, steps: 20 };
    let run = || explore(&scenario).map_err(|failure| failure.violation).unwrap();
    assert_eq!(run(), run());
}
