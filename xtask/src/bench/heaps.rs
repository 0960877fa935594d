//! `cargo xtask bench heaps`: compares the allocator of the kernel's heap with its predecessor, in two
//! kernels that differ in nothing else.

use super::host::Host;
use super::stats::median_of;
use super::steps::{Step, appliance};
use super::table::{Table, maybe};
use crate::output;
use anyhow::Result;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::image::{self, Contents, Heap};
use lab::{interrupt, setup, ui};
use serde::Serialize;
use std::path::PathBuf;

/// The number of runs, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Number of measurements by each kernel, in turn; medians are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The cost of one step with both allocators, medians in nanoseconds.
#[derive(Debug, PartialEq, Serialize)]
struct Line {
    what: String,
    talc_ns: Option<f64>,
    linked_list_ns: Option<f64>,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    runs: u32,
    lines: Vec<Line>,
}

/// Builds both kernels and runs their measurements in turn.
pub(super) fn bench(options: &Options) -> Result<()> {
    let host = Host::ready(false)?;
    let json = options.json.as_deref().map(|path| output::beside("figures", path)).transpose()?;
    interrupt::watch()?;
    let qemu = setup::qemu()?;
    let kernel = |heap| Ok::<_, anyhow::Error>(image::build_of(&Contents { heap, ..Contents::tests() })?.elf);
    let (talc, linked_list) = (kernel(Heap::Talc)?, kernel(Heap::LinkedList)?);
    let (mut with_talc, mut with_list) = (Vec::new(), Vec::new());
    for n in 1..=options.runs {
        for (kernel, name, runs) in
            [(&talc, "talc", &mut with_talc), (&linked_list, "linked_list_allocator", &mut with_list)]
        {
            interrupt::check()?;
            let step = format!("{name}: {n} of {}", options.runs);
            runs.push(ui::step(&step, || appliance(&qemu, kernel, "heaps"))?);
        }
    }
    let figures = Figures { host, runs: options.runs, lines: lines(&with_talc, &with_list) };
    println!("{}", table(&figures.lines).text());
    if let Some((file, path)) = json {
        super::write_json(&figures, file, &path)?;
    }
    Ok(())
}

/// Returns a line for each step of the first run of `talc`.
fn lines(talc: &[Vec<Step>], linked_list: &[Vec<Step>]) -> Vec<Line> {
    let of = |runs: &[Vec<Step>], what: &str| {
        median_of(runs, |steps| steps.iter().find(|step| step.what == what).map(|step| step.ns))
    };
    let names = talc.iter().take(1).flatten().map(|step| step.what.clone());
    names
        .map(|what| Line { talc_ns: of(talc, &what), linked_list_ns: of(linked_list, &what), what })
        .collect()
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(
        "Heaps of the kernel",
        "nanoseconds, by the self-test `heaps` under TCG on q35 with 1 processor, both kernels in turn",
        &["step", "talc", "linked_list_allocator", "ratio"],
    );
    for line in lines {
        let ratio = line.talc_ns.zip(line.linked_list_ns).map(|(talc, list)| list / talc);
        table.row([line.what.clone(), maybe(line.talc_ns), maybe(line.linked_list_ns), maybe(ratio)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_the_same_step_stand_beside_each_other() {
        let run = |a: f64, b: f64| {
            [("a", a), ("b", b)].map(|(what, ns)| Step { place: "", what: what.into(), ns }).to_vec()
        };
        let talc = [run(1.0, 10.0), run(3.0, 30.0), run(2.0, 20.0)];
        let line = |what: &str, talc, list| Line { what: what.into(), talc_ns: talc, linked_list_ns: list };
        assert_eq!(
            lines(&talc, &[run(7.0, 70.0)]),
            [line("a", Some(2.0), Some(7.0)), line("b", Some(20.0), Some(70.0))]
        );
        assert_eq!(lines(&talc, &[])[0], line("a", Some(2.0), None));
    }
}
