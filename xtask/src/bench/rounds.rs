//! Benchmarks whose sides run on appliances, in rounds and in turn, on one RDMA device after the other.

use super::destination;
use super::gaps::Gaps;
use super::host::Host;
use super::lab::Lab;
use super::nic::{self, Nic};
use super::table::Table;
use super::target::{self, Target};
use anyhow::Result;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::perftest::plan::Device;
use serde::Serialize;

/// The RDMA devices, the number of rounds, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// RDMA device of the appliances; repeatable [default: both; the card only if there is a QEMU for it]
    #[arg(long, value_name = "NIC", value_enum)]
    nic: Vec<Nic>,
    /// Number of rounds, in which all sides are measured in turn; the medians of the rounds' ratios are
    /// judged [default: 5, or 1 or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    pub runs: Option<u32>,
    /// Few rounds and operations: only shows that everything works
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    destination: destination::Options,
}

/// The figures of all sides on one RDMA device.
pub(super) trait Compared: Serialize {
    fn targets(&self) -> Vec<Target>;
    fn table(&self) -> Table;
}

/// The results of the benchmark.
#[derive(Serialize)]
struct Figures<'a, T> {
    #[serde(flatten)]
    host: Host,
    runs: u32,
    samples: u32,
    nics: Vec<T>,
    targets: &'a [Target],
    /// Devices that could not be measured, with reasons.
    gaps: &'a Gaps,
}

/// Measures on each selected device, in `runs` rounds of `samples` operations of each kind. Prints, writes
/// and judges the figures.
pub(super) fn bench<T: Compared>(
    options: &Options,
    runs: u32,
    samples: u32,
    measure: impl Fn(&Lab, (Nic, Device<'_>)) -> Result<T>,
) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let mut gaps = Gaps::default();
    let tools = nic::tools(&options.nic, &mut gaps)?;
    let lab = Lab::new()?;
    let mut nics = Vec::new();
    for device in nic::devices(&options.nic, tools.as_ref()) {
        nics.push(measure(&lab, device)?);
    }

    let targets: Vec<Target> = nics.iter().flat_map(T::targets).collect();
    println!("\n{}\n", host.sentence(runs));
    nics.iter().for_each(|figures| println!("{}", figures.table().text()));
    println!("{}", target::table(&targets, gaps.all()).text());
    let figures = Figures { host, runs, samples, nics, targets: &targets, gaps: &gaps };
    destination.end(&figures, &targets, &gaps)
}
