//! Boot files. The functions of this crate read and write no files: they turn bytes into bytes, and
//! the same input always results in the same output. [`universal`] puts the stub (`image/stub`) in
//! front of the kernel's ELF file: the result is a Linux kernel image and an EFI application at
//! once. [`without_symbols`] cuts the kernel's own file. [`Iso`], [`disk()`] and [`with_sections`]
//! make media of it.
//!
//! ```text
//! 0        MZ and PE headers; from 0x1f1 Linux's setup header; from 0x270 its real-mode code
//! 0x1000   the stub              RVA 0x1000; loaded at `code32_start` by Linux's loaders
//!          the kernel's ELF file
//!          the built-in command line and module
//!          a description for shim (SBAT), and a base relocation table without entries, which firmware wants
//! ```
//!
//! In memory all offsets are as in the file. Sources: Documentation/arch/x86/boot.rst of Linux, and the PE
//! format of Microsoft.
#![forbid(unsafe_code)]

mod disk;
mod fat;
mod header;
mod iso;
mod pe;
mod stub;
mod uki;

pub use disk::disk;
pub use fat::{Fat, fat};
pub use iso::Iso;
pub use uki::with_sections;

use handover::{ElfError, Kernel, WORKSPACE_LEN};
use stub::Stub;

/// The length of everything in front of the stub's code, in bytes: one page.
const HEAD: usize = 0x1000;
/// The alignment of parts in memory, in bytes.
const PAGE: usize = 4096;
/// The alignment of the kernel's file, in bytes.
const WORD: usize = 8;
/// The alignment of parts in the file, in bytes.
const BLOCK: usize = 512;
/// The description for shim: the name and the generation of the program, which a list of revoked generations
/// names (github.com/rhboot/shim, SBAT.md).
const SBAT: &str = concat!(
    "sbat,1,SBAT Version,sbat,1,https://github.com/rhboot/shim/blob/main/SBAT.md\n",
    "ferrolite,1,Ferrolite,ferrolite,",
    env!("CARGO_PKG_VERSION"),
    ",none\n"
);
/// The longest built-in command line, in bytes.
const LONGEST_CMDLINE: usize = 2000;

/// The reason for which no file can be made.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The kernel's file is no kernel.
    #[error("the kernel cannot be packed: {0}")]
    Kernel(&'static str),
    /// The stub's file is not what `image/stub` links.
    #[error("the boot stub cannot be packed: {0}")]
    Stub(&'static str),
    /// The text of the version is too long.
    #[error("the text of the version is too long")]
    VersionTooLong,
    /// The built-in command line is too long.
    #[error("the command line has more than {LONGEST_CMDLINE} bytes")]
    CmdlineTooLong,
    /// A file's name is not one of FAT.
    #[error("`{0}` is no name of eight capital letters or digits, a dot, and three further ones")]
    Name(String),
    /// A partition table cannot be made.
    #[error("no partition table: {0}")]
    Partitions(String),
    /// A part does not fit in its place.
    #[error("a part of the boot file does not fit in its place")]
    NoRoom,
    /// The file is longer than the boot protocol of Linux, or the medium, allows.
    #[error("the boot file is too large: {0} bytes")]
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
    /// The content of a boot module: a cpio archive with the configuration and the cluster key, or the bare
    /// key.
    pub module: &'a [u8],
    /// The version, the commit and the configuration of the build, for people.
    pub version: &'a str,
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
    let kernel_at = file.len().next_multiple_of(WORD);
    file.resize(kernel_at, 0);
    file.extend_from_slice(&kernel);
    let cmdline_at = file.len();
    file.extend_from_slice(built_in.cmdline.as_bytes());
    let version_at = file.len();
    file.extend_from_slice(built_in.version.as_bytes());
    // The kernel takes and wipes whole pages of a module.
    let module_at = file.len().next_multiple_of(if built_in.module.is_empty() { BLOCK } else { PAGE });
    file.resize(module_at, 0);
    file.extend_from_slice(built_in.module);
    let end = file.len().next_multiple_of(BLOCK);
    file.resize(end, 0);
    file.extend_from_slice(SBAT.as_bytes());
    let layout = pe::Layout { entry: stub.efi_entry, end, sbat: SBAT.len() };
    file.resize(layout.file_len(), 0);
    // The workspace begins at a page behind everything that a loader puts into memory.
    let image_len = layout.image_len() - HEAD;
    u32::try_from(image_len).map_err(|_| PackError::TooLarge(kernel.len()))?;
    let files = [
        (kernel_at, kernel.len()),
        (cmdline_at, built_in.cmdline.len()),
        (module_at, built_in.module.len()),
        (version_at, built_in.version.len()),
    ];
    stub.fill_table(&mut file, image_len, files)?;
    pe::write(&mut file, &layout)?;
    header::write(&mut file, &stub, image_len + WORKSPACE_LEN as usize, built_in.version)?;
    Ok(file)
}

/// Copies `bytes` to `at` of `file`.
fn put(file: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), PackError> {
    let place = file.get_mut(at..at + bytes.len()).ok_or(PackError::NoRoom)?;
    place.copy_from_slice(bytes);
    Ok(())
}
