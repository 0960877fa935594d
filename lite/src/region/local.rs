//! [`LocalMemory`]: memory of an application that becomes a region when it is registered.

use super::layout::Layout;
use super::mapped::Mapping;
use super::memory::{Share, Stock};
use super::owner::RegionOwner;
use crate::base::own::{Hold, OwnPiece, Uses};
use crate::region::request::Request;
use crate::rpc::Rollback;
use crate::{Error, Permissions};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use platform::{Instant, IoAddr, Pages};

/// Memory of this node that no other node reaches. Dropping it frees it.
///
/// [`Lmr::read_to`](crate::Lmr::read_to) and [`Lmr::write_from`](crate::Lmr::write_from) move bytes
/// between it and regions without a copy. An operation that is given up, because its future is
/// dropped or its deadline passes, may go on to use the memory: until it has
/// [ended](Self::settled), other accesses that it could disturb are [refused](Error::Refused).
/// Memory that is dropped stays allocated until then.
///
/// There are no slices of it: memory that can become a region is lent by the platform, and devices and peers
/// may change lent memory at any time. An array that is computed with as a slice lies in
/// [`Pages`], which [`Lite::own_pages`](crate::Lite::own_pages) turns into such memory when
/// the computation is done.
///
/// ```
/// # use lite::{Error, Lite, Permissions};
/// # async fn example(lite: &Lite) -> Result<(), Error> {
/// let mut table = lite.local_memory(1 << 20).await?;
/// table.write(0, b"built in peace")?;
/// // Now others may read it, where it is.
/// let region = lite.register_memory(table, Permissions::READ | Permissions::SHARE).await?;
/// region.publish("table").await?;
/// # Ok(())
/// # }
/// ```
pub struct LocalMemory {
    node: Arc<RegionOwner>,
    stock: Arc<Stock>,
    layout: Layout,
    /// The references of operations that move bytes to or from the memory.
    uses: Uses,
}

impl LocalMemory {
    /// Takes `len` zeroed bytes of this node's memory, contiguous or not. Fails with `NoMemory`.
    pub(crate) async fn take(node: &Arc<RegionOwner>, len: u64) -> Result<Self, Error> {
        let stock = node.take_stock(len).await?;
        Self::of_stock(node, stock, len)
    }

    /// Turns pages into memory of LITE, with their content.
    pub(crate) async fn of_pages(node: &Arc<RegionOwner>, pages: Pages) -> Result<Self, Error> {
        let len = pages.len() as u64;
        let stock = node.take_pages(pages).await?;
        Self::of_stock(node, stock, len)
    }

    fn of_stock(node: &Arc<RegionOwner>, stock: Stock, len: u64) -> Result<Self, Error> {
        let layout = Layout::new(len, 0, 1, stock.pieces().iter().copied()).ok_or(Error::OutOfBounds)?;
        node.report_memory();
        let stock = Arc::new(stock);
        let uses = Uses::new(&stock);
        Ok(Self { node: node.clone(), stock, layout, uses })
    }

    /// Turns the memory into a region, in place and with its content, and returns this node's mapping of it.
    pub(crate) async fn register(
        self,
        node: &Arc<RegionOwner>,
        permissions: Permissions,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        self.check_node(node)?;
        if node.is_fenced() {
            return Err(Error::LinkDown);
        }
        node.check_vacating(self.len())?;
        if node.timers.before(deadline, self.settled()).await.is_none() {
            return Err(Error::Deadline);
        }
        let (me, mapping) = (node.own_id(), node.random());
        let region = node.regions.begin(node, me, mapping, permissions)?;
        let undo = Rollback::new(node, me, Request::Unmap { mapping });
        let expected = node.mappings.expect(me, mapping);
        let share = Share::Here { _stock: self.stock };
        let answer =
            node.regions.formed(region, self.layout, alloc::vec![share]).map_err(|_| Error::Freed)?;
        let mapped = node.mapped(me, mapping, answer, expected, deadline).await?;
        undo.disarm();
        Ok(mapped)
    }

    /// Returns the length, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.layout.len()
    }

    /// Returns true if the memory has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until no operation uses the memory: those that were given up have ended.
    pub async fn settled(&self) {
        let settled = || {
            self.node.want();
            self.uses.are_none().then_some(())
        };
        self.node.drains.until(settled).await;
    }

    /// Reads `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if the bytes are beyond the end. `Refused` if an operation that was given up may still
    /// change the memory.
    pub fn read(&self, offset: u64, mut into: &mut [u8]) -> Result<(), Error> {
        if !self.uses.only_read() {
            return Err(in_use());
        }
        self.pieces(offset, into.len() as u64, |node, addr, len| {
            let (now, rest) = core::mem::take(&mut into).split_at_mut(len);
            into = rest;
            node.read_here(addr, now)
        })
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if the bytes are beyond the end. `Refused` if an operation that was given up may still
    /// use the memory.
    pub fn write(&mut self, offset: u64, mut data: &[u8]) -> Result<(), Error> {
        if !self.uses.are_none() {
            return Err(in_use());
        }
        self.pieces(offset, data.len() as u64, |node, addr, len| {
            let (now, rest) = data.split_at(len);
            data = rest;
            node.write_here(addr, now)
        })
    }

    fn pieces(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(&RegionOwner, IoAddr, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(Error::OutOfBounds);
        }
        let mut done = 0;
        while done < len {
            let spot = self.layout.find(offset + done).ok_or(Error::OutOfBounds)?;
            let step = spot.run.min(len - done);
            each(&self.node, spot.addr, step as usize)?;
            done += step;
        }
        Ok(())
    }

    /// Returns the reference for operations of `node` that change the memory. Fails if they must not.
    pub(super) fn hold_to_change(&mut self, node: &Arc<RegionOwner>) -> Result<&Hold, Error> {
        self.check_node(node)?;
        if self.uses.are_none() { Ok(&self.uses.change) } else { Err(in_use()) }
    }

    /// Returns the reference for operations of `node` that read the memory. Fails if they must not.
    pub(super) fn hold_to_read(&self, node: &Arc<RegionOwner>) -> Result<&Hold, Error> {
        self.check_node(node)?;
        if self.uses.only_read() { Ok(&self.uses.read) } else { Err(in_use()) }
    }

    fn check_node(&self, node: &Arc<RegionOwner>) -> Result<(), Error> {
        let is_ours = Arc::ptr_eq(node, &self.node);
        is_ours.then_some(()).ok_or_else(|| Error::Refused("that is memory of another node".into()))
    }

    /// Returns the memory of a range, if it is in one piece.
    pub(super) fn sole(&self, range: &Range<u64>) -> Option<OwnPiece> {
        let len = range.end.checked_sub(range.start)?;
        let spot = self.layout.find(range.start).filter(|_| range.end <= self.len())?;
        (len <= spot.run).then_some((spot.addr, len))
    }

    /// Returns the pieces of `ranges`, in this order.
    pub(super) fn list(&self, ranges: &[Range<u64>]) -> Result<Vec<OwnPiece>, Error> {
        let mut list = Vec::with_capacity(ranges.len());
        for range in ranges {
            let len = range.end.checked_sub(range.start).ok_or(Error::OutOfBounds)?;
            self.pieces(range.start, len, |_, addr, len| {
                list.push((addr, len as u64));
                Ok(())
            })?;
        }
        Ok(list)
    }
}

fn in_use() -> Error {
    Error::Refused("an operation that was given up still uses the memory".into())
}

impl fmt::Debug for LocalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.len(), self.node.me)
    }
}
