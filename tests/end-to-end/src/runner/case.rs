//! Test cases, and the sums of their outcomes.

use anyhow::Result;
use std::fmt;
use std::path::Path;

/// A test's function, which writes information about a failure to the file.
pub type Check = Box<dyn FnOnce(&Path) -> Result<Outcome> + Send>;

/// A directory of compiled crates that one cargo at a time can use. A second cargo would only wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The directory of the host workspace.
    Host,
    /// The directory of the kernel's workspace.
    Kernel,
    /// The directories of the fuzz targets and of Miri.
    Tools,
}

/// A test.
pub struct Case {
    /// The name, `group::name`.
    pub name: String,
    /// True if only `--full` runs the test.
    pub full: bool,
    /// True if the test compiles something that other tests need; those begin when it has ended.
    pub compiles: bool,
    /// The programs of the host workspace that the test runs, as arguments of cargo.
    pub programs: &'static [&'static str],
    /// The directory of compiled crates that the test occupies, if any.
    pub lane: Option<Lane>,
    /// The test's function. An error is a failure.
    pub check: Check,
}

impl Case {
    /// Returns a test of the quick set.
    pub fn new(
        name: impl Into<String>,
        check: impl FnOnce(&Path) -> Result<Outcome> + Send + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            full: false,
            compiles: false,
            programs: &[],
            lane: None,
            check: Box::new(check),
        }
    }

    /// Marks a test that compiles: it runs before all tests that compile nothing, one at a time in its lane.
    pub fn compiles(self, lane: Lane) -> Self {
        Self { compiles: true, lane: Some(lane), ..self }
    }

    /// Marks a test that runs programs of the host workspace, as in `["--bin", "lite-node"]`. They are built
    /// before it, even if a filter leaves `build::host` out.
    pub fn runs(self, programs: &'static [&'static str]) -> Self {
        Self { programs, ..self }
    }

    /// Marks a test that runs one at a time in its lane.
    pub fn in_lane(self, lane: Lane) -> Self {
        Self { lane: Some(lane), ..self }
    }

    /// Leaves the test to `--full` if `full` is set.
    pub fn full_if(self, full: bool) -> Self {
        Self { full, ..self }
    }
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The test has passed.
    Passed,
    /// The test has failed; the text is the reason.
    Failed(String),
    /// The test was not run; the text is the reason.
    Skipped(String),
    /// The test consists of many tests of another runner.
    Many {
        /// The outcomes of the many tests.
        tally: Tally,
        /// The reason, if the test has failed.
        failure: Option<String>,
    },
}

impl Outcome {
    /// Returns the reason of a failure.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed(why) => Some(why),
            Self::Many { failure, .. } => failure.as_deref(),
            Self::Passed | Self::Skipped(_) => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("ok"),
            Self::Failed(_) => f.write_str("FAILED"),
            Self::Skipped(why) => write!(f, "SKIPPED: {why}"),
            Self::Many { tally, failure: None } => write!(f, "ok: {tally}"),
            Self::Many { tally, failure: Some(_) } => write!(f, "FAILED: {tally}"),
        }
    }
}

/// Numbers of tests, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of tests that have passed.
    pub passed: u64,
    /// The number of tests that have failed.
    pub failed: u64,
    /// The number of tests that were not run.
    pub skipped: u64,
}

impl Tally {
    /// Adds an outcome.
    pub fn add(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Skipped(_) => self.skipped += 1,
            Outcome::Many { tally, .. } => {
                self.passed += tally.passed;
                self.failed += tally.failed;
                self.skipped += tally.skipped;
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}
