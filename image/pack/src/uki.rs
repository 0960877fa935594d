//! Unified kernel images: the stub of systemd with files in sections (Unified Kernel Image Specification,
//! uapi-group.org).

use crate::PackError;

/// The offset of the PE header's offset, and offsets in the PE header.
const PE_AT: usize = 0x3c;
const SECTIONS: usize = 6;
const OPTIONAL_LEN: usize = 20;
/// The offsets of fields of the optional header, from the PE header on.
const SECTION_ALIGNMENT: usize = 24 + 32;
const FILE_ALIGNMENT: usize = 24 + 36;
const IMAGE_LEN: usize = 24 + 56;
const HEADERS_LEN: usize = 24 + 60;
/// The length of a section's header.
const SECTION: usize = 40;
/// The characteristics of a section of constants.
const READ_ONLY: u32 = 0x4000_0040;

fn word(file: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?) as usize)
}

fn half(file: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(*file.get(at..)?.first_chunk()?).into())
}

/// Returns `stub`, an EFI program, with further sections: each with a name of at most eight letters.
///
/// # Errors
/// If `stub` is no EFI program with room for the sections' headers.
pub fn with_sections(stub: &[u8], sections: &[(&str, &[u8])]) -> Result<Vec<u8>, PackError> {
    let not_pe = PackError::Stub("the program is no PE file");
    append(stub, sections).ok_or(not_pe)?
}

fn append(stub: &[u8], sections: &[(&str, &[u8])]) -> Option<Result<Vec<u8>, PackError>> {
    let mut file = stub.to_vec();
    let pe = word(&file, PE_AT)?;
    if file.get(pe..pe + 4)? != b"PE\0\0" {
        return None;
    }
    let count = half(&file, pe + SECTIONS)?;
    let (align, file_align) = (word(&file, pe + SECTION_ALIGNMENT)?, word(&file, pe + FILE_ALIGNMENT)?);
    let headers = pe + 24 + half(&file, pe + OPTIONAL_LEN)?;
    let end = headers + (count + sections.len()) * SECTION;
    if !align.is_power_of_two() || !file_align.is_power_of_two() || end > word(&file, pe + HEADERS_LEN)? {
        return Some(Err(PackError::Stub("the program has no room for further sections")));
    }
    let mut rva = word(&file, pe + IMAGE_LEN)?.next_multiple_of(align);
    for (index, (name, content)) in sections.iter().enumerate() {
        let at = file.len().next_multiple_of(file_align);
        file.resize(at, 0);
        file.extend_from_slice(content);
        file.resize(file.len().next_multiple_of(file_align), 0);
        let mut header = [0; SECTION];
        header.iter_mut().take(8).zip(name.bytes()).for_each(|(place, byte)| *place = byte);
        let padded = file.len() - at;
        let fields = [content.len(), rva, padded, at, 0, 0, 0, READ_ONLY as usize];
        for (place, field) in header.as_chunks_mut().0.iter_mut().skip(2).zip(fields) {
            *place = (field as u32).to_le_bytes();
        }
        let to = headers + (count + index) * SECTION;
        file.get_mut(to..to + SECTION)?.copy_from_slice(&header);
        rva = (rva + content.len()).next_multiple_of(align);
    }
    let count = (count + sections.len()) as u16;
    file.get_mut(pe + SECTIONS..pe + SECTIONS + 2)?.copy_from_slice(&count.to_le_bytes());
    file.get_mut(pe + IMAGE_LEN..pe + IMAGE_LEN + 4)?.copy_from_slice(&(rva as u32).to_le_bytes());
    Some(Ok(file))
}
