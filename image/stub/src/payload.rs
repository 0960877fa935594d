//! The stub's own place in memory, and the files behind it: the kernel, and a built-in command line and
//! module.

use crate::mem::{self, address_of};
use crate::{halt, serial};
use handover::{Kernel, Module};

/// The offset of the table that `image/pack` fills, from the 32-bit entry.
const TABLE: u64 = 0x1a0 + 16;

/// The image in memory: the stub, and the files.
pub(crate) struct Image {
    /// The address of the 32-bit entry.
    pub(crate) start: u64,
    /// The length from there to the workspace, in bytes: a multiple of 4096.
    pub(crate) len: u64,
    kernel: &'static [u8],
    /// The built-in part of the command line.
    pub(crate) cmdline: &'static [u8],
    module: &'static [u8],
    /// The version of the boot file, for people.
    pub(crate) version: &'static [u8],
}

impl Image {
    /// Returns the image that this program is a part of.
    pub(crate) fn own() -> Self {
        let start = address_of!("head32") as u64;
        let word = |index: u64| {
            // SAFETY: the table lies within the first page of the stub, and consists of nine numbers.
            unsafe { ((start + TABLE + 8 * index) as *const u64).read_unaligned() }
        };
        let file = |index| {
            // SAFETY: the packer has put the file there, and the loader has loaded all of the image. Nothing
            // changes it: a moved image is used only at its new place.
            unsafe {
                core::slice::from_raw_parts((start + word(index)) as *const u8, word(index + 1) as usize)
            }
        };
        Self { start, len: word(0), kernel: file(1), cmdline: file(3), module: file(5), version: file(7) }
    }

    /// Returns the kernel. The packer has checked its file.
    pub(crate) fn kernel(&self) -> Kernel<'static> {
        let Ok(kernel) = Kernel::parse(self.kernel) else {
            serial::text("the kernel's file is damaged");
            halt()
        };
        kernel
    }

    /// Returns the built-in module, if there is one.
    pub(crate) fn module(&self) -> Option<Module> {
        let (at, len) = (self.module.as_ptr() as u64, self.module.len() as u64);
        (len > 0).then(|| Module::new(at, len))
    }
}

/// Copies the kernel's segments to `distance` bytes above their addresses.
///
/// # Safety
/// That memory must be free RAM that is mapped one to one.
pub(crate) unsafe fn load(kernel: &Kernel<'_>, distance: u32) {
    for segment in kernel.segments() {
        let to = (segment.at + u64::from(distance)) as *mut u8;
        // SAFETY: the caller's promise. The file lies elsewhere.
        unsafe {
            mem::copy(segment.bytes.as_ptr(), to, segment.bytes.len());
            mem::clear(to.add(segment.bytes.len()), segment.zeros as usize);
        }
    }
}
