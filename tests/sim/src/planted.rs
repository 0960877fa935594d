//! The bugs that can be planted, LITE's and the manager's, by name.

use lite::testing as lite_side;
use manager::planted as manager_side;

/// A bug of LITE or of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// In each node.
    Lite(lite_side::Bug),
    /// In the manager.
    Manager(manager_side::Bug),
}

impl Bug {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let lite = lite_side::Bug::ALL.iter().copied().map(Self::Lite);
        lite.chain(manager_side::Bug::ALL.iter().copied().map(Self::Manager))
    }

    /// The bug of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|bug| bug.name() == name)
    }

    /// The name, as an operator types it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lite(bug) => bug.name(),
            Self::Manager(bug) => bug.name(),
        }
    }

    /// From now on this process has the bug.
    pub fn plant(self) {
        match self {
            Self::Lite(bug) => lite_side::plant(bug),
            Self::Manager(bug) => manager_side::plant(bug),
        }
    }
}
