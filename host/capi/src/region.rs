//! Regions: memory of a node, and the operations on it.

use crate::boundary::{self as c, OutParam};
use crate::handle::{self, Handle, Table};
use crate::node::{fl_node, lite};
use crate::status::{Failure, fl_status};
use lite::{Lmr, NodeId, Permissions};
use lite_node::Node;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// The right to read a region.
pub const FL_READ: u32 = 1;
/// The right to write and to memset.
pub const FL_WRITE: u32 = 2;
/// The right to map the region by name; a region that grants it to no node cannot be published.
pub const FL_SHARE: u32 = 4;
/// The right to publish and free the region through this handle. The node that allocates a region has it;
/// other nodes have it if it is among the rights that the region was allocated with.
pub const FL_ADMIN: u32 = 8;
/// The right to fetch-and-add and compare-and-swap.
pub const FL_ATOMIC: u32 = 16;
/// All rights on a region.
pub const FL_ALL: u32 = 31;

/// Memory of a node, mapped here.
pub struct fl_region(());

/// The object of an [`fl_region`].
pub(crate) struct Region {
    lmr: Lmr,
    /// The node whose threads the region's operations need. This field follows the mapping so that it is
    /// dropped later.
    node: Arc<Node>,
}

impl Region {
    /// Blocks until an operation on the region ends, for at most `timeout_ms`.
    fn wait<T>(
        &self,
        timeout_ms: u32,
        operation: impl AsyncFnOnce(Lmr) -> Result<T, lite::Error>,
    ) -> Result<T, Failure> {
        let lmr = self.lmr.with_deadline(c::milliseconds(timeout_ms));
        c::wait(&self.node, operation(lmr))
    }
}

impl Handle for fl_region {
    const KIND: u64 = 2;
    const NAME: &'static str = "fl_region";
    type Held = Region;

    fn table() -> &'static Table<Region> {
        static TABLE: Table<Region> = Table::new();
        &TABLE
    }
}

fn permissions(bits: u32) -> Result<Permissions, Failure> {
    Permissions::from_bits(bits).ok_or_else(|| Failure::invalid("permissions: an unknown bit"))
}

/// Allocates `len` zeroed bytes on the node `home`, which may be this one. This node gets all rights.
/// `permissions` are the rights of the nodes that map the region by name; without `FL_SHARE` the region
/// cannot be published.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_malloc(
    node: *const fl_node,
    home: u16,
    len: u64,
    permissions: u32,
    timeout_ms: u32,
    region: *mut *mut fl_region,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the pointer.
        let out = unsafe { OutParam::new(region, "region")? };
        let rights = self::permissions(permissions)?;
        let lmr = c::wait(&node, lite(&node, timeout_ms).alloc(NodeId(home), len, rights))?;
        out.give(Region { lmr, node })
    })
}

/// Maps the region that is published as `name`, with the rights `permissions`; waits until it is published.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_map(
    node: *const fl_node,
    name: *const c_char,
    permissions: u32,
    timeout_ms: u32,
    region: *mut *mut fl_region,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the pointers.
        let (name, out) = unsafe { (c::text(name, "name")?, OutParam::new(region, "region")?) };
        let rights = self::permissions(permissions)?;
        let lmr = c::wait(&node, lite(&node, timeout_ms).map_wait(name, rights))?;
        out.give(Region { lmr, node })
    })
}

/// Unmaps a region and gives the handle back; calls of other threads that use it go on. The region exists
/// as long as it is published or some node maps it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_unmap(region: *mut fl_region) -> fl_status {
    c::run(|| handle::take(region, "region").map(drop))
}

/// Frees a region and gives the handle back, also if it fails. Needs the right `FL_ADMIN`. After `FL_OK` no
/// node can reach the memory any more: calls of other threads that use it have ended, or end with
/// `FL_FREED`. After `FL_UNKNOWN` and `FL_DEADLINE` the region is still being freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_free(region: *mut fl_region, timeout_ms: u32) -> fl_status {
    c::run(|| handle::take(region, "region")?.wait(timeout_ms, async |lmr| lmr.free().await))
}

/// Returns the length of a region, in bytes; 0 for a handle that is null or was given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_region_len(region: *const fl_region) -> u64 {
    handle::get(region, "region").map_or(0, |region| region.lmr.len())
}

/// Returns the node that has a region's memory; 0 for a handle that is null or was given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_region_node(region: *const fl_region) -> u16 {
    handle::get(region, "region").map_or(0, |region| region.lmr.node().0)
}

/// Publishes a region as `name`. Needs the right `FL_ADMIN`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_publish(
    region: *const fl_region,
    name: *const c_char,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let region = handle::get(region, "region")?;
        // SAFETY: the caller vouches for the text.
        let name = unsafe { c::text(name, "name")? };
        region.wait(timeout_ms, async |lmr| lmr.publish(name).await)
    })
}

/// Frees a name under which this node has published a region. The region stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_unpublish(
    node: *const fl_node,
    name: *const c_char,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the text.
        let name = unsafe { c::text(name, "name")? };
        c::wait(&node, lite(&node, timeout_ms).unpublish(name))
    })
}

/// Reads `len` bytes from `offset` into `into`, whose content is undefined if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_read(
    region: *const fl_region,
    offset: u64,
    into: *mut c_void,
    len: usize,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let region = handle::get(region, "region")?;
        // Checked before the buffer is touched: a wrong length is more likely than a wrong region.
        if offset.checked_add(len as u64).is_none_or(|end| end > region.lmr.len()) {
            return Err(lite::Error::OutOfBounds.into());
        }
        // SAFETY: the caller vouches for the buffer.
        let into = unsafe { c::buffer(into, len, "into")? };
        region.wait(timeout_ms, async |lmr| lmr.read(offset, into).await)
    })
}

/// Writes `len` bytes at `offset`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_write(
    region: *const fl_region,
    offset: u64,
    data: *const c_void,
    len: usize,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let region = handle::get(region, "region")?;
        // SAFETY: the caller vouches for the bytes.
        let data = unsafe { c::slice(data.cast::<u8>(), len, "data")? };
        region.wait(timeout_ms, async |lmr| lmr.write(offset, data).await)
    })
}

/// Sets `len` bytes from `offset` to `byte`. The region's node does it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_memset(
    region: *const fl_region,
    offset: u64,
    len: u64,
    byte: u8,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let region = handle::get(region, "region")?;
        region.wait(timeout_ms, async |lmr| lmr.memset(offset, len, byte).await)
    })
}

/// Adds `add` to the 8 bytes at `offset` (in the byte order of the processor, wrapping) in one step, and
/// stores the value before in `before`, unless that is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_fetch_add(
    region: *const fl_region,
    offset: u64,
    add: u64,
    timeout_ms: u32,
    before: *mut u64,
) -> fl_status {
    c::run(|| {
        let region = handle::get(region, "region")?;
        // SAFETY: the caller vouches for the pointer.
        let out = unsafe { OutParam::optional(before) };
        let was = region.wait(timeout_ms, async |lmr| lmr.fetch_add(offset, add).await)?;
        if let Some(out) = out {
            out.put(was);
        }
        Ok(())
    })
}

/// Stores `swap` in the 8 bytes at `offset` if they hold `compare`, in one step, and stores the value
/// before in `before`, unless that is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_compare_swap(
    region: *const fl_region,
    offset: u64,
    compare: u64,
    swap: u64,
    timeout_ms: u32,
    before: *mut u64,
) -> fl_status {
    c::run(|| {
        let region = handle::get(region, "region")?;
        // SAFETY: the caller vouches for the pointer.
        let out = unsafe { OutParam::optional(before) };
        let was = region.wait(timeout_ms, async |lmr| lmr.compare_swap(offset, compare, swap).await)?;
        if let Some(out) = out {
            out.put(was);
        }
        Ok(())
    })
}
