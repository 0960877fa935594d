//! The guest's memory: the ranges that the client has mapped for DMA, shared by file descriptor.
//!
//! QEMU unmaps ranges and maps them again in pieces while the firmware runs, because it splits the area below
//! 1 MiB. Therefore each access looks its address up, and no pointer outlives an access.

#![allow(unsafe_code, reason = "memory shared with QEMU")]

use super::message::Errno;
use crate::device::DmaError;
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// The maximum number of pieces of a guest's memory. QEMU maps some dozens; the kernel's limit applies to all
/// cards of the process together.
const MAX_PIECES: usize = 4096;

/// A piece of guest memory, mapped into this process.
#[derive(Debug)]
struct Piece {
    base: *mut u8,
    len: usize,
    writable: bool,
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this address and length, nothing else unmaps it, and pointers
        // into it are used only within calls of `GuestMemory` that borrow it.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

// SAFETY: the memory is accessed only by copies of raw bytes and by atomics; the guest may change it at any
// time anyway.
unsafe impl Send for Piece {}
// SAFETY: the same reason as for `Send`.
unsafe impl Sync for Piece {}

/// The memory of one guest.
#[derive(Debug, Default)]
pub struct GuestMemory {
    /// The pieces by first address. Pieces do not overlap.
    pieces: BTreeMap<u64, Piece>,
}

impl GuestMemory {
    /// DMA_MAP: maps `len` bytes of `fd`, from `offset` on, at `addr`. The file must be sealed against
    /// shrinking, as QEMU's `memory-backend-memfd` does: an access beyond the end of a truncated file would
    /// kill the process with all its cards.
    pub fn map(
        &mut self,
        addr: u64,
        len: u64,
        fd: &OwnedFd,
        offset: u64,
        writable: bool,
    ) -> Result<(), Errno> {
        let end = addr.checked_add(len).ok_or(Errno::INVALID)?;
        let bytes = usize::try_from(len).map_err(|_| Errno::INVALID)?;
        let overlaps = self.pieces.range(..end).next_back().is_some_and(|(&a, p)| a + p.len as u64 > addr);
        let backed = rustix::fs::fstat(fd).is_ok_and(|stat| {
            offset.checked_add(len).is_some_and(|end| end <= u64::try_from(stat.st_size).unwrap_or(0))
        });
        if bytes == 0 || overlaps || !backed || self.pieces.len() >= MAX_PIECES {
            return Err(Errno::INVALID);
        }
        if !fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
            log::error!(
                "a guest's memory is in a file that may shrink: use memory-backend-memfd with its seals"
            );
            return Err(Errno::INVALID);
        }
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses; the file is at least as long as the
        // mapping.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, offset) };
        let base = base.map_err(|_| Errno::INVALID)?.cast();
        self.pieces.insert(addr, Piece { base, len: bytes, writable });
        Ok(())
    }

    /// DMA_UNMAP: removes every piece that is within the range.
    pub fn unmap(&mut self, addr: u64, len: u64) {
        let end = addr.saturating_add(len);
        self.pieces.retain(|&a, p| a < addr || a.saturating_add(p.len as u64) > end);
    }

    /// Removes all pieces.
    pub fn unmap_all(&mut self) {
        self.pieces.clear();
    }

    /// Calls `each` for the parts of a range, in order, after checking that all of it is mapped.
    fn parts(
        &self,
        addr: u64,
        len: usize,
        write: bool,
        mut each: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), DmaError> {
        let error = DmaError { addr, len };
        for act in [false, true] {
            let (mut at, mut done) = (addr, 0);
            while done < len {
                let (&first, piece) = self.pieces.range(..=at).next_back().ok_or(error)?;
                let skip = usize::try_from(at - first).map_err(|_| error)?;
                if skip >= piece.len || (write && !piece.writable) {
                    return Err(error);
                }
                let n = (piece.len - skip).min(len - done);
                if act {
                    each(piece.base.wrapping_add(skip), done, n);
                }
                done += n;
                at = at.checked_add(n as u64).ok_or(error)?;
            }
        }
        Ok(())
    }

    /// Copies from the guest's memory. Copies all bytes or none.
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaError> {
        self.parts(addr, buf.len(), false, |from, at, n| {
            let to = &mut buf[at..at + n];
            // SAFETY: `parts` passes a range that is mapped while `self` is borrowed; `to` is owned by this
            // process and does not overlap it. The guest may change the bytes during the copy; no reference
            // to them is made.
            unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), n) };
        })
    }

    /// Copies to the guest's memory. Copies all bytes or none.
    pub fn write(&self, addr: u64, data: &[u8]) -> Result<(), DmaError> {
        self.parts(addr, data.len(), true, |to, at, n| {
            let from = &data[at..at + n];
            // SAFETY: as in `read`, and the mapping is writable.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, n) };
        })
    }

    /// Runs `f` on the aligned 64-bit word at `addr`, which is shared with the guest's processors.
    pub fn word<T>(&self, addr: u64, f: impl FnOnce(&AtomicU64) -> T) -> Result<T, DmaError> {
        let error = DmaError { addr, len: 8 };
        if !addr.is_multiple_of(8) {
            return Err(error);
        }
        let mut place = None;
        self.parts(addr, 8, true, |at, _, n| place = (n == 8).then_some(at))?;
        let place = place.filter(|at| at.cast::<u64>().is_aligned()).ok_or(error)?;
        // SAFETY: eight mapped, writable, aligned bytes that stay mapped while `self` is borrowed; every
        // access to them from here that could race is an atomic or a copy of raw bytes.
        Ok(f(unsafe { AtomicU64::from_ptr(place.cast()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::sync::atomic::Ordering;

    fn file(len: u64) -> OwnedFd {
        let fd = unsealed(len);
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        fd
    }

    fn unsealed(len: u64) -> OwnedFd {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        fd
    }

    #[test]
    fn accesses_cross_pieces_and_fail_whole() {
        let fd = file(0x3000);
        let mut memory = GuestMemory::default();
        memory.map(0x10000, 0x1000, &fd, 0x1000, true).unwrap();
        memory.map(0x11000, 0x1000, &fd, 0, true).unwrap();
        memory.map(0x12000, 0x1000, &fd, 0x2000, false).unwrap();
        let data: Vec<u8> = (0..=255).collect();
        memory.write(0x10f80, &data).unwrap();
        let mut back = [0; 256];
        memory.read(0x10f80, &mut back).unwrap();
        assert_eq!(back, *data);
        // Half of the range is in the read-only piece: no byte is written.
        assert_eq!(memory.write(0x11ff0, &[9; 32]), Err(DmaError { addr: 0x11ff0, len: 32 }));
        let mut back = [1; 16];
        memory.read(0x11ff0, &mut back).unwrap();
        assert_eq!(back, [0; 16]);
        assert!(memory.read(0x12ff0, &mut [0; 17]).is_err());
        assert!(memory.read(u64::MAX - 3, &mut [0; 8]).is_err());
        memory.unmap(0x11000, 0x1000);
        assert!(memory.read(0x10ffc, &mut [0; 8]).is_err());
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        let fd = file(0x2000);
        let mut memory = GuestMemory::default();
        memory.map(0x1000, 0x1000, &fd, 0, true).unwrap();
        for (addr, len, offset) in [
            (0x1000, 0x1000, 0),
            (0x0, 0x1001, 0),
            (0x5000, 0, 0),
            (0x5000, 0x1000, 0x1001),
            (u64::MAX, 2, 0),
        ] {
            assert_eq!(memory.map(addr, len, &fd, offset, true), Err(Errno::INVALID), "{addr:#x} {len:#x}");
        }
        let fd = unsealed(0x1000);
        assert_eq!(memory.map(0x5000, 0x1000, &fd, 0, true), Err(Errno::INVALID), "the file may shrink");
    }

    #[test]
    fn maps_are_bounded() {
        let fd = file(0x1000);
        let mut memory = GuestMemory::default();
        let mapped = (0..MAX_PIECES as u64 + 9).filter(|n| memory.map(n << 12, 0x1000, &fd, 0, true).is_ok());
        assert_eq!(mapped.count(), MAX_PIECES);
        memory.unmap_all();
        memory.map(0, 0x1000, &fd, 0, true).unwrap();
    }

    #[test]
    fn words_are_shared() {
        let fd = file(0x1000);
        let mut memory = GuestMemory::default();
        memory.map(0, 0x1000, &fd, 0, true).unwrap();
        memory.word(8, |w| w.store(41, Ordering::Release)).unwrap();
        assert_eq!(memory.word(8, |w| w.fetch_add(1, Ordering::AcqRel)), Ok(41));
        assert!(memory.word(4, |_| ()).is_err());
        assert!(memory.word(0x1000, |_| ()).is_err());
    }
}
