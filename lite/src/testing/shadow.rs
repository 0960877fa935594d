//! The incarnations that may change the bytes of a region: the shadow against which the simulation judges
//! each write that an RNIC does.

use crate::Lite;
use crate::base::member::MemberId;
use crate::region::Piece;
use alloc::vec::Vec;
use platform::IoAddr;
use proto::Attempt;

/// Bytes of one node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// The address of the first byte.
    pub addr: IoAddr,
    /// The number of bytes.
    pub len: u64,
}

impl Bytes {
    fn on(self, lite: &Lite) -> Piece {
        Piece { at: (lite.node.me, lite.node.incarnation), addr: self.addr, len: self.len }
    }
}

/// Returns the owner of the region of which `bytes` of `node` are a part; `None` if they are no part of a
/// region.
#[must_use]
pub fn region_owner(node: &Lite, bytes: Bytes) -> Option<MemberId> {
    let part = bytes.on(node);
    let own = || node.node.regions.holders_of(&part).map(|_| part.at);
    node.node.holdings.owner_of(&part).or_else(own)
}

/// Returns whether `owner`, whose region `bytes` of `node` are a part of, lets `by` change them: if `by` maps
/// the region or is the owner. An owner removes an incarnation that has ended before all other members have
/// cut it off, so the answer is also true for those. It is true as well if the owner knows of the end of
/// `node`: the owner does not wait for a node that has ended.
#[must_use]
pub fn may_change(owner: &Lite, by: MemberId, node: &Lite, bytes: Bytes) -> bool {
    let holds = || owner.node.regions.holders_of(&bytes.on(node)).is_some_and(|all| all.contains(&by));
    let live = |member| owner.node.is_live(member);
    by == (owner.node.me, owner.node.incarnation) || !live(by) || !live(bytes.on(node).at) || holds()
}

/// Returns true if `witness` knows that `node` has cut `ended` off: `witness` counts `node` as a member, and
/// knows that all members have cut `ended` off.
#[must_use]
pub fn has_cut_off(node: MemberId, ended: MemberId, witness: &Lite) -> bool {
    witness.node.is_live(node) && witness.settled_lives().contains(&ended)
}

/// Returns the attempts to set up a connection that `node` has accepted since the last call, each with the
/// peer for which it has accepted it.
#[must_use]
pub fn take_accepted(node: &Lite) -> Vec<(Attempt, MemberId)> {
    core::mem::take(&mut *node.node.accepted.lock())
}

/// Returns the incarnations for which `node` sets or copies bytes at present.
#[must_use]
pub fn errands(node: &Lite) -> Vec<MemberId> {
    node.node.errands.requesters()
}
