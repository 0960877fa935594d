//! Modules that the loader has put into memory: archives with configuration and the cluster key, or
//! a file with the key alone.

use zeroize::Zeroize;

use super::phys_to_virt;
use crate::boot::{BootInfo, Region};

/// Calls `read` with each module of `boot`, the loader's before those of the boot stub, and overwrites the
/// module with zeros. A module outside of RAM is left out.
///
/// # Safety
/// Call once, with the final page tables, before devices can reach memory.
pub(crate) unsafe fn take_all(boot: &BootInfo, mut read: impl FnMut(Region, &[u8])) {
    for module in boot.modules.iter() {
        if !boot.ram.iter().any(|ram| ram.start <= module.start && module.end <= ram.end) {
            log::warn!("a boot module at {:?} is not in RAM, and not read", module.start);
            continue;
        }
        // SAFETY: the direct map contains all RAM, this module lies in RAM, and the frame allocator never
        // allocates memory of modules. The caller calls this once.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(phys_to_virt(module.start), module.len() as usize) };
        read(module, bytes);
        bytes.zeroize();
    }
}
