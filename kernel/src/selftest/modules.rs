//! Tests that a module with a secret leaves no copy where the loader has put it.

use alloc::string::String;

use super::{Outcome, ensure};
use crate::{boot, config, mm};

/// Expects one module, which contains a key.
pub(super) fn run() -> Outcome {
    let modules = &boot::info().modules;
    let count = modules.iter().count();
    ensure!(count == 1, "{count} modules, not one");
    let key = config::take_key().ok_or("no key")?;
    ensure!(!key.text.is_empty(), "the key is empty");
    for module in modules.iter() {
        let (first, len) = (mm::phys_to_virt(module.start), module.len() as usize);
        ensure!(len > key.text.len(), "the module has {len} bytes");
        for at in 0..len {
            // SAFETY: the module lies in RAM, which the direct map contains, and nothing writes there.
            let byte = unsafe { first.add(at).read_volatile() };
            ensure!(byte == 0, "byte {at} of the module is {byte:#x}");
        }
    }
    Ok(String::new())
}
