//! The checker is checked: bugs put into LITE and the manager on purpose are found, each by a property that it breaks.
//!
//! A planted bug is the whole process's, so each is looked for by a process of its own: this program again, with the bug's name in
//! [`BUG`]. Seeds are fresh in each run; `cargo xtask sim --planted BUG --seed SEED` runs one again.
#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use lite::testing::Bug::{self, *};
use sim::Nics;
use sim::explore::{Scenario, explore};
use sim::planted::Bug as Planted;
use std::panic::catch_unwind;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names the bug that this process is to look for.
const BUG: &str = "FERROLITE_PLANTED";
/// Begins the line that says what has come of it.
const VERDICT: &str = "planted:";
/// Seeds that may be tried for one bug.
const SEEDS: u64 = 2000;
/// Processor time that they may take.
const BUDGET: Duration = Duration::from_secs(60);

const ATOMICS: &str = "atomics are linearizable";
const BARRIERS: &str = "barriers let all pass or none";
const CAUSE: &str = "no error without a cause";
const CALLS: &str = "a call runs at most once";
const DEADLINES: &str = "no operation outlives its deadline";
const EVENTS: &str = "an event counts its signals";
const HANGS: &str = "a task hangs";
const HEALTHY: &str = "a healthy cluster works";
const HOLDER: &str = "a lock has one holder";
const LEFT: &str = "nothing is left behind";
const MEMORY: &str = "memory equals the model";
const REPLIES: &str = "a reply is the handler's";
const RIGHTS: &str = "rights and bounds hold";

/// The bugs of LITE that are found within seconds, and the properties that each may break first.
const QUICK: &[(Bug, &[&str])] = &[
    (LostCredit, &[HEALTHY]),
    (CallTwice, &[CALLS]),
    (SlotReusedEarly, &[REPLIES, HEALTHY]),
    (ClosedInUse, &[HEALTHY]),
    (NoBoundsCheck, &[RIGHTS]),
    (NoRightsCheck, &[RIGHTS]),
    (NoDeadline, &[DEADLINES, HANGS]),
    (UnknownAsDeadline, &[MEMORY, ATOMICS, HOLDER]),
    (BounceReused, &[MEMORY, REPLIES]),
    (FlightLeaks, &[LEFT]),
    (StaleMap, &[MEMORY]),
    (MoveTellsNobody, &[MEMORY, HOLDER]),
    (HalfMoved, &[MEMORY]),
    (FreeTellsNobody, &[LEFT]),
    (UndoForgotten, &[LEFT]),
    (QueuePairsKept, &[LEFT]),
    (FormerLifesMemory, &[CAUSE, MEMORY]),
    (DoubleGrant, &[HOLDER]),
    (PartialBarrier, &[BARRIERS]),
    (SignalTwice, &[EVENTS]),
];

/// Processor time that this thread has had.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// Runs fresh seeds with a bug until one fails, and prints the verdict.
fn look_for(bug: Planted) {
    bug.plant();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = (since.as_nanos() as u64 / 1000) << 12;
    for tried in 1..=SEEDS {
        let seed = fresh + tried;
        let scenario = Scenario { nodes: 4, nics: Nics::default(), seed, steps: 40 };
        let broken = match catch_unwind(|| explore(&scenario)) {
            Ok(Ok(_)) => None,
            Ok(Err(failure)) => Some(failure.violation.property),
            Err(_) => Some("no panic"),
        };
        let time = processor_time();
        if let Some(broken) = broken {
            let seconds = time.as_secs_f64();
            return println!("{VERDICT} seed {seed}, the {tried}th, after {seconds:.1} s: {broken}");
        }
        if time > BUDGET {
            return println!("{VERDICT} not found by {tried} seeds in a minute, the last of them {seed}");
        }
    }
    println!("{VERDICT} not found by {SEEDS} seeds");
}

/// Has a process look for a bug; gives what it says.
fn ask(test: &str, bug: Planted) -> String {
    let mut this = Command::new(std::env::current_exe().unwrap());
    let output =
        this.args([test, "--exact", "--nocapture", "--include-ignored"]).env(BUG, bug.name()).output();
    let output = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let verdict = output.lines().find_map(|line| line.split_once(VERDICT));
    verdict.map_or_else(|| format!("no verdict:\n{output}"), |(_, verdict)| verdict.trim().into())
}

/// All of some bugs are found, by a property of their list. `test` is the name of the calling test.
fn are_found(test: &str, bugs: &[(Planted, &[&str])]) {
    if let Ok(name) = std::env::var(BUG) {
        return look_for(Planted::named(&name).unwrap());
    }
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((bug, properties)) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = ask(test, *bug);
            println!("{:24} {verdict}", bug.name());
            if !properties.iter().any(|property| verdict.ends_with(property)) {
                missed.lock().unwrap().push(format!("{}: {verdict}", bug.name()));
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..processors).for_each(|_| drop(scope.spawn(work))));
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found, or by another property:\n{}", missed.join("\n"));
}

#[test]
fn planted_bugs_are_found() {
    let lite = QUICK.iter().map(|(bug, properties)| (Planted::Lite(*bug), *properties));
    are_found("planted_bugs_are_found", &lite.collect::<Vec<_>>());
}
