//! Records failed measurements, which do not prevent the others.

use anyhow::Result;
use lab::{interrupt, ui};
use serde::Serialize;

/// Failed measurements, with reasons.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Gaps(Vec<String>);

impl Gaps {
    /// Attempts a measurement of the side to which the appliance is compared. Only an interrupt is an error.
    pub(super) fn attempt<T>(&mut self, step: &str, work: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        interrupt::check()?;
        match ui::step(step, work) {
            Ok(measured) => Ok(Some(measured)),
            Err(why) => {
                self.record(step, &why)?;
                Ok(None)
            }
        }
    }

    /// Records and prints that a measurement has failed. Only an interrupt is an error.
    pub(super) fn record(&mut self, measurement: &str, why: &anyhow::Error) -> Result<()> {
        interrupt::check()?;
        let gap = format!("{measurement}: {}", ui::one_line(why));
        eprintln!("  warning: not measured: {gap}");
        self.0.push(gap);
        Ok(())
    }

    /// Returns the messages of all failed measurements.
    pub(super) fn all(&self) -> &[String] {
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
