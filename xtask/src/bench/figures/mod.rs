//! `cargo xtask bench figures`: the figures of LITE's paper (SOSP 2017), as far as machines without cards can
//! show them, each beside what is known of the paper's.

mod between;
mod simulated;
mod waiting;

use super::document;
use super::host::Host;
use super::lab::Lab;
use super::native;
use super::table::Table;
use super::{qos, scaling};
use crate::output;
use anyhow::{Context, Result};
use between::Between;
use clap::{Args, ValueEnum};
use lab::{interrupt, paths};

/// The page that `--write` replaces.
const PAGE: &str = "docs/performance/figures.md";
/// The beginning of the page.
const HEAD: &str = "\
# The paper's figures

`cargo xtask bench figures --write` measures all of them and writes this page, and [the tables](tables.md).
`--figure NAME` prints one, `--quick` only shows that each works. Machines without an RDMA card can show
ratios and shapes, no absolute times of a card: what runs between two appliances is translated by TCG, and
what is simulated says so. [How it is measured](README.md#how-it-is-measured) applies.
";

/// The amount of measurements, for the head of the page.
const AMOUNT: &str = "as many rounds as each figure says";

/// The warning for readers if the machine was busy.
const BUSY: &str = "\
\n**Other work ran on the machine meanwhile.** What runs between appliances is rough, in absolute figures and in
ratios; what is simulated is exact.
";

/// The names of all figures, each with the least number of its rows with `--quick`.
pub(crate) const NAMES: [(&str, usize); 10] = [
    ("latency", 1),
    ("throughput", 1),
    ("memory", 5),
    ("regions", 5),
    ("rpc", 1),
    ("waiting", 1),
    ("threads", 7),
    ("queue-pairs", 4),
    ("nodes", 2),
    ("qos", 12),
];

/// The selection of figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Figure; repeatable [default: all]
    #[arg(long, value_name = "NAME", value_enum)]
    figure: Vec<Figure>,
    /// Few operations: only shows that everything works
    #[arg(long)]
    quick: bool,
    /// Writes docs/performance/figures.md, with all figures, and docs/performance/tables.md
    #[arg(long, conflicts_with_all = ["figure", "quick"])]
    write: bool,
}

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// Latency by size, beside perftest
    Latency,
    /// Throughput by size, beside perftest
    Throughput,
    /// Writes into one region of growing size (simulated card)
    Memory,
    /// Writes into a growing number of regions (simulated card)
    Regions,
    /// Calls beside round trips of SENDs and of WRITEs
    Rpc,
    /// Processor time of waiting between calls
    Waiting,
    /// Writes and calls of a growing number of threads (simulated)
    Threads,
    /// Writes over a growing number of queue pairs (simulated)
    QueuePairs,
    /// Calls of a growing number of nodes (simulated)
    Nodes,
    /// High priority beside a flood of low priority
    Qos,
}

impl Figure {
    /// Returns what is known of the paper's figure.
    const fn paper(self) -> &'static str {
        match self {
            Self::Latency => {
                "Paper: LITE adds very little to native verbs from 8 B to 32 KB, on an axis to 60 us; the authors' \
                 source notes 1.99 us for a read of 8 B and 4.97 us for 4 KB on ConnectX-3, of which LITE's own part \
                 is 0.13 us."
            }
            Self::Throughput => "Paper: the numbers of this figure are not known here.",
            Self::Memory => {
                "Paper: native writes of 64 B and 1 KB collapse between 1 MB and 1 GB of registered memory, \
                 LITE stays flat; the axis goes to 6 requests per us."
            }
            Self::Regions => "Paper: the numbers of this figure are not known here.",
            Self::Rpc => {
                "Paper: a call is two WRITEs with immediate; the authors' source notes add up to 0.85 to 0.9 us of \
                 LITE's own work."
            }
            Self::Waiting => {
                "Paper: the numbers of this figure are not known here. In the authors' source a waiting caller spins for a \
                 nominal 10 us and then sleeps, and one thread per node polls for all."
            }
            Self::Threads => "Paper: the numbers of this figure are not known here.",
            Self::QueuePairs => "Paper: the numbers of this figure are not known here.",
            Self::Nodes => {
                "Paper: the numbers of this figure are not known here. The authors' source admits 15 nodes."
            }
            Self::Qos => "Paper: the numbers of this figure are not known here.",
        }
    }
}

/// Measurements that several figures use, each made once.
struct Shared<'a> {
    lab: &'a Lab,
    quick: bool,
    between: Option<Between>,
    scaling: Option<[Table; 2]>,
    threads: Option<[Table; 2]>,
}

impl Shared<'_> {
    fn between(&mut self) -> Result<&Between> {
        if self.between.is_none() {
            self.between = Some(Between::measure(self.lab, self.quick)?);
        }
        self.between.as_ref().context("the measurement between appliances")
    }

    /// Returns the table of the simulated card at `index`: memory, or regions.
    fn scaling(&mut self, index: usize) -> Result<Table> {
        if self.scaling.is_none() {
            self.scaling = Some(scaling::tables(if self.quick { 200 } else { 10_000 })?);
        }
        let tables = self.scaling.as_mut().context("the simulation of the card")?;
        tables.get_mut(index).map(Table::take).context("there is no such table")
    }

    /// Returns the table of the simulated threads at `index`: by threads, or by queue pairs.
    fn threads(&mut self, index: usize) -> Result<Table> {
        if self.threads.is_none() {
            self.threads = Some(simulated::threads(self.quick)?);
        }
        let tables = self.threads.as_mut().context("the simulation of threads")?;
        tables.get_mut(index).map(Table::take).context("there is no such table")
    }

    fn table(&mut self, figure: Figure) -> Result<Table> {
        let (lab, quick) = (self.lab, self.quick);
        match figure {
            Figure::Latency => Ok(self.between()?.latency()),
            Figure::Throughput => Ok(self.between()?.throughput()),
            Figure::Memory => self.scaling(0),
            Figure::Regions => self.scaling(1),
            Figure::Rpc => {
                let in_process = native::call(quick)?;
                Ok(self.between()?.calls(in_process))
            }
            Figure::Waiting => waiting::table(lab, quick),
            Figure::Threads => self.threads(0),
            Figure::QueuePairs => self.threads(1),
            Figure::Nodes => simulated::nodes(quick),
            Figure::Qos => qos::table(lab, if quick { 1 } else { 5 }, if quick { 20 } else { 300 }),
        }
    }
}

/// Measures the selected figures.
pub(super) fn bench(options: &Options) -> Result<()> {
    let host = Host::ready(false)?;
    let page = paths::root().join(PAGE);
    let page = options.write.then(|| output::beside("figures", &page)).transpose()?;
    if options.write {
        super::write_tables()?;
    }
    interrupt::watch()?;
    let lab = Lab::new()?;
    let mut shared = Shared { lab: &lab, quick: options.quick, between: None, scaling: None, threads: None };
    let mut text = format!("{HEAD}\n{}\n", host.describe(AMOUNT));
    if host.busy().is_some() {
        text.push_str(BUSY);
    }
    for figure in Figure::value_variants().iter().copied() {
        if !options.figure.is_empty() && !options.figure.contains(&figure) {
            continue;
        }
        interrupt::check()?;
        let table = shared.table(figure)?;
        println!("\n{}  {}", table.text(), figure.paper());
        text.push_str(&format!("\n{}\n{}\n", table.markdown(), figure.paper()));
    }
    if let Some((file, path)) = page {
        std::fs::write(file.path(), document::wrapped(&text))?;
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_a_test() {
        let names = Figure::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
        assert_eq!(names, NAMES.map(|(name, _)| name));
    }
}
