//! Seeds that are run with every change. `cargo xtask sim` runs others.

use sim::Nics;
use sim::explore::{Scenario, explore, explore_log};

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
fn a_log_holds_what_it_promises() {
    for seed in 1..25 {
        let scenario = Scenario { nodes: 4, nics: Nics::default(), seed, steps: 30 };
        if let Err(failure) = explore_log(&scenario) {
            failure.log.iter().for_each(|line| eprintln!("{line}"));
            panic!("a log, seed {seed}: {}", failure.violation);
        }
    }
}

/// All faults of the environment are on: the manager dies in some runs, and its disk and links take time.
#[test]
fn the_same_scenario_gives_the_same_run() {
    let mut crashes = 0;
    for seed in 1..41 {
        let scenario = Scenario { nodes: 5, nics: Nics::default(), seed, steps: 20 };
        let run =
            || explore(&scenario).unwrap_or_else(|failure| panic!("seed {seed}: {}", failure.violation));
        let first = run();
        assert_eq!(run(), first);
        let died = |(kind, _): &&(&str, u64)| kind.starts_with("the manager's") && kind.ends_with("dies");
        crashes += first.faults.iter().filter(died).count();
    }
    assert!(crashes > 0, "the manager never died");
}
