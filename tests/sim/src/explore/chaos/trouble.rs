//! Faults that end by themselves.

use super::super::check::Check;
use crate::{Cluster, DiskFaults};
use platform::{Lent, Platform};

/// A fault that ends by itself.
pub(super) enum Trouble {
    Paused(usize),
    /// The node, and the name of its tasks that are held up.
    Held(usize, &'static str),
    /// Two nodes, in one direction or in both.
    Parted(usize, usize),
    /// The frames of the first node come late to the second.
    Slowed(usize, usize),
    /// The node's control connection carries nothing, in one direction or in both.
    Stalled(usize),
    /// The node, and its memory that is occupied.
    Full(usize, Vec<Box<dyn Lent>>),
    ManagerPause,
    Disk,
}

impl Trouble {
    /// Returns the node that is paused, if the fault pauses one.
    pub(super) fn paused(&self) -> Option<usize> {
        match self {
            Self::Paused(node) | Self::Held(node, _) | Self::Stalled(node) => Some(*node),
            Self::Parted(..) | Self::Slowed(..) | Self::Full(..) | Self::ManagerPause | Self::Disk => None,
        }
    }
}

/// Occupies the memory of a node except for pieces of at most `leave` bytes.
pub(super) fn fill(cluster: &Cluster, node: usize, leave: u64) -> Vec<Box<dyn Lent>> {
    let host = cluster.host(node);
    let memory = host.memory();
    let mut taken = Vec::new();
    while let free @ 1.. = memory.largest_free().saturating_sub(leave) {
        let Some(run) = memory.lend(free) else { break };
        taken.push(run);
    }
    taken
}

/// Ends a fault.
pub(super) fn heal(cluster: &Cluster, check: &Check, trouble: Trouble) {
    let now = cluster.world.now();
    if let Some(node) = trouble.paused() {
        check.paused(node, now, false);
    }
    match trouble {
        Trouble::Paused(node) => {
            cluster.host(node).pause(false);
            check.log(now, format_args!("-- node {node} goes on"));
        }
        Trouble::Held(node, task) => {
            cluster.host(node).hold(task, false);
            check.log(now, format_args!("-- the tasks {task} of node {node} go on"));
        }
        Trouble::Parted(a, b) => {
            cluster.part(a, b, false);
            check.log(now, format_args!("-- nodes {a} and {b} see each other"));
        }
        Trouble::Slowed(from, to) => {
            cluster.slow(from, to, None);
            check.log(now, format_args!("-- the frames of node {from} come to node {to} in time"));
        }
        Trouble::Stalled(node) => {
            cluster.manager.stall(cluster.lite(node).node_id(), false);
            check.log(now, format_args!("-- node {node} hears from the manager"));
        }
        Trouble::Full(node, taken) => {
            drop(taken);
            check.log(now, format_args!("-- node {node} has memory"));
        }
        Trouble::ManagerPause => {
            cluster.manager.pause(false);
            check.log(now, "-- the manager goes on");
        }
        Trouble::Disk => {
            cluster.manager.disk().set_faults(DiskFaults::default());
            check.log(now, "-- the manager's disk works");
        }
    }
}
