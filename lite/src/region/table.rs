//! The table of regions at their owner: their keys, rights and memory, and the mappings that nodes have.

use super::layout::Layout;
use super::lend::Loans;
use super::memory::Share;
use super::request::{FIRST_PIECES, Shape};
use super::rights::{Grantee, Rights};
use crate::base::member::MemberId;
use crate::base::wait::Gate;
use crate::transport::conn::peers::LockedFor;
use crate::{Error, Permissions};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The state of a region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RegionState {
    /// The memory of the region is being taken on its nodes, or from its former owner.
    Forming,
    /// Whole: nodes may map it.
    Live,
    /// Being freed: new map requests are refused and existing mappings are being revoked.
    Freeing,
}

/// The record of a region at its owner.
pub(super) struct Region {
    /// The capability key. A name lookup returns it; every map request must contain it.
    pub(super) key: u64,
    /// An optional secret set by the owner. Every map request must contain it unless it is empty.
    pub(super) secret: Vec<u8>,
    pub(super) rights: Rights,
    pub(super) master: MemberId,
    /// True if the region stays when its master leaves.
    pub(super) outlives: bool,
    /// True if the master has left.
    pub(super) is_orphan: bool,
    /// The names under which the region is published, or is about to be.
    pub(super) names: Vec<String>,
    pub(super) state: RegionState,
    /// True if a change is in progress.
    pub(super) changing: bool,
    /// True if that change is a move or a handover: no node may map the region meanwhile.
    pub(super) moving: bool,
    /// The number of requests in progress about the region's names.
    pub(super) naming: u32,
    /// True while the region is handed over: no request about its names begins, and it is not freed.
    pub(super) is_leaving: bool,
    /// The former owner, as long as it has not told everybody that this node is the owner now.
    pub(super) former: Option<MemberId>,
    pub(super) generation: u64,
    pub(super) layout: Arc<Layout>,
    /// The nodes that hold the shares of the region's memory.
    pub(super) memory: Vec<Share>,
    /// The gate of memory operations (memset, copy) that other nodes perform at this owner's request; it is
    /// closed before the region is moved or freed.
    pub(super) gate: Arc<Gate>,
    /// The mappings, by node and the node's own number of the mapping.
    pub(super) holders: BTreeSet<(MemberId, u64)>,
}

impl Region {
    pub(super) fn shape(&self) -> Shape {
        Shape {
            generation: self.generation,
            len: self.layout.len(),
            stripe: self.layout.stripe(),
            columns: self.layout.columns() as u32,
            count: self.layout.pieces().count() as u32,
            first: self.layout.pieces().take(FIRST_PIECES).copied().collect(),
        }
    }

    /// Returns the rights that an incarnation may have. Each node with a right may administer a region whose
    /// master has left: nobody else could move or free it.
    pub(super) fn granted(&self, to: MemberId) -> Permissions {
        if self.master == to {
            return Permissions::all();
        }
        let rights = self.rights.of(to.0);
        let inherits = self.is_orphan && !rights.is_empty();
        if inherits { rights | Permissions::ADMIN } else { rights }
    }

    fn is_reachable(&self) -> bool {
        !self.holders.is_empty() || !self.names.is_empty()
    }
}

/// A mapping of a region that a node has.
pub(super) struct Held {
    pub(super) region: u64,
    /// The node for which the holder maps the region, if not for itself.
    pub(super) lender: Option<MemberId>,
    pub(super) permissions: Permissions,
}

/// The regions, and the mappings of them.
#[derive(Default)]
pub(super) struct Table {
    pub(super) last: u64,
    pub(super) regions: BTreeMap<u64, Region>,
    /// By node and the node's own number of the mapping.
    pub(super) mappings: BTreeMap<(MemberId, u64), Held>,
    /// The loans that have not been taken yet.
    pub(super) loans: Loans,
    /// The mappings that are granted after a move has ended.
    pub(super) waiting: BTreeSet<(MemberId, u64)>,
}

impl LockedFor<'_, Table> {
    /// Returns the region that a mapping with the right `right` refers to.
    pub(super) fn through(&mut self, mapping: u64, right: Permissions) -> Result<(u64, &mut Region), Error> {
        let key = (self.member(), mapping);
        self.mapped_as(key, right)
    }

    /// Adds a mapping that a member holds.
    pub(super) fn hold(
        &mut self,
        region: u64,
        mapping: u64,
        lender: Option<MemberId>,
        permissions: Permissions,
    ) {
        let key = (self.member(), mapping);
        self.mappings.insert(key, Held { region, lender, permissions });
        if let Some(r) = self.regions.get_mut(&region) {
            r.holders.insert(key);
        }
    }
}

impl Table {
    /// Returns the region of a mapping that has `right`.
    pub(super) fn mapped_as(
        &mut self,
        key: (MemberId, u64),
        right: Permissions,
    ) -> Result<(u64, &mut Region), Error> {
        let held = self.mappings.get(&key).ok_or(Error::Freed)?;
        if !held.permissions.contains(right) {
            return Err(Error::Permission);
        }
        let region = self.regions.get_mut(&held.region).filter(|r| r.state == RegionState::Live);
        Ok((held.region, region.ok_or(Error::Freed)?))
    }

    pub(super) fn live(&mut self, region: u64) -> Option<&mut Region> {
        self.regions.get_mut(&region).filter(|r| r.state == RegionState::Live)
    }

    /// Returns the region with a number, in any state.
    pub(super) fn any(&mut self, region: u64) -> Option<&mut Region> {
        self.regions.get_mut(&region)
    }

    /// Returns true if an incarnation may administer a region: as its master, or by a right that it has or
    /// was granted.
    pub(super) fn administers(&self, by: MemberId, region: u64) -> bool {
        let Some(r) = self.regions.get(&region) else { return false };
        let mut mine = r.holders.range((by, 0)..=(by, u64::MAX)).filter_map(|key| self.mappings.get(key));
        r.granted(by).contains(Permissions::ADMIN)
            || mine.any(|held| held.permissions.contains(Permissions::ADMIN))
    }

    /// Marks a region that no node can reach any more; returns true if it must be fenced for that.
    pub(super) fn mark_if_unreachable(&mut self, region: u64) -> bool {
        let unreachable = |r: &&mut Region| !r.is_reachable() && r.state != RegionState::Freeing;
        let Some(r) = self.regions.get_mut(&region).filter(unreachable) else { return false };
        // The task that makes a region takes care of one that is being formed.
        let forming = r.state == RegionState::Forming;
        r.state = RegionState::Freeing;
        !forming
    }

    /// Takes rights from the mappings of some nodes, except the master; returns the mappings, by node.
    pub(super) fn restrict(
        &mut self,
        region: u64,
        whose: Grantee,
        rights: Permissions,
    ) -> BTreeMap<MemberId, Vec<u64>> {
        let mut found: BTreeMap<MemberId, Vec<u64>> = BTreeMap::new();
        let Some(r) = self.regions.get(&region) else { return found };
        for key in &r.holders {
            let Some(held) = self.mappings.get_mut(key) else { continue };
            // A borrowed mapping has the lender's rights.
            let user = held.lender.unwrap_or(key.0);
            let concerned = user != r.master && whose.includes(user.0);
            if concerned && held.permissions.intersects(rights) {
                held.permissions -= rights;
                found.entry(key.0).or_default().push(key.1);
            }
        }
        found
    }
}
