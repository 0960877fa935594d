//! Regions: memory of some node, and what can be done with it.

use crate::boundary::{self as c, Place};
use crate::node::fl_node;
use crate::status::{Failure, fl_status};
use lite::{Lmr, NodeId, Permissions};
use lite_node::Node;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// May be read.
pub const FL_READ: u32 = 1;
/// May be written and memset.
pub const FL_WRITE: u32 = 2;
/// May be published, and mapped by name.
pub const FL_SHARE: u32 = 4;
/// May be published and freed through this handle: only ever the right of who allocated it.
pub const FL_ADMIN: u32 = 8;
/// May be the target of fetch-and-add and compare-and-swap.
pub const FL_ATOMIC: u32 = 16;
/// All rights.
pub const FL_ALL: u32 = 31;

/// Memory of some node, mapped here.
pub struct fl_region {
    lmr: Lmr,
    /// Whose threads the region's operations need; after the mapping, so that it goes later.
    _node: Arc<Node>,
}

impl fl_region {
    fn lmr(&self, timeout_ms: u32) -> Lmr {
        self.lmr.with_deadline(c::milliseconds(timeout_ms))
    }
}

fn permissions(bits: u32) -> Result<Permissions, Failure> {
    Permissions::from_bits(bits).ok_or_else(|| Failure::invalid("permissions: an unknown bit"))
}

/// Allocates `len` zeroed bytes on the node `home`, which may be this one. This node gets all rights; `permissions` is what
/// those who map the region by name may get, and must contain `FL_SHARE` if it is to be published.
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
        // SAFETY: pointers that the caller vouches for.
        let (node, place) = unsafe { (c::handle(node, "node")?, Place::new(region, "region")?) };
        let rights = self::permissions(permissions)?;
        let lmr = c::wait(node.lite(timeout_ms).alloc(NodeId(home), len, rights))?;
        place.give(fl_region { lmr, _node: node.node.clone() });
        Ok(())
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
        // SAFETY: pointers that the caller vouches for.
        let (node, name, place) =
            unsafe { (c::handle(node, "node")?, c::text(name, "name")?, Place::new(region, "region")?) };
        let rights = self::permissions(permissions)?;
        let lmr = c::wait(node.lite(timeout_ms).map_wait(name, rights))?;
        place.give(fl_region { lmr, _node: node.node.clone() });
        Ok(())
    })
}

/// Gives a handle back. The region stays, unless it was allocated here and neither published nor mapped elsewhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_unmap(region: *mut fl_region) -> fl_status {
    // SAFETY: a handle that the caller gives back.
    c::run(|| unsafe { c::take(region, "region") }.map(drop))
}

/// Frees a region that was allocated here and gives the handle back, also if it fails. After `FL_OK` nobody can reach the
/// memory any more; after `FL_UNKNOWN` and `FL_DEADLINE` it is being freed, which goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_free(region: *mut fl_region, timeout_ms: u32) -> fl_status {
    c::run(|| {
        // SAFETY: a handle that the caller gives back.
        let region = unsafe { c::take(region, "region")? };
        c::wait(region.lmr(timeout_ms).free())
    })
}

/// Bytes of a region, 0 for a null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_region_len(region: *const fl_region) -> u64 {
    // SAFETY: a handle that the caller vouches for.
    unsafe { c::handle(region, "region") }.map_or(0, |region| region.lmr.len())
}

/// The node that a region's memory is on, 0 for a null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_region_node(region: *const fl_region) -> u16 {
    // SAFETY: a handle that the caller vouches for.
    unsafe { c::handle(region, "region") }.map_or(0, |region| region.lmr.node().0)
}

/// Publishes a region that was allocated here as `name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_publish(
    region: *const fl_region,
    name: *const c_char,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        // SAFETY: pointers that the caller vouches for.
        let (region, name) = unsafe { (c::handle(region, "region")?, c::text(name, "name")?) };
        c::wait(region.lmr(timeout_ms).publish(name))
    })
}

/// Frees a name that this node has published a region under. The region stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_unpublish(
    node: *const fl_node,
    name: *const c_char,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        // SAFETY: pointers that the caller vouches for.
        let (node, name) = unsafe { (c::handle(node, "node")?, c::text(name, "name")?) };
        c::wait(node.lite(timeout_ms).unpublish(name))
    })
}

/// Reads `len` bytes from `offset` into `into`, whose content is undefined if it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_read(
    region: *const fl_region,
    offset: u64,
    into: *mut c_void,
    len: usize,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        // SAFETY: pointers that the caller vouches for.
        let region = unsafe { c::handle(region, "region")? };
        // Before the buffer is touched: its length is more likely wrong than the region's.
        if offset.checked_add(len as u64).is_none_or(|end| end > region.lmr.len()) {
            return Err(lite::Error::OutOfBounds.into());
        }
        // SAFETY: a buffer that the caller vouches for.
        let into = unsafe { c::buffer(into, len, "into")? };
        c::wait(region.lmr(timeout_ms).read(offset, into))
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
        // SAFETY: pointers that the caller vouches for.
        let (region, data) =
            unsafe { (c::handle(region, "region")?, c::slice(data.cast::<u8>(), len, "data")?) };
        c::wait(region.lmr(timeout_ms).write(offset, data))
    })
}

/// Sets `len` bytes from `offset` to `byte`; the region's node does it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_memset(
    region: *const fl_region,
    offset: u64,
    len: u64,
    byte: u8,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        // SAFETY: a handle that the caller vouches for.
        let region = unsafe { c::handle(region, "region")? };
        c::wait(region.lmr(timeout_ms).memset(offset, len, byte))
    })
}

/// Adds `add` to the 8 bytes at `offset` (in the byte order of the processor, wrapping) in one step; the value before goes
/// to `before`, unless that is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_fetch_add(
    region: *const fl_region,
    offset: u64,
    add: u64,
    timeout_ms: u32,
    before: *mut u64,
) -> fl_status {
    c::run(|| {
        // SAFETY: a handle that the caller vouches for.
        let region = unsafe { c::handle(region, "region")? };
        let was = c::wait(region.lmr(timeout_ms).fetch_add(offset, add))?;
        if !before.is_null() {
            // SAFETY: not null, and the caller vouches for it.
            unsafe { before.write(was) };
        }
        Ok(())
    })
}

/// Stores `swap` in the 8 bytes at `offset` if they hold `compare`, in one step; the value before goes to `before`, unless
/// that is null.
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
        // SAFETY: a handle that the caller vouches for.
        let region = unsafe { c::handle(region, "region")? };
        let was = c::wait(region.lmr(timeout_ms).compare_swap(offset, compare, swap))?;
        if !before.is_null() {
            // SAFETY: not null, and the caller vouches for it.
            unsafe { before.write(was) };
        }
        Ok(())
    })
}
