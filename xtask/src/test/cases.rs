//! What a test is, and how its outcomes add up.

use anyhow::Result;
use std::fmt;
use std::path::Path;

/// Does a test; writes what helps to understand a failure to the file.
pub type Check = Box<dyn FnOnce(&Path) -> Result<Outcome> + Send>;

/// A directory of compiled crates that one cargo at a time can use: a second one would wait and do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The directory of the host workspace.
    Host,
    /// The directory of the kernel.
    Kernel,
    /// The directories of the fuzz targets and of Miri.
    Tools,
}

/// A test.
pub struct Case {
    /// Its name, `group::name`.
    pub name: String,
    /// Whether only `--full` runs it.
    pub full: bool,
    /// True if the test compiles something that other tests need; those begin when it has ended.
    pub compiles: bool,
    /// The directory of compiled crates that the test occupies, if any.
    pub lane: Option<Lane>,
    /// What it does. An error is a failure.
    pub check: Check,
}

impl Case {
    /// A test of the quick set.
    pub fn new(
        name: impl Into<String>,
        check: impl FnOnce(&Path) -> Result<Outcome> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), full: false, compiles: false, lane: None, check: Box::new(check) }
    }

    /// Marks a test that compiles: it runs before all that compile nothing, one at a time in its lane.
    pub fn compiles(self, lane: Lane) -> Self {
        Self { compiles: true, lane: Some(lane), ..self }
    }

    /// Marks a test that runs one at a time in its lane.
    pub fn in_lane(self, lane: Lane) -> Self {
        Self { lane: Some(lane), ..self }
    }

    /// Leaves it to `--full` if so.
    pub fn full_if(self, full: bool) -> Self {
        Self { full, ..self }
    }
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Why not.
    Failed(String),
    /// It was not run, and why.
    Skipped(String),
    /// It was many tests of another runner.
    Many { tally: Tally, failure: Option<String> },
}

impl Outcome {
    /// Why it failed, if it did.
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

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Tally {
    /// Counts an outcome in.
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
