//! After all faults have ended, all members agree on the list of members.

use super::super::LEASE;
use super::super::check::Check;
use crate::Cluster;
use std::collections::BTreeSet;

/// The number of leases after which all must agree. A node whose join was in flight may leave only after 8. A
/// save that a slow disk has begun takes up to 4 s for each of several syncs and may fail then; it holds back
/// the news of a death for so long.
const LEASES: u32 = 32;

/// Waits until all leases that will end have ended, and compares each member's list with the members.
pub(super) fn agree(cluster: &mut Cluster, check: &Check) {
    cluster.world.run_for(3 * LEASE);
    let mut differs = difference(cluster);
    for _ in 3..LEASES {
        if differs.is_some() {
            cluster.world.run_for(LEASE);
            differs = difference(cluster);
        }
    }
    if let Some(seen) = differs {
        check.violated("all agree on who is a member", seen);
    }
}

/// Returns the first difference between a member's list and the members.
fn difference(cluster: &Cluster) -> Option<String> {
    let is_live = |i: &usize| !cluster.host(*i).is_dead() && cluster.lite(*i).is_member();
    let live: Vec<usize> = (1..=cluster.joined()).filter(is_live).collect();
    let members: BTreeSet<_> =
        live.iter().map(|i| cluster.lite(*i)).map(|lite| (lite.node_id(), lite.incarnation())).collect();
    live.into_iter().find_map(|i| {
        let known = cluster.lite(i).members();
        let known: BTreeSet<_> = known.into_iter().map(|member| (member.node, member.incarnation)).collect();
        (known != members).then(|| format!("node {i} knows {known:?}, and there are {members:?}"))
    })
}
