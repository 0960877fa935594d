//! Modules that the loader has brought into memory: on an appliance a file with the cluster key, as an initrd.

use zeroize::Zeroize;

use super::{Region, regions::Regions};
use crate::mm;

/// A module that is longer holds something else than a secret of ours.
const LONGEST: u64 = 4096;

/// The modules of the loader, which lie in RAM that nothing else uses.
pub struct Modules {
    ram: &'static Regions,
    modules: &'static Regions,
}

impl Modules {
    /// Those of `boot`.
    pub fn of(boot: &'static super::BootInfo) -> Self {
        Self { ram: &boot.ram, modules: &boot.modules }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.modules.iter().count()
    }

    /// What `take` makes of the first short module that it makes something of. That module is overwritten with zeros: it is
    /// a secret.
    pub fn take<T>(&self, mut take: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let short = self.modules.iter().filter(|module| module.len() <= LONGEST && self.is_mapped(module));
        for module in short {
            let at = mm::phys_to_virt(module.start);
            // SAFETY: the direct map shows all RAM, this module lies in RAM, and the frame allocator hands out nothing of
            // modules. The caller has a `Modules`, of which one is made at a time, in the one task that starts the node.
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
