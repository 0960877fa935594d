//! Random work on a log under random faults, and the properties that hold whatever happens.

mod model;
mod tasks;

use super::chaos::{Chaos, Work};
use super::check::Check;
use super::end::{SETTLE, is_live, left_behind};
use super::random::Random;
use super::subject::Subject;
use super::work::{PATIENT, spared};
use super::{Failure, LONGEST_STEP, PACE, Report, Scenario, swarm};
use crate::Cluster;
use lite::{Lite, NodeId};
use litelog::{Log, LogError, LogOptions, Position};
use model::Model;
use std::sync::Arc;
use std::time::Duration;

/// The name of the log.
const NAME: &str = "sim";
/// The number of tasks that work on each node.
const TASKS: usize = 3;
/// The time limit of the last scan.
const LIMIT: Duration = Duration::from_secs(120);

/// The parts of a run that all tasks share.
struct Stage {
    initial: usize,
    steps: u32,
    check: Arc<Check>,
    model: Arc<Model>,
}

impl Work for Stage {
    fn initial(&self) -> usize {
        self.initial
    }

    fn start(&self, cluster: &Cluster, node: usize, random: &mut Random) {
        self.check.joined(&cluster.lite(node));
        tasks::start(self, cluster, node, random);
    }
}

/// Runs a scenario with a log.
///
/// # Errors
/// Returns the first violation.
pub fn explore_log(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    let check = Check::new();
    // Drops the states of an earlier run.
    check.states();
    let mut random = Random::new(scenario.seed);
    let subject = if random.one_in(3) { Subject::Everything } else { Subject::Log };
    let mut options = swarm::options(scenario, &mut random);
    subject.tune(&mut options, &mut random);
    let mut cluster = Cluster::new(options);
    let initial = usize::from(scenario.nodes);
    let homes = (1..=spared(initial)).map(|i| cluster.lite(i)).collect();
    let model = Arc::new(Model::new(check.clone(), homes));
    let stage = Stage { initial, steps: scenario.steps, check: check.clone(), model };
    prepare(&mut cluster, &stage, &mut random);
    for i in 1..=initial {
        stage.start(&cluster, i, &mut random);
    }
    let mut chaos = Chaos::new(random.fork(), &cluster, subject);
    let limit = cluster.world.now() + LONGEST_STEP * scenario.steps.max(1);
    let failed = |check: &Check| Box::new(check.failure());
    while !check.all_done() || chaos.expects(&cluster) {
        cluster.world.run_for(PACE);
        chaos.act(&mut cluster, &stage, &check);
        check.look(&cluster);
        if check.is_violated() {
            return Err(failed(&check));
        }
        if cluster.world.now() > limit {
            check.violated("a task hangs", check.unfinished());
            return Err(failed(&check));
        }
    }
    chaos.end(&mut cluster, &check);
    verify(&mut cluster, &stage);
    if check.is_violated() {
        return Err(failed(&check));
    }
    let counts = chaos.counts(&cluster).into_iter().chain(stage.model.counts());
    Ok(Report {
        operations: check.operations(),
        faults: counts.filter(|(_, count)| *count > 0).collect(),
        time: Duration::from_nanos(cluster.world.now().as_nanos()),
        trace: cluster.trace.hash(),
        states: check.states(),
    })
}

/// Makes the log.
fn prepare(cluster: &mut Cluster, stage: &Stage, random: &mut Random) {
    for i in 1..=stage.initial {
        stage.check.joined(&cluster.lite(i));
    }
    let lite = cluster.lite(1).with_deadline(PATIENT);
    let homes: Vec<NodeId> = (1..=spared(stage.initial)).map(|i| cluster.lite(i).node_id()).collect();
    let options = LogOptions {
        segment: random.pick(&[4096, 4096, 8192, 16384]),
        capacity: 256 << 10,
        longest: 1024,
        writers: 32,
        hole_time: random.pick(&[Duration::from_micros(200), Duration::from_millis(2)]),
    };
    let made =
        cluster.world.run(PATIENT, async move { Log::create(&lite, NAME, &homes, options).await.map(drop) });
    if let Err(error) = made {
        stage.check.violated("a healthy cluster works", error);
    }
}

/// Checks the invariants that can only be checked at the end, ends the log, and checks that no node holds
/// anything.
fn verify(cluster: &mut Cluster, stage: &Stage) {
    let (check, model) = (&stage.check, stage.model.clone());
    cluster.world.run_for(SETTLE);
    check.look(cluster);
    let live: Vec<usize> = (1..=cluster.joined()).filter(|i| is_live(cluster, *i)).collect();
    if model.is_over() || check.is_violated() {
        return;
    }
    let lites: Vec<Lite> = live.iter().map(|i| cluster.lite(*i).with_deadline(PATIENT)).collect();
    let last = async move {
        for lite in &lites {
            if let Err(error) = scan_all(lite, &model).await {
                model.violated(
                    "every position is resolved",
                    format_args!("{} scans: {error}", lite.node_id()),
                );
            }
        }
        model.all_are_found();
        let Some(lite) = lites.first() else { return };
        let ended = match Log::open(lite, NAME).await {
            Ok(log) => log.destroy().await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            model.violated("a healthy cluster works", format_args!("the log ends: {error}"));
        }
    };
    cluster.world.run(LIMIT * 10, last);
    cluster.world.run_for(SETTLE * 3);
    check.look(cluster);
    check.look_at_memory(cluster);
    let left = left_behind(cluster, &live);
    if !left.is_empty() {
        check.violated("nothing is left behind", left.join("; "));
    }
}

/// Scans the log from its head to its tail.
async fn scan_all(lite: &Lite, model: &Model) -> Result<(), LogError> {
    let log = Log::open(lite, NAME).await?;
    let (head, tail) = (log.head().await?, log.tail().await?);
    let mut scan = log.scan(head);
    // Truncation may have cut a record: a scan begins at a record.
    if head > Position::START && !model.knows(head) {
        return Ok(());
    }
    loop {
        let at = scan.position();
        match scan.next().await {
            Ok(Some(record)) => model.scanned_with(at, &record, log.key()),
            Ok(None) => {
                model.passed(at, tail.max(at));
                return Ok(());
            }
            Err(error) => {
                let closed = log.close_holes().await;
                let seen = format_args!("{at}: {error}; holes are closed up to {closed:?}, of {tail}");
                model.violated("every position is resolved", seen);
                return Ok(());
            }
        }
    }
}
