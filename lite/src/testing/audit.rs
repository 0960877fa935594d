//! The resources that a node holds for work in progress: none, once all work has ended.

use crate::Lite;
use crate::conn::PeerPermit;
use alloc::string::String;
use alloc::vec::Vec;
use proto::{Incarnation, NodeId};

impl Lite {
    /// Returns the resources that are still held, by kind and count; empty if there are none.
    #[must_use]
    pub fn audit(&self) -> Vec<(&'static str, usize)> {
        let node = &self.by.node;
        let (objects, barriers) = node.objects.lock().len();
        let (places, connected) = (PeerPermit::taken(&node.permits) as usize, node.by_qp.lock().len());
        let calls = node.by_qp.lock().values().filter_map(|c| c.rpc.as_ref()).map(|rpc| rpc.in_use()).sum();
        // Nothing of an ended incarnation is left once all members have seen its end.
        let ended = |life| !node.is_live(life);
        let departed = node.objects.lock().places_of(&ended)
            + node.regions.places_of(&ended)
            + node.holdings.places_of(&ended)
            + node.mappings.places_of(&ended)
            + node.by_qp.lock().values().filter(|c| ended((c.peer, c.incarnation))).count();
        let ops = node.ops.lock();
        let held = [
            ("operations", ops.in_use()),
            ("bounce buffers", ops.bounce.in_use()),
            ("operations that may still happen", ops.unfinished.len()),
            ("connections that the RNIC still serves", node.served.len()),
            ("calls", calls),
            ("waits", node.waits.len()),
            ("regions", node.regions.len()),
            ("mappings", node.mappings.len()),
            ("terms of handles", self.by.terms.len()),
            ("objects", objects),
            ("entries of lives that have ended", departed),
            ("barriers", barriers),
            ("connections being closed", node.closing.len()),
            ("connections being closed by agreement, or waiting for a place", node.links_in_change()),
            ("places without a connection", places.abs_diff(connected)),
            ("connections with messages that found no room", node.stalled.len()),
        ];
        held.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the number of queue pairs of open connections, including the loop-back connection.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        let conns = self.by.node.by_qp.lock().values().map(|conn| conn.lanes().len()).sum::<usize>();
        conns + self.by.node.loopback.lock().as_ref().filter(|c| !c.is_shut()).map_or(0, |c| c.lanes().len())
    }

    /// Returns the incarnations that have ended and whose end all members have seen, as far as this node
    /// knows.
    #[must_use]
    pub fn settled_lives(&self) -> Vec<(NodeId, Incarnation)> {
        self.by.node.settled.lock().clone()
    }

    /// Returns one line for each region whose owner this node is.
    #[must_use]
    pub fn describe_regions(&self) -> Vec<String> {
        self.by.node.regions.describe()
    }
}
