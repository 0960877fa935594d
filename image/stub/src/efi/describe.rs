//! The description of what has started the stub under EFI.

use super::{Firmware, check};
use crate::serial::Part::{Hex, Text};
use crate::workspace::Workspace;
use core::ptr::null_mut;
use r_efi::efi::Guid;
use r_efi::efi::protocols::{device_path, loaded_image};

/// The vendor of the variables of systemd-boot (Boot Loader Interface, systemd.io/BOOT_LOADER_INTERFACE).
const LOADER_INTERFACE: Guid =
    Guid::from_fields(0x4a67_b082, 0x0a4c, 0x41cf, 0xb6, 0xc7, &[0x44, 0x0b, 0x29, 0xbb, 0x8c, 0x4f]);
/// A protocol that only iPXE has (`IPXE_DOWNLOAD_PROTOCOL_GUID`).
const IPXE: Guid =
    Guid::from_fields(0x3eae_aebd, 0xdecf, 0x493b, 0x9b, 0xd1, &[0xcd, 0xb2, 0xde, 0xca, 0xe7, 0x19]);
/// A protocol that only shim has (`SHIM_LOCK_GUID`).
const SHIM: Guid =
    Guid::from_fields(0x605d_ab50, 0xe046, 0x4300, 0xab, 0xb6, &[0x3d, 0xd8, 0x10, 0xdd, 0x8b, 0x23]);
/// The longest text of firmware or of a variable, in characters.
const LONGEST: usize = 48;
/// The most nodes of a device path.
const NODES: usize = 32;

impl Firmware {
    /// Describes the firmware, the device that the boot file comes from, and the loaders that leave traces.
    pub(super) fn describe(
        &self,
        own: Option<&loaded_image::Protocol>,
        is_handover: bool,
        workspace: &mut Workspace,
    ) {
        describe_text(self.table.firmware_vendor, workspace);
        workspace.describe_loader(&[
            Text(" ("),
            Hex(u64::from(self.table.firmware_revision)),
            Text(if is_handover { "), UEFI handover from " } else { "), UEFI application from " }),
            Text(own.map_or("an unknown device", |own| self.device(own))),
        ]);
        self.describe_variable("LoaderInfo", workspace);
        self.describe_variable("StubInfo", workspace);
        self.describe_protocol(SHIM, ", shim", workspace);
        self.describe_protocol(IPXE, ", iPXE", workspace);
    }

    /// Returns the kind of device that a program comes from (UEFI specification, chapter 10).
    fn device(&self, own: &loaded_image::Protocol) -> &'static str {
        let path = self.protocol(own.device_handle, device_path::PROTOCOL_GUID);
        let mut node: *const device_path::Protocol = match path {
            Some(path) => path,
            None => return "memory",
        };
        for _ in 0..NODES {
            // SAFETY: a device path is a sequence of nodes up to its end, and a node tells its length.
            let here = unsafe { node.read_unaligned() };
            match (here.r#type, here.sub_type) {
                (4, 1) => return "a disk",
                (4, 2) => return "a CD",
                (3, 11..=13 | 24) => return "a network",
                (0x7f, _) => break,
                _ => {}
            }
            // SAFETY: as above.
            node = unsafe { node.byte_add(u16::from_le_bytes(here.length).max(4).into()) };
        }
        "another device"
    }

    /// Appends the text of a variable of systemd-boot, if there is one.
    #[inline(never)]
    fn describe_variable(&self, name: &str, workspace: &mut Workspace) {
        let mut text = [0_u16; LONGEST + 1];
        let mut characters = [0_u16; 16];
        characters.iter_mut().zip(name.bytes()).for_each(|(place, byte)| *place = byte.into());
        let (mut guid, mut len) = (LOADER_INTERFACE, LONGEST * 2);
        // SAFETY: a call of the firmware; the name ends with a zero, and the buffer has that length.
        let read = unsafe {
            ((*self.table.runtime_services).get_variable)(
                characters.as_mut_ptr(),
                &raw mut guid,
                null_mut(),
                &raw mut len,
                text.as_mut_ptr().cast(),
            )
        };
        if check(read).is_ok() {
            b", ".iter().for_each(|byte| workspace.describe_by(*byte));
            describe_text(text.as_ptr(), workspace);
        }
    }

    /// Appends the name of a loader, if its protocol is there.
    #[inline(never)]
    fn describe_protocol(&self, mut guid: Guid, name: &str, workspace: &mut Workspace) {
        let mut at = null_mut();
        // SAFETY: a call of the firmware.
        let located = unsafe { (self.services.locate_protocol)(&raw mut guid, null_mut(), &raw mut at) };
        if check(located).is_ok() {
            workspace.describe_loader(&[Text(name)]);
        }
    }
}

/// Appends a text of UTF-16 that ends with a zero.
fn describe_text(text: *const u16, workspace: &mut Workspace) {
    if text.is_null() {
        return;
    }
    for index in 0..LONGEST {
        // SAFETY: the text ends with a zero, which is not passed.
        let character = unsafe { text.add(index).read_unaligned() };
        match u8::try_from(character) {
            Ok(0) => return,
            Ok(byte @ b' '..=b'~') => workspace.describe_by(byte),
            _ => workspace.describe_by(b'?'),
        }
    }
}
