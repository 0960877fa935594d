//! `cargo xtask bench shares`: counts LITE's share of an operation in instructions, by callgrind, and
//! compares it with a budget.
//!
//! LITE's share is the instructions of an operation through LITE minus those of the same work by verbs alone:
//! over the same RNIC, by a task of the same executor.

use super::callgrind::{self, Counted};
use super::program;
use super::table::{Table, maybe};
use super::target::{self, Bound, Target};
use anyhow::Result;
use lab::ui;
use serde::Serialize;
use std::path::Path;

/// The number of operations of the shorter run. The longer run has twice as many; the difference is counted.
const COUNTED: u32 = 1000;

/// An operation, and the most instructions that LITE's share may have.
struct Budget {
    operation: &'static str,
    /// The name of the same work by verbs alone.
    bare: &'static str,
    /// The largest permitted share. Lower it when the count falls. The compiler's version changes a count by
    /// some instructions.
    most: f64,
    /// The share at commit dd94da5.
    before: f64,
}

const BUDGETS: [Budget; 4] = [
    Budget { operation: "write", bare: "bare-write", most: 410.0, before: 712.0 },
    Budget { operation: "read", bare: "bare-read", most: 510.0, before: 828.0 },
    Budget { operation: "fetch-add", bare: "bare-fetch-add", most: 570.0, before: 805.0 },
    Budget { operation: "call", bare: "bare-call", most: 2150.0, before: 3904.0 },
];

/// The instructions of one operation.
#[derive(Debug, Serialize)]
pub(super) struct Share {
    operation: &'static str,
    /// The count through LITE.
    all: f64,
    /// The count for the same work by verbs alone.
    verbs: f64,
    /// The difference of the two counts.
    lite: f64,
    most: f64,
    /// LITE's share at commit dd94da5.
    before: f64,
}

/// Counts the instructions of an operation on `regions` regions.
pub(super) fn operation(program: &Path, operation: &str, regions: u32) -> Result<f64> {
    callgrind::each(program, &["--count", operation, &regions.to_string()], COUNTED)
}

/// Counts LITE's share of each operation.
pub(super) fn measure(program: &Path) -> Result<Vec<Share>> {
    let share = |budget: &Budget| {
        let Budget { operation, bare, most, before } = *budget;
        let (all, verbs) = (self::operation(program, operation, 1)?, self::operation(program, bare, 1)?);
        Ok(Share { operation, all, verbs, lite: all - verbs, most, before })
    };
    BUDGETS.iter().map(share).collect()
}

pub(super) fn table(shares: &[Share]) -> Table {
    let remark = "by valgrind, 64 B, one at a time, both ends; RNIC, executor and poller included; verbs alone are a \
                  task of the same executor; the difference is LITE's";
    let heads = ["operation", "with LITE", "verbs alone", "LITE", "budget", "LITE at dd94da5", "ratio"];
    let mut table = Table::new("Instructions of LITE", remark, &heads);
    for share in shares {
        let figures =
            [share.all, share.verbs, share.lite, share.most, share.before, share.lite / share.before];
        let [all, verbs, lite, most, before, ratio] = figures.map(|figure| maybe(Some(figure)));
        table.row([share.operation.to_owned(), all, verbs, lite, most, before, ratio]);
    }
    table
}

/// Returns the budgets as targets. A budget whose share was not counted is not met.
pub(super) fn targets(shares: &[Share]) -> Vec<Target> {
    let target = |budget: &Budget| {
        let counted = shares.iter().find(|share| share.operation == budget.operation).map(|share| share.lite);
        let name = format!("LITE's share of a {}", budget.operation);
        Target::new(name, counted, "instructions", Bound::AtMost(budget.most))
    };
    BUDGETS.iter().map(target).collect()
}

/// Counts the shares. A share above its budget is out of its bounds.
pub(crate) fn count() -> Result<Counted> {
    let program = ui::step("the benchmark of LITE", || program::build("lite", "native"))?;
    let shares = ui::step("operations under callgrind", || measure(&program))?;
    let verdict = target::judge(true, &targets(&shares), &[]);
    Ok(Counted { tables: table(&shares).text(), verdict })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_above_its_budget_or_without_a_count_is_told() {
        let share = |budget: &Budget, more: f64| Share {
            operation: budget.operation,
            all: budget.most + more + 100.0,
            verbs: 100.0,
            lite: budget.most + more,
            most: budget.most,
            before: budget.before,
        };
        let within: Vec<_> = BUDGETS.iter().map(|budget| share(budget, 0.0)).collect();
        assert!(target::judge(true, &targets(&within), &[]).is_ok());
        let above: Vec<_> = BUDGETS.iter().map(|budget| share(budget, 1.0)).collect();
        assert!(targets(&above).iter().all(|target| !target.met));
        assert!(targets(&within[1..]).iter().any(|target| !target.met));
    }
}
