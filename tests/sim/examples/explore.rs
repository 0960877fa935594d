//! Runs simulated clusters under random work and faults, and checks what must hold. `cargo xtask sim` calls it.
//!
//! Arguments: `--nodes N --nic LIST --seed S --steps K` replays one scenario; `--seeds A..B` runs those; `--minutes M` runs fresh seeds for
//! so long, the first of them given by the clock; `--planted BUG` puts one into LITE or the manager, an unknown name lists them. The first failure is printed with its trace, what failed in the last line, and ends the program with 1.

use sim::Nics;
use sim::explore::{Scenario, explore};
use sim::planted::Bug;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Lines of the trace that are shown when a seed fails that was not asked for.
const SHOWN: usize = 100;

struct Arguments {
    nodes: u16,
    /// As it was given.
    nic: String,
    nics: Nics,
    seed: Option<u64>,
    steps: u32,
    seeds: Option<std::ops::Range<u64>>,
    minutes: Option<f64>,
    planted: Option<Bug>,
}

fn arguments() -> Result<Arguments, String> {
    let nic = "softroce".to_owned();
    let nics = nic.parse()?;
    let mut a =
        Arguments { nodes: 4, nic, nics, seed: None, steps: 40, seeds: None, minutes: None, planted: None };
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
    if !(3..=40).contains(&a.nodes) {
        return Err(format!("--nodes {}: from 3 to 40", a.nodes));
    }
    Ok(a)
}

/// Runs one scenario; what did not hold, and how it is run again.
fn run(scenario: &Scenario, nic: &str, whole: bool, totals: &mut [u64; 4]) -> Result<(), String> {
    let Scenario { nodes, seed, steps, .. } = scenario;
    let replay = format!("cargo xtask sim --nodes {nodes} --nic {nic} --seed {seed} --steps {steps}");
    // What panics in the code under test is a failure of this seed.
    let outcome = std::panic::catch_unwind(|| explore(scenario));
    match outcome {
        Ok(Ok(report)) => {
            totals[0] += 1;
            for (total, count) in totals[1..].iter_mut().zip(report.operations) {
                *total += count;
            }
            Ok(())
        }
        Ok(Err(failure)) => {
            // A replay shows all.
            let first = if whole { 0 } else { failure.log.len().saturating_sub(SHOWN) };
            for line in &failure.log[first..] {
                println!("{line}");
            }
            Err(format!("seed {seed} fails: {}; {replay}", failure.violation))
        }
        Err(_) => Err(format!("seed {seed} panics; {replay}")),
    }
}

fn main() -> ExitCode {
    let a = match arguments() {
        Ok(a) => a,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    if let Some(bug) = a.planted {
        bug.plant();
    }
    let begun = Instant::now();
    let scenario = |seed| Scenario { nodes: a.nodes, nics: a.nics.clone(), seed, steps: a.steps };
    let mut totals = [0; 4];
    let mut held = Ok(());
    if let Some(seed) = a.seed {
        match explore(&scenario(seed)) {
            Ok(report) => println!("{report:#?}"),
            Err(_) => held = run(&scenario(seed), &a.nic, true, &mut totals),
        }
        return end(held);
    }
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (seeds, limit) = match (a.seeds, a.minutes) {
        (Some(seeds), _) => (seeds, Duration::MAX),
        (None, minutes) => (
            fresh << 16..u64::MAX,
            Duration::try_from_secs_f64(60.0 * minutes.unwrap_or(1.0)).unwrap_or_default(),
        ),
    };
    let mut said = Instant::now();
    for seed in seeds {
        held = run(&scenario(seed), &a.nic, false, &mut totals);
        if held.is_err() || begun.elapsed() >= limit {
            break;
        }
        if said.elapsed() >= Duration::from_secs(10) {
            said = Instant::now();
            eprintln!("{} runs in {} s", totals[0], begun.elapsed().as_secs());
        }
    }
    let [runs, ok, failed, dropped] = totals;
    println!(
        "{runs} runs held in {:.0} s: {ok} operations succeeded, {failed} failed with an error, {dropped} were dropped midway",
        begun.elapsed().as_secs_f64()
    );
    end(held)
}

/// Says last what did not hold: a runner that shows one line of it shows that.
fn end(held: Result<(), String>) -> ExitCode {
    match held {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}
