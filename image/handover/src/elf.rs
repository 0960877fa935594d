//! The kernel's ELF file.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::map::Entry;
use crate::place::{Place, Span};

/// The first bytes of a 64-bit little-endian ELF file.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
/// The types of program headers.
const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// The flag of a part that may be written to.
const WRITABLE: u32 = 2;
/// The length of a program header.
const HEADER: usize = 56;
/// The type of Xen's note with the 32-bit entry.
const PHYS32_ENTRY: u32 = 18;

/// The first address that 32 bits do not reach.
const FOUR_GIB: u64 = 1 << 32;
/// The alignment of a kernel in memory.
const ALIGN: u64 = 2 << 20;

/// The reason for which a file is no kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// The file is no 64-bit ELF file, or is cut.
    NotElf,
    /// No segment is loaded.
    NoSegment,
    /// There is no note with the 32-bit entry of PVH, or the entry lies in no segment.
    NoEntry,
    /// The kernel is not linked for a multiple of 2 MiB.
    Unaligned,
}

impl ElfError {
    /// Returns a description for the user.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotElf => "it is no 64-bit ELF file",
            Self::NoSegment => "it has no segment to load",
            Self::NoEntry => "it has no PVH entry",
            Self::Unaligned => "it does not begin at a multiple of 2 MiB",
        }
    }
}

/// A part of the file that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The physical address.
    pub at: u64,
    /// The bytes of the file.
    pub bytes: &'a [u8],
    /// The number of zeros after them.
    pub zeros: u64,
    /// True if the kernel may write to them.
    pub is_writable: bool,
}

/// A kernel's file.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    file: &'a [u8],
    headers: &'a [u8],
    span: Span,
    entry: u32,
}

fn file_part(file: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let (at, len) = (usize::try_from(at).ok()?, usize::try_from(len).ok()?);
    file.get(at..at.checked_add(len)?)
}

impl<'a> Kernel<'a> {
    /// Reads the headers of a file.
    ///
    /// # Errors
    /// If it is no kernel with a 32-bit entry of PVH.
    pub fn parse(file: &'a [u8]) -> Result<Self, ElfError> {
        if !file.starts_with(&MAGIC) {
            return Err(ElfError::NotElf);
        }
        let (offset, count) = (u64_at(file, 32), u16_at(file, 56));
        let headers = offset
            .zip(count)
            .and_then(|(offset, count)| file_part(file, offset, u64::from(count) * HEADER as u64));
        let headers = headers.ok_or(ElfError::NotElf)?;
        let mut kernel = Self { file, headers, span: Span { start: u64::MAX, end: 0 }, entry: 0 };
        for header in headers.chunks_exact(HEADER) {
            if u32_at(header, 0) == Some(LOAD) {
                let segment = kernel.segment(header).ok_or(ElfError::NotElf)?;
                let len = (segment.bytes.len() as u64).checked_add(segment.zeros);
                let end = len.and_then(|len| segment.at.checked_add(len)).ok_or(ElfError::NotElf)?;
                kernel.span.start = kernel.span.start.min(segment.at);
                kernel.span.end = kernel.span.end.max(end);
            }
        }
        if kernel.span.start >= kernel.span.end {
            return Err(ElfError::NoSegment);
        }
        if !kernel.span.start.is_multiple_of(ALIGN) {
            return Err(ElfError::Unaligned);
        }
        let notes = headers.chunks_exact(HEADER).filter(|header| u32_at(header, 0) == Some(NOTE));
        let entry = notes.filter_map(|header| kernel.entry_of(header)).next();
        let is_within = |entry: &u32| (kernel.span.start..kernel.span.end).contains(&u64::from(*entry));
        kernel.entry = entry.filter(is_within).ok_or(ElfError::NoEntry)?;
        Ok(kernel)
    }

    /// Returns the physical addresses for which the kernel is linked.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.span
    }

    /// Returns the distance from there at which the kernel can be loaded: 0 if that memory is free, and
    /// otherwise that of the highest free place below 4 GiB; `None` if there is none. `taken` is memory in
    /// use.
    #[must_use]
    pub fn distance(&self, map: &[Entry], taken: &[Span]) -> Option<u32> {
        let is_free = !taken.iter().any(|taken| taken.overlaps(&self.span));
        if is_free && self.span.end <= FOUR_GIB && Place::is_ram(&self.span, map) {
            return Some(0);
        }
        let start = self.place().find(map, taken)?.start;
        u32::try_from(start - self.span.start).ok()
    }

    /// Returns the requirements on a place for the kernel: a distance of a multiple of 2 MiB upwards from the
    /// addresses for which it is linked, below 4 GiB.
    #[must_use]
    pub const fn place(&self) -> Place {
        let Span { start, end } = self.span;
        Place { len: end - start, align: ALIGN, from: start, below: FOUR_GIB }
    }

    /// Returns the physical address of the 32-bit entry of PVH.
    #[must_use]
    pub const fn entry(&self) -> u32 {
        self.entry
    }

    /// Returns the parts to be loaded.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> + '_ {
        let headers = self.headers.chunks_exact(HEADER);
        headers.filter(|header| u32_at(header, 0) == Some(LOAD)).filter_map(|header| self.segment(header))
    }

    /// Returns the length of the file up to the end of the last part that is loaded. What follows are symbols
    /// and debugging information.
    #[must_use]
    pub fn loaded_len(&self) -> usize {
        let ends = self.headers.chunks_exact(HEADER).filter_map(|header| {
            let end = u64_at(header, 8)?.checked_add(u64_at(header, 32)?)?;
            usize::try_from(end).ok()
        });
        ends.max().unwrap_or(0).min(self.file.len())
    }

    fn segment(&self, header: &[u8]) -> Option<Segment<'a>> {
        let (offset, at) = (u64_at(header, 8)?, u64_at(header, 24)?);
        let (len, memory) = (u64_at(header, 32)?, u64_at(header, 40)?);
        let bytes = file_part(self.file, offset, len)?;
        let is_writable = u32_at(header, 4)? & WRITABLE != 0;
        Some(Segment { at, bytes, zeros: memory.checked_sub(len)?, is_writable })
    }

    /// Returns the entry that a segment of notes tells.
    fn entry_of(&self, header: &[u8]) -> Option<u32> {
        let mut notes = file_part(self.file, u64_at(header, 8)?, u64_at(header, 32)?)?;
        loop {
            let (name, len) = (u32_at(notes, 0)? as usize, u32_at(notes, 4)? as usize);
            let text = 12 + name.checked_next_multiple_of(4)?;
            if u32_at(notes, 8)? == PHYS32_ENTRY && notes.get(12..12 + name)? == b"Xen\0" {
                return u32_at(notes, text);
            }
            notes = notes.get(text.checked_add(len.checked_next_multiple_of(4)?)?..)?;
        }
    }
}
