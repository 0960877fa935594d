//! Checks from outside at all times: incarnations that have ended, and free memory.

use super::{Check, MemberId};
use crate::Cluster;

impl Check {
    /// Checks all nodes. Free memory must not change: a write to it was meant for a former owner.
    pub(in crate::explore) fn look(&self, cluster: &Cluster) {
        for i in (1..=cluster.joined()).filter(|i| !cluster.host(*i).is_dead()) {
            if cluster.host(i).arena().is_spoiled() {
                self.spoiled(cluster, i);
            }
            self.hear_of_ends(cluster, i);
        }
    }

    /// Checks all free memory.
    pub(in crate::explore) fn look_at_memory(&self, cluster: &Cluster) {
        for i in (1..=cluster.joined()).filter(|i| !cluster.host(*i).is_dead()) {
            self.spoiled(cluster, i);
        }
    }

    fn spoiled(&self, cluster: &Cluster, i: usize) {
        if let Some(at) = cluster.host(i).arena().spoiled() {
            let seen = format!("node {i}: the byte at {:#x} was written while it was free", at.0);
            self.violated("free memory stays as it is", seen);
        }
    }

    /// Notes the ends of incarnations that a node knows.
    fn hear_of_ends(&self, cluster: &Cluster, i: usize) {
        let lives: Vec<MemberId> = cluster.lite(i).settled_lives();
        let mut state = self.lock();
        for member in lives {
            if state.settled.insert(member) {
                let now = state.tick();
                state.bytes.ended(member, now);
                state.words.ended(member, now);
                *state.states.entry("all members know of the end of an incarnation").or_default() += 1;
            }
        }
    }
}
