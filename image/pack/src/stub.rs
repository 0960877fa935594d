//! The stub's ELF file.

use crate::{HEAD, PackError, put};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol};

/// The offset of the stub's table from its 32-bit entry, and the text in front of it.
const TABLE: usize = 0x1a0;
const TABLE_NAME: &[u8; 16] = b"Ferrolite's stub";

/// The parts of the stub. Addresses are offsets in the file that is made.
pub(crate) struct Stub<'a> {
    /// The real-mode code, for [`SETUP`](crate::header::SETUP).
    pub(crate) setup: &'a [u8],
    /// The code and constants, for [`HEAD`].
    pub(crate) code: &'a [u8],
    pub(crate) efi_entry: usize,
}

impl<'a> Stub<'a> {
    pub(crate) fn parse(file: &'a [u8]) -> Result<Self, PackError> {
        let elf = ElfFile64::<object::LittleEndian>::parse(file)
            .map_err(|_| PackError::Stub("it is no ELF file"))?;
        let section = |name| {
            let section = elf.section_by_name(name).ok_or(PackError::Stub("a section is missing"))?;
            let bytes = section.data().map_err(|_| PackError::Stub("it is cut"))?;
            Ok::<_, PackError>((section.address() as usize, bytes))
        };
        let ((setup_at, setup), (code_at, code)) = (section(".setup")?, section(".text")?);
        if setup_at != crate::header::SETUP || code_at != HEAD {
            return Err(PackError::Stub("a section is at another address"));
        }
        let entry = elf
            .symbols()
            .find(|symbol| symbol.name() == Ok("efi_start"))
            .ok_or(PackError::Stub("it has no EFI entry"))?;
        Ok(Self { setup, code, efi_entry: entry.address() as usize })
    }

    /// Fills the stub's table: the length of the image from the 32-bit entry on, and the places and
    /// lengths of the files.
    pub(crate) fn fill_table(
        &self,
        file: &mut [u8],
        image_len: usize,
        files: [(usize, usize); 4],
    ) -> Result<(), PackError> {
        let at = HEAD + TABLE;
        if file.get(at..at + TABLE_NAME.len()) != Some(TABLE_NAME) {
            return Err(PackError::Stub("its table is at another place"));
        }
        let mut numbers = (image_len as u64).to_le_bytes().to_vec();
        for (at, len) in files {
            numbers.extend(((at - HEAD) as u64).to_le_bytes());
            numbers.extend((len as u64).to_le_bytes());
        }
        put(file, at + TABLE_NAME.len(), &numbers)
    }
}
