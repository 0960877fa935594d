//! Small ELF files.

/// The parts of an ELF file: program headers, and the bytes behind them.
#[derive(Default)]
pub(crate) struct Elf {
    headers: Vec<[u64; 7]>,
    body: Vec<u8>,
}

/// The length of the file's header, and of a program header.
const FILE: usize = 64;
const HEADER: usize = 56;

impl Elf {
    /// Adds a part of type `kind` at the physical address `at`, with `memory` bytes in memory.
    pub(crate) fn part(mut self, kind: u32, at: u64, bytes: &[u8], memory: u64) -> Self {
        let offset = self.body.len() as u64;
        self.headers.push([u64::from(kind), offset, at, at, bytes.len() as u64, memory, 1]);
        self.body.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = vec![0; FILE];
        file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        file[32..40].copy_from_slice(&(FILE as u64).to_le_bytes());
        file[56..58].copy_from_slice(&(self.headers.len() as u16).to_le_bytes());
        let base = (FILE + self.headers.len() * HEADER) as u64;
        for [kind, offset, at, physical, len, memory, align] in &self.headers {
            file.extend(kind.to_le_bytes());
            for word in [offset + base, *at, *physical, *len, *memory, *align] {
                file.extend(word.to_le_bytes());
            }
        }
        file.extend_from_slice(&self.body);
        file
    }
}

/// Returns the file of a small kernel.
pub(crate) fn kernel() -> Vec<u8> {
    let mut note = Vec::new();
    for word in [4_u32, 4, 18, u32::from_le_bytes(*b"Xen\0"), 0x20_0010] {
        note.extend(word.to_le_bytes());
    }
    Elf::default()
        .part(1, 0x20_0000, &[1; 64], 64)
        .part(1, 0x20_1000, &[2; 32], 0x2000)
        .part(4, 0x20_0000, &note, note.len() as u64)
        .bytes()
}
