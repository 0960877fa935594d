//! The setup header of Linux's boot protocol, version 2.15.

use crate::stub::Stub;
use crate::{BLOCK, HEAD, PackError, put};

/// The offset of the real-mode code, where the header ends.
pub(crate) const SETUP: usize = 0x270;
/// The offset of the kernel's version, a text for people.
const VERSION: usize = 0x800;
/// The address from which loaders load the protected-mode part, if they load to a fixed one.
const LOAD: u32 = 0x10_0000;
/// The address that other loaders prefer.
const PREFERRED: u64 = 0x100_0000;
/// The alignment at which other loaders load.
const ALIGN: u32 = 0x20_0000;

/// The bits of `xloadflags`: a 64-bit entry; kernel, boot parameters and command line may be above 4 GiB; the
/// 64-bit handover entry of EFI; 5-level paging is known and may be on.
const XLOADFLAGS: u16 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 6;

/// Writes the header and the real-mode code. `init_len` is the length of the memory that the image needs from
/// its load address on, in bytes; `version` is a text for people, which `file` prints.
pub(crate) fn write(
    file: &mut [u8],
    stub: &Stub<'_>,
    init_len: usize,
    version: &str,
) -> Result<(), PackError> {
    let body = u32::try_from(file.len() - HEAD).map_err(|_| PackError::TooLarge(file.len()))?;
    let init = u32::try_from(init_len).map_err(|_| PackError::TooLarge(file.len()))?;
    let blocks = (HEAD / BLOCK - 1) as u8;
    // The first word is the version.
    let version = format!("{version}\0");
    if VERSION + version.len() > HEAD {
        return Err(PackError::VersionTooLong);
    }
    let fields: [(usize, &[u8]); 22] = [
        (0x1f1, &[blocks]),                                 // setup_sects
        (0x1f4, &body.div_ceil(16).to_le_bytes()),          // syssize, in paragraphs
        (0x1fa, &0xffff_u16.to_le_bytes()),                 // vid_mode: normal
        (0x1fe, &0xaa55_u16.to_le_bytes()),                 // boot_flag
        (0x200, &[0xeb, (SETUP - 0x202) as u8]),            // a jump to the real-mode code
        (0x202, b"HdrS"),                                   // header
        (0x206, &0x20f_u16.to_le_bytes()),                  // version of the protocol
        (0x20e, &((VERSION - 0x200) as u16).to_le_bytes()), // kernel_version
        (0x211, &[1]),                                      // loadflags: LOADED_HIGH
        (0x214, &LOAD.to_le_bytes()),                       // code32_start
        (0x224, &0x8e00_u16.to_le_bytes()),                 // heap_end_ptr
        (0x22c, &0x7fff_ffff_u32.to_le_bytes()),            // initrd_addr_max
        (0x230, &ALIGN.to_le_bytes()),                      // kernel_alignment
        (0x234, &[1]),                                      // relocatable_kernel
        (0x235, &[ALIGN.trailing_zeros() as u8]),           // min_alignment
        (0x236, &XLOADFLAGS.to_le_bytes()),                 // xloadflags
        (0x238, &4095_u32.to_le_bytes()),                   // cmdline_size
        (0x258, &PREFERRED.to_le_bytes()),                  // pref_address
        (0x260, &init.to_le_bytes()),                       // init_size
        (0x264, &0x100_u32.to_le_bytes()),                  // handover_offset: 0x300 of the code, less 0x200
        (SETUP, stub.setup),
        (VERSION, version.as_bytes()),
    ];
    fields.into_iter().try_for_each(|(at, bytes)| put(file, at, bytes))
}
