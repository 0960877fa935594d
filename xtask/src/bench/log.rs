//! `cargo xtask bench log`: measures commits of LITE-Log as native code, beside a bare fetch-add and write.

use super::gaps::Gaps;
use super::host::Host;
use super::program::{self, Options};
use super::table::Table;
use super::target::{self, Bound, Target};
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// A line of the output of `cargo bench -p litelog`.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    writers: u32,
    entries: u32,
    size: u32,
    commits: f64,
    bare: f64,
    ratio: f64,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    rows: Vec<Row>,
    targets: Vec<Target>,
}

/// Runs the measurement and prints its figures.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let rows: Vec<Row> = program::figures(&program::build("litelog", "native")?, options.quick)?;
    let remark = "cargo bench -p litelog: nodes in one thread over an RNIC that completes at once; bare: a fetch-add and a \
                  write of as many bytes as the frame, at least 64, by the same tasks, in turn; medians. The paper has \
                  833 K commits/s of two nodes with single 16-byte entries (from memory)";
    let heads = ["writers", "entries", "bytes each", "commits/s", "bare/s", "ratio"];
    let mut table = Table::new("Commits of LITE-Log", remark, &heads);
    for row in &rows {
        let Row { writers, entries, size, commits, bare, ratio } = row;
        table.row([
            writers.to_string(),
            entries.to_string(),
            size.to_string(),
            format!("{commits:.0}"),
            format!("{bare:.0}"),
            format!("{ratio:.2}"),
        ]);
    }
    println!("\n{}", table.text());
    let of = |writers| {
        let row = rows.iter().find(|row| (row.writers, row.entries, row.size) == (writers, 1, 16));
        row.map(|row| row.ratio)
    };
    let targets = vec![
        Target::new("two writers, of the bare rate", of(2), "", Bound::AtLeast(0.8)),
        Target::new("latency of an append, of the bare one", of(1).map(|r| 1.0 / r), "", Bound::AtMost(1.15)),
    ];
    println!("\n{}", target::table(&targets, &[]).text());
    let figures = Figures { host, rows, targets };
    destination.end(&figures, &figures.targets, &Gaps::default())
}
