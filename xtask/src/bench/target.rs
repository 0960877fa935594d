//! Targets that figures must reach.

use super::table::{Table, number};
use anyhow::{Result, ensure};
use serde::Serialize;

/// A figure and its bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Target {
    pub name: String,
    /// The measured figure. If the measurement failed, it is absent, and the target is not met.
    pub figure: Option<f64>,
    pub unit: &'static str,
    pub bound: Bound,
    pub met: bool,
}

/// The good side of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    pub(super) fn new(
        name: impl Into<String>,
        figure: Option<f64>,
        unit: &'static str,
        bound: Bound,
    ) -> Self {
        let met = figure.is_some_and(|figure| match bound {
            Bound::AtMost(limit) => figure <= limit,
            Bound::AtLeast(limit) => figure >= limit,
        });
        Self { name: name.into(), figure, unit, bound, met }
    }
}

/// Returns the table of all targets and failed measurements.
pub(super) fn table(targets: &[Target], gaps: &[String]) -> Table {
    let mut table = Table::new("Targets", gaps.join("; "), &["figure", "measured", "target", "verdict"]);
    for target in targets {
        let unit = if target.unit.is_empty() { String::new() } else { format!(" {}", target.unit) };
        let bound = match target.bound {
            Bound::AtMost(limit) => format!("<= {limit}{unit}"),
            Bound::AtLeast(limit) => format!(">= {limit}{unit}"),
        };
        let figure =
            target.figure.map_or_else(|| "not measured".to_owned(), |f| format!("{}{unit}", exact(f)));
        let verdict = if target.met { "pass" } else { "FAIL" };
        table.row([target.name.clone(), figure, bound, verdict.to_owned()]);
    }
    table
}

/// Fails, if `strict`, when a target is missed or a measurement failed.
pub(super) fn judge(strict: bool, targets: &[Target], gaps: &[String]) -> Result<()> {
    let missed = targets.iter().filter(|target| !target.met).map(|target| &target.name);
    let missed: Vec<_> = missed.chain(gaps).map(String::as_str).collect();
    ensure!(!strict || missed.is_empty(), "not met: {}", missed.join("; "));
    Ok(())
}

/// Formats a figure with one more digit near a bound, so that a miss is visible.
fn exact(figure: f64) -> String {
    if figure < 10.0 { format!("{figure:.3}") } else { number(figure) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judged_on_the_right_side() {
        let met = |figure, bound| Target::new("x", figure, "", bound).met;
        assert!(met(Some(0.5), Bound::AtMost(0.5)) && met(Some(0.5), Bound::AtLeast(0.5)));
        assert!(!met(Some(0.6), Bound::AtMost(0.5)) && !met(Some(0.4), Bound::AtLeast(0.5)));
        let target = |figure| Target::new("x", Some(figure), "", Bound::AtMost(0.5));
        let both = [target(0.4), target(0.6)];
        assert!(judge(true, &both[..1], &[]).is_ok() && judge(false, &both, &[]).is_ok());
        assert_eq!(judge(true, &both, &["y".to_owned()]).unwrap_err().to_string(), "not met: x; y");
        assert!(!met(None, Bound::AtMost(0.5)) && !met(Some(f64::NAN), Bound::AtLeast(0.5)));
    }
}
