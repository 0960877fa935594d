//! The kernel at another physical address, without a boot stub: a copy of its ELF file that asks loaders to
//! put each segment there.

use anyhow::{Context, Result, ensure};
use lab::image;
use std::path::{Path, PathBuf};

/// The types of program headers.
const LOAD: u64 = 1;
const NOTE: u64 = 4;
/// The length of a program header.
const HEADER: usize = 56;
/// The length of a note before its value: three numbers, and the name `Xen`.
const NOTE_HEADER: usize = 16;
/// The address for which the kernel is linked.
const LINKED: u64 = 0x20_0000;

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<u64> {
    let part = bytes.get(at..at + N).context("the ELF file is cut")?;
    Ok(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn add<const N: usize>(bytes: &mut [u8], at: usize, distance: u64) -> Result<()> {
    let sum = number::<N>(bytes, at)? + distance;
    let part = bytes.get_mut(at..at + N).context("the ELF file is cut")?;
    part.copy_from_slice(sum.to_le_bytes().get(..N).context("a number of more than 8 bytes")?);
    Ok(())
}

/// Moves the physical addresses of an ELF file, and the entry of its PVH note, by `distance`.
fn move_segments(elf: &mut [u8], distance: u64) -> Result<()> {
    let headers = usize::try_from(number::<8>(elf, 32)?)?;
    let mut notes = 0;
    for index in 0..usize::try_from(number::<2>(elf, 56)?)? {
        let header = headers + index * HEADER;
        match number::<4>(elf, header)? {
            LOAD => add::<8>(elf, header + 24, distance)?,
            NOTE => {
                let note = usize::try_from(number::<8>(elf, header + 8)?)?;
                add::<4>(elf, note + NOTE_HEADER, distance)?;
                notes += 1;
            }
            _ => {}
        }
    }
    ensure!(notes == 1, "the kernel has {notes} notes");
    Ok(())
}

/// Writes a copy of the test image that loaders put at `place`, next to `log`.
pub(super) fn test_image_at(place: u64, log: &Path) -> Result<PathBuf> {
    let mut elf = std::fs::read(image::build_for_tests()?.elf)?;
    move_segments(&mut elf, place - LINKED)?;
    let moved = log.with_extension("elf");
    std::fs::write(&moved, elf)?;
    Ok(moved)
}
