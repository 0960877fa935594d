//! `cargo xtask bench cores`: compares two cores of LITE with one, as native code over an RNIC that completes
//! at once. The tasks of the two cores have no region and no function in common.

use super::gaps::Gaps;
use super::host::Host;
use super::program::{self, Options};
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// The output of the benchmark.
#[derive(Debug, Deserialize)]
struct Native {
    cores: Vec<Row>,
}

/// An operation: the speed of one core, and the ratios of two cores to it.
#[derive(Debug, Deserialize, Serialize)]
struct Row {
    operation: String,
    one_per_s: f64,
    /// The operations per second of processor time, as a ratio.
    processor: f64,
    /// The operations per second, as a ratio.
    wall: f64,
    /// Both ratios for two cores that have nodes of their own, so that they share nothing but the machine.
    apart_processor: f64,
    apart_wall: f64,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    rows: Vec<Row>,
    targets: Vec<Target>,
}

/// Measures one core and two in turn.
pub(super) fn bench(options: &Options) -> Result<()> {
    let (host, destination) = options.destination.begin()?;
    let native: Native = program::figures(&program::build("lite", "cores")?, options.quick)?;
    let targets = targets(&native.cores);
    println!("\n{}", table(&native.cores).text());
    println!("\n{}", target::table(&targets, &[]).text());
    let figures = Figures { host, rows: native.cores, targets };
    destination.end(&figures, &figures.targets, &Gaps::default())
}

fn table(rows: &[Row]) -> Table {
    let remark = "cargo bench -p lite --bench cores: two nodes in one process over an RNIC that completes at once, a thread for \
                  each core, one operation at a time on each; one core, two cores of the same nodes, and two cores \
                  with nodes of their own (apart) in turn; the apart ones show how much more two processors of this machine do \
                  than one";
    let heads = [
        "operation",
        "one core, per s",
        "two cores, by processor time, ratio",
        "by time on the wall, ratio",
        "apart, by processor time, ratio",
        "by time on the wall, ratio",
    ];
    let mut table = Table::new("LITE on two cores", remark, &heads);
    for row in rows {
        let figures = [row.one_per_s, row.processor, row.wall, row.apart_processor, row.apart_wall];
        let [one, processor, wall, apart, apart_wall] = figures.map(|figure| maybe(Some(figure)));
        table.row([row.operation.clone(), one, processor, wall, apart, apart_wall]);
    }
    table
}

/// Returns the targets. By time on the wall, two cores must do 1.8 of one core's work. Processors that share
/// a core, or have other work, cannot, so two cores are also compared with nodes of their own on them.
fn targets(rows: &[Row]) -> Vec<Target> {
    let least = |of: fn(&Row) -> f64| rows.iter().map(of).min_by(f64::total_cmp);
    let to_apart = least(|row| row.wall / row.apart_wall);
    vec![
        Target::new("two cores, by processor time", least(|row| row.processor), "", Bound::AtLeast(0.9)),
        Target::new("two cores, by time on the wall", least(|row| row.wall), "", Bound::AtLeast(1.8)),
        Target::new("two cores, by time on the wall, to nodes apart", to_apart, "", Bound::AtLeast(0.9)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_operation_decides() {
        let row = |processor, wall, apart_wall| Row {
            operation: "write".into(),
            one_per_s: 1e6,
            processor,
            wall,
            apart_processor: 1.0,
            apart_wall,
        };
        let met = |rows: &[Row]| targets(rows).iter().map(|target| target.met).collect::<Vec<_>>();
        assert_eq!(met(&[row(1.0, 1.9, 2.0), row(0.95, 1.85, 2.0)]), [true, true, true]);
        assert_eq!(met(&[row(1.0, 1.9, 2.0), row(0.85, 1.7, 2.0)]), [false, false, false]);
        // Processors that share a core.
        assert_eq!(met(&[row(1.0, 1.2, 1.3)]), [true, false, true]);
        assert_eq!(met(&[]), [false, false, false]);
    }
}
