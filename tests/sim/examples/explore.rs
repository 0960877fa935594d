//! Runs simulated clusters under random work and faults, and checks their invariants. `cargo xtask sim` calls
//! it.
//!
//! Arguments: `--nodes N --nic LIST --seed S --steps K` replays one scenario; `--seeds A..B` runs those
//! seeds; `--app log` works on a log instead of everything else; `--minutes M` runs fresh seeds for that
//! time, the first of them taken from the clock; `--planted BUG` plants a bug into LITE or the manager (an
//! unknown name lists the bugs). Seeds run on all processors that the program may use, each seed on one.
//! The first failure is printed with its trace and, in the last line, its reason; then the program ends
//! with exit code 1.

use sim::Nics;
use sim::explore::{Report, Scenario, explore, explore_log};
use sim::planted::Bug;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of lines of the trace to show when a seed fails that was not chosen by number.
const SHOWN: usize = 100;
/// The interval at which the end is checked and the progress is reported.
const LOOK: Duration = Duration::from_millis(5);
const SAY: Duration = Duration::from_secs(10);

struct Arguments {
    nodes: u16,
    /// The list of RNICs, as given.
    nic: String,
    nics: Nics,
    seed: Option<u64>,
    steps: u32,
    seeds: Option<Range<u64>>,
    minutes: Option<f64>,
    planted: Option<Bug>,
    /// True if the tasks work on a log.
    log: bool,
}

fn arguments() -> Result<Arguments, String> {
    let nic = "softroce".to_owned();
    let nics = nic.parse()?;
    let (seed, seeds, minutes, planted) = (None, None, None, None);
    let mut a = Arguments { nodes: 4, nic, nics, seed, steps: 40, seeds, minutes, planted, log: false };
    let mut given = std::env::args().skip(1);
    while let Some(key) = given.next() {
        let value = given.next().ok_or(format!("{key} needs a value"))?;
        let bad = |_| format!("{key} {value}: not a number in range");
        match key.as_str() {
            "--nodes" => a.nodes = value.parse().map_err(bad)?,
            "--nic" => {
                a.nics = value.parse().map_err(|why| format!("{key}: {why}"))?;
                a.nic = value;
            }
            "--seed" => a.seed = Some(value.parse().map_err(bad)?),
            "--app" if value == "log" => a.log = true,
            "--app" => return Err(format!("{key} {value}: the only application is log")),
            "--steps" => a.steps = value.parse().map_err(bad)?,
            "--minutes" => {
                a.minutes = Some(value.parse().map_err(|_| format!("{key} {value}: not a number"))?);
            }
            "--seeds" => {
                let (from, to) =
                    value.split_once("..").ok_or(format!("{key} {value}: not of the form A..B"))?;
                a.seeds = Some(from.parse().map_err(bad)?..to.parse().map_err(bad)?);
            }
            "--planted" => {
                a.planted = Some(Bug::named(&value).ok_or_else(|| {
                    let names: Vec<_> = Bug::all().map(Bug::name).collect();
                    format!("{key} {value}: the bugs are {}", names.join(", "))
                })?);
            }
            _ => return Err(format!("unknown argument {key}")),
        }
    }
    if !(3..=64).contains(&a.nodes) {
        return Err(format!("--nodes {}: from 3 to 64", a.nodes));
    }
    Ok(a)
}

/// The totals of the runs so far.
#[derive(Default)]
struct Totals {
    runs: u64,
    /// The number of operations that succeeded, that failed with an error, and that were dropped before their
    /// end.
    operations: [u64; 3],
    /// The number of faults, by kind.
    faults: BTreeMap<&'static str, u64>,
    /// The first failure: its trace and its reason.
    failure: Option<(Vec<String>, String)>,
}

/// Runs one scenario. Returns its report, or its trace and the reason of the failure with the command that
/// replays it.
fn run(scenario: &Scenario, a: &Arguments) -> Result<Report, (Vec<String>, String)> {
    let Scenario { nodes, seed, steps, .. } = scenario;
    let (nic, app) = (&a.nic, if a.log { "--app log " } else { "" });
    let replay = format!("cargo xtask sim {app}--nodes {nodes} --nic {nic} --seed {seed} --steps {steps}");
    // A panic in the code under test is a failure of this seed.
    match std::panic::catch_unwind(|| if a.log { explore_log(scenario) } else { explore(scenario) }) {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(failure)) => Err((failure.log, format!("seed {seed} fails: {}; {replay}", failure.violation))),
        Err(_) => Err((Vec::new(), format!("seed {seed} panics; {replay}"))),
    }
}

/// Runs seeds on all processors until one fails, there are no more, or the time is over.
fn run_all(a: &Arguments, seeds: Range<u64>, limit: Duration) -> Totals {
    let (next, begun, totals) = (AtomicU64::new(seeds.start), Instant::now(), Mutex::new(Totals::default()));
    let lock = || totals.lock().expect("no panic under the lock");
    let over = || lock().failure.is_some() || begun.elapsed() >= limit;
    let work = || {
        while !over() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let outcome = run(&Scenario { nodes: a.nodes, nics: a.nics.clone(), seed, steps: a.steps }, a);
            let mut totals = lock();
            match outcome {
                Ok(report) => {
                    totals.runs += 1;
                    totals.operations.iter_mut().zip(report.operations).for_each(|(total, n)| *total += n);
                    for (kind, count) in report.faults {
                        *totals.faults.entry(kind).or_default() += count;
                    }
                }
                Err(failure) => drop(totals.failure.get_or_insert(failure)),
            }
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        let mut said = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(LOOK);
            if said.elapsed() >= SAY {
                said = Instant::now();
                eprintln!("{} runs in {} s", lock().runs, begun.elapsed().as_secs());
            }
        }
    });
    totals.into_inner().expect("no panic under the lock")
}

fn main() -> ExitCode {
    let a = match arguments() {
        Ok(a) => a,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(2);
        }
    };
    if let Some(bug) = a.planted {
        bug.plant();
    }
    if let Some(seed) = a.seed {
        return match run(&Scenario { nodes: a.nodes, nics: a.nics.clone(), seed, steps: a.steps }, &a) {
            Ok(report) => {
                println!("{report:#?}");
                ExitCode::SUCCESS
            }
            Err(failure) => fails(failure, usize::MAX),
        };
    }
    let begun = Instant::now();
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let totals = match (&a.seeds, a.minutes) {
        (Some(seeds), _) => run_all(&a, seeds.clone(), Duration::MAX),
        (None, minutes) => {
            let limit = Duration::try_from_secs_f64(60.0 * minutes.unwrap_or(1.0)).unwrap_or_default();
            run_all(&a, fresh << 16..u64::MAX, limit)
        }
    };
    let [ok, failed, dropped] = totals.operations;
    println!(
        "{} runs held in {:.0} s: {ok} operations succeeded, {failed} failed with an error, {dropped} were dropped midway",
        totals.runs,
        begun.elapsed().as_secs_f64()
    );
    let faults: Vec<String> = totals.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    println!("faults: {}", faults.join(", "));
    match totals.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => fails(failure, SHOWN),
    }
}

/// Prints the end of a trace and, as the last line, the reason: a runner may show only that line.
fn fails((log, why): (Vec<String>, String), shown: usize) -> ExitCode {
    for line in &log[log.len().saturating_sub(shown)..] {
        println!("{line}");
    }
    println!("{why}");
    ExitCode::FAILURE
}
