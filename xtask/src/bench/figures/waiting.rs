//! The processor time that appliances use while they wait between calls.

use crate::bench::lab::Lab;
use crate::bench::lite;
use crate::bench::table::{Table, maybe, number};
use anyhow::{Context, Result};
use lab::perftest::lab::Lab as AppliancePair;
use lab::perftest::plan::Plan;
use lab::ui;
use std::time::Instant;

/// The pauses between two calls, in microseconds.
const PAUSES: [u32; 5] = [0, 100, 1000, 10_000, 100_000];

/// Measures calls of 64 bytes with pauses between them: the host's processor time of each machine, relative
/// to the time on the wall. A thread that polls all the time uses 100 %.
pub(super) fn table(lab: &Lab, quick: bool) -> Result<Table> {
    let mut table = Table::new(
        "Processor time of waiting",
        "two appliances, q35 with 1 processor each, SoftRoCE; calls of 64 B, one at a time with pauses; processor time \
         of QEMU on the host, the mean of the two machines, with the start and the end of the job; a side that polls \
         all the time uses 100 %",
        &["pause, us", "calls", "p50, us", "of a processor, %"],
    );
    let mut pair = AppliancePair::boot(lab.programs.clone(), &Plan::default())?;
    let (pauses, ms) = if quick { (&PAUSES[2..3], 300) } else { (&PAUSES[..], 3000) };
    for pause in pauses {
        let (before, begun) = (pair.processor_time()?, Instant::now());
        let args = [pause.to_string(), ms.to_string()];
        let output = ui::step(&format!("calls with pauses of {pause} us"), || pair.job("paced", &args))?;
        let used = pair.processor_time()?.saturating_sub(before).as_secs_f64() / 2.0;
        let share = 100.0 * used / begun.elapsed().as_secs_f64();
        let rows = lite::rows(&String::from_utf8_lossy(&output))?;
        let row = rows.first().context("no figure of calls")?;
        table.row([pause.to_string(), row.samples.to_string(), maybe(row.p50_us), number(share)]);
    }
    Ok(table)
}
