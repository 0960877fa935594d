//! Modules that the loader has put into memory: on an appliance, a file with the cluster key, passed as an
//! initrd.

use zeroize::Zeroize;

use super::phys_to_virt;
use crate::boot::regions::Regions;
use crate::boot::{BootInfo, RamMap, Region};

/// The longest module that is read. A longer one is not a secret of Ferrolite.
const LONGEST: u64 = 4096;

/// The loader's modules, which lie in RAM that nothing else uses.
pub(crate) struct Modules {
    ram: &'static RamMap,
    modules: &'static Regions,
}

impl Modules {
    /// Returns the modules of `boot`.
    pub(crate) fn of(boot: &'static BootInfo) -> Self {
        Self { ram: &boot.ram, modules: &boot.modules }
    }

    /// Returns the number of modules.
    pub(crate) fn count(&self) -> usize {
        self.modules.iter().count()
    }

    /// Calls `take` with the short modules, one after the other, until it returns a value; returns that
    /// value. The module is a secret, and is overwritten with zeros.
    pub(crate) fn take<T>(&self, mut take: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let short = self.modules.iter().filter(|module| module.len() <= LONGEST && self.is_mapped(module));
        for module in short {
            let at = phys_to_virt(module.start);
            // SAFETY: the direct map contains all RAM, this module lies in RAM, and the frame allocator never
            // allocates memory of modules. The caller has a `Modules`, of which only one exists at a time, in
            // the task that starts the node.
            let bytes = unsafe { core::slice::from_raw_parts_mut(at, module.len() as usize) };
            if let Some(taken) = take(bytes) {
                bytes.zeroize();
                return Some(taken);
            }
        }
        None
    }

    fn is_mapped(&self, module: &Region) -> bool {
        self.ram.iter().any(|ram| ram.start <= module.start && module.end <= ram.end)
    }
}
