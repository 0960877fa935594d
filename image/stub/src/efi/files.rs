//! Files of the firmware's file systems.

use super::{Firmware, MAX_ADDRESS, check};
use crate::serial::Part::{Hex, Text};
use core::ffi::c_void;
use core::ptr::null_mut;
use handover::Module;
use r_efi::efi::protocols::{file, loaded_image, simple_file_system};
use r_efi::efi::{self, Handle, Status};

/// The longest name of a file, in characters.
const NAME: usize = 128;
/// The position that stands for the end of a file.
const END: u64 = u64::MAX;

/// A file that is open for reading.
pub(super) struct File {
    file: *mut file::Protocol,
    len: usize,
}

impl Firmware {
    /// Opens a file of a device. Directories in its name are separated by `/` or `\`.
    #[inline(never)]
    pub(super) fn open(&self, device: Handle, name: &[u8]) -> Result<File, Status> {
        let mut path = [0_u16; NAME + 1];
        for (place, byte) in path.iter_mut().take(NAME).zip(name) {
            *place = if *byte == b'/' { u16::from(b'\\') } else { u16::from(*byte) };
        }
        let guid = simple_file_system::PROTOCOL_GUID;
        let system = self.protocol::<simple_file_system::Protocol>(device, guid).ok_or(Status::NOT_FOUND)?;
        let (mut root, mut file): (*mut file::Protocol, *mut file::Protocol) = (null_mut(), null_mut());
        let mut len = 0;
        // SAFETY: calls of the firmware, each with what the one before has returned; the path ends with a
        // zero.
        unsafe {
            check((system.open_volume)(core::ptr::from_ref(system).cast_mut(), &raw mut root))?;
            check(((*root).open)(root, &raw mut file, path.as_mut_ptr(), file::MODE_READ, 0))?;
            check(((*file).set_position)(file, END))?;
            check(((*file).get_position)(file, &raw mut len))?;
            check(((*file).set_position)(file, 0))?;
        }
        Ok(File { file, len: len as usize })
    }

    /// Loads a file.
    #[inline(never)]
    pub(super) fn read_file(&self, file: &File) -> Option<Module> {
        let File { file, mut len } = *file;
        let memory = self.room_for(len)?;
        // SAFETY: a call of the firmware; the file is open, and the memory has that length.
        let status = unsafe { ((*file).read)(file, &raw mut len, memory) };
        self.module(status, memory, len)
    }

    /// Allocates memory for a file.
    #[inline(never)]
    pub(super) fn room_for(&self, len: usize) -> Option<*mut c_void> {
        if len == 0 {
            return None;
        }
        let memory = self.pages(efi::ALLOCATE_MAX_ADDRESS, efi::LOADER_DATA, MAX_ADDRESS, len as u64);
        memory.map(|memory| memory as *mut c_void).map_err(|status| self.refuse_file(status)).ok()
    }

    /// Returns the file that has been loaded to `memory`, if the status is success.
    #[inline(never)]
    pub(super) fn module(&self, status: Status, memory: *mut c_void, len: usize) -> Option<Module> {
        check(status).map_err(|status| self.refuse_file(status)).ok()?;
        Some(Module::new(memory as u64, len as u64))
    }

    /// Says that a file cannot be loaded.
    #[inline(never)]
    pub(super) fn refuse_file(&self, status: Status) {
        self.say(&[Text("a file of settings cannot be read: status "), Hex(status.as_usize() as u64)]);
    }

    /// Loads the settings and the key in files of the file system that the boot file comes from, or else of
    /// the first one that has such files.
    #[inline(never)]
    pub(super) fn partition(&self, own: Option<&loaded_image::Protocol>) -> [Option<Module>; 2] {
        let own = own.map_or(null_mut(), |own| own.device_handle);
        let load = |device, name: &[u8]| self.read_file(&self.open(device, name).ok()?);
        let load = |device| [load(device, b"ferrolite/config"), load(device, b"ferrolite/key")];
        let mut files = load(own);
        for device in self.file_systems() {
            if files.iter().any(Option::is_some) {
                break;
            }
            files = load(*device);
        }
        files
    }

    /// Returns the devices with file systems.
    fn file_systems(&self) -> &[Handle] {
        let mut guid = simple_file_system::PROTOCOL_GUID;
        let (mut count, mut handles) = (0, null_mut());
        // SAFETY: a call of the firmware, which allocates the list.
        let located = unsafe {
            (self.services.locate_handle_buffer)(
                efi::BY_PROTOCOL,
                &raw mut guid,
                null_mut(),
                &raw mut count,
                &raw mut handles,
            )
        };
        if check(located).is_err() {
            return &[];
        }
        // SAFETY: the list has that length, and is never freed.
        unsafe { core::slice::from_raw_parts(handles, count) }
    }
}
