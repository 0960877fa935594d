//! The memory of the stub, which lies outside of its file.

use handover::{BootParams, Map, Module, StartInfo, without_words_of_loaders};

/// The offset of a copy of the boot parameters. In front of it are page tables and the stack, as entry.s has
/// them.
pub(crate) const PARAMS: u64 = 0xe000;
/// The offset of a copy of the command line that the boot parameters name.
pub(crate) const PARAMS_CMDLINE: u64 = 0xf000;
/// The offset of [`Workspace`].
const DATA: u64 = 0x10000;
/// The longest command line, with the zero at its end, in bytes.
pub(crate) const CMDLINE: usize = 4096;
/// The room for the memory map of EFI, in bytes.
pub(crate) const EFI_MAP: usize = 64 << 10;
/// The room for the code that leaves long mode, in bytes.
pub(crate) const LEAVE: usize = 512;
/// The length of all of the stub's memory in bytes. `image/pack` has the same number.
pub(crate) const LEN: u64 = 0x24000;

/// The data of the stub. The kernel reads the start info, and what it refers to, before it uses any other
/// memory.
pub(crate) struct Workspace {
    pub(crate) start_info: StartInfo,
    /// The modules: the loader's and the built-in one.
    pub(crate) modules: [Module; 2],
    pub(crate) map: Map,
    pub(crate) cmdline: [u8; CMDLINE],
    pub(crate) leave: [u8; LEAVE],
    /// The memory map, as EFI returns it.
    pub(crate) efi_map: [u8; EFI_MAP],
}

impl Workspace {
    /// Makes the command line: the built-in one, and behind it the loader's, whose values count where a key
    /// is in both.
    pub(crate) fn set_cmdline(&mut self, built_in: &[u8], of_loader: &[u8]) {
        // The last byte stays zero.
        let mut places = self.cmdline.iter_mut().take(CMDLINE - 1);
        let blank: &[u8] = if built_in.is_empty() { b"" } else { b" " };
        let mut len = 0;
        for (byte, place) in built_in.iter().chain(blank).zip(places.by_ref()) {
            *place = *byte;
            len += 1;
        }
        let rest = self.cmdline.get_mut(len..CMDLINE - 1).unwrap_or_default();
        without_words_of_loaders(of_loader, rest);
    }
}

/// Returns the command line that Linux's boot parameters name.
///
/// # Safety
/// The loader must have put it there.
pub(crate) unsafe fn cmdline_of(params: &BootParams<'_>) -> &'static [u8] {
    match params.cmdline() {
        // SAFETY: the caller's promise; bytes after the end are ignored.
        Some(at) => unsafe { core::slice::from_raw_parts(at as *const u8, CMDLINE) },
        None => &[],
    }
}

const _: () = assert!(size_of::<Workspace>() as u64 + DATA <= LEN);

/// Returns the workspace in the memory from `at` on.
///
/// # Safety
/// The memory must be free for [`LEN`] bytes, mapped one to one, a multiple of 4096, and used for nothing
/// else as long as the stub runs.
pub(crate) unsafe fn at(at: u64) -> &'static mut Workspace {
    let place = (at + DATA) as *mut Workspace;
    // SAFETY: the caller's promise. Zeros are a value of each field, and the stack lies in front of it.
    unsafe {
        core::ptr::write_bytes(place, 0, 1);
        &mut *place
    }
}
