//! What could not be measured: said, and no reason to lose the rest.

use crate::{interrupt, ui};
use anyhow::Result;
use serde::Serialize;

/// Measurements that failed, and why.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Gaps(Vec<String>);

impl Gaps {
    /// Tries to measure something of the side that the appliance is compared to. An interrupt is an error.
    pub fn attempt<T>(&mut self, step: &str, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        interrupt::check()?;
        match ui::step(step, work) {
            Ok(measured) => Ok(Some(measured)),
            Err(why) => {
                interrupt::check()?;
                let gap = format!("{step}: {}", ui::one_line(&why));
                eprintln!("  warning: not measured: {gap}");
                self.0.push(gap);
                Ok(None)
            }
        }
    }

    /// All of them.
    pub fn all(&self) -> &[String] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_kept_and_figures_given_back() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.attempt("one", || Ok(1)).unwrap(), Some(1));
        assert_eq!(gaps.attempt("two", || anyhow::bail!("no luck")).unwrap(), None::<()>);
        assert_eq!(gaps.all(), ["two: no luck"]);
    }
}
