//! Frames between two appliances, over the same devices and fabric but without a transport: the floor below
//! the figures of the software RNIC.

use super::linux_pair::{self, Sample};
use super::pairs::Line;
use super::steps::last_number;
use super::table::{Table, maybe};
use anyhow::{Context, Result, bail};
use fabric::{Fabric, FabricConfig};
use lab::appliances::{SUCCESS, reason};
use qemu::Qemu;
use qemu::vm::{Accel, EventKind, Machine, Nic, Vm, VmSpec};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time limit of the self-test, with a large margin.
const LIMIT: Duration = Duration::from_secs(120);
const MACHINES: u16 = 2;

/// Measures by the self-test `echo` of the kernel for tests, in machines that are booted for it.
pub(super) fn measure(qemu: &Qemu, kernel: &Path) -> Result<Sample> {
    let dir = TempDir::with_prefix("ferrolite-")?;
    let fabric = Fabric::start(&FabricConfig::plain(MACHINES.into(), dir.path()))?;
    let (sender, events) = channel();
    let mut vms = Vec::new();
    for index in 0..MACHINES {
        let spec = VmSpec {
            name: format!("echo{index}"),
            index,
            // The machines of the appliances that run perftest.
            machine: Machine::Q35,
            accel: Accel::Tcg,
            cpus: 1,
            memory_mb: 96,
            kernel: kernel.to_owned(),
            cmdline: "selftest=echo".into(),
            fw_cfg: Vec::new(),
            initrd: None,
            nics: vec![Nic::Management, Nic::Fabric { plug: fabric.plug(index.into()) }],
            boots_again: false,
        };
        vms.push(Vm::start(qemu, spec, None, sender.clone())?);
    }
    let deadline = Instant::now() + LIMIT;
    let (mut printed, mut running) = (Vec::new(), vms.len());
    while running > 0 {
        let event = match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => bail!("did not end within {} s", LIMIT.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the machines have ended"),
        };
        match event.kind {
            EventKind::Line(line) => printed.extend(line.strip_prefix("echo: ").map(str::to_owned)),
            EventKind::RestartedUnderTcg => {}
            EventKind::Exited(exit) if exit == SUCCESS => running -= 1,
            EventKind::Exited(exit) => {
                let tail = vms.get(usize::from(event.index)).map(Vm::tail).unwrap_or_default();
                bail!("{exit}: {}", reason(&tail).unwrap_or("it said nothing"))
            }
        }
    }
    sample(&printed)
}

/// Returns the floor of each figure from the lines that the self-test prints.
fn sample(printed: &[String]) -> Result<Sample> {
    let ns = |wanted: &str| {
        let figures = printed.iter().filter_map(|line| last_number(line.strip_suffix(" ns")?));
        let found = figures.into_iter().find(|(what, _)| what == wanted);
        found.map(|(_, ns)| ns).with_context(|| format!("no line of `{wanted}`"))
    };
    let round_trip = ns("round trip of 82 bytes")? / 1e3;
    let (small, large) = (ns("frame of 138 bytes")?, ns("frame of 4154 bytes")?);
    let half = round_trip / 2.0;
    // Only a WRITE's and a SEND's figure is half of a round trip. A long frame carries 4096 bytes.
    Ok([half, round_trip, half, round_trip, 1e6 / small, 4096e3 / large].map(Some))
}

/// Returns a line per figure of the appliances, of the frames and of rdma_rxe, of runs that followed each
/// other.
pub(super) fn table(floors: &[Sample], ours: &[Sample], theirs: &[Sample]) -> Table {
    let mut table = Table::new(
        "Raw frames below SoftRoCE",
        "frames of the same lengths between the same machines over the same devices and fabric, without a transport, an \
         executor or payloads (selftest=echo): a round trip of 82 bytes, or half of it, and streams of 138 and 4154 bytes \
         with 64 in flight and an answer for 16; the fastest of 5 streams counts; medians over the runs",
        &["figure", "raw frames", "appliance", "unit", "raw to rdma_rxe", "appliance to raw"],
    );
    let (to_rxe, of_ours) = (linux_pair::compare(floors, theirs), linux_pair::compare(ours, floors));
    let row = |(floor, ours): (&Line, &Line)| {
        let [unit, what] = [floor.unit, floor.what].map(str::to_owned);
        [what, maybe(floor.ours), maybe(ours.ours), unit, maybe(floor.ratio), maybe(ours.ratio)]
    };
    to_rxe.iter().zip(&of_ours).map(row).for_each(|cells| table.row(cells));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_self_test_are_read() {
        let lines = [
            "round trip of 82 bytes                 20000 ns",
            "frame of 138 bytes                      2000 ns",
            "frame of 4154 bytes                     4096 ns",
        ];
        let printed = lines.map(str::to_owned);
        let floor = [10.0, 20.0, 10.0, 20.0, 500.0, 1000.0].map(Some);
        assert_eq!(sample(&printed).unwrap(), floor);
        assert!(sample(&printed[..2]).is_err());
        let ours = [Some(20.0); linux_pair::FIGURES.len()];
        let rows = table(&[floor], &[ours], &[ours]).rows;
        assert_eq!(rows[0][1..], ["10.0", "20.0", "us", "0.50", "2.00"]);
    }
}
