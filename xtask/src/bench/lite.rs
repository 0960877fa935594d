//! Measures LITE between two nodes by `apps/bench`.

use super::lab::Lab;
use super::stats::median_of;
use super::table::{Table, maybe};
use anyhow::{Context, Result, ensure};
use lab::appliances::Programs;
use serde::Serialize;

/// The 8-byte write ping-pong.
pub(super) const PING_PONG: &str = "write_ping_pong";
/// The atomic addition to 8 bytes.
pub(super) const FETCH_ADD: &str = "fetch_add";

/// The figures of one operation with one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub what: String,
    /// Payload bytes.
    pub bytes: u64,
    /// Operations per run.
    pub samples: u64,
    /// The median latency of the whole operation in microseconds; for the ping-pong, of half a round trip.
    pub p50_us: Option<f64>,
    /// The 99th percentile of the latency, in microseconds.
    pub p99_us: Option<f64>,
    /// MB (10^6 bytes) per second.
    pub mb_s: Option<f64>,
}

/// Runs the application once in two fresh machines.
pub(super) fn run(lab: &Lab, samples: u32) -> Result<Vec<Row>> {
    run_of(lab, &lab.programs, samples)
}

/// Runs the application as [`run`] does, with programs that are in one directory.
pub(super) fn run_of(lab: &Lab, programs: &Programs, samples: u32) -> Result<Vec<Row>> {
    let empty = lab.dir().join("empty");
    std::fs::write(&empty, "")?;
    let samples = samples.to_string();
    let args = ["--machine", "q35", "--nodes", "2", "--cpus", "1", "--app", "bench", "--arg", &samples];
    let job = lab.job_of(programs, &args, &empty).context("LITE between two nodes")?;
    parse(&String::from_utf8_lossy(&job.output))
}

/// Parses the lines of an application: name, bytes, samples, p50 ns, p99 ns, MB/s.
pub(super) fn rows(text: &str) -> Result<Vec<Row>> {
    text.lines().map(|line| row(line).with_context(|| format!("the figures `{line}`"))).collect()
}

/// Parses the output of `apps/bench`.
pub(super) fn parse(text: &str) -> Result<Vec<Row>> {
    let rows = rows(text)?;
    ensure!(rows.iter().any(|row| row.what == PING_PONG), "there is no ping-pong among the figures");
    Ok(rows)
}

fn row(line: &str) -> Option<Row> {
    let mut cells = line.split('\t');
    let mut next = || cells.next();
    let (what, bytes, samples) = (next()?, next()?.parse().ok()?, next()?.parse().ok()?);
    let mut figure = || match next()? {
        "-" => Some(None),
        number => number.parse::<f64>().ok().map(Some),
    };
    let (p50, p99, mb_s) = (figure()?, figure()?, figure()?);
    let us = |ns: Option<f64>| ns.map(|ns| ns / 1000.0);
    Some(Row { what: what.to_owned(), bytes, samples, p50_us: us(p50), p99_us: us(p99), mb_s })
}

/// Returns the median of each figure over some runs.
pub(super) fn medians(runs: &[Vec<Row>]) -> Vec<Row> {
    let first = runs.first().map(Vec::as_slice).unwrap_or_default();
    first
        .iter()
        .map(|row| {
            let over = |figure: fn(&Row) -> Option<f64>| {
                median_of(runs, |run| figure(find(run, &row.what, row.bytes)?))
            };
            Row {
                p50_us: over(|row| row.p50_us),
                p99_us: over(|row| row.p99_us),
                mb_s: over(|row| row.mb_s),
                ..row.clone()
            }
        })
        .collect()
}

/// Returns the row of one operation and size.
pub(super) fn find<'a>(rows: &'a [Row], what: &str, bytes: u64) -> Option<&'a Row> {
    rows.iter().find(|row| row.what == what && row.bytes == bytes)
}

/// Returns a table with a line per size, and one each for the ping-pong and the fetch-add.
pub(super) fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(
        "LITE between two nodes",
        "q35, 1 processor each; latency of the whole operation in us, but half a round trip for the ping-pong; a call \
         sends and returns as many bytes; throughput with 16 operations at once, in MB/s",
        &["bytes", "write p50", "p99", "read p50", "p99", "call p50", "p99", "write MB/s", "read MB/s"],
    );
    let alone = [(PING_PONG, "ping-pong"), (FETCH_ADD, "fetch-add")];
    let of_size = |row: &&Row| alone.iter().all(|(what, _)| row.what != *what);
    let mut sizes: Vec<u64> = rows.iter().filter(of_size).map(|row| row.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for bytes in sizes {
        let at = |what, figure: fn(&Row) -> Option<f64>| maybe(find(rows, what, bytes).and_then(figure));
        table.row([
            bytes.to_string(),
            at("write", |row| row.p50_us),
            at("write", |row| row.p99_us),
            at("read", |row| row.p50_us),
            at("read", |row| row.p99_us),
            at("rpc", |row| row.p50_us),
            at("rpc", |row| row.p99_us),
            at("write_bw", |row| row.mb_s),
            at("read_bw", |row| row.mb_s),
        ]);
    }
    for (what, name) in alone {
        let Some(row) = rows.iter().find(|row| row.what == what) else { continue };
        let mut cells = vec![format!("{name}, {}", row.bytes), maybe(row.p50_us), maybe(row.p99_us)];
        cells.resize(table.heads.len(), "-".to_owned());
        table.rows.push(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "write_ping_pong\t8\t200\t52000\t90000\t-\nread\t8\t200\t100000\t120000\t-\nread_bw\t8\t800\t-\t-\t1.25\n\
        fetch_add\t8\t200\t110000\t130000\t-\n";

    #[test]
    fn the_output_of_the_application_is_read() {
        let rows = parse(TEXT).unwrap();
        assert_eq!(rows[0].p50_us, Some(52.0));
        assert_eq!((rows[2].p50_us, rows[2].mb_s), (None, Some(1.25)));
        assert!(parse("").is_err());
        assert!(parse("write\t8\n").is_err());
        assert!(parse("write\t8\t1\tx\t-\t-\n").is_err());
        let table = table(&rows);
        let firsts: Vec<_> = table.rows.iter().map(|row| &*row[0]).collect();
        assert_eq!(firsts, ["8", "ping-pong, 8", "fetch-add, 8"]);
        assert!(table.rows.iter().all(|row| row.len() == table.heads.len()));
    }

    #[test]
    fn medians_over_runs() {
        let mut runs = vec![parse(TEXT).unwrap(); 3];
        runs[1][0].p50_us = Some(60.0);
        runs[2][0].p50_us = Some(70.0);
        let rows = medians(&runs);
        assert_eq!(rows[0].p50_us, Some(60.0));
        assert_eq!(rows[2].mb_s, Some(1.25));
    }
}
