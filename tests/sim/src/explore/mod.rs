//! Random work under random faults, all decided by one seed, and what must hold whatever happens.
//!
//! Tasks on every node do everything that LITE offers, in an order the seed decides (`work`), while nodes die, stop for a while,
//! lose their network or their manager and run out of memory, and the manager dies or stops itself (`chaos`, `swarm`). Whatever a task sees is held against a model
//! (`check`); at the end nothing may be left behind (`end`). The same [`Scenario`] gives the same run, frame by frame.

mod chaos;
mod check;
mod end;
mod jobs;
mod swarm;
mod work;

pub use check::{Check, Violation};

use crate::{Cluster, Nics, random};
use random::Random;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a run is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Nodes at the start, 3 to 64.
    pub nodes: u16,
    /// What they have for RNICs.
    pub nics: Nics,
    /// Decides everything else.
    pub seed: u64,
    /// What each task does, in steps.
    pub steps: u32,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations that succeeded, failed with an error, and were dropped midway.
    pub operations: [u64; 3],
    /// Faults by kind, and what became of jobs.
    pub faults: Vec<(&'static str, u64)>,
    /// Virtual time.
    pub time: Duration,
    /// Hash and count of all frames and control messages: the same for the same scenario.
    pub trace: (u64, u64),
    /// Rare states that the run and LITE have come into, with how often.
    pub states: BTreeMap<&'static str, u64>,
}

/// Why a run failed, and what led to it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What did not hold.
    pub violation: Violation,
    /// All steps and faults before, oldest first, each with its time in seconds.
    pub log: Vec<String>,
}

/// Tasks that work on each node.
const TASKS: usize = 2;
/// How long a member lives without a heartbeat.
const LEASE: Duration = Duration::from_secs(1);
/// Between two looks at the run.
const PACE: Duration = Duration::from_millis(5);
/// No step takes longer, with its own waits, unless its node stands still.
const LONGEST_STEP: Duration = Duration::from_secs(30);

/// Runs a scenario.
///
/// # Errors
/// With the first thing that did not hold.
pub fn explore(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    let check = Check::new();
    // What was before is another run's.
    check.states();
    let failed = |check: &Check| Box::new(check.failure());
    let mut random = Random::new(scenario.seed);
    let mut cluster = Cluster::new(swarm::options(scenario, &mut random));
    let initial = usize::from(scenario.nodes);
    let stage = work::Stage::prepare(&mut cluster, &check, initial, scenario.steps, &mut random);
    for i in 1..=initial {
        stage.start(&cluster, i, &mut random);
        jobs::serve(&cluster, i, random.fork());
    }
    let mut clients = jobs::Clients::new(random.fork());
    let mut chaos = chaos::Chaos::new(random.fork(), &cluster);
    let limit = cluster.world.now() + LONGEST_STEP * scenario.steps.max(1);
    while !check.all_done() || chaos.expects(&cluster) {
        cluster.world.run_for(PACE);
        chaos.act(&mut cluster, &stage, &check);
        check.look(&cluster);
        clients.act(&cluster, &check);
        if check.is_violated() {
            return Err(failed(&check));
        }
        if cluster.world.now() > limit {
            check.violated("a task hangs", check.unfinished());
            return Err(failed(&check));
        }
    }
    chaos.end(&mut cluster, &check);
    clients.end(&mut cluster, &check);
    end::verify(&mut cluster, stage, &check);
    if check.is_violated() {
        return Err(failed(&check));
    }
    Ok(Report {
        operations: check.operations(),
        faults: chaos
            .counts(&cluster)
            .into_iter()
            .chain(clients.counts())
            .filter(|(_, count)| *count > 0)
            .collect(),
        time: Duration::from_nanos(cluster.world.now().as_nanos()),
        trace: cluster.trace.hash(),
        states: check.states(),
    })
}
