//! Maps the stacks of processors.

use x86_64::VirtAddr;

use super::{frames, paging};
use crate::arch::stacks::{Kind, Stack};

/// Maps all stacks of processor `cpu`, in memory near the NUMA node `node`.
///
/// # Errors
/// Fails if there is not enough memory.
pub(crate) fn map_all(cpu: u32, node: usize) -> Result<(), paging::MapError> {
    Kind::ALL.iter().try_for_each(|kind| map(Stack { cpu, kind: *kind }, node))
}

fn map(stack: Stack, node: usize) -> Result<(), paging::MapError> {
    let bytes = stack.kind.bytes();
    let run = frames::alloc_on(node, bytes).ok_or(paging::MapError::OutOfMemory)?;
    paging::map(VirtAddr::new_truncate(stack.bottom()), run, bytes, paging::Rights::Data)
}
