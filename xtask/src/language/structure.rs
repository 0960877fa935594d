//! The budgets of the rules that concern the structure of a crate: cycles of imports and large types.

use anyhow::{Context, Result, ensure};
use lab::paths;
use std::fmt::Write as _;

/// The budgets: `RULE SOURCE COUNT` on each line. A budget only falls.
const BUDGETS: &str = include_str!("structure.txt");

/// The permitted count of a rule in a crate.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    rule: &'static str,
    /// The directory of the crate's sources, from the root of the repository.
    pub source: String,
    pub most: usize,
}

impl Budget {
    /// Returns one line if the count is above the budget.
    pub(super) fn exceeded_by(&self, count: usize, counted: &str) -> Option<String> {
        let Self { rule, source, most } = self;
        (count > *most).then(|| {
            format!(
                "{source}: {count} {counted}, {most} are allowed; `cargo xtask lint {rule} --under {source}` \
                 lists them"
            )
        })
    }
}

/// Returns all budgets.
fn budgets() -> Result<Vec<Budget>> {
    let parse = |line: &'static str| {
        let mut words = line.split_whitespace();
        let (rule, source, most) = (words.next(), words.next(), words.next().map(str::parse));
        let most = most.and_then(Result::ok).with_context(|| format!("`{line}` has no count"))?;
        let (rule, source) = rule.zip(source).with_context(|| format!("`{line}` has no crate"))?;
        Ok(Budget { rule, source: source.into(), most })
    };
    BUDGETS.lines().map(parse).collect()
}

/// Returns the budgets of a rule for the crates below a path.
pub(super) fn in_crates(rule: &str, under: &str) -> Result<Vec<Budget>> {
    let under = under.trim_end_matches('/');
    let mut found = budgets()?;
    found.retain(|budget| budget.rule == rule && budget.source.starts_with(under));
    let known = budgets()?.into_iter().filter(|budget| budget.rule == rule).map(|budget| budget.source);
    ensure!(
        !found.is_empty(),
        "`{under}` has no budget: want one of {}",
        known.collect::<Vec<_>>().join(", ")
    );
    Ok(found)
}

/// Lowers the budgets to the counts that `count` returns. None becomes larger.
pub(super) fn tighten(count: impl Fn(&str, &Budget) -> Result<usize>) -> Result<()> {
    let mut text = String::new();
    for budget in budgets()? {
        let most = count(budget.rule, &budget)?.min(budget.most);
        writeln!(text, "{} {} {most}", budget.rule, budget.source)?;
    }
    let path = paths::root().join("xtask/src/language/structure.txt");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
