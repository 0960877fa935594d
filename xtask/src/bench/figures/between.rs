//! Latency, throughput and calls by size, between two appliances: LITE beside perftest of the same image.

use crate::bench::lab::Lab;
use crate::bench::lite::{self, Row};
use crate::bench::native::Call;
use crate::bench::nic::Nic;
use crate::bench::raw::{self, Raw};
use crate::bench::table::{Table, maybe};
use anyhow::Result;
use lab::perftest::cell::Cell;
use lab::perftest::lab::Lab as AppliancePair;
use lab::perftest::plan::Plan;
use lab::{interrupt, ui};

/// Payload bytes; those of `apps/bench`.
const SIZES: [u32; 6] = [8, 64, 512, 4096, 16384, 65536];
/// The programs of perftest whose figure is a latency, and those whose figure is a throughput.
const LATENCIES: [&str; 3] = ["ib_write_lat", "ib_read_lat", "ib_send_lat"];
const THROUGHPUTS: [&str; 2] = ["ib_write_bw", "ib_read_bw"];
/// From this size on, fewer messages are enough for a throughput of perftest.
const LARGE: u32 = 16384;

/// The figures of both sides in one round.
struct Round {
    lite: Vec<Row>,
    perftest: Vec<Raw>,
}

impl Round {
    fn ours(&self, what: &str, size: u32) -> Option<&Row> {
        lite::find(&self.lite, what, size.into())
    }

    fn theirs(&self, program: &str, size: u32) -> Option<&Raw> {
        self.perftest.iter().find(|raw| (raw.program, raw.size) == (program, size))
    }
}

/// The number of operations of each measurement.
#[derive(Clone, Copy)]
struct Effort {
    sizes: &'static [u32],
    samples: u32,
    /// Messages of a throughput of perftest: small ones, and large ones.
    messages: [u32; 2],
}

impl Effort {
    /// Returns perftest's cells.
    fn cells(self) -> impl Iterator<Item = Cell> {
        let cell = |program, size, iterations| raw::cell(program, size, iterations, Nic::Softroce.mtu());
        self.sizes.iter().flat_map(move |&size| {
            let messages = self.messages[usize::from(size >= LARGE)];
            let latencies = LATENCIES.map(|program| cell(program, size, self.samples));
            latencies.into_iter().chain(THROUGHPUTS.map(|program| cell(program, size, messages)))
        })
    }
}

/// The figures of both sides in all rounds.
pub(super) struct Between {
    rounds: Vec<Round>,
    sizes: &'static [u32],
}

impl Between {
    /// Measures both sides in turn. The sides alternate in coming first.
    pub(super) fn measure(lab: &Lab, quick: bool) -> Result<Self> {
        let (rounds, effort) = if quick {
            (1, Effort { sizes: &SIZES[..1], samples: 20, messages: [20, 20] })
        } else {
            (5, Effort { sizes: &SIZES, samples: 500, messages: [2000, 400] })
        };
        let mut pair =
            ui::step("two appliances", || AppliancePair::boot(lab.programs.clone(), &Plan::default()))?;
        // The first measurement of each side does not count, because QEMU translates the code during it.
        if !quick {
            ui::step("warming up", || {
                run_lite(&mut pair, effort)?;
                run_perftest(&mut pair, effort)
            })?;
        }
        let round = |n| {
            interrupt::check()?;
            ui::step(&format!("LITE and perftest by size: {n} of {rounds}"), || {
                // Fields are evaluated in the order of the expression.
                if n % 2 == 0 {
                    Ok(Round {
                        lite: run_lite(&mut pair, effort)?,
                        perftest: run_perftest(&mut pair, effort)?,
                    })
                } else {
                    Ok(Round {
                        perftest: run_perftest(&mut pair, effort)?,
                        lite: run_lite(&mut pair, effort)?,
                    })
                }
            })
        };
        let rounds = (1..=rounds).map(round).collect::<Result<_>>()?;
        Ok(Self { rounds, sizes: effort.sizes })
    }

    /// Returns the best figure of all rounds, as `better` chooses it, of LITE and of perftest, and their
    /// ratio. Other work on the machine only makes a figure worse, so the best one is the least disturbed.
    fn best(
        &self,
        better: fn(f64, f64) -> f64,
        ours: impl Fn(&Round) -> Option<f64>,
        theirs: impl Fn(&Round) -> Option<f64>,
    ) -> [Option<f64>; 3] {
        let ours = self.rounds.iter().filter_map(ours).reduce(better);
        let theirs = self.rounds.iter().filter_map(theirs).reduce(better);
        [ours, theirs, ours.zip(theirs).map(|(ours, theirs)| ours / theirs)]
    }

    /// Returns the explanation of all tables here.
    fn machines(&self) -> String {
        format!(
            "two appliances, q35 with 1 processor each, SoftRoCE, path MTU 4096, both sides between the same two, in turn, \
             the best of {} rounds of each side",
            self.rounds.len()
        )
    }

    /// Returns LITE's latency, perftest's, and their ratio.
    fn latencies(&self, what: &str, program: &str, size: u32) -> [Option<f64>; 3] {
        let ours = |round: &Round| round.ours(what, size)?.p50_us;
        self.best(f64::min, ours, |round| round.theirs(program, size)?.p50_us)
    }

    pub(super) fn latency(&self) -> Table {
        let mut table = Table::new(
            "Latency by size",
            format!(
                "{}; p50 in us; a write of LITE until its completion, ib_write_lat half a round trip",
                self.machines()
            ),
            &["bytes", "LITE read", "ib_read_lat", "ratio", "LITE write", "ib_write_lat"],
        );
        for &size in self.sizes {
            let [ours, theirs, ratio] = self.latencies("read", "ib_read_lat", size);
            let [write, half, _] = self.latencies("write", "ib_write_lat", size);
            let cells = [ours, theirs, ratio, write, half].map(maybe);
            let [ours, theirs, ratio, write, half] = cells;
            table.row([size.to_string(), ours, theirs, ratio, write, half]);
        }
        table
    }

    pub(super) fn throughput(&self) -> Table {
        let mut table = Table::new(
            "Throughput by size",
            format!(
                "{}; MB/s; LITE with 16 operations in flight, perftest with its default depth",
                self.machines()
            ),
            &["bytes", "LITE writes", "ib_write_bw", "ratio", "LITE reads", "ib_read_bw", "ratio"],
        );
        for &size in self.sizes {
            let side = |what, program| {
                let ours = |round: &Round| round.ours(what, size)?.mb_s;
                self.best(f64::max, ours, |round| round.theirs(program, size)?.mb_s).map(maybe)
            };
            let [writes, write_bw, first] = side("write_bw", "ib_write_bw");
            let [reads, read_bw, second] = side("read_bw", "ib_read_bw");
            table.row([size.to_string(), writes, write_bw, first, reads, read_bw, second]);
        }
        table
    }

    /// Returns the table of calls. `in_process` is a call as native code.
    pub(super) fn calls(&self, in_process: Call) -> Table {
        let mut table = Table::new(
            "Calls beside round trips of verbs",
            format!(
                "{}; p50 in us; a call sends and returns as many bytes; a round trip of SENDs (twice \
                 ib_send_lat) is the least of RPC by SEND, one of WRITEs (twice ib_write_lat) the least of RPC whose \
                 ends poll memory; in one process and without a network, a call of 64 B takes {:.0} ns, of which two \
                 WRITEs with immediate by verbs alone take {:.0} ns",
                self.machines(),
                in_process.all_ns,
                in_process.verbs_ns
            ),
            &["bytes", "LITE call", "by SEND", "ratio", "by WRITE", "ratio"],
        );
        for &size in self.sizes {
            let beside = |program| {
                let trip = |round: &Round| Some(2.0 * round.theirs(program, size)?.p50_us?);
                self.best(f64::min, |round| round.ours("rpc", size)?.p50_us, trip).map(maybe)
            };
            let [call, send, to_send] = beside("ib_send_lat");
            let [_, write, to_write] = beside("ib_write_lat");
            table.row([size.to_string(), call, send, to_send, write, to_write]);
        }
        table
    }
}

fn run_lite(pair: &mut AppliancePair, effort: Effort) -> Result<Vec<Row>> {
    let output = pair.job("bench", &[effort.samples.to_string()])?;
    lite::parse(&String::from_utf8_lossy(&output))
}

fn run_perftest(pair: &mut AppliancePair, effort: Effort) -> Result<Vec<Raw>> {
    raw::measure_all(pair, effort.cells())
}
