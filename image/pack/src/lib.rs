//! Boot files. [`universal`] puts the stub (`image/stub`) in front of the kernel's ELF file: the result is a
//! Linux kernel image and an EFI application at once. [`without_symbols`] cuts the kernel's own file.
//!
//! ```text
//! 0        MZ and PE headers; from 0x1f1 Linux's setup header; from 0x270 its real-mode code
//! 0x1000   the stub's code       RVA 0x1000; loaded at `code32_start` by Linux's loaders
//!          the stub's data
//!          the kernel's ELF file
//!          a base relocation table without entries, which firmware wants
//! ```
//!
//! In memory all offsets are as in the file. Sources: Documentation/arch/x86/boot.rst of Linux, and the PE
//! format of Microsoft.
#![forbid(unsafe_code)]

mod header;
mod pe;
mod stub;

use handover::{ElfError, Kernel};
use stub::Stub;

/// The length of everything in front of the stub's code, in bytes: one page.
const HEAD: usize = 0x1000;
/// The alignment of parts in memory, in bytes.
const PAGE: usize = 4096;
/// The alignment of parts in the file, in bytes.
const BLOCK: usize = 512;
/// The longest built-in command line, in bytes.
const LONGEST_CMDLINE: usize = 2000;
/// The length of the stub's memory behind the image, as `image/stub/src/workspace.rs` has it.
const WORKSPACE: usize = 0x24000;

/// The reason for which no file can be made.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The kernel's file is no kernel.
    #[error("the kernel cannot be packed: {0}")]
    Kernel(&'static str),
    /// The stub's file is not what `image/stub` links.
    #[error("the boot stub cannot be packed: {0}")]
    Stub(&'static str),
    /// The built-in command line is too long.
    #[error("the command line has more than {LONGEST_CMDLINE} bytes")]
    CmdlineTooLong,
    /// The file is longer than the boot protocol of Linux allows.
    #[error("the kernel is too large: {0} bytes")]
    TooLarge(usize),
}

impl From<ElfError> for PackError {
    fn from(error: ElfError) -> Self {
        Self::Kernel(error.text())
    }
}

/// Returns the kernel's file without symbols and debugging information.
///
/// # Errors
/// If the file is no kernel with an entry of PVH.
pub fn without_symbols(kernel: &[u8]) -> Result<Vec<u8>, PackError> {
    /// The offsets of the section headers' place, and of their number and the index of their names.
    const SECTIONS: [std::ops::Range<usize>; 2] = [40..48, 60..64];
    let len = Kernel::parse(kernel)?.loaded_len();
    let mut cut = kernel.get(..len).unwrap_or_default().to_vec();
    for range in SECTIONS {
        cut.get_mut(range).ok_or(ElfError::NotElf)?.fill(0);
    }
    Kernel::parse(&cut)?;
    Ok(cut)
}

/// The configuration that is built into a file. The default is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltIn<'a> {
    /// The first part of the kernel's command line: words `key=value`. The loader's words follow, and count
    /// where a key is in both.
    pub cmdline: &'a str,
    /// The content of a boot module, such as the cluster key.
    pub module: &'a [u8],
}

/// Returns a file that every loader of Linux kernels, and EFI, starts: `stub` and `kernel` are the
/// ELF files of the two.
///
/// # Errors
/// If one of the files is not what is expected, or the command line is too long.
pub fn universal(stub: &[u8], kernel: &[u8], built_in: BuiltIn<'_>) -> Result<Vec<u8>, PackError> {
    if built_in.cmdline.len() > LONGEST_CMDLINE {
        return Err(PackError::CmdlineTooLong);
    }
    let (stub, kernel) = (Stub::parse(stub)?, without_symbols(kernel)?);
    let mut file = vec![0; HEAD];
    file.extend_from_slice(stub.code);
    file.resize(stub.data_at, 0);
    file.extend_from_slice(stub.data);
    let kernel_at = file.len().next_multiple_of(PAGE);
    file.resize(kernel_at, 0);
    file.extend_from_slice(&kernel);
    let cmdline_at = file.len();
    file.extend_from_slice(built_in.cmdline.as_bytes());
    // The kernel takes and wipes whole pages of a module.
    let module_at = file.len().next_multiple_of(if built_in.module.is_empty() { BLOCK } else { PAGE });
    file.resize(module_at, 0);
    file.extend_from_slice(built_in.module);
    let relocations_at = file.len().next_multiple_of(BLOCK);
    let relocations_rva = relocations_at.next_multiple_of(PAGE);
    file.resize(relocations_at + BLOCK, 0);
    // The workspace begins at a page behind everything that a loader puts into memory.
    let image_len = relocations_rva + PAGE - HEAD;
    let word = |n: usize| u32::try_from(n).map_err(|_| PackError::TooLarge(kernel.len()));
    word(image_len)?;
    let files =
        [(kernel_at, kernel.len()), (cmdline_at, built_in.cmdline.len()), (module_at, built_in.module.len())];
    stub.fill_table(&mut file, image_len, files)?;
    let layout = pe::Layout {
        entry: stub.efi_entry,
        data: stub.data_at,
        kernel: kernel_at,
        relocations: relocations_at,
        relocations_rva,
    };
    pe::write(&mut file, &layout)?;
    header::write(&mut file, &stub, image_len + WORKSPACE)?;
    Ok(file)
}

/// Copies `bytes` to `at` of `file`.
fn put(file: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), PackError> {
    let place = file.get_mut(at..at + bytes.len()).ok_or(PackError::Stub("a header does not fit"))?;
    place.copy_from_slice(bytes);
    Ok(())
}
