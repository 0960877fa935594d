//! `cargo xtask bench overhead`: compares LITE with perftest on raw verbs. Both run between the same two
//! appliances, in turn.

use super::lab::Lab;
use super::lite::{self, FETCH_ADD, PING_PONG, Row};
use super::nic::Nic;
use super::pairs::Line;
use super::raw::{self, Raw};
use super::rounds::{self, Compared, Options};
use super::stats::median;
use super::table::{Table, maybe};
use super::target::{Bound, Target};
use anyhow::Result;
use lab::perftest::cell::Cell;
use lab::perftest::lab::Lab as AppliancePair;
use lab::perftest::plan::{Device, Plan};
use lab::{interrupt, ui};
use serde::Serialize;

/// The greatest accepted latency of LITE, relative to perftest's.
const LATENCY: Bound = Bound::AtMost(1.25);
/// The least accepted bandwidth of LITE, relative to perftest's.
const BANDWIDTH: Bound = Bound::AtLeast(0.95);
/// The greatest accepted latency of a call, relative to LITE's ping-pong, which is half a round trip.
const CALL: Bound = Bound::AtMost(2.5);
/// The length of a message when latencies are measured, in bytes.
const SMALL: u32 = 8;
/// The length of a message when bandwidth is measured, in bytes.
const LARGE: u32 = 65536;
/// The number of samples from which on LITE's application moves as many bytes at [`LARGE`] as it ever does.
const ENOUGH_SAMPLES: u32 = 64;

/// The amount of measurements.
#[derive(Clone, Copy)]
struct Amount {
    runs: u32,
    /// The number of times that the latencies of each side are measured in a round. The median of each figure
    /// counts. A virtual machine's processors that wait between two measurements may be elsewhere on the host
    /// afterwards, nearer to each other or slower, so one measurement tells little.
    latency_turns: u32,
    /// The number of times that the bandwidths of each side are measured in a round.
    bandwidth_turns: u32,
    /// Operations of each latency measurement.
    samples: u32,
    /// Messages of each bandwidth measurement of perftest. LITE's application decides on its own number.
    messages: u32,
}

impl Amount {
    fn new(options: &Options) -> Self {
        let (runs, latency_turns, bandwidth_turns, samples, messages) =
            if options.quick { (2, 1, 1, 100, 100) } else { (5, 20, 5, 500, 400) };
        Self { runs: options.runs.unwrap_or(runs), latency_turns, bandwidth_turns, samples, messages }
    }

    const fn turns(self, kind: Kind) -> u32 {
        match kind {
            Kind::Latency => self.latency_turns,
            Kind::Bandwidth => self.bandwidth_turns,
        }
    }

    /// Returns perftest's cells of one kind, of which each program has one.
    fn cells(self, kind: Kind, mtu: u32) -> Vec<Cell> {
        let cell = |program, size, iterations| raw::cell(program, size, iterations, mtu);
        match kind {
            Kind::Latency => ["ib_write_lat", "ib_send_lat", "ib_read_lat", "ib_atomic_lat"]
                .map(|program| cell(program, SMALL, self.samples))
                .into(),
            Kind::Bandwidth => {
                ["ib_write_bw", "ib_read_bw"].map(|program| cell(program, LARGE, self.messages)).into()
            }
        }
    }
}

/// The figures that a turn measures.
#[derive(Clone, Copy)]
enum Kind {
    Latency,
    Bandwidth,
}

impl Kind {
    /// Returns the length of a message in bytes.
    const fn size(self) -> u32 {
        match self {
            Self::Latency => SMALL,
            Self::Bandwidth => LARGE,
        }
    }
}

/// A measurement of either side.
#[derive(Clone, Copy)]
enum Source {
    /// An operation of LITE's application, and its payload bytes.
    Lite(&'static str, u64),
    /// A program of perftest.
    Perftest(&'static str),
    /// A round trip of a program of perftest, whose latency is half of one.
    RoundTrip(&'static str),
}

/// A figure of a measurement.
#[derive(Clone, Copy)]
enum Column {
    P50,
    P99,
    Bandwidth,
}

impl Column {
    /// Returns the function that chooses the better one of two values.
    fn better(self) -> fn(f64, f64) -> f64 {
        match self {
            Self::P50 | Self::P99 => f64::min,
            Self::Bandwidth => f64::max,
        }
    }
}

/// One line of the table: what is compared, and the bound of the ratio.
struct Comparison {
    what: &'static str,
    ours: Source,
    theirs: Source,
    column: Column,
    bound: Option<Bound>,
}

const COMPARISONS: [Comparison; 12] = [
    latency("8 B write ping-pong, p50", PING_PONG, "ib_write_lat", Column::P50),
    latency("8 B write ping-pong, p99", PING_PONG, "ib_write_lat", Column::P99),
    latency("8 B read, p50", "read", "ib_read_lat", Column::P50),
    latency("8 B read, p99", "read", "ib_read_lat", Column::P99),
    latency("fetch-add, p50", FETCH_ADD, "ib_atomic_lat", Column::P50),
    latency("fetch-add, p99", FETCH_ADD, "ib_atomic_lat", Column::P99),
    call("8 B call beside LITE's ping-pong, p50", Column::P50, Some(CALL)),
    call("8 B call beside LITE's ping-pong, p99", Column::P99, None),
    Comparison {
        bound: None,
        ..latency("8 B call beside half a round trip of SENDs, p50", "rpc", "ib_send_lat", Column::P50)
    },
    // A call is two messages with receives, as a round trip of SENDs is: the floor of the call's ratio.
    Comparison {
        ours: Source::RoundTrip("ib_send_lat"),
        ..call("a round trip of perftest's SENDs beside LITE's ping-pong, p50", Column::P50, None)
    },
    bandwidth("64 KiB writes", "write_bw", "ib_write_bw"),
    bandwidth("64 KiB reads", "read_bw", "ib_read_bw"),
];

const fn latency(
    what: &'static str,
    operation: &'static str,
    program: &'static str,
    column: Column,
) -> Comparison {
    let (ours, theirs) = (Source::Lite(operation, SMALL as u64), Source::Perftest(program));
    Comparison { what, ours, theirs, column, bound: Some(LATENCY) }
}

const fn call(what: &'static str, column: Column, bound: Option<Bound>) -> Comparison {
    let (ours, theirs) = (Source::Lite("rpc", SMALL as u64), Source::Lite(PING_PONG, SMALL as u64));
    Comparison { what, ours, theirs, column, bound }
}

const fn bandwidth(what: &'static str, operation: &'static str, program: &'static str) -> Comparison {
    let (ours, theirs) = (Source::Lite(operation, LARGE as u64), Source::Perftest(program));
    Comparison { what, ours, theirs, column: Column::Bandwidth, bound: Some(BANDWIDTH) }
}

/// The figures of both sides in each turn of one round.
#[derive(Serialize)]
struct Round {
    latencies: Vec<Turn>,
    bandwidths: Vec<Turn>,
}

/// The figures of both sides in one turn.
#[derive(Serialize)]
struct Turn {
    lite: Vec<Row>,
    perftest: Vec<Raw>,
}

impl Turn {
    /// Measures both sides, one after the other, between two appliances that run.
    fn measure(
        pair: &mut AppliancePair,
        nic: Nic,
        amount: Amount,
        kind: Kind,
        lite_first: bool,
    ) -> Result<Self> {
        // Fields are evaluated in the order of the expression.
        Ok(if lite_first {
            Self { lite: run_lite(pair, amount, kind)?, perftest: run_perftest(pair, nic, amount, kind)? }
        } else {
            Self { perftest: run_perftest(pair, nic, amount, kind)?, lite: run_lite(pair, amount, kind)? }
        })
    }

    fn value(&self, source: Source, column: Column) -> Option<f64> {
        let raw = |program| self.perftest.iter().find(|raw| raw.program == program);
        let (p50_us, p99_us, mb_s) = match source {
            Source::Lite(what, bytes) => {
                lite::find(&self.lite, what, bytes).map(|row| (row.p50_us, row.p99_us, row.mb_s))?
            }
            Source::Perftest(program) => {
                let raw = raw(program)?;
                (raw.p50_us, raw.p99_us, raw.mb_s)
            }
            Source::RoundTrip(program) => {
                let raw = raw(program)?;
                (raw.p50_us.map(|half| 2.0 * half), raw.p99_us.map(|half| 2.0 * half), None)
            }
        };
        match column {
            Column::P50 => p50_us,
            Column::P99 => p99_us,
            Column::Bandwidth => mb_s,
        }
    }
}

impl Round {
    /// Measures both sides on two appliances that are booted for it.
    fn measure(
        lab: &Lab,
        (nic, device): (Nic, Device<'_>),
        amount: Amount,
        lite_first: bool,
    ) -> Result<Self> {
        let plan = Plan { device, ..Plan::default() };
        let mut pair = AppliancePair::boot(lab.programs.clone(), &plan)?;
        let mut measure = |kind| {
            let mut turn = |n| Turn::measure(&mut pair, nic, amount, kind, lite_first == (n % 2 == 0));
            // The first turn does not count, because QEMU translates the code during it.
            turn(0)?;
            (1..=amount.turns(kind)).map(turn).collect::<Result<Vec<_>>>()
        };
        Ok(Self { latencies: measure(Kind::Latency)?, bandwidths: measure(Kind::Bandwidth)? })
    }

    /// Returns the values of a figure in the turns. A figure that is absent in one turn is absent.
    fn values(&self, source: Source, column: Column) -> Option<Vec<f64>> {
        let turns = match column {
            Column::P50 | Column::P99 => &self.latencies,
            Column::Bandwidth => &self.bandwidths,
        };
        turns.iter().map(|turn| turn.value(source, column)).collect()
    }

    /// Returns the median of a figure over the turns.
    fn value(&self, source: Source, column: Column) -> Option<f64> {
        median(self.values(source, column)?)
    }
}

fn run_lite(pair: &mut AppliancePair, amount: Amount, kind: Kind) -> Result<Vec<Row>> {
    let samples = match kind {
        Kind::Latency => amount.samples,
        Kind::Bandwidth => ENOUGH_SAMPLES,
    };
    let output = pair.job("bench", &[samples.to_string(), format!("size={}", kind.size())])?;
    lite::parse(&String::from_utf8_lossy(&output))
}

fn run_perftest(pair: &mut AppliancePair, nic: Nic, amount: Amount, kind: Kind) -> Result<Vec<Raw>> {
    raw::measure_all(pair, amount.cells(kind, nic.mtu()))
}

/// The comparison on one RDMA device.
#[derive(Serialize)]
struct Figures {
    nic: Nic,
    lines: Vec<Line>,
    /// The ratio of the best values of all turns, for each line.
    best: Vec<Option<f64>>,
    rounds: Vec<Round>,
}

impl Figures {
    fn new(nic: Nic, rounds: Vec<Round>) -> Self {
        let line = |comparison: &Comparison| {
            let Comparison { what, ours, theirs, column, .. } = *comparison;
            let unit = if matches!(column, Column::Bandwidth) { "MB/s" } else { "us" };
            let values = |source| rounds.iter().map(|round| round.value(source, column)).collect::<Vec<_>>();
            Line::new(what, unit, &values(ours), &values(theirs))
        };
        let best_ratio = |comparison: &Comparison| {
            let best = |source| {
                let values =
                    rounds.iter().filter_map(|round| round.values(source, comparison.column)).flatten();
                values.reduce(comparison.column.better())
            };
            Some(best(comparison.ours)? / best(comparison.theirs)?)
        };
        let lines = COMPARISONS.iter().map(line).collect();
        let best = COMPARISONS.iter().map(best_ratio).collect();
        Self { nic, lines, best, rounds }
    }
}

impl Figures {
    /// Returns the number of turns of one kind, which is the same in each round.
    fn turns(&self, of: impl Fn(&Round) -> &Vec<Turn>) -> usize {
        self.rounds.first().map_or(0, |round| of(round).len())
    }
}

impl Compared for Figures {
    fn targets(&self) -> Vec<Target> {
        let target = |(line, comparison): (&Line, &Comparison)| {
            let name = format!("{}: {}", self.nic, line.what);
            Some(Target::new(name, line.ratio, "", comparison.bound?))
        };
        self.lines.iter().zip(&COMPARISONS).filter_map(target).collect()
    }

    fn table(&self) -> Table {
        let title = match self.nic {
            Nic::Softroce => "LITE beside perftest, by SoftRoCE",
            Nic::Cx3 => "LITE beside perftest, by an emulated ConnectX-3",
        };
        let mut table = Table::new(
            title,
            format!(
                "both between the same two appliances, q35 with 1 processor each, path MTU {}, in turn, booted for each of \
                 {} rounds, latencies {} times and bandwidths {} times in each, of which the median of each figure counts; \
                 perftest: ib_write_lat, ib_send_lat, ib_read_lat, ib_atomic_lat, ib_write_bw, ib_read_bw; the ping-pong is half \
                 a round trip; a call's ratio is to the ping-pong; medians of the rounds, and the median of their ratios, \
                 then the least and the greatest; best: the ratio of the best values of all turns, which is not judged",
                self.nic.mtu(),
                self.rounds.len(),
                self.turns(|round| &round.latencies),
                self.turns(|round| &round.bandwidths)
            ),
            &["figure", "LITE", "beside", "unit", "ratio", "of the rounds", "best"],
        );
        for (line, best) in self.lines.iter().zip(&self.best) {
            let [what, ours, theirs, unit, ratio, spread] = line.cells();
            table.row([what, ours, theirs, unit, ratio, spread, maybe(*best)]);
        }
        table
    }
}

/// Measures both sides on each device.
pub(super) fn bench(options: &Options) -> Result<()> {
    let amount = Amount::new(options);
    rounds::bench(options, amount.runs, amount.samples, |lab, (nic, device)| {
        Ok(Figures::new(nic, all_rounds(lab, (nic, device), amount)?))
    })
}

/// Measures all rounds on one device. The sides alternate in coming first.
fn all_rounds(lab: &Lab, (nic, device): (Nic, Device<'_>), amount: Amount) -> Result<Vec<Round>> {
    let round = |n| {
        interrupt::check()?;
        let step = format!("LITE and perftest, {nic}: {n} of {}", amount.runs);
        ui::step(&step, || Round::measure(lab, (nic, device), amount, n % 2 == 0))
    };
    (1..=amount.runs).map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMOUNT: Amount = Amount { runs: 1, latency_turns: 1, bandwidth_turns: 1, samples: 1, messages: 1 };

    /// Returns a round in which LITE has these latencies and this bandwidth, and perftest has 10 us, 20 us
    /// and 100 MB/s.
    fn round(p50: f64, p99: f64, mb_s: f64) -> Round {
        let row = |what: &str, bytes, [p50_us, p99_us, mb_s]: [Option<f64>; 3]| Row {
            what: what.into(),
            bytes,
            samples: 1,
            p50_us,
            p99_us,
            mb_s,
        };
        let latency = [Some(p50), Some(p99), None];
        let mut lite: Vec<Row> = [PING_PONG, "read", FETCH_ADD].map(|what| row(what, 8, latency)).into();
        lite.push(row("rpc", 8, [Some(2.0 * p50), Some(9.0 * p99), None]));
        lite.extend(["write_bw", "read_bw"].map(|what| row(what, 65536, [None, None, Some(mb_s)])));
        let of = |cell: Cell| {
            let rate = cell.program.ends_with("_bw");
            Raw {
                program: cell.program,
                size: cell.size,
                p50_us: (!rate).then_some(10.0),
                p99_us: (!rate).then_some(20.0),
                mb_s: rate.then_some(100.0),
            }
        };
        let turn = |kind| {
            let perftest = AMOUNT.cells(kind, 1024).into_iter().map(of).collect();
            vec![Turn { lite: lite.clone(), perftest }]
        };
        Round { latencies: turn(Kind::Latency), bandwidths: turn(Kind::Bandwidth) }
    }

    fn missed(rounds: Vec<Round>) -> Vec<String> {
        let compared = Figures::new(Nic::Cx3, rounds);
        assert_eq!(compared.table().rows.len(), COMPARISONS.len());
        let targets = compared.targets();
        let bounded = COMPARISONS.iter().filter(|comparison| comparison.bound.is_some());
        assert_eq!(targets.len(), bounded.count());
        targets.into_iter().filter(|target| !target.met).map(|target| target.name).collect()
    }

    #[test]
    fn each_figure_is_judged_beside_its_own() {
        assert_eq!(missed(vec![round(12.5, 25.0, 95.0)]), [""; 0]);
        assert_eq!(
            missed(vec![round(12.6, 25.0, 95.0)]),
            ["cx3: 8 B write ping-pong, p50", "cx3: 8 B read, p50", "cx3: fetch-add, p50"]
        );
        assert_eq!(
            missed(vec![round(12.5, 25.1, 95.0)]),
            ["cx3: 8 B write ping-pong, p99", "cx3: 8 B read, p99", "cx3: fetch-add, p99"]
        );
        assert_eq!(missed(vec![round(12.5, 25.0, 94.0)]), ["cx3: 64 KiB writes", "cx3: 64 KiB reads"]);
    }

    #[test]
    fn the_median_of_the_turns_counts_and_the_best_is_printed() {
        let mut rounds = vec![round(12.0, 30.0, 95.0)];
        for (p50, p99, mb_s) in [(13.0, 25.0, 90.0), (5.0, 31.0, 200.0)] {
            let Round { latencies, bandwidths } = round(p50, p99, mb_s);
            rounds[0].latencies.extend(latencies);
            rounds[0].bandwidths.extend(bandwidths);
        }
        let of = |column| rounds[0].value(Source::Lite("read", 8), column);
        assert_eq!((of(Column::P50), of(Column::P99)), (Some(12.0), Some(30.0)));
        let writes = rounds[0].value(Source::Lite("write_bw", 65536), Column::Bandwidth);
        assert_eq!(writes, Some(95.0));
        let figures = Figures::new(Nic::Cx3, rounds);
        assert_eq!(figures.best[..2], [Some(0.5), Some(1.25)]);
        assert_eq!(figures.best[10], Some(2.0));
    }

    #[test]
    fn a_call_is_judged_beside_the_ping_pong() {
        let mut slow = round(10.0, 20.0, 100.0);
        for row in slow.latencies[0].lite.iter_mut().filter(|row| row.what == "rpc") {
            row.p50_us = Some(25.1);
        }
        assert_eq!(missed(vec![slow]), ["cx3: 8 B call beside LITE's ping-pong, p50"]);
    }

    #[test]
    fn the_median_round_decides() {
        let bad = || round(100.0, 200.0, 10.0);
        let good = || round(10.0, 20.0, 100.0);
        assert_eq!(missed(vec![good(), bad(), good()]), [""; 0]);
        assert_eq!(missed(vec![bad(), good(), bad()]).len(), 8);
        let ratios = Figures::new(Nic::Softroce, vec![good(), bad()]).lines[0].spread();
        assert_eq!(ratios, "1.00 to 10.0");
    }

    #[test]
    fn a_figure_that_is_absent_in_one_turn_misses_its_target() {
        let mut rounds = [round(10.0, 20.0, 100.0), round(10.0, 20.0, 100.0)];
        rounds[1].latencies[0].lite.retain(|row| row.what != FETCH_ADD);
        let [mut whole, other] = rounds;
        whole.latencies.extend(other.latencies);
        assert_eq!(missed(vec![whole]), ["cx3: fetch-add, p50", "cx3: fetch-add, p99"]);
    }

    #[test]
    fn a_figure_that_is_absent_misses_its_target() {
        let mut round = round(10.0, 20.0, 100.0);
        round.latencies[0].lite.retain(|row| row.what != FETCH_ADD);
        round.bandwidths[0].perftest.retain(|raw| raw.program != "ib_read_bw");
        assert_eq!(missed(vec![round]), ["cx3: fetch-add, p50", "cx3: fetch-add, p99", "cx3: 64 KiB reads"]);
    }
}
