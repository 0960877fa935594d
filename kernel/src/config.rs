//! The configuration of this node: the command line, and the files in modules that the loader has passed.

use alloc::boxed::Box;
use alloc::vec::Vec;
use bootconfig::{Contents, Source};
use zeroize::Zeroizing;

use crate::boot::{BootInfo, Region};
use crate::cmdline;
use crate::mm::modules;
use crate::sync::IrqMutex;

/// The text of a cluster key, and its source.
pub(crate) struct KeyText {
    /// The text.
    pub text: Zeroizing<Vec<u8>>,
    /// The source.
    pub source: Source,
}

/// The settings of files, as long as the kernel lives.
static FILES: IrqMutex<Vec<(Source, &'static [u8])>> = IrqMutex::new(Vec::new());
static KEY: IrqMutex<Option<KeyText>> = IrqMutex::new(None);

/// Reads the command line and all modules, and overwrites the modules.
///
/// # Safety
/// Call once, with the final page tables, before devices can reach memory.
pub(crate) unsafe fn init(boot: &'static BootInfo) {
    cmdline::add_line(boot.cmdline());
    // SAFETY: the caller's promise.
    unsafe { modules::take_all(boot, |module, bytes| read(source_of(boot, module), bytes)) };
}

fn source_of(boot: &BootInfo, module: Region) -> Source {
    match Some(module) {
        module if module == boot.built_in => Source::BuiltIn,
        module if boot.partition.contains(&module) => Source::Partition,
        _ => Source::Initrd,
    }
}

/// Reads a module. The settings are copied for ever; they are no secrets.
fn read(source: Source, module: &[u8]) {
    let contents = Contents::of(module);
    if let Some(config) = contents.config {
        let config: &'static [u8] = Box::leak(Box::from(config));
        FILES.lock().push((source, config));
        cmdline::add_file(source, config);
    }
    for name in &contents.unknown {
        log::info!("{source}: the file `{name}` is ignored");
    }
    if contents.skipped > 0 {
        log::info!("{source}: {} bytes that are of no cpio archive are ignored", contents.skipped);
    }
    if let Some(text) = contents.key {
        let text = Zeroizing::new(text.to_vec());
        let mut key = KEY.lock();
        if key.as_ref().is_none_or(|old| source <= old.source) {
            *key = Some(KeyText { text, source });
        }
    }
}

/// Returns the cluster key of the modules. The first call takes it.
pub(crate) fn take_key() -> Option<KeyText> {
    KEY.lock().take()
}

/// Returns the settings of all files, each with its source.
pub(crate) fn files() -> Vec<(Source, &'static [u8])> {
    FILES.lock().clone()
}
