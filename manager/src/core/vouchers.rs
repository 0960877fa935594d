//! Vouchers: the manager's word that one member may set up a connection with another.

use super::Core;
use super::members::MIN_RELAY;
use proto::{Attempt, Incarnation, MemberKey, NodeId, ResumeSecret, ToNode, VouchingSecret};

/// The secret of the cluster, and the vouchers that it has given.
#[derive(Debug)]
pub(super) struct Vouchers {
    secret: VouchingSecret,
    /// The stamp of the last voucher.
    last: u64,
}

impl Vouchers {
    pub(super) fn new(secret: VouchingSecret) -> Self {
        Self { secret, last: 0 }
    }

    /// Returns the key of a membership.
    pub(super) fn member(&self, node: NodeId, incarnation: Incarnation) -> MemberKey {
        self.secret.member((node, incarnation))
    }

    /// Returns the secret with which a member resumes.
    pub(super) fn resume(&self, node: NodeId, incarnation: Incarnation) -> ResumeSecret {
        self.secret.resume((node, incarnation))
    }
}

impl Core {
    /// Sends a member a voucher for another node, if that node is a member in this incarnation. Otherwise the
    /// requester has been told that the incarnation has ended. Requests in excess end the membership of
    /// their sender.
    pub(super) fn vouch(&mut self, from: NodeId, to: NodeId, incarnation: Incarnation, request: u64) {
        let now = self.now;
        let Some(live) = self.members.get_mut(from) else { return };
        if !live.relays.take(now, MIN_RELAY as u64) {
            return self.remove_member(from, "it asked for more vouchers than any connection setup needs");
        }
        let (Some(conn), requester) = (live.conn, (from, live.member.incarnation)) else { return };
        let other = self.members.get(to).filter(|other| other.member.incarnation == incarnation);
        let Some(queue_pair) = other.map(|other| other.datagrams) else { return };
        // Stamps grow across restarts of the manager.
        let Some(time) = self.identities.reserved_time(now) else { return };
        let stamp = time.max(self.vouchers.last + 1);
        self.vouchers.last = stamp;
        let attempt = Attempt { requester, responder: (to, incarnation), stamp };
        let key = self.vouchers.member(to, incarnation).voucher(&attempt);
        self.tell_node(conn, ToNode::Voucher { request, to, stamp, key, queue_pair });
    }
}
