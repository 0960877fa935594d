//! The initial RAM disk of a loader under EFI.

use super::{Firmware, check};
use core::ptr::null_mut;
use handover::{Module, value_of_loader};
use r_efi::efi::protocols::{device_path, load_file2, loaded_image};
use r_efi::efi::{self, Guid};

/// The vendor of the device path under which loaders offer an initial RAM disk (Linux,
/// drivers/firmware/efi/libstub: `LINUX_EFI_INITRD_MEDIA_GUID`).
const INITRD: Guid =
    Guid::from_fields(0x5568_e427, 0x68fc, 0x4f3d, 0xac, 0x74, &[0xca, 0x55, 0x52, 0x31, 0xcc, 0x68]);

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
        let memory = self.room_for(len)?;
        // SAFETY: a call of the loader; the memory has that length.
        let status = unsafe { ((*file).load_file)(file, at, efi::Boolean::FALSE, &raw mut len, memory) };
        self.module(status, memory, len)
    }

    /// Loads the initial RAM disk whose file a word `initrd=` of the command line names, from the device that
    /// the boot file comes from: old versions of iPXE, and EFI's shell, pass it like that.
    pub(super) fn named_initrd(&self, own: Option<&loaded_image::Protocol>, line: &[u8]) -> Option<Module> {
        let (own, name) = (own?, value_of_loader(line, b"initrd")?);
        let file = self.open(own.device_handle, name).map_err(|status| self.refuse_file(status)).ok()?;
        self.read_file(&file)
    }
}
