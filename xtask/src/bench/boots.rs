//! `cargo xtask bench boots DIR`: the time from the kernel's entry until it has joined, with this checkout's
//! programs and with those of another commit, in alternating boots. Also counts the code that QEMU translates
//! for a boot of each, which does not depend on other work of the machine.

use super::boot::{self, Size, Stages, Translated, ends};
use super::destination;
use super::gaps::Gaps;
use super::host::Host;
use super::lab::Lab;
use super::stats::median;
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::{Context, Result};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::appliances::Programs;
use lab::manager::Manager;
use lab::{paths, ui};
use qemu::vm::Machine;
use serde::Serialize;
use std::path::PathBuf;

/// The greatest time, relative to that with the other programs.
const TARGET: f64 = 0.9;
/// The numbers of processors of the machines.
const PROCESSORS: [u32; 2] = [1, 2];

/// The other programs, the number of boots, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Directory with the other kernel (`ferrolite.elf`) and manager (`ferrolite`), as built in a
    /// checkout of that commit
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Number of boots of each side on each machine, in turn; the ratio of the medians is judged
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    #[command(flatten)]
    destination: destination::Options,
}

/// The boots of both sides on one machine, in their order.
#[derive(Clone, Debug, Default, Serialize)]
struct Times {
    cpus: u32,
    ours: Vec<Stages>,
    theirs: Vec<Stages>,
}

impl Times {
    /// Returns our median, relative to the other one.
    fn ratio(&self) -> Option<f64> {
        Some(median(ends(&self.ours, boot::JOINED))? / median(ends(&self.theirs, boot::JOINED))?)
    }
}

#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    host: Host,
    times: Vec<Times>,
    translated: [Translated; 2],
    targets: &'a [Target],
}

/// One side: its programs, and its running manager.
struct Side<'a> {
    name: &'static str,
    programs: &'a Programs,
    manager: Manager,
}

impl<'a> Side<'a> {
    /// Starts the manager in a directory of its own, because the programs of one side cannot read the other
    /// one's state.
    fn start(lab: &Lab, name: &'static str, programs: &'a Programs) -> Result<Self> {
        let manager = Manager::start(&programs.manager, 0, &paths::made(lab.dir().join(name))?)?;
        Ok(Self { name, programs, manager })
    }
}

/// Measures both sides in turn.
pub(super) fn bench(options: &Options) -> Result<()> {
    let other = Programs::given(&options.dir)?;
    let (host, destination) = options.destination.begin()?;
    let lab = Lab::new()?;
    let mut sides = [Side::start(&lab, "theirs", &other)?, Side::start(&lab, "ours", &lab.programs)?];
    let mut times = PROCESSORS.map(|cpus| Times { cpus, ..Times::default() });
    for n in 0..options.runs {
        ui::step(&format!("boots on microvm of both sides: {} of {}", n + 1, options.runs), || {
            // The sides alternate in coming first.
            sides.reverse();
            for times in &mut times {
                for side in &mut sides {
                    let name = format!("boot{}-{n}", times.cpus);
                    let kernel = &side.programs.kernel;
                    let size = Size::new(Machine::Microvm, times.cpus);
                    let stages = boot::stages(&lab, kernel, &mut side.manager, name, size)?;
                    let all = if side.name == "ours" { &mut times.ours } else { &mut times.theirs };
                    all.push(stages);
                }
            }
            Ok(())
        })?;
    }
    let translated = ui::step("counting the code that QEMU translates", || {
        let mut count = |name| {
            let side = sides.iter_mut().find(|side| side.name == name).context("a side")?;
            boot::translated(&lab, &side.programs.kernel, &mut side.manager, "counted".into())
        };
        Ok([count("ours")?, count("theirs")?])
    })?;
    let targets: Vec<_> = times.iter().map(target).collect();
    println!("\n{}\n{}", table(&times, options.runs).text(), translated_table(translated).text());
    println!("{}", target::table(&targets, &[]).text());
    destination.end(
        &Figures { host, times: times.into(), translated, targets: &targets },
        &targets,
        &Gaps::default(),
    )
}

fn target(times: &Times) -> Target {
    let name = format!("entry to joined, {}, {} cpu, beside the others", Machine::Microvm, times.cpus);
    Target::new(name, times.ratio(), "", Bound::AtMost(TARGET))
}

fn table(times: &[Times], runs: u32) -> Table {
    let mut table = Table::new(
        "Boot, beside other programs",
        format!(
            "microvm, TCG, milliseconds from the kernel's entry to the end of a stage; medians of {runs} alternating boots"
        ),
        &["stage"],
    );
    for times in times {
        table.heads.extend(["these", "others"].map(|side| format!("{side}, {} cpu", times.cpus)));
    }
    let stages = times.first().and_then(|times| times.ours.first()).into_iter().flatten();
    for (stage, _) in stages {
        let cells = times.iter().flat_map(|times| [&times.ours, &times.theirs]);
        let cells = cells.map(|boots| maybe(median(ends(boots, stage))));
        table.rows.push(std::iter::once(stage.clone()).chain(cells).collect());
    }
    table
}

fn translated_table([ours, theirs]: [Translated; 2]) -> Table {
    let mut table = Table::new(
        "Code that QEMU translates for a boot",
        "microvm, 1 processor, TCG, from QEMU's start until the chart is printed",
        &["", "these", "others", "ratio"],
    );
    let row = |name: &str, ours: usize, theirs: usize| {
        let ratio = maybe(Some(ours as f64 / theirs as f64));
        vec![name.into(), ours.to_string(), theirs.to_string(), ratio]
    };
    table.rows.push(row("blocks", ours.blocks, theirs.blocks));
    table.rows.push(row("instructions", ours.instructions, theirs.instructions));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_of_the_medians_is_judged() {
        let boots = |ends: &[f64]| -> Vec<Stages> {
            ends.iter().map(|ms| vec![("acpi".into(), 2.0), (boot::JOINED.into(), *ms)]).collect()
        };
        let times = Times { cpus: 1, ours: boots(&[30.0, 90.0, 40.0]), theirs: boots(&[50.0, 51.0, 49.0]) };
        assert_eq!(times.ratio(), Some(0.8));
        assert!(target(&times).met);
        assert!(!target(&Times { ours: boots(&[46.0]), ..times.clone() }).met);
        assert!(!target(&Times::default()).met, "nothing was measured");
        assert_eq!(table(&[times.clone(), times], 3).rows.len(), 2);
        let [ours, theirs] =
            [(6, 30), (5, 40)].map(|(blocks, instructions)| Translated { blocks, instructions });
        let rows = translated_table([ours, theirs]).rows;
        assert_eq!(rows, [["blocks", "6", "5", "1.20"], ["instructions", "30", "40", "0.75"]]);
    }
}
