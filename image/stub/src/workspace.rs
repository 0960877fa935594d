//! The memory of the stub, which lies outside of its file.

use crate::mem;
use crate::payload::Image;
use crate::serial::{self, Part};
use handover::{BootParams, Map, Module, Screen, StartInfo, WORKSPACE_LEN, without_words_of_loaders};

/// The offset of a copy of the boot parameters. In front of it are page tables and the stack, as entry.s has
/// them.
pub(crate) const PARAMS: u64 = 0xe000;
/// The offset of a copy of the command line that the boot parameters name.
pub(crate) const PARAMS_CMDLINE: u64 = 0xf000;
/// The offset of a copy of further entries of the memory map, and the room for them.
pub(crate) const FURTHER: u64 = 0x10000;
pub(crate) const FURTHER_LEN: usize = 0x4000;
/// The offset of [`Workspace`].
const DATA: u64 = 0x14000;
/// The longest command line, with the zero at its end, in bytes.
pub(crate) const CMDLINE: usize = 4096;
/// The room for the memory map of EFI, in bytes.
pub(crate) const EFI_MAP: usize = 64 << 10;
/// The room for the code that leaves long mode, in bytes.
pub(crate) const LEAVE: usize = 512;
/// The room for the description of the loader, in bytes.
const LOADER: usize = 384;
/// The names of modules, each with a zero at its end.
const NAMES: [[u8; 12]; 6] = [
    *b"initrd\0\0\0\0\0\0",
    *b"esp\0\0\0\0\0\0\0\0\0",
    *b"esp\0\0\0\0\0\0\0\0\0",
    *b"built-in\0\0\0\0",
    *b"loader\0\0\0\0\0\0",
    *b"framebuffer\0",
];

/// The modules with settings, in the order of their precedence.
#[derive(Default)]
pub(crate) struct Settings {
    /// The loader's initial RAM disk.
    pub(crate) initrd: Option<Module>,
    /// The two files of a file system of the firmware.
    pub(crate) partition: [Option<Module>; 2],
    /// The module that is built into the boot file.
    pub(crate) built_in: Option<Module>,
}

/// The data of the stub. The kernel reads the start info, and what it refers to, before it uses any other
/// memory.
pub(crate) struct Workspace {
    pub(crate) start_info: StartInfo,
    /// The modules: those with settings, the descriptions of the loader and of the screen.
    pub(crate) modules: [Module; NAMES.len()],
    names: [[u8; 12]; NAMES.len()],
    loader: [u8; LOADER],
    loader_len: usize,
    /// The screen of pixels, zeros if there is none.
    pub(crate) screen: Screen,
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

    /// Appends to the description of the loader, for people.
    pub(crate) fn describe_loader(&mut self, parts: &[Part<'_>]) {
        serial::write(parts, &mut |byte| self.describe_by(byte));
    }

    /// Appends a byte to the description of the loader.
    pub(crate) fn describe_by(&mut self, byte: u8) {
        if let Some(place) = self.loader.get_mut(self.loader_len) {
            *place = byte;
            self.loader_len += 1;
        }
    }

    /// Appends the place and the version of the boot file, and prints the description.
    pub(crate) fn describe_file(&mut self, image: &Image) {
        self.describe_loader(&[Part::Text(", at "), Part::Hex(image.start), Part::Text(": ")]);
        self.describe_loader(&[Part::Bytes(image.version)]);
        serial::line(&[Part::Bytes(self.loader.get(..self.loader_len).unwrap_or_default())]);
    }

    /// Sets the modules. Returns their number.
    pub(crate) fn set_modules(&mut self, settings: &Settings) -> u32 {
        let Settings { initrd, partition: [config, key], built_in } = *settings;
        let loader = Module::new(self.loader.as_ptr() as u64, self.loader_len as u64);
        let screen = Module::new(&raw const self.screen as u64, size_of::<Screen>() as u64);
        let screen = self.screen.is_usable().then_some(screen);
        self.names = NAMES;
        let mut count = 0;
        for (module, name) in [initrd, config, key, built_in, Some(loader), screen].iter().zip(&self.names) {
            if let (Some(module), Some(place)) = (module, self.modules.get_mut(count)) {
                *place = module.named(name.as_ptr() as u64);
                count += 1;
            }
        }
        count as u32
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

const _: () = assert!(size_of::<Workspace>() as u64 + DATA <= WORKSPACE_LEN);

/// Returns the workspace in the memory from `at` on.
///
/// # Safety
/// The memory must be free for [`WORKSPACE_LEN`] bytes, mapped one to one, a multiple of 4096, and used for
/// nothing else as long as the stub runs.
pub(crate) unsafe fn at(at: u64) -> &'static mut Workspace {
    let place = (at + DATA) as *mut Workspace;
    // SAFETY: the caller's promise. Zeros are a value of each field, and the stack lies in front of it.
    unsafe {
        mem::clear(place.cast(), size_of::<Workspace>());
        &mut *place
    }
}
