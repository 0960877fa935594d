//! The image that the manager sends, which this machine boots in place. The other kernel gets the
//! command line of this one, the files with settings, the node's key and the screen.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bootconfig::{Source, archive};
use proto::RunningImage;
use proto::channel::enrolment::KernelDigest;
use spin::Once;
use zeroize::Zeroizing;

use super::control_link;
use crate::boot::{self, BootInfo, Framebuffer};
use crate::config;
use crate::mm;
use crate::sync::IrqMutex;
use crate::time;
use crate::warm::{Next, Passed};

/// The loader of this kernel, as the other kernel prints it.
const LOADER: &str = "the manager, from a running node";

/// Returns the digest of this kernel's code and constants. It is computed once, because nothing changes them.
pub(super) fn digest() -> KernelDigest {
    static DIGEST: Once<KernelDigest> = Once::new();
    *DIGEST.call_once(|| {
        let started = time::now();
        let digest = KernelDigest::of(mm::constant_parts());
        log::debug!("digest of this kernel: {digest}, in {} us", (time::now() - started).as_micros());
        digest
    })
}

/// The image that was loaded.
#[derive(Default)]
pub(super) struct Loader(IrqMutex<Option<Next>>);

impl runtime::Machine for Loader {
    fn load(&self, image: &[u8]) -> Result<(), String> {
        let boot = boot::info();
        let next = Next::load(image, &passed(boot), boot)?;
        *self.0.lock() = Some(next);
        Ok(())
    }

    fn image(&self) -> RunningImage {
        let kernel = digest().to_bytes();
        #[cfg(feature = "selftest")]
        let kernel = super::flaw::digest(kernel);
        RunningImage { kernel, version: env!("CARGO_PKG_VERSION").to_string() }
    }
}

impl Loader {
    /// Enters the image that was loaded.
    ///
    /// # Panics
    /// Panics if none was loaded.
    pub(super) fn boot(&self) -> ! {
        log::info!("the manager boots another image on this machine");
        let next = self.0.lock().take();
        next.expect("an image was loaded").enter()
    }
}

/// Returns the inputs of the other kernel.
fn passed(boot: &BootInfo) -> Passed {
    let mut modules = Vec::new();
    if let Ok(key) = control_link::cluster_key() {
        modules.push((None, of_file("ferrolite/key", key.to_hex().as_bytes())));
    }
    for (source, settings) in config::files() {
        let name = match source {
            Source::Partition => Some(boot::PARTITION),
            Source::BuiltIn => Some(boot::BUILT_IN),
            Source::CommandLine | Source::Initrd | Source::Dhcp => None,
        };
        modules.push((name, of_file("ferrolite/config", settings)));
    }
    modules.extend(boot.framebuffer.map(|screen| (Some(boot::FRAMEBUFFER), of_screen(screen))));
    modules.push((Some(boot::LOADER), Zeroizing::new(LOADER.as_bytes().to_vec())));
    Passed { cmdline: boot.cmdline().to_string(), modules }
}

fn of_file(name: &str, contents: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(archive(&[(name, contents)]))
}

fn of_screen(screen: Framebuffer) -> Zeroizing<Vec<u8>> {
    let Framebuffer { address, width, height, pitch, bits } = screen;
    let fields = [width, height, pitch, bits].map(u32::to_le_bytes).concat();
    Zeroizing::new([&address.to_le_bytes()[..], &fields].concat())
}
