//! One mapping of a region, on the node that uses it.

use super::layout::{Layout, Location, Piece};
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::wait::{Epoch, Gate, Shut};
use crate::planted::{Bug, planted};
use crate::transport::op::Stamp;
use crate::{Error, Permissions};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use proto::NodeId;

/// The most pieces that a transfer moves at once.
const MOST_AT_ONCE: usize = 128;

/// One mapping of a region: the right to operate on its memory until it is revoked.
///
/// All that may change in it changes while its gate is shut. So an operation that enters with the epoch of
/// its [lookup](Self::locate) goes to the right address with a right that it has.
pub(crate) struct Mapping {
    /// The node that keeps the region's tables. It changes when that node hands the region over.
    owner: Mutex<MemberId>,
    /// This node's number of the mapping, which the owner uses too.
    pub(crate) id: u64,
    pub(crate) len: u64,
    rights: AtomicU32,
    /// The generation of `layout`.
    pub(super) generation: AtomicU64,
    /// The generation that operations must wait for.
    awaited: AtomicU64,
    layout: Mutex<Layout>,
    /// Copies within this node are inside the gate while they go on. Operations on the wire see it open
    /// under the lock of the operation table, which finds them by the stamp until they complete.
    pub(crate) gate: Gate,
    /// Invalidated before the gate is shut for the first time.
    pub(crate) stamp: Stamp,
}

impl Mapping {
    pub(crate) fn new(
        owner: MemberId,
        id: u64,
        rights: Permissions,
        generation: u64,
        layout: Layout,
        stamp: Stamp,
    ) -> Arc<Self> {
        Arc::new(Self {
            owner: Mutex::new(owner),
            id,
            len: layout.len(),
            rights: AtomicU32::new(rights.bits()),
            generation: AtomicU64::new(generation),
            awaited: AtomicU64::new(generation),
            layout: Mutex::new(layout),
            gate: Gate::default(),
            stamp,
        })
    }

    pub(crate) fn owner(&self) -> MemberId {
        *self.owner.lock()
    }

    /// Records that another node keeps the region's tables.
    pub(super) fn set_owner(&self, owner: MemberId) {
        *self.owner.lock() = owner;
    }

    pub(crate) fn rights(&self) -> Permissions {
        Permissions::from_bits_truncate(self.rights.load(Ordering::SeqCst))
    }

    /// Fails unless this mapping has `right` to `len` bytes at `offset`.
    pub(crate) fn check(&self, right: Permissions, offset: u64, len: u64) -> Result<(), Error> {
        if !self.rights().contains(right) && !planted(Bug::NoRightsCheck) {
            return Err(Error::Permission);
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len) && !planted(Bug::NoBoundsCheck) {
            return Err(Error::OutOfBounds);
        }
        if self.gate.is_closed() { Err(Error::Freed) } else { Ok(()) }
    }

    /// Returns the location of the byte at `offset` if this mapping has `right` to the `len` bytes from
    /// there, and the epoch with which to enter the gate. Returns `None` while the mapping changes: wait
    /// until the gate has [opened](Gate::opened).
    pub(crate) fn locate(
        &self,
        right: Permissions,
        offset: u64,
        len: u64,
    ) -> Result<Option<(Location, Epoch)>, Error> {
        // The epoch comes first: what is read after it is void if the gate is shut meanwhile.
        let epoch = match self.gate.epoch() {
            Ok(epoch) => epoch,
            Err(Shut::Closed) => return Err(Error::Freed),
            Err(Shut::Changed) => return Ok(None),
        };
        self.check(right, offset, len)?;
        let spot = self.layout.lock().find(offset).ok_or(Error::OutOfBounds)?;
        Ok(Some((spot, epoch)))
    }
}

impl Mapping {
    /// Ends the mapping: no operation goes through it again.
    pub(crate) fn close(&self) {
        self.stamp.invalidate();
        self.gate.close();
    }

    /// Returns the whole region, if it is in one piece.
    pub(super) fn sole(&self) -> Option<Piece> {
        let layout = self.layout.lock();
        let mut pieces = layout.pieces();
        pieces.next().filter(|piece| piece.len == self.len).copied()
    }

    /// Returns the number of bytes at `offset` that are contiguous; 0 if there is none.
    pub(crate) fn run(&self, offset: u64) -> u64 {
        self.layout.lock().find(offset).map_or(0, |spot| spot.run)
    }

    /// Returns the number of pieces that a transfer moves at once. Of a striped region, each column has about
    /// `bytes` in flight, or one piece.
    pub(crate) fn pieces_at_once(&self, bytes: u64) -> usize {
        let layout = self.layout.lock();
        let pieces = match layout.columns() {
            1 => layout.pieces().take(MOST_AT_ONCE).count(),
            columns => columns * (bytes / layout.stripe()).clamp(1, MOST_AT_ONCE as u64) as usize,
        };
        pieces.min(MOST_AT_ONCE)
    }

    /// Returns the node of the first byte.
    pub(crate) fn first_node(&self) -> NodeId {
        self.layout.lock().pieces().next().map_or(self.owner().0, |piece| piece.at.0)
    }

    /// Returns nodes and bytes, column after column; adjacent pieces of a node are joined.
    pub(crate) fn shares(&self) -> Vec<(NodeId, u64)> {
        let mut shares: Vec<(NodeId, u64)> = Vec::new();
        for piece in self.layout.lock().pieces() {
            match shares.last_mut() {
                Some((node, len)) if *node == piece.at.0 => *len += piece.len,
                _ => shares.push((piece.at.0, piece.len)),
            }
        }
        shares
    }

    /// Holds operations back until the mapping has that generation.
    pub(super) fn pause(&self, generation: u64) {
        // The lock keeps this apart from an installation.
        let _layout = self.layout.lock();
        if self.generation.load(Ordering::SeqCst) < generation {
            self.awaited.fetch_max(generation, Ordering::SeqCst);
            self.stamp.invalidate();
            self.gate.pause();
        }
    }

    /// Replaces the pieces by newer ones and lets operations go on.
    pub(super) fn install(&self, generation: u64, layout: Layout) {
        {
            let mut present = self.layout.lock();
            if layout.len() == self.len && self.generation.load(Ordering::SeqCst) < generation {
                self.generation.store(generation, Ordering::SeqCst);
                if !planted(Bug::StaleMap) {
                    *present = layout;
                }
            }
        }
        self.reopen();
    }

    /// Lets operations go on, unless newer pieces are awaited.
    pub(super) fn reopen(&self) {
        let _layout = self.layout.lock();
        if self.awaited.load(Ordering::SeqCst) <= self.generation.load(Ordering::SeqCst) {
            self.gate.reopen();
        }
    }

    pub(super) fn take(&self, rights: Permissions) {
        self.stamp.invalidate();
        self.rights.fetch_and(!rights.bits(), Ordering::SeqCst);
    }
}
