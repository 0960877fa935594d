//! Latency, throughput and calls by size, between two appliances: LITE beside perftest of the same image.

use crate::bench::lab::Lab;
use crate::bench::lite::{self, Row};
use crate::bench::native::Call;
use crate::bench::nic::Nic;
use crate::bench::table::{Table, maybe};
use anyhow::{Context, Result};
use lab::perftest::cell::{Cell, Direction};
use lab::perftest::lab::Lab as AppliancePair;
use lab::perftest::plan::Plan;
use lab::ui;

/// Payload bytes; those of `apps/bench`.
const SIZES: [u32; 6] = [8, 64, 512, 4096, 16384, 65536];
/// The explanation of all tables here.
const MACHINES: &str =
    "two appliances, q35 with 1 processor each, SoftRoCE, path MTU 4096, both sides between the same two";

/// A figure of perftest.
struct Raw {
    program: &'static str,
    size: u32,
    p50_us: Option<f64>,
    mb_s: Option<f64>,
}

/// The figures of both sides.
pub(super) struct Between {
    lite: Vec<Row>,
    perftest: Vec<Raw>,
    sizes: &'static [u32],
}

impl Between {
    pub(super) fn measure(lab: &Lab, quick: bool) -> Result<Self> {
        let sizes = if quick { &SIZES[..1] } else { &SIZES[..] };
        let samples = if quick { "20" } else { "500" }.to_owned();
        let mut pair =
            ui::step("two appliances", || AppliancePair::boot(lab.programs.clone(), &Plan::default()))?;
        // The first measurement does not count, because QEMU translates the code during it.
        let mut lite = pair.job("bench", &["20".to_owned()])?;
        if !quick {
            lite = ui::step("LITE by size", || pair.job("bench", &[samples]))?;
        }
        let lite = lite::parse(&String::from_utf8_lossy(&lite))?;
        let mut perftest = Vec::new();
        for program in ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_write_bw", "ib_read_bw"] {
            for &size in sizes {
                let mtu = Nic::Softroce.mtu();
                let cell = Cell::new(program, Direction::ApplianceAppliance, size, mtu, 0.0, quick);
                let figure = pair.run(&cell).with_context(|| cell.to_string())?;
                let mb_s = figure.average_mib_s().map(|mib_s| mib_s * f64::from(1 << 20) / 1e6);
                perftest.push(Raw { program, size, p50_us: figure.p50_us(), mb_s });
            }
        }
        Ok(Self { lite, perftest, sizes })
    }

    fn ours(&self, what: &str, size: u32) -> Option<&Row> {
        lite::find(&self.lite, what, size.into())
    }

    fn theirs(&self, program: &str, size: u32) -> Option<&Raw> {
        self.perftest.iter().find(|raw| (raw.program, raw.size) == (program, size))
    }

    /// Returns LITE's latency and its ratio to perftest's.
    fn latencies(&self, what: &str, program: &str, size: u32) -> [Option<f64>; 3] {
        let ours = self.ours(what, size).and_then(|row| row.p50_us);
        let theirs = self.theirs(program, size).and_then(|raw| raw.p50_us);
        [ours, theirs, ours.zip(theirs).map(|(ours, theirs)| ours / theirs)]
    }

    pub(super) fn latency(&self) -> Table {
        let mut table = Table::new(
            "Latency by size",
            format!(
                "{MACHINES}; p50 in us; a write of LITE until its completion, ib_write_lat half a round trip"
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
            format!("{MACHINES}; MB/s; LITE with 16 operations in flight, perftest with its default depth"),
            &["bytes", "LITE writes", "ib_write_bw", "ratio", "LITE reads", "ib_read_bw", "ratio"],
        );
        for &size in self.sizes {
            let side = |what, program| {
                let ours = self.ours(what, size).and_then(|row| row.mb_s);
                let theirs = self.theirs(program, size).and_then(|raw| raw.mb_s);
                [ours, theirs, ours.zip(theirs).map(|(ours, theirs)| ours / theirs)].map(maybe)
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
                "{MACHINES}; p50 in us; a call sends and returns as many bytes; a round trip of SENDs (twice \
                 ib_send_lat) is the least of RPC by SEND, one of WRITEs (twice ib_write_lat) the least of RPC whose \
                 ends poll memory; in one process and without a network, a call of 64 B takes {:.0} ns, of which two \
                 WRITEs with immediate by verbs alone take {:.0} ns",
                in_process.all_ns, in_process.verbs_ns
            ),
            &["bytes", "LITE call", "by SEND", "ratio", "by WRITE", "ratio"],
        );
        for &size in self.sizes {
            let call = self.ours("rpc", size).and_then(|row| row.p50_us);
            let trip = |program| self.theirs(program, size).and_then(|raw| raw.p50_us).map(|half| 2.0 * half);
            let (send, write) = (trip("ib_send_lat"), trip("ib_write_lat"));
            let ratio = |trip: Option<f64>| call.zip(trip).map(|(call, trip)| call / trip);
            let cells = [call, send, ratio(send), write, ratio(write)].map(maybe);
            let [call, send, to_send, write, to_write] = cells;
            table.row([size.to_string(), call, send, to_send, write, to_write]);
        }
        table
    }
}
