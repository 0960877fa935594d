//! The resources that a node holds for work in progress: none, once all work has ended.

use crate::Lite;
use crate::channel::Channel;
use crate::transport::conn::PeerPermit;
use crate::transport::op::OpTable;
use alloc::string::String;
use alloc::vec::Vec;
use proto::{Incarnation, NodeId};

/// Returns the resources that are still held, by kind and count; empty if there are none.
pub(crate) fn audit(lite: &Lite) -> Vec<(&'static str, usize)> {
    let node = &lite.node;
    let (objects, barriers) = node.sync.objects.lock().len();
    let (places, connected) = (PeerPermit::taken(&node.permits) as usize, node.by_receive.lock().len());
    let calls = node.by_receive.lock().values().flat_map(|c| c.channels()).map(Channel::in_use).sum();
    // Nothing of an ended incarnation is left once all members have seen its end.
    let ended = |member| !node.is_live(member);
    let departed = node.sync.objects.lock().places_of(&ended)
        + node.regions.places_of(&ended)
        + node.holdings.places_of(&ended)
        + node.mappings.places_of(&ended)
        + node.by_receive.lock().values().filter(|c| ended((c.peer, c.incarnation))).count();
    let sum = |count: fn(&OpTable) -> usize| {
        node.shards.iter().map(|shard| count(&shard.ops.lock())).sum::<usize>()
    };
    let held = [
        ("operations", sum(OpTable::in_use)),
        ("bounce buffers", sum(|ops| ops.bounce.in_use())),
        ("operations that may still happen", node.unfinished.lock().len()),
        ("connections that the RNIC still serves", node.served.len()),
        ("calls", calls),
        ("waits", node.sync.waits.len()),
        ("regions", node.regions.len()),
        ("mappings", node.mappings.len()),
        ("terms of handles", lite.by.terms.len()),
        ("objects", objects),
        ("entries of lives that have ended", departed),
        ("barriers", barriers),
        ("connections being closed", node.closing.len()),
        ("connections being closed by agreement, or waiting for a permit", node.links_in_change()),
        ("places without a connection", places.abs_diff(connected)),
        ("connections with messages that found no room", node.stalled.len()),
    ];
    held.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// Returns the number of queue pairs of open connections, including the loop-back connection, and of the one
/// for datagrams.
pub(crate) fn queue_pairs(lite: &Lite) -> usize {
    let conns = lite.node.by_receive.lock().values().map(|conn| conn.group().len()).sum::<usize>();
    let conns = conns + lite.node.endpoint.queue_pairs();
    conns + lite.node.loopback.lock().as_ref().filter(|c| !c.is_shut()).map_or(0, |c| c.group().len())
}

/// Returns the incarnations that have ended and whose end all members have seen, as far as this node
/// knows.
pub(crate) fn settled_lives(lite: &Lite) -> Vec<(NodeId, Incarnation)> {
    lite.node.membership.settled.lock().clone()
}

/// Returns the names of the regions of this owner whose masters have left.
pub(crate) fn orphans(lite: &Lite) -> Vec<String> {
    lite.node.regions.orphans()
}

/// Returns one line for each region whose owner this node is.
pub(crate) fn describe_regions(lite: &Lite) -> Vec<String> {
    lite.node.regions.describe()
}
