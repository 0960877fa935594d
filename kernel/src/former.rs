//! The last words of the former boot. They survive a reset that leaves RAM as it is, in copies in pages below
//! 640 KiB, which firmware and loaders use in parts: a copy is found by its checksum.

use alloc::string::String;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Once;
use x86_64::PhysAddr;

use crate::arch::cpu;
use crate::boot::{BootInfo, Region};
use crate::mm;

/// The physical addresses of the copies. A place that is not RAM, or that holds a boot module, is not used.
const PLACES: [u64; 6] = [0x3_0000, 0x5_0000, 0x6_8000, 0x7_8000, 0x8_8000, 0x9_8000];
/// The greatest length of the words, in bytes.
const LONGEST: usize = 240;
const MAGIC: u64 = u64::from_le_bytes(*b"LASTWORD");

/// A copy. All places have room for it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Copy {
    magic: u64,
    checksum: u64,
    len: u64,
    text: [u8; LONGEST],
}

/// The physical addresses of this machine's places; 0 for one that is not used.
static USABLE: [AtomicU64; PLACES.len()] = [const { AtomicU64::new(0) }; PLACES.len()];
static WORDS: Once<String> = Once::new();

/// The FNV-1a hash.
fn checksum(text: &[u8]) -> u64 {
    text.iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Copy {
    fn new(words: &str) -> Self {
        let mut text = [0; LONGEST];
        let mut len = words.len().min(LONGEST);
        while !words.is_char_boundary(len) {
            len -= 1;
        }
        text[..len].copy_from_slice(&words.as_bytes()[..len]);
        Self { magic: MAGIC, checksum: checksum(&text[..len]), len: len as u64, text }
    }

    /// Returns the words, if this is a copy and is whole.
    fn words(&self) -> Option<&str> {
        let text = self.text.get(..usize::try_from(self.len).ok()?)?;
        let is_whole = self.magic == MAGIC && self.checksum == checksum(text);
        is_whole.then(|| core::str::from_utf8(text).ok()).flatten()
    }
}

fn at(place: &AtomicU64) -> Option<*mut Copy> {
    let place = place.load(Ordering::Relaxed);
    (place != 0).then(|| mm::phys_to_virt(PhysAddr::new_truncate(place)).cast())
}

/// Finds the last words of the former boot, and the places for those of this one. `taken` is a page
/// of RAM below 640 KiB that has another use. Call once, with the final page tables.
pub(crate) fn find(boot: &BootInfo, taken: Option<PhysAddr>) {
    let taken = taken.map(|at| Region::new(at.as_u64(), mm::PAGE));
    for (place, usable) in PLACES.into_iter().zip(&USABLE) {
        let page = Region::new(place, mm::PAGE);
        let overlaps = |r: Region| r.start < page.end && page.start < r.end;
        let is_ram = boot.ram.iter().any(|r| r.start <= page.start && page.end <= r.end);
        if is_ram && !boot.modules.iter().chain(taken).any(overlaps) {
            usable.store(place, Ordering::Relaxed);
        }
    }
    for copy in USABLE.iter().filter_map(at) {
        // SAFETY: the page is RAM of which any bits are a `Copy`. The frame allocator does not
        // contain it, and nothing else uses it.
        let magic = unsafe { (&raw const (*copy).magic).read_volatile() };
        // To read a whole copy takes a thousand instructions, which most boots need not.
        if magic != MAGIC {
            continue;
        }
        // SAFETY: as above.
        let copy = unsafe { copy.read_volatile() };
        if let Some(words) = copy.words() {
            WORDS.call_once(|| words.into());
        }
    }
}

/// Returns the last words of the former boot, if there are any.
pub(crate) fn words() -> Option<&'static str> {
    WORDS.get().map(String::as_str)
}

fn write(copy: Copy) {
    for place in USABLE.iter().filter_map(at) {
        // SAFETY: as in `find`.
        unsafe { place.write_volatile(copy) };
    }
}

/// Keeps `words` for the next boot. Allocates nothing and takes no lock.
pub(crate) fn keep(words: &str) {
    write(Copy::new(words));
    // A reset does not write the caches back.
    cpu::write_back_caches();
}

/// Removes the last words of the former boot, because somebody has them.
pub(crate) fn forget() {
    write(Copy { magic: 0, checksum: 0, len: 0, text: [0; LONGEST] });
}
