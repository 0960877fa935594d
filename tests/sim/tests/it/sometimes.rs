//! Rare states are reached: a state that no run enters is not tested.
#![cfg(debug_assertions)]

use sim::Nics;
use sim::explore::{Scenario, explore};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The states that few seeds reach. Few runs need not enter them.
const RARE: &[&str] = &[
    "a broken connection had ended at its peer",
    "a grant told of a death",
    "a life that had ended was to install something",
    "a lock was granted after a death",
    "a mapping arrived during a move",
    "a mapping that had ended got another owner",
    "a name could not be unbound because of the manager's disk",
    "a name did not go to the new owner of its region",
    "a new owner died before it had a region",
    "a node left and cut off operations in flight",
    "a node was suspended",
    "a question was asked again",
    "a refusal to adopt a region was asked for again",
    "a region ended with its former owner",
    "a region was to be freed while it was handed over",
    "a transfer went on over a new connection",
    "a watcher was told that an end is settled",
    "an operation was lost with its connection",
    "memory was held for the former owner again",
    "memory was taken in several runs",
    "the end of a life waited for what was under way",
    "the holder of a lock died",
    "the name of a counter was bound or not",
    "the set-up of a connection took too long",
];

/// The states that no run has entered yet: only directed tests do.
const DIRECTED: &[&str] = &[
    // lite/tests/it/regions.rs: revoking_waits_for_what_is_under_way
    "a mapping arrived after it was revoked",
    // lite/src/region/lend.rs: a_loan_is_taken_once_by_whom_it_is_for_and_in_time. A loan lasts a
    // little longer than the request of its borrower, so it ends before only if that request is
    // late in its last moment.
    "a loan had expired or ended",
    // lite/tests/it/departed.rs: nothing_is_left_of_what_a_dead_node_has_asked
    "memory came for an owner that was gone",
    // set_ups.rs: a_card_that_recovers_receives_datagrams_again. These runs have no cards.
    "the queue pair for datagrams was replaced",
];

/// Collects the names that the source passes to `sometimes`.
fn named(folder: &Path, names: &mut BTreeMap<String, u64>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named(&path, names);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for rest in text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| {
            let calls = line.split("sometimes!(\"").skip(1).chain(line.split("sometimes(\"").skip(1));
            calls.chain(line.split("states.entry(\"").skip(1)).chain(line.split("=> \"a step is").skip(1))
        }) {
            let name = rest.split('"').next().unwrap();
            let name = if name.starts_with(" done") { format!("a step is{name}") } else { name.to_owned() };
            names.insert(name, 0);
        }
    }
}

/// Runs the seeds on several threads. Returns the number of times that each state was reached.
fn reached(seeds: std::ops::Range<u64>, threads: usize) -> BTreeMap<String, u64> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = BTreeMap::new();
    named(&here.join("../../lite/src"), &mut names);
    named(&here.join("src"), &mut names);
    assert!(names.len() > 50, "{names:?}");
    let (next, names) = (AtomicU64::new(seeds.start), Mutex::new(names));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let nodes = if seed.is_multiple_of(4) { 7 } else { 4 };
                    let scenario = Scenario { nodes, nics: Nics::default(), seed, steps: 40 };
                    let report = explore(&scenario).unwrap_or_else(|failure| {
                        panic!("{nodes} nodes, seed {seed}: {}", failure.violation)
                    });
                    let mut names = names.lock().unwrap();
                    for (state, count) in report.states {
                        *names.entry(state.to_owned()).or_default() += count;
                    }
                }
            });
        }
    });
    let names = names.into_inner().unwrap();
    for (state, count) in &names {
        println!("{count:>9}  {state}");
    }
    names
}

fn missed(names: &BTreeMap<String, u64>, excused: &[&str]) -> Vec<String> {
    let missed = names.iter().filter(|(name, count)| **count == 0 && !excused.contains(&name.as_str()));
    missed.map(|(name, _)| name.clone()).collect()
}

#[test]
fn common_states_are_reached() {
    let missed = missed(&reached(1000..1060, 2), &[RARE, DIRECTED].concat());
    assert!(missed.is_empty(), "60 runs did not come into: {missed:?}");
}

#[test]
#[ignore = "takes minutes"]
fn all_states_are_reached() {
    let missed = missed(&reached(0..1000, 4), DIRECTED);
    assert!(missed.is_empty(), "1,000 runs did not come into: {missed:?}");
}
