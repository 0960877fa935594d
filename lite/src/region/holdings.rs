//! The memory that a node holds for regions of other owners.

use super::layout::Piece;
use super::memory::{RegionMemory, Stock};
use super::request::{PAGE_PIECES, Response};
use crate::Error;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::sometimes::sometimes;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// An owner, and its number of a holding.
type HoldingId = (MemberId, u64);

/// Memory that this node holds for a region of another owner.
#[derive(Default)]
pub(super) struct Holding {
    /// The memory; `None` while it is being taken.
    pub(super) stock: Option<Stock>,
    /// The holding of the former owner, as long as some nodes may not know the present one.
    former: Option<HoldingId>,
}

/// The memory that this node holds for regions of other owners, by owner and the owner's number.
#[derive(Default)]
pub(crate) struct Holdings(pub(super) Mutex<BTreeMap<HoldingId, Holding>>);

impl Holdings {
    /// Frees the memory held for an owner whose departure all nodes have seen. Memory of a region that the
    /// owner had only begun to take over is held for the former owner again: other nodes use it.
    pub(crate) fn settle(&self, owner: MemberId) {
        let mut table = self.0.lock();
        for held in table.values_mut() {
            held.former.take_if(|(former, _)| *former == owner);
        }
        let keys: Vec<_> = table.range((owner, 0)..=(owner, u64::MAX)).map(|(key, _)| *key).collect();
        let mut gone = Vec::new();
        for key in keys {
            let Some(held) = table.remove(&key) else { continue };
            if let Some(former) = held.former {
                sometimes!("memory was held for the former owner again");
                table.insert(former, Holding { former: None, ..held });
            } else {
                gone.push(held);
            }
        }
        if !gone.is_empty() {
            sometimes!("memory of a dead owner became free");
        }
        drop(table);
        drop(gone);
    }

    /// Returns the number of holdings whose owners `which` selects.
    #[cfg(feature = "testing")]
    pub(crate) fn places_of(&self, which: &dyn Fn(MemberId) -> bool) -> usize {
        let table = self.0.lock();
        let former = table.values().filter_map(|held| held.former);
        table.keys().copied().chain(former).filter(|(owner, _)| which(*owner)).count()
    }

    /// Returns the owner for which this node holds those bytes.
    #[cfg(feature = "testing")]
    pub(crate) fn owner_of(&self, part: &Piece) -> Option<MemberId> {
        let table = self.0.lock();
        let mut held = table.iter().filter_map(|(key, held)| Some((key.0, held.stock.as_ref()?)));
        held.find(|(_, stock)| stock.pieces().iter().any(|piece| piece.contains(part)))
            .map(|(owner, _)| owner)
    }

    /// Returns the owners and their numbers of all holdings.
    pub(super) fn all(&self) -> Vec<HoldingId> {
        self.0.lock().keys().copied().collect()
    }

    /// Removes and returns the memory of a holding.
    pub(super) fn take(&self, owner: MemberId, holding: u64) -> Option<Stock> {
        self.0.lock().remove(&(owner, holding))?.stock
    }

    /// Returns some pieces of a holding.
    pub(crate) fn pieces(&self, owner: MemberId, holding: u64, from: u32) -> Result<Response, Error> {
        let table = self.0.lock();
        let held = table.get(&(owner, holding)).and_then(|held| held.stock.as_ref()).ok_or(Error::Freed)?;
        let page = held.pieces().iter().skip(from as usize).take(PAGE_PIECES);
        Ok(Response::Pieces(page.copied().collect()))
    }

    /// Frees a holding that the owner no longer needs. If another owner has claimed it, that one has it alone
    /// from now on.
    pub(crate) fn give_back(&self, owner: MemberId, holding: u64) {
        let mut table = self.0.lock();
        let removed = table.remove(&(owner, holding));
        if removed.is_none() {
            for held in table.values_mut() {
                held.former.take_if(|former| *former == (owner, holding));
            }
        }
        drop(table);
        drop(removed);
    }

    /// Returns true if this node holds the memory `part` for the owner.
    pub(crate) fn holds(&self, owner: MemberId, part: &Piece) -> bool {
        let table = self.0.lock();
        let held = table.range((owner, 0)..=(owner, u64::MAX)).filter_map(|(_, held)| held.stock.as_ref());
        held.flat_map(Stock::pieces).any(|piece| piece.contains(part))
    }
}

impl RegionMemory {
    /// Holds memory for `by` from now on, which was held for `former`.
    pub(crate) fn claim(&self, by: MemberId, former: HoldingId, number: u64) -> Result<Response, Error> {
        let mut table = self.lock_for(&self.holdings.0, by)?;
        let key = (by, number);
        if table.contains_key(&key) {
            return Ok(Response::Done);
        }
        let held = table.remove(&former).ok_or(Error::Freed)?;
        table.insert(key, Holding { former: Some(former), ..held });
        Ok(Response::Done)
    }
}
