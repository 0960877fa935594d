//! `cargo xtask bench qos`: measures operations of high priority between two appliances, alone and beside a
//! flood of low priority, by each scheme of quality of service in turn.

use super::lab::Lab;
use super::lite::{self, Row};
use super::nic::Nic;
use super::pairs::Line;
use super::rounds::{self, Compared, Options};
use super::stats::median;
use super::table::{Table, maybe};
use super::target::{Bound, Target};
use anyhow::Result;
use lab::perftest::lab::Lab as AppliancePair;
use lab::perftest::plan::{Device, Plan};
use lab::{interrupt, ui};
use serde::Serialize;

/// The greatest accepted latency of high priority beside the flood, relative to the latency without it.
const WITH: Bound = Bound::AtMost(2.0);
/// The least ratio without a scheme: the flood must be felt.
const WITHOUT: Bound = Bound::AtLeast(4.0);
/// The operations of high priority, as the application and as the tables name them.
const OPERATIONS: [(&str, &str, &str); 3] = [
    ("write", "idle_write", "8 B write"),
    ("call", "idle_call", "8 B call"),
    ("message", "idle_message", "8 B message"),
];
/// The length of a write of low priority, in bytes.
const LARGE: u64 = 64 << 10;

/// The amount of measurements.
#[derive(Clone, Copy)]
struct Amount {
    runs: u32,
    /// Operations of each kind.
    samples: u32,
}

impl Amount {
    fn new(options: &Options) -> Self {
        let (runs, samples) = if options.quick { (1, 30) } else { (5, 300) };
        Self { runs: options.runs.unwrap_or(runs), samples }
    }
}

/// A scheme of quality of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Scheme {
    None,
    HwSep,
    SwPri,
}

impl Scheme {
    const ALL: [Self; 3] = [Self::None, Self::HwSep, Self::SwPri];

    /// Returns the word of the appliances' command lines that selects the scheme.
    const fn setting(self) -> &'static str {
        match self {
            Self::None => "lite.scheme=none",
            Self::HwSep => "lite.scheme=hw-sep",
            Self::SwPri => "lite.scheme=sw-pri",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::None => "no scheme",
            Self::HwSep => "HW-Sep",
            Self::SwPri => "SW-Pri",
        }
    }

    const fn bound(self) -> Bound {
        match self {
            Self::None => WITHOUT,
            Self::HwSep | Self::SwPri => WITH,
        }
    }
}

/// The figures of the application under one scheme, one entry for each round.
#[derive(Serialize)]
struct Measured {
    scheme: Scheme,
    lines: Vec<Line>,
    /// The flood's MB/s alone, and beside the operations of high priority: the rounds' medians.
    low_alone: Option<f64>,
    low: Option<f64>,
    rounds: Vec<Vec<Row>>,
}

impl Measured {
    fn new(scheme: Scheme, rounds: Vec<Vec<Row>>) -> Self {
        let p50 = |name: &str| -> Vec<_> {
            rounds.iter().map(|rows| lite::find(rows, name, 8).and_then(|row| row.p50_us)).collect()
        };
        let line = |&(name, idle, what)| Line::new(what, "us", &p50(name), &p50(idle));
        let lines = OPERATIONS.iter().map(line).collect();
        let rate = |name| {
            let of = |rows: &Vec<Row>| lite::find(rows, name, LARGE)?.mb_s;
            median(rounds.iter().filter_map(of).collect())
        };
        let (low_alone, low) = (rate("low_alone"), rate("low"));
        Self { scheme, lines, low_alone, low, rounds }
    }
}

/// The figures on one RDMA device.
#[derive(Serialize)]
struct Figures {
    nic: Nic,
    schemes: Vec<Measured>,
}

impl Figures {
    /// Measures all rounds. Each round begins with another scheme.
    fn measure(lab: &Lab, (nic, device): (Nic, Device<'_>), amount: Amount) -> Result<Self> {
        let mut rounds = Scheme::ALL.map(|_| Vec::new());
        for n in 1..=amount.runs {
            for turn in 0..Scheme::ALL.len() {
                interrupt::check()?;
                let at = (turn + n as usize) % Scheme::ALL.len();
                let step = format!("{}, {nic}: {n} of {}", Scheme::ALL[at].name(), amount.runs);
                rounds[at].push(ui::step(&step, || run(lab, device, Scheme::ALL[at], amount))?);
            }
        }
        Ok(Self::new(nic, rounds))
    }

    fn new(nic: Nic, rounds: [Vec<Vec<Row>>; 3]) -> Self {
        let schemes =
            Scheme::ALL.into_iter().zip(rounds).map(|(scheme, rounds)| Measured::new(scheme, rounds));
        Self { nic, schemes: schemes.collect() }
    }
}

impl Compared for Figures {
    fn targets(&self) -> Vec<Target> {
        let of_scheme = |measured: &Measured| {
            let (scheme, nic) = (measured.scheme, self.nic);
            let target = move |line: &Line| {
                let name = format!("{nic}: {}, {}", scheme.name(), line.what);
                Target::new(name, line.ratio, "", scheme.bound())
            };
            measured.lines.iter().map(target).collect::<Vec<_>>()
        };
        self.schemes.iter().flat_map(of_scheme).collect()
    }

    fn table(&self) -> Table {
        let title = match self.nic {
            Nic::Softroce => "High priority beside a flood of low priority, by SoftRoCE",
            Nic::Cx3 => "High priority beside a flood of low priority, by an emulated ConnectX-3",
        };
        let rounds = self.schemes.first().map_or(0, |measured| measured.rounds.len());
        let remark = format!(
            "two appliances, q35 with 1 processor each, booted for each scheme in each of {rounds} rounds, in turn; p50 of \
             operations one at a time, alone and beside 16 writes of 64 KiB of low priority in flight from the same node; \
             medians of the rounds, and the median of their ratios, then the least and the greatest; for the flood, MB/s"
        );
        let heads = ["scheme", "figure", "beside the flood", "alone", "unit", "ratio", "of the rounds"];
        let mut table = Table::new(title, remark, &heads);
        for measured in &self.schemes {
            let scheme = measured.scheme.name().to_owned();
            for line in &measured.lines {
                let [what, ours, theirs, unit, ratio, spread] = line.cells();
                table.row([scheme.clone(), what, ours, theirs, unit, ratio, spread]);
            }
            let (low, alone) = (measured.low, measured.low_alone);
            let ratio = low.zip(alone).map(|(low, alone)| low / alone);
            let flood = "flood, beside the three".to_owned();
            let none = "-".to_owned();
            table.row([scheme, flood, maybe(low), maybe(alone), "MB/s".to_owned(), maybe(ratio), none]);
        }
        table
    }
}

/// Returns the table of `runs` rounds on SoftRoCE, with `samples` operations of each kind.
pub(super) fn table(lab: &Lab, runs: u32, samples: u32) -> Result<Table> {
    let amount = Amount { runs, samples };
    Ok(Figures::measure(lab, (Nic::Softroce, Device::SoftRoce), amount)?.table())
}

/// Measures one scheme on two appliances that are booted for it.
fn run(lab: &Lab, device: Device<'_>, scheme: Scheme, amount: Amount) -> Result<Vec<Row>> {
    let plan = Plan { device, settings: scheme.setting(), ..Plan::default() };
    let mut pair = AppliancePair::boot(lab.programs.clone(), &plan)?;
    let output = pair.job("qos", &[amount.samples.to_string()])?;
    lite::rows(&String::from_utf8_lossy(&output))
}

/// Measures all schemes on each device.
pub(super) fn bench(options: &Options) -> Result<()> {
    let amount = Amount::new(options);
    rounds::bench(options, amount.runs, amount.samples, |lab, device| Figures::measure(lab, device, amount))
}
