//! Tests of the emulated ConnectX-3 under Linux's own drivers, in which machines are booted once for many
//! steps, and under our driver.

mod appliances;
mod drivers;
mod ethernet;
mod infiniband;
mod iperf;
mod ipxe;
mod messages;
mod mishaps;
mod mixed;
mod perftest;
mod port_types;
mod ports;
mod profiles;
mod programs;
mod quick;
mod raw_frames;
mod rdma;
mod services;
mod snapshots;
mod verbs;
mod virtual_function;
mod vlan;

use crate::runner::{Case, Outcome, Tally};
use anyhow::{Context, Result, ensure};
use connectx3::trace::Record;
use lab::cx3::{Lab, Plan, Tools};
use lab::{interrupt, paths, ui};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The prefix of the names of all tests of the emulated card with Linux.
pub const GROUP: &str = "cx3::";

/// The directory of the records of drivers' actions.
const RECORDS: &str = "qemu/connectx3/tests/linux-traces";

/// A check of machines. An error says what is wrong.
type Check = Box<dyn FnOnce(&mut Lab) -> Result<()>>;

/// One step of a session. Each counts as a test.
pub(crate) struct Step {
    name: String,
    check: Check,
}

impl Step {
    fn new(name: impl Into<String>, check: impl FnOnce(&mut Lab) -> Result<()> + 'static) -> Self {
        Self { name: name.into(), check: Box::new(check) }
    }
}

/// Returns all sessions.
pub(crate) fn cases() -> Vec<Case> {
    [
        quick::cases(),
        raw_frames::cases(),
        appliances::cases(),
        drivers::cases(),
        ethernet::cases(),
        infiniband::cases(),
        iperf::cases(),
        ipxe::cases(),
        mishaps::cases(),
        mixed::cases(),
        perftest::cases(),
        port_types::cases(),
        profiles::cases(),
        rdma::cases(),
        services::cases(),
        snapshots::cases(),
        verbs::cases(),
        virtual_function::cases(),
        vlan::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns a session: boots the machines of a plan, runs the steps one after the other, and ends all. The
/// session is skipped if there is no QEMU for such machines.
fn session(name: &str, plan: Plan, steps: impl FnOnce() -> Vec<Step> + Send + 'static) -> Case {
    Case::new(format!("{GROUP}{name}"), move |log| match Tools::get()? {
        Ok(tools) => run(&tools, &plan, steps(), log),
        Err(why) => Ok(Outcome::Skipped(why.to_owned())),
    })
}

/// Compares the drivers' actions with the plan's record.
fn record(plan: &Plan, new: &str) -> Result<()> {
    let name = plan.record.context("no record is wanted")?;
    let path = paths::root().join(format!("{RECORDS}/{name}.txt"));
    let known = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let known = Record::parse(&known).with_context(|| format!("{}", path.display()))?;
    let differences = known.differences(&Record::parse(new).context("the new record")?);
    ensure!(differences.is_empty(), "the drivers differ from the record {name}: {}", differences.join("; "));
    Ok(())
}

fn run(tools: &Tools, plan: &Plan, steps: Vec<Step>, log: &Path) -> Result<Outcome> {
    let mut lines = File::create(log)?;
    let mut lab = Lab::boot(tools, plan, log)?;
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    let count = steps.len() as u64;
    for Step { name, check } in steps {
        interrupt::check()?;
        let started = Instant::now();
        let result = check(&mut lab);
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                tally.passed += 1;
                writeln!(lines, "{name}: ok ({seconds:.1} s)")?;
            }
            Err(e) => {
                writeln!(lines, "{name}: FAILED ({seconds:.1} s): {e:#}\ncx3: {}", lab.card_log())?;
                failures.push(format!("{name}: {}", ui::one_line(&e)));
                // A step that can no longer run has failed as well.
                if !lab.answers() {
                    failures.push("a machine does not answer any more".into());
                    break;
                }
            }
        }
    }
    tally.failed = count - tally.passed;
    match lab.end().and_then(|new| new.map(|new| record(plan, &new)).transpose()) {
        Ok(None) => {}
        Ok(Some(())) => {
            tally.passed += 1;
            writeln!(lines, "record: ok")?;
        }
        Err(e) => {
            tally.failed += 1;
            writeln!(lines, "end: FAILED: {e:#}")?;
            failures.push(ui::one_line(&e));
        }
    }
    let failure = (!failures.is_empty()).then(|| failures.join("; "));
    Ok(Outcome::Many { tally, failure })
}
