//! [`LocalMemory`]: memory of an application that becomes a region when it is registered.

use super::layout::Layout;
use super::memory::{Share, Stock};
use crate::node::Node;
use crate::rpc::Undo;
use crate::{Error, Lite, Lmr, Permissions};
use alloc::sync::Arc;
use core::fmt;
use platform::IoAddr;

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
    node: Arc<Node>,
    stock: Stock,
    layout: Layout,
}

impl Lite {
    /// Allocates `len` zeroed bytes of this node's memory, contiguous or not.
    ///
    /// # Errors
    /// `NoMemory` if fewer bytes are free.
    pub async fn local_memory(&self, len: u64) -> Result<LocalMemory, Error> {
        let stock = self.by.node.take_stock(len).await?;
        let layout = Layout::new(len, 0, 1, stock.pieces().iter().copied()).ok_or(Error::OutOfBounds)?;
        self.by.node.report_memory();
        Ok(LocalMemory { node: self.by.node.clone(), stock, layout })
    }

    /// Makes `memory` a region in place, with its content. This node is its owner and master. For
    /// `permissions` and the region's lifetime see [`alloc`](Self::alloc). The memory is free again when
    /// the region is freed.
    pub async fn register_memory(&self, memory: LocalMemory, permissions: Permissions) -> Result<Lmr, Error> {
        let node = &self.by.node;
        if !Arc::ptr_eq(node, &memory.node) {
            return Err(Error::Refused("that is memory of another node".into()));
        }
        if node.is_fenced() {
            return Err(Error::LinkDown);
        }
        let (me, mapping) = ((node.me, node.incarnation), node.random());
        let charge = self.by.class.hold(memory.len())?;
        let region = node.regions.begin(node, me, mapping, permissions)?;
        let undo = Undo::new(node, me, crate::rpc::Ask::Unmap { mapping });
        let expected = node.mappings.expect(me, mapping);
        let share = Share::Here { _stock: memory.stock };
        let answer =
            node.regions.formed(region, memory.layout, alloc::vec![share]).map_err(|_| Error::Freed)?;
        let mapped = node.mapped(me, mapping, answer, expected, self.deadline()).await?;
        undo.disarm();
        Ok(self.lmr_charged(mapped, charge))
    }
}

impl LocalMemory {
    /// Returns the length, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.layout.len()
    }

    /// Returns whether it has no bytes.
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
        mut each: impl FnMut(&Node, IoAddr, usize) -> Result<(), Error>,
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
