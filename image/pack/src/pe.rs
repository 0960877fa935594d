//! The headers of a PE32+ file, as firmware wants them.

use crate::{BLOCK, HEAD, PAGE, PackError, put};

/// The offset of the PE header.
const AT: usize = 0x40;
/// The offset at which Linux's setup header begins.
const END: usize = 0x1f1;
/// The length of the optional header, in bytes, with six data directories.
const OPTIONAL: u16 = 160;
/// The characteristics of sections.
const CODE: u32 = 0x6000_0020;
const READ_ONLY: u32 = 0x4000_0040;
const RELOCATIONS: u32 = 0x4200_0040;
/// The length of a table of base relocations without entries.
const RELOCATIONS_LEN: u32 = 12;

/// The places of the parts, as offsets in the file.
pub(crate) struct Layout {
    pub(crate) entry: usize,
    /// The end of the code and of all files, where the description for shim begins; the relocations follow
    /// it. In memory both begin at a page.
    pub(crate) end: usize,
    /// The length of the description.
    pub(crate) sbat: usize,
}

impl Layout {
    const fn sbat_rva(&self) -> usize {
        self.end.next_multiple_of(PAGE)
    }

    /// Returns the offset of the table of base relocations.
    const fn relocations(&self) -> usize {
        self.end + self.sbat.next_multiple_of(BLOCK)
    }

    const fn relocations_rva(&self) -> usize {
        self.sbat_rva() + self.sbat.next_multiple_of(PAGE)
    }

    /// Returns the length of the file.
    pub(crate) const fn file_len(&self) -> usize {
        self.relocations() + BLOCK
    }

    /// Returns the length in memory.
    pub(crate) const fn image_len(&self) -> usize {
        self.relocations_rva() + PAGE
    }
}

/// Bytes of a header, field by field.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u16(&mut self, values: &[u16]) {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
    }

    fn u32(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
    }

    fn u64(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
    }

    /// Adds a section header.
    fn section(&mut self, name: &[u8; 8], [len, rva, file_len, at]: [usize; 4], characteristics: u32) {
        self.0.extend_from_slice(name);
        self.u32(&[len as u32, rva as u32, file_len as u32, at as u32, 0, 0, 0, characteristics]);
    }
}

/// Writes the headers.
pub(crate) fn write(file: &mut [u8], layout: &Layout) -> Result<(), PackError> {
    let Layout { entry, end, sbat, .. } = *layout;
    let (relocations, relocations_rva) = (layout.relocations(), layout.relocations_rva());
    let mut f = Fields::default();
    f.0.extend_from_slice(b"PE\0\0");
    f.u16(&[0x8664, 3]); // x86-64, three sections
    f.u32(&[0, 0, 0]);
    f.u16(&[OPTIONAL, 0x0206]); // executable, without line numbers and local symbols
    f.u16(&[0x020b, 0]); // PE32+
    f.u32(&[(end - HEAD) as u32, (relocations + BLOCK - end) as u32, 0, entry as u32, HEAD as u32]);
    f.u64(&[0]); // linked for address 0
    f.u32(&[PAGE as u32, BLOCK as u32]);
    f.u16(&[0, 0, 1, 0, 0, 0]); // image version 1.0: GRUB passes an initial RAM disk by LoadFile2 then
    f.u32(&[0, layout.image_len() as u32, HEAD as u32, 0]);
    f.u16(&[10, 0x0100]); // an EFI application that works with memory that is not executable
    f.u64(&[0, 0, 0, 0]);
    f.u32(&[0, 6]);
    f.u32(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, relocations_rva as u32, RELOCATIONS_LEN]);
    // The kernel's file is behind the code, which reads it: nothing is writable.
    f.section(b".text\0\0\0", [end - HEAD, HEAD, end - HEAD, HEAD], CODE);
    f.section(b".sbat\0\0\0", [sbat, layout.sbat_rva(), sbat.next_multiple_of(BLOCK), end], READ_ONLY);
    f.section(b".reloc\0\0", [RELOCATIONS_LEN as usize, relocations_rva, BLOCK, relocations], RELOCATIONS);
    if AT + f.0.len() > END {
        return Err(PackError::Stub("the PE headers do not fit"));
    }
    put(file, 0, b"MZ")?;
    put(file, 0x3c, &(AT as u32).to_le_bytes())?;
    put(file, relocations + 4, &RELOCATIONS_LEN.to_le_bytes())?;
    put(file, AT, &f.0)
}
