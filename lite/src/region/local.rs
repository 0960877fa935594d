//! [`LocalMemory`]: memory of an application that becomes a region when it is registered.

use super::layout::Layout;
use super::mapped::Mapping;
use super::memory::{Share, Stock};
use super::owner::RegionOwner;
use crate::region::request::Request;
use crate::rpc::Rollback;
use crate::{Error, Permissions};
use alloc::sync::Arc;
use core::fmt;
use platform::{Instant, IoAddr};

/// Memory of this node that no other node reaches. Dropping it frees it.
///
/// ```
/// # use lite::{Error, Lite, Permissions};
/// # async fn example(lite: &Lite) -> Result<(), Error> {
/// let table = lite.local_memory(1 << 20).await?;
/// table.write(0, b"built in peace")?;
/// // Now others may read it, where it is.
/// let region = lite.register_memory(table, Permissions::READ | Permissions::SHARE).await?;
/// region.publish("table").await?;
/// # Ok(())
/// # }
/// ```
pub struct LocalMemory {
    node: Arc<RegionOwner>,
    stock: Stock,
    layout: Layout,
}

impl LocalMemory {
    /// Takes `len` zeroed bytes of this node's memory, contiguous or not. Fails with `NoMemory`.
    pub(crate) async fn take(node: &Arc<RegionOwner>, len: u64) -> Result<Self, Error> {
        let stock = node.take_stock(len).await?;
        let layout = Layout::new(len, 0, 1, stock.pieces().iter().copied()).ok_or(Error::OutOfBounds)?;
        node.report_memory();
        Ok(Self { node: node.clone(), stock, layout })
    }

    /// Turns the memory into a region, in place and with its content, and returns this node's mapping of it.
    pub(crate) async fn register(
        self,
        node: &Arc<RegionOwner>,
        permissions: Permissions,
        deadline: Instant,
    ) -> Result<Arc<Mapping>, Error> {
        if !Arc::ptr_eq(node, &self.node) {
            return Err(Error::Refused("that is memory of another node".into()));
        }
        if node.is_fenced() {
            return Err(Error::LinkDown);
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

    /// Reads `into.len()` bytes from `offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if the bytes are beyond the end.
    pub fn read(&self, offset: u64, mut into: &mut [u8]) -> Result<(), Error> {
        self.pieces(offset, into.len() as u64, |node, addr, len| {
            let (now, rest) = core::mem::take(&mut into).split_at_mut(len);
            into = rest;
            node.read_here(addr, now)
        })
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// `OutOfBounds` if the bytes are beyond the end.
    pub fn write(&self, offset: u64, mut data: &[u8]) -> Result<(), Error> {
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
}

impl fmt::Debug for LocalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.len(), self.node.me)
    }
}
