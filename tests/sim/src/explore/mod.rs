//! Random work under random faults, all decided by one seed, and the invariants that hold whatever happens.
//!
//! Tasks on every node use everything that LITE offers, in an order that the seed decides (`work`), while
//! nodes die, pause, lose their network or their manager and run out of memory, and the manager dies or
//! pauses itself (`chaos`, `swarm`). All results that a task sees are compared with a model (`check`). At the
//! end no resource may remain in use (`end`). The same [`Scenario`] gives the same run, frame by frame.

mod chaos;
mod check;
mod end;
mod jobs;
mod log;
mod subject;
mod swarm;
mod work;

pub use check::{Check, Violation};
pub use log::explore_log;

use crate::{Cluster, Nics, random};
use chaos::Work;
use random::Random;
use std::collections::BTreeMap;
use std::time::Duration;

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The number of nodes at the start, 3 to 64.
    pub nodes: u16,
    /// The RNICs of the nodes.
    pub nics: Nics,
    /// The seed of everything else.
    pub seed: u64,
    /// The number of steps of each task.
    pub steps: u32,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of operations that succeeded, that failed with an error, and that were dropped before their
    /// end.
    pub operations: [u64; 3],
    /// The number of faults by kind, and of jobs by result.
    pub faults: Vec<(&'static str, u64)>,
    /// The virtual time of the run.
    pub time: Duration,
    /// The hash and the number of all frames and control messages, which are the same for the same scenario.
    pub trace: (u64, u64),
    /// The rare states that the run and LITE have reached, with the number of times.
    pub states: BTreeMap<&'static str, u64>,
}

/// The failure of a run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The violation.
    pub violation: Violation,
    /// All steps and faults before it, oldest first, each with its time in seconds.
    pub log: Vec<String>,
}

/// The number of tasks that work on each node.
const TASKS: usize = 2;
/// The time after which a member without a heartbeat loses its membership.
const LEASE: Duration = Duration::from_secs(1);
/// The interval between two looks at the run.
const PACE: Duration = Duration::from_millis(5);
/// The maximum time of a step with its waits, unless its node is paused.
const LONGEST_STEP: Duration = Duration::from_secs(30);

/// Runs a scenario.
///
/// # Errors
/// Returns the first violation.
pub fn explore(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    let check = Check::new();
    // Drops the states of an earlier run.
    check.states();
    let failed = |check: &Check| Box::new(check.failure());
    let mut random = Random::new(scenario.seed);
    let subject = subject::Subject::draw(&mut random);
    let mut options = swarm::options(scenario, &mut random);
    subject.tune(&mut options, &mut random);
    let mut cluster = Cluster::new(options);
    let initial = usize::from(scenario.nodes);
    let stage = work::Stage::prepare(&mut cluster, &check, subject, scenario.steps, &mut random);
    for i in 1..=initial {
        stage.start(&cluster, i, &mut random);
        jobs::serve(&cluster, i, random.fork());
    }
    let mut clients = jobs::Clients::new(random.fork(), subject);
    let mut chaos = chaos::Chaos::new(random.fork(), &cluster, subject);
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
            .chain([(subject.name(), 1)])
            .filter(|(_, count)| *count > 0)
            .collect(),
        time: Duration::from_nanos(cluster.world.now().as_nanos()),
        trace: cluster.trace.hash(),
        states: check.states(),
    })
}
