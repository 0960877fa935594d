//! After all faults have ended, all members agree on the list of members.

use super::super::LEASE;
use super::super::check::Check;
use crate::Cluster;
use std::collections::BTreeSet;

/// Waits until all leases that will end have ended, and compares each member's list with the members.
pub(super) fn agree(cluster: &mut Cluster, check: &Check) {
    cluster.world.run_for(3 * LEASE);
    let is_live = |cluster: &Cluster, i: &usize| !cluster.host(*i).is_dead() && cluster.lite(*i).is_member();
    let live: Vec<usize> = (1..=cluster.joined()).filter(|i| is_live(cluster, i)).collect();
    let members: BTreeSet<_> =
        live.iter().map(|i| cluster.lite(*i)).map(|lite| (lite.node_id(), lite.incarnation())).collect();
    for i in live {
        let known = cluster.lite(i).members();
        let known: BTreeSet<_> = known.into_iter().map(|member| (member.node, member.incarnation)).collect();
        if known != members {
            let seen = format!("node {i} knows {known:?}, and there are {members:?}");
            check.violated("all agree on who is a member", seen);
        }
    }
}
