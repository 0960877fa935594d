//! The initial RAM disk of a loader under EFI.

use super::{Firmware, MAX_ADDRESS, check};
use crate::serial::Part::{Hex, Text};
use core::ffi::c_void;
use core::ptr::null_mut;
use handover::{Module, value_of_loader};
use r_efi::efi::protocols::{device_path, file, load_file2, loaded_image, simple_file_system};
use r_efi::efi::{self, Guid, Status};

/// The vendor of the device path under which loaders offer an initial RAM disk (Linux,
/// drivers/firmware/efi/libstub: `LINUX_EFI_INITRD_MEDIA_GUID`).
const INITRD: Guid =
    Guid::from_fields(0x5568_e427, 0x68fc, 0x4f3d, 0xac, 0x74, &[0xca, 0x55, 0x52, 0x31, 0xcc, 0x68]);
/// The longest name of a file, in characters.
const NAME: usize = 128;
/// The position that stands for the end of a file.
const END: u64 = u64::MAX;

/// The device path of the initial RAM disk: a vendor's media, and the end.
#[repr(C)]
struct InitrdPath {
    media: device_path::Protocol,
    vendor: Guid,
    end: device_path::Protocol,
}

impl Firmware {
    /// Loads the initial RAM disk that the loader offers by the protocol `LoadFile2`.
    pub(super) fn offered_initrd(&self) -> Option<Module> {
        let node =
            |r#type, sub_type, length: u8| device_path::Protocol { r#type, sub_type, length: [length, 0] };
        let path = InitrdPath {
            media: node(device_path::TYPE_MEDIA, device_path::Media::SUBTYPE_VENDOR, 20),
            vendor: INITRD,
            end: node(device_path::TYPE_END, device_path::End::SUBTYPE_ENTIRE, 4),
        };
        let mut guid = load_file2::PROTOCOL_GUID;
        let (mut at, mut device) = ((&raw const path).cast_mut().cast(), null_mut());
        // SAFETY: a call of the firmware; the path ends with its end.
        check(unsafe { (self.services.locate_device_path)(&raw mut guid, &raw mut at, &raw mut device) })
            .ok()?;
        let file = self.protocol::<load_file2::Protocol>(device, load_file2::PROTOCOL_GUID)?;
        let file = core::ptr::from_ref(file).cast_mut();
        let mut len = 0_usize;
        // SAFETY: a call of the loader. Without a buffer it tells the length.
        let _ = unsafe { ((*file).load_file)(file, at, efi::Boolean::FALSE, &raw mut len, null_mut()) };
        self.read_module(len, |len, into| {
            // SAFETY: a call of the loader; the buffer has that length.
            unsafe { ((*file).load_file)(file, at, efi::Boolean::FALSE, len, into) }
        })
    }

    /// Loads the initial RAM disk whose file a word `initrd=` of the command line names, from the device that
    /// the boot file comes from: old versions of iPXE, and EFI's shell, pass it like that.
    pub(super) fn named_initrd(&self, own: Option<&loaded_image::Protocol>, line: &[u8]) -> Option<Module> {
        let (own, name) = (own?, value_of_loader(line, b"initrd")?);
        let mut path = [0_u16; NAME + 1];
        for (place, byte) in path.iter_mut().take(NAME).zip(name) {
            *place = if *byte == b'/' { u16::from(b'\\') } else { u16::from(*byte) };
        }
        let guid = simple_file_system::PROTOCOL_GUID;
        let system = self.protocol::<simple_file_system::Protocol>(own.device_handle, guid)?;
        let (mut root, mut file): (*mut file::Protocol, *mut file::Protocol) = (null_mut(), null_mut());
        let mut len = 0;
        // SAFETY: calls of the firmware, each with what the one before has returned; the path ends with a
        // zero.
        let opened = unsafe {
            check((system.open_volume)(core::ptr::from_ref(system).cast_mut(), &raw mut root))
                .and_then(|()| {
                    check(((*root).open)(root, &raw mut file, path.as_mut_ptr(), file::MODE_READ, 0))
                })
                .and_then(|()| check(((*file).set_position)(file, END)))
                .and_then(|()| check(((*file).get_position)(file, &raw mut len)))
                .and_then(|()| check(((*file).set_position)(file, 0)))
        };
        if let Err(status) = opened {
            self.refuse_initrd(status);
            return None;
        }
        self.read_module(len as usize, |len, into| {
            // SAFETY: a call of the firmware; the buffer has that length.
            unsafe { ((*file).read)(file, len, into) }
        })
    }

    /// Returns the module of `len` bytes that `read` writes to memory.
    fn read_module(
        &self,
        mut len: usize,
        read: impl FnOnce(&mut usize, *mut c_void) -> Status,
    ) -> Option<Module> {
        if len == 0 {
            return None;
        }
        let done = self
            .pages(efi::ALLOCATE_MAX_ADDRESS, efi::LOADER_DATA, MAX_ADDRESS, len as u64)
            .and_then(|memory| check(read(&mut len, memory as *mut c_void)).map(|()| memory));
        match done {
            Ok(memory) => Some(Module::new(memory, len as u64)),
            Err(status) => {
                self.refuse_initrd(status);
                None
            }
        }
    }

    fn refuse_initrd(&self, status: Status) {
        self.say(&[Text("the initial RAM disk cannot be read: status "), Hex(status.as_usize() as u64)]);
    }
}
