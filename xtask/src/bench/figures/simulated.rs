//! Figures of simulated clusters: all times are virtual, and the same in each run.

use crate::bench::table::Table;
use crate::bench::{nodes, program};
use anyhow::{Context, Result};
use lab::ui;
use serde::Deserialize;
use serde_json::Value;

/// The calls that each node of a cluster makes.
const CALLS: u64 = 10;

/// Simulates clusters of growing size, each node of which calls random others.
pub(super) fn nodes(quick: bool) -> Result<Table> {
    let mut table = Table::new(
        "Calls of a growing number of nodes (simulated)",
        "one process under virtual time; each node makes 10 calls of 64 B to random others and connects on demand; all \
         times are the simulation's, and the heap is of the process",
        &["nodes", "calls, virtual ms", "calls per virtual s", "connected peers", "heap per peer, B"],
    );
    for nodes in if quick { &[2, 4][..] } else { &[2, 8, 32, 128, 512] } {
        let file = tempfile::NamedTempFile::new()?;
        ui::step(&format!("{nodes} nodes"), || nodes::simulate([*nodes, CALLS, 1], Some(file.path())))?;
        let figures: Value = serde_json::from_slice(&std::fs::read(file.path())?)?;
        let figure = |name: &str| {
            let value = figures.get(name).and_then(Value::as_f64);
            value.with_context(|| format!("the simulation does not say `{name}`"))
        };
        let ms = figure("calls, connecting on demand: virtual time (ms)")?;
        table.row([
            nodes.to_string(),
            format!("{ms:.2}"),
            format!("{:.0}", (nodes * CALLS) as f64 / ms * 1e3),
            format!("{:.1}", figure("connected peers of a node ()")?),
            format!("{:.0}", figure("connected peer: heap (B)")?),
        ]);
    }
    Ok(table)
}

/// The output of `sim`'s example `threads`.
#[derive(Deserialize)]
struct Simulated {
    threads: Vec<Threads>,
    queue_pairs: Vec<QueuePairs>,
}

/// Operations per virtual second of a number of threads.
#[derive(Deserialize)]
struct Threads {
    threads: u32,
    writes: f64,
    large: f64,
    calls: f64,
}

/// Operations per virtual second of 64 threads with a number of queue pairs.
#[derive(Deserialize)]
struct QueuePairs {
    queue_pairs: u32,
    writes: f64,
    lossy: f64,
}

/// Simulates one node whose threads write to another node, and call it; then its threads with a growing
/// number of queue pairs.
pub(super) fn threads(quick: bool) -> Result<[Table; 2]> {
    let operations = if quick { 640 } else { 20_000 };
    let simulated: Simulated = ui::step("threads", || {
        program::simulate("sim", "threads", &["--operations".to_owned(), operations.to_string()])
    })?;
    Ok([by_threads(&simulated.threads, operations)?, by_queue_pairs(&simulated.queue_pairs, operations)?])
}

/// Returns thousands per second, and the ratio to the first row.
fn pair(rate: f64, first: f64) -> [String; 2] {
    [format!("{:.0}", rate / 1e3), format!("{:.2}", rate / first)]
}

fn by_threads(rows: &[Threads], operations: u32) -> Result<Table> {
    let first = rows.first().context("the simulation has no rows")?;
    let mut table = Table::new(
        "Operations of a growing number of threads (simulated)",
        format!(
            "two nodes over softroce in one process under virtual time, {operations} operations of each kind, each thread with \
             one at a time; a network of 1 us in one direction and 40 Gbit/s; the work of processors takes no time here, so \
             this shows how operations share connections and the link, not the cost of locks; thousands per virtual second, \
             and the ratio to one thread"
        ),
        &["threads", "64 B writes", "ratio", "4 KiB writes", "ratio", "64 B calls", "ratio"],
    );
    for row in rows {
        let figures =
            [pair(row.writes, first.writes), pair(row.large, first.large), pair(row.calls, first.calls)];
        let [[a, b], [c, d], [e, f]] = figures;
        table.row([row.threads.to_string(), a, b, c, d, e, f]);
    }
    Ok(table)
}

fn by_queue_pairs(rows: &[QueuePairs], operations: u32) -> Result<Table> {
    let first = rows.first().context("the simulation has no rows")?;
    let mut table = Table::new(
        "64 B writes with a growing number of queue pairs (simulated)",
        format!(
            "as above, 64 threads, {operations} writes; of several queue pairs the first one carries only calls; with loss, \
             the network loses one frame of 1,000; thousands per virtual second, and the ratio to one queue pair"
        ),
        &["queue pairs", "64 B writes", "ratio", "with loss", "ratio"],
    );
    for row in rows {
        let [[a, b], [c, d]] = [pair(row.writes, first.writes), pair(row.lossy, first.lossy)];
        table.row([row.queue_pairs.to_string(), a, b, c, d]);
    }
    Ok(table)
}
