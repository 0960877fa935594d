//! The names of loaders.

/// Returns the name of the loader with this type (`type_of_loader` of Linux's boot protocol). Its upper four
/// bits are the loader, the lower ones a version. Loaders that nobody uses any more have no name.
#[must_use]
pub const fn name_of_loader(kind: u8) -> &'static str {
    match kind {
        0xff => "an unregistered loader",
        _ => match kind >> 4 {
            0x0 => "LILO",
            0x3 => "Syslinux",
            0x4 => "iPXE",
            0x7 => "GRUB",
            0x8 => "U-Boot",
            0x9 => "Xen",
            0xb => "QEMU",
            0xd => "kexec",
            _ => "an unknown loader",
        },
    }
}
