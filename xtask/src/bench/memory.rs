//! `cargo xtask bench memory`: the time from the kernel's entry to its executor on machines with little and
//! with much memory, in alternating boots.

use super::boot::{self, Size, Stages};
use super::destination;
use super::gaps::Gaps;
use super::host::Host;
use super::lab::Lab;
use super::stats::median;
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::Result;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::ui;
use qemu::vm::Machine;
use serde::Serialize;

/// The most milliseconds by which the boot with much memory may take longer.
const TARGET_MS: f64 = 150.0;
/// The stage at whose end the executor runs.
const EXECUTOR: &str = "executor";
/// The sizes of memory, in MiB. The host provides only the pages that the machine touches.
const LITTLE: Size = Size { memory_mb: 1 << 10, ..Size::new(Machine::Q35, 1) };
const MUCH: Size = Size { memory_mb: 900 << 10, ..LITTLE };

/// The number of boots, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Number of boots of each machine, in turn; the difference of the medians is judged
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    #[command(flatten)]
    destination: destination::Options,
}

/// The boots of both machines.
#[derive(Clone, Debug, Default, Serialize)]
struct Times {
    little: Vec<Stages>,
    much: Vec<Stages>,
}

impl Times {
    /// Returns by how many milliseconds the executor runs later with much memory.
    fn difference(&self) -> Option<f64> {
        let executor = |boots| median(boot::ends(boots, EXECUTOR));
        Some(executor(&self.much)? - executor(&self.little)?)
    }

    fn target(&self) -> Target {
        let name = "entry to executor, 900 GB, more than with 1 GB";
        Target::new(name, self.difference(), "ms", Bound::AtMost(TARGET_MS))
    }

    fn table(&self, runs: u32) -> Table {
        let mut table = Table::new(
            "Boot with much memory",
            format!(
                "{}, 1 processor, TCG, milliseconds from the kernel's entry to the end of a stage; medians of \
                 {runs} alternating boots",
                LITTLE.machine
            ),
            &["stage", "1 GB", "900 GB"],
        );
        for (stage, _) in self.little.first().into_iter().flatten() {
            let [little, much] =
                [&self.little, &self.much].map(|boots| maybe(median(boot::ends(boots, stage))));
            table.row([stage.clone(), little, much]);
        }
        table
    }
}

#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    host: Host,
    runs: u32,
    #[serde(flatten)]
    times: &'a Times,
    targets: &'a [Target],
}

/// Boots both machines in turn, each until its node has joined, and judges the difference.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let lab = Lab::new()?;
    let mut manager = lab.manager()?;
    let mut times = Times::default();
    for n in 0..options.runs {
        ui::step(&format!("boots with 1 GB and 900 GB: {} of {}", n + 1, options.runs), || {
            let mut sides = [(LITTLE, &mut times.little), (MUCH, &mut times.much)];
            // The sides alternate in coming first.
            if n % 2 == 1 {
                sides.reverse();
            }
            for (size, boots) in sides {
                let name = format!("boot{}-{n}", size.memory_mb);
                boots.push(boot::stages(&lab, &lab.programs.kernel, &mut manager, name, size)?);
            }
            Ok(())
        })?;
    }
    let targets = [times.target()];
    println!("\n{}\n{}", times.table(options.runs).text(), target::table(&targets, &[]).text());
    let figures = Figures { host, runs: options.runs, times: &times, targets: &targets };
    destination.end(&figures, &targets, &Gaps::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_of_the_medians_is_judged() {
        let boots = |ends: &[f64]| -> Vec<Stages> {
            ends.iter().map(|ms| vec![("acpi".into(), 2.0), (EXECUTOR.into(), *ms)]).collect()
        };
        let times = Times { little: boots(&[40.0, 900.0, 50.0]), much: boots(&[200.0, 90.0, 3000.0]) };
        assert_eq!(times.difference(), Some(150.0));
        assert!(times.target().met);
        assert!(!Times { much: boots(&[201.0]), ..times.clone() }.target().met);
        assert!(!Times::default().target().met, "nothing was measured");
        assert_eq!(times.table(3).rows, [["acpi", "2.00", "2.00"], ["executor", "50.0", "200"]]);
    }
}
