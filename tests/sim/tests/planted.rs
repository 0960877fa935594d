//! A test of the checker: bugs that are planted in LITE, the manager and the log are found, each by a
//! property that it breaks.
//!
//! A planted bug applies to the whole process, so a separate process searches for each: this program again,
//! with the bug's name in [`BUG`]. Seeds are fresh in each run; `cargo xtask sim --planted BUG --seed SEED`
//! replays one.
#![cfg(debug_assertions)]
#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

use lite::testing::Bug::{self, *};
use litelog::Bug as LogBug;
use manager::Bug::{self as ManagerBug, *};
use sim::Nics;
use sim::explore::{Scenario, explore, explore_log};
use sim::planted::Bug as Planted;
use std::panic::catch_unwind;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The environment variable with the bug that this process must find.
const BUG: &str = "FERROLITE_PLANTED";
/// The beginning of the line with the verdict.
const VERDICT: &str = "planted:";
/// The maximum number of seeds for one bug. Most bugs need fewer than 20, the rarest about 200.
const SEEDS: u64 = 2000;

const ATOMICS: &str = "atomics are linearizable";
const BARRIERS: &str = "barriers let all pass or none";
const CALLS: &str = "a call runs at most once";
const CAUSE: &str = "no error without a cause";
const DEADLINES: &str = "no operation outlives its deadline";
const EVENTS: &str = "an event counts its signals";
const FREE: &str = "free memory stays as it is";
const FRESH: &str = "fresh memory is zero";
const VOUCHERS: &str = "a connection has a fresh voucher";
const CUT_OFF: &str = "a dead node is cut off by all";
const GUARDED: &str = "what a lock guards is linearizable";
const NAME_ENDS: &str = "a name ends with its owner";
const STAYS: &str = "a healthy node stays a member";
const SUSPENDED: &str = "a suspended node posts nothing";
const TOLD: &str = "the next holder is told of a death";
const HEALTHY: &str = "a healthy cluster works";
const HOLDER: &str = "a lock has one holder";
const LEFT: &str = "nothing is left behind";
const MEMORY: &str = "memory equals the model";
const NAMES: &str = "a name is bound once";
const NUMBERS: &str = "the manager gives no number twice and forgets nothing";
const REPLIES: &str = "a reply is the handler's";
const RIGHTS: &str = "rights and bounds hold";
const TOKENS: &str = "fencing tokens grow";
const WRITERS: &str = "only nodes that map a region change it";

/// The bugs of LITE that are found within seconds, and the properties that each breaks.
const QUICK: &[(Bug, &[&str])] = &[
    (LostCredit, &[HEALTHY]),
    (SlotReusedEarly, &[REPLIES, FREE]),
    (NoBoundsCheck, &[RIGHTS]),
    (NoRightsCheck, &[RIGHTS]),
    (NoDeadline, &[DEADLINES]),
    (UnknownAsDeadline, &[MEMORY, ATOMICS, HOLDER, CALLS]),
    (FlightLeaks, &[LEFT]),
    (StaleMap, &[MEMORY, WRITERS]),
    (HalfMoved, &[MEMORY]),
    (MoveTellsNobody, &[MEMORY, HOLDER, FREE, WRITERS]),
    (GrantsAll, &[RIGHTS]),
    (NoSecretCheck, &[RIGHTS]),
    (FreeTellsNobody, &[LEFT, WRITERS]),
    (UndoForgotten, &[LEFT]),
    (QueuePairsKept, &[LEFT, WRITERS]),
    (FormerLifesMemory, &[CAUSE, MEMORY, WRITERS]),
    (DoubleGrant, &[HOLDER]),
    (TokenStands, &[TOKENS]),
    (PartialBarrier, &[BARRIERS]),
    (SignalTwice, &[EVENTS]),
    (LockBeforeSettled, &[CUT_OFF, GUARDED, HOLDER]),
    (LostSignal, &[HEALTHY]),
    (ClosedInUse, &[HEALTHY]),
    (VoucherOfAnotherLife, &[VOUCHERS]),
    (VoucherTwice, &[VOUCHERS]),
];

/// The bugs of LITE that take longer to find.
const SLOW: &[(Bug, &[&str])] = &[
    (RingOverrun, &[FREE, REPLIES]),
    (CallTwice, &[CALLS]),
    (BounceReused, &[MEMORY, REPLIES, CALLS]),
    (CutOffLate, &[FREE, WRITERS]),
    (FreedBeforeSettled, &[FREE, FRESH, MEMORY, WRITERS]),
    (InstalledForTheDead, &[LEFT, HOLDER]),
    (MappingOfTheDead, &[FREE, FRESH, MEMORY, LEFT, WRITERS]),
    (LostUnconfirmed, &[MEMORY, GUARDED, FREE, FRESH, ATOMICS, WRITERS]),
    (FreeWaitsForNobody, &[FREE, FRESH, MEMORY, WRITERS]),
    (AtomicTwice, &[ATOMICS]),
    (MemsetOfTheDead, &[MEMORY, FREE, FRESH, WRITERS]),
    (RevokeTellsNobody, &[RIGHTS]),
    (DeathNotTold, &[TOLD]),
    (NeverSuspended, &[SUSPENDED]),
    (UnlockedUnsettled, &[GUARDED, HOLDER]),
];

/// The bugs of the manager that are found.
const MANAGERS: &[(ManagerBug, &[&str])] = &[
    (NameBoundTwice, &[NAMES]),
    (BindingStands, &[NUMBERS, TOKENS]),
    (NumbersBeginAnew, &[NUMBERS]),
    (SettledAtOnce, &[CUT_OFF, WRITERS]),
    (NamesOutliveOwner, &[NAME_ENDS]),
    (DeafnessCounts, &[STAYS]),
];

const RECORDS: &[&str] = &[
    "an acknowledged record is at its position",
    "a record is in the log at most once",
    "a record is what was committed",
    "what a scan has passed does not change",
];

/// The bugs of the log, and the properties that each breaks.
const LOGS: &[(LogBug, &[&str])] = &[
    (LogBug::FillUnsettled, RECORDS),
    (LogBug::CheckWithoutPosition, RECORDS),
    (LogBug::MarkForgetsReservations, RECORDS),
    (LogBug::SegmentReused, RECORDS),
];

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// Runs fresh seeds with a bug until one breaks a property of the list, and prints the verdict. A violation
/// of another property is counted, but does not find this bug.
fn look_for(bug: Planted, properties: &[&str]) {
    bug.plant();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = (since.as_nanos() as u64 / 1000) << 12;
    let mut others = 0;
    let is_logs = matches!(bug, Planted::Log(_));
    for tried in 1..=SEEDS {
        let seed = fresh + tried;
        let scenario = Scenario { nodes: 4, nics: Nics::default(), seed, steps: 40 };
        let outcome = catch_unwind(|| if is_logs { explore_log(&scenario) } else { explore(&scenario) });
        match outcome {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) if properties.contains(&failure.violation.property) => {
                let (seconds, property) = (processor_time().as_secs_f64(), failure.violation.property);
                return println!(
                    "{VERDICT} found by seed {seed}, the {tried}th, after {seconds:.1} s ({others} broke other properties): {property}"
                );
            }
            Ok(Err(_)) | Err(_) => others += 1,
        }
    }
    println!("{VERDICT} not found by {SEEDS} seeds");
}

/// Lets a process search for a bug, and returns its verdict.
fn ask(test: &str, bug: Planted) -> String {
    let mut this = Command::new(std::env::current_exe().unwrap());
    let output =
        this.args([test, "--exact", "--nocapture", "--include-ignored"]).env(BUG, bug.name()).output();
    let output = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    let verdict = output.lines().find_map(|line| line.split_once(VERDICT));
    verdict.map_or_else(|| format!("no verdict:\n{output}"), |(_, verdict)| verdict.trim().into())
}

/// Asserts that all of the bugs are found, each by a property of its list. `test` is the name of the calling
/// test.
fn are_found(test: &str, bugs: &[(Planted, &[&str])]) {
    if let Ok(name) = std::env::var(BUG) {
        let (bug, properties) = bugs.iter().find(|(bug, _)| bug.name() == name).unwrap();
        return look_for(*bug, properties);
    }
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((bug, _)) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = ask(test, *bug);
            println!("{:24} {verdict}", bug.name());
            if !verdict.starts_with("found") {
                missed.lock().unwrap().push(format!("{}: {verdict}", bug.name()));
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..processors).for_each(|_| drop(scope.spawn(work))));
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

fn lite(bugs: &[(Bug, &'static [&'static str])]) -> Vec<(Planted, &'static [&'static str])> {
    bugs.iter().map(|(bug, properties)| (Planted::Lite(*bug), *properties)).collect()
}

#[test]
fn planted_bugs_are_found() {
    let mut bugs = lite(QUICK);
    bugs.extend(MANAGERS.iter().map(|(bug, properties)| (Planted::Manager(*bug), *properties)));
    are_found("planted_bugs_are_found", &bugs);
}

#[test]
fn planted_bugs_of_the_log_are_found() {
    let bugs: Vec<_> = LOGS.iter().map(|(bug, properties)| (Planted::Log(*bug), *properties)).collect();
    are_found("planted_bugs_of_the_log_are_found", &bugs);
}

#[test]
#[ignore = "takes minutes"]
fn planted_bugs_that_are_rare_are_found() {
    are_found("planted_bugs_that_are_rare_are_found", &lite(SLOW));
}
