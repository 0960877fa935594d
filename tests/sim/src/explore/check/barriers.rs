//! Barriers: all pass or none, and nobody before all have come.

use super::Check;
use lite::{Error, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// How a task's wait at a barrier ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Passed {
    Open,
    Failed(Error),
    /// The task did not wait to hear.
    Dropped,
}

#[derive(Default)]
struct Barrier {
    came: BTreeSet<NodeId>,
    passed: Vec<(NodeId, Passed)>,
}

#[derive(Default)]
pub(super) struct Barriers(BTreeMap<String, Barrier>);

impl Check {
    /// A task of `node` comes to a barrier.
    pub(crate) fn comes(&self, barrier: &str, node: NodeId) {
        self.lock().barriers.0.entry(barrier.into()).or_default().came.insert(node);
    }

    /// A task of `node` is through with a barrier of `group`; `None` if it did not wait to hear. Each barrier lets all pass or none.
    /// Who was told nothing certain does not count: whoever lost its membership, got `Unknown`, or lost the barrier's home
    /// while it opened.
    pub(crate) fn passed(
        &self,
        name: &str,
        group: &[NodeId],
        node: NodeId,
        result: Option<Result<(), Error>>,
    ) {
        let passed = match result {
            Some(Ok(())) => Passed::Open,
            Some(Err(error)) => Passed::Failed(error),
            None => Passed::Dropped,
        };
        let home = group.iter().min().copied();
        let mut state = self.lock();
        let barrier = state.barriers.0.entry(name.into()).or_default();
        let early = passed == Passed::Open && group.iter().any(|node| !barrier.came.contains(node));
        barrier.passed.push((node, passed));
        let open = barrier.passed.iter().any(|(_, passed)| *passed == Passed::Open);
        let failed = barrier.passed.iter().any(|(_, passed)| match passed {
            Passed::Failed(Error::Unknown | Error::LinkDown) | Passed::Open | Passed::Dropped => false,
            Passed::Failed(Error::NodeDown(node)) => Some(*node) != home,
            Passed::Failed(_) => true,
        });
        let seen = format!("{name} of {group:?}: {:?} came, {:?}", barrier.came, barrier.passed);
        if early || open && failed {
            state.violated("barriers let all pass or none", seen);
        }
    }
}
