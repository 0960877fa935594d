//! Checks from outside at all times: incarnations that have ended, and free memory.

use super::{Check, MemberId};
use crate::Cluster;
use crate::explore::LEASE;
use lite::testing::{errands, has_cut_off, take_accepted};
use platform::Instant;
use proto::Attempt;
use std::time::Duration;

/// The time for which a fault may have an effect on a node's membership.
const MEMORY: Duration = LEASE.saturating_mul(4);

impl Check {
    /// Checks all nodes. Free memory must not change: a write to it was meant for a former owner.
    pub(in crate::explore) fn look(&self, cluster: &Cluster) {
        for i in (1..=cluster.joined()).filter(|i| !cluster.host(*i).is_dead()) {
            if cluster.host(i).arena().has_stray_write() {
                self.stray_write(cluster, i);
            }
            self.hear_of_ends(cluster, i);
            self.look_at_errands(cluster, i);
            self.hear_of_losses(cluster, i);
            self.look_at_set_ups(cluster, i);
        }
        if let Some(seen) = cluster.shadows.violation() {
            self.violated("only nodes that map a region change it", seen);
        }
        self.lock().looked = cluster.world.now();
    }

    /// Checks all free memory.
    pub(in crate::explore) fn look_at_memory(&self, cluster: &Cluster) {
        for i in (1..=cluster.joined()).filter(|i| !cluster.host(*i).is_dead()) {
            self.stray_write(cluster, i);
        }
    }

    fn stray_write(&self, cluster: &Cluster, i: usize) {
        if let Some(at) = cluster.host(i).arena().stray_write() {
            let seen = format!("node {i}: the byte at {:#x} was written while it was free", at.0);
            self.violated("free memory stays as it is", seen);
        }
    }

    /// Checks that a node sets or copies no bytes for an incarnation that it has cut off, as another node
    /// knows.
    fn look_at_errands(&self, cluster: &Cluster, i: usize) {
        let lite = cluster.lite(i);
        let me = (lite.node_id(), lite.incarnation());
        for by in errands(&lite) {
            let mut others = (1..=cluster.joined()).filter(|other| !cluster.host(*other).is_dead());
            if others.any(|other| has_cut_off(me, by, &cluster.lite(other))) {
                let seen = format!("node {i} still changes bytes for {by:?}, whose end all members know");
                self.violated("only nodes that map a region change it", seen);
            }
        }
    }

    /// Checks that each connection that a node has accepted was vouched for by the manager, for the present
    /// incarnations of both ends, and that no voucher served twice.
    fn look_at_set_ups(&self, cluster: &Cluster, i: usize) {
        let lite = cluster.lite(i);
        let me = (lite.node_id(), lite.incarnation());
        for (attempt, peer) in take_accepted(&lite) {
            let is_first = self.lock().attempts.insert((me, attempt));
            let wrong = match attempt {
                Attempt { responder, .. } if responder != me => "which is for another incarnation",
                Attempt { requester, .. } if requester != peer => "which is of another incarnation",
                _ if !is_first => "which it had accepted before",
                _ if !cluster.manager.has_vouched(&attempt) => "which no manager has given",
                _ => continue,
            };
            let seen = format!("node {i} accepts {peer:?} by the voucher for {attempt:?}, {wrong}");
            self.violated("a connection has a fresh voucher", seen);
        }
    }

    /// Notes the ends of incarnations that a node knows.
    fn hear_of_ends(&self, cluster: &Cluster, i: usize) {
        let lives: Vec<MemberId> = cluster.lite(i).settled_lives();
        let mut state = self.lock();
        for member in lives {
            if state.settled.insert(member) {
                let now = state.tick();
                // The node that says so counts only those as members that have said so too.
                for other in cluster.lite(i).members() {
                    let other = (other.node, other.incarnation);
                    if state.sees(other, member) {
                        let seen =
                            format!("node {i} says so of {member:?}, which {other:?} takes for a member");
                        state.violated("a dead node is cut off by all", seen);
                    }
                }
                state.bytes.ended(member, now);
                state.words.ended(member, now);
                *state.states.entry("all members know of the end of an incarnation").or_default() += 1;
            }
        }
    }

    /// Notes the end of a node's membership. A node that nothing has happened to stays a member.
    fn hear_of_losses(&self, cluster: &Cluster, i: usize) {
        let lite = cluster.lite(i);
        let member = (lite.node_id(), lite.incarnation());
        let now = cluster.world.now();
        let mut state = self.lock();
        if lite.is_member() || !state.lost.insert(member) {
            return;
        }
        let before = Instant::from_nanos(state.looked.as_nanos().saturating_sub(MEMORY.as_nanos() as u64));
        let is_excused =
            state.excused.contains(&i) || state.was_paused(i, before, now) || cluster.leaves_in_silence();
        if !is_excused {
            let log = cluster.manager.log();
            let seen = format!("{member:?}, node {i}: {}", log.last().map_or("", String::as_str));
            state.violated("a healthy node stays a member", seen);
        }
    }
}
