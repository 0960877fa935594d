//! The bugs of LITE, of the manager and of the log that can be planted, by name.

use lite::testing as lite_side;
use litelog as log_side;
use manager as manager_side;

/// A bug of LITE, of the manager or of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A bug of LITE, in each node.
    Lite(lite_side::Bug),
    /// A bug of the manager.
    Manager(manager_side::Bug),
    /// A bug of the log, which runs with `--app log` show.
    Log(log_side::Bug),
}

impl Bug {
    /// Returns all bugs.
    pub fn all() -> impl Iterator<Item = Self> {
        let lite = lite_side::Bug::ALL.iter().copied().map(Self::Lite);
        let manager = manager_side::Bug::ALL.iter().copied().map(Self::Manager);
        lite.chain(manager).chain(log_side::Bug::ALL.iter().copied().map(Self::Log))
    }

    /// Returns the bug with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|bug| bug.name() == name)
    }

    /// Returns the name, as an operator types it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lite(bug) => bug.name(),
            Self::Manager(bug) => bug.name(),
            Self::Log(bug) => bug.name(),
        }
    }

    /// Plants the bug in this process.
    pub fn plant(self) {
        match self {
            Self::Lite(bug) => lite_side::plant(bug),
            Self::Manager(bug) => manager_side::plant(bug),
            Self::Log(bug) => log_side::plant(bug),
        }
    }
}
