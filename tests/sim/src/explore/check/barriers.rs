//! Barriers: all tasks pass or none, and none before all have arrived.

use super::Check;
use lite::{Error, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// The end of a task's wait at a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Passed {
    Open,
    Failed(Error),
    /// The task dropped its wait.
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
    /// Records that a task of `node` arrives at a barrier.
    pub(crate) fn comes(&self, barrier: &str, node: NodeId) {
        self.lock().barriers.0.entry(barrier.into()).or_default().came.insert(node);
    }

    /// Records that a task of `node` has ended its wait at a barrier of `group`; `None` if it dropped the
    /// wait. Each barrier lets all tasks pass or none. A result without certainty does not count: after the
    /// loss of the membership, with `Unknown`, or after the loss of the barrier's home while it opened.
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
