//! Copies to and from memory that devices, peers and other processors may change at the same time.
//!
//! All accesses are atomic, or are made by assembly that is opaque to the compiler. They are therefore no
//! data races in Rust's memory model, as plain accesses would be. A racing copy returns a mixture of old and
//! new bytes.

use core::arch::asm;
use core::sync::atomic::{AtomicU8, Ordering};

use super::mem;

/// Loads a word of any alignment.
///
/// # Safety
/// The requirements of [`copy`] apply to the 8 bytes.
#[inline(always)]
unsafe fn load8(from: *const u8) -> u64 {
    let word: u64;
    // SAFETY: the caller's promise.
    unsafe { asm!("mov {}, [{}]", out(reg) word, in(reg) from, options(nostack, preserves_flags, readonly)) };
    word
}

/// Stores a word of any alignment.
///
/// # Safety
/// The requirements of [`copy`] apply to the 8 bytes.
#[inline(always)]
unsafe fn store8(to: *mut u8, word: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("mov [{}], {}", in(reg) to, in(reg) word, options(nostack, preserves_flags)) };
}

/// Copies `n` bytes in ascending order, except for the order within a string instruction.
///
/// # Safety
/// `n` bytes at `from` must be readable and `n` at `to` writable, and stay mapped for ever. No reference may
/// exist to bytes that something else can change meanwhile. The blocks must not overlap unless `to` is below
/// `from`.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, n: usize) {
    // The bytes beyond whole words are loaded first: the copy may change them if the blocks overlap.
    // SAFETY: each branch touches bytes 0 to `n` only.
    unsafe {
        if n < 8 {
            copy_bytes(to, from, n);
        } else if n < 16 {
            let (first, last) = (load8(from), load8(from.add(n - 8)));
            store8(to, first);
            store8(to.add(n - 8), last);
        } else if n < mem::copy_string_bytes() {
            let last = (load8(from.add(n - 16)), load8(from.add(n - 8)));
            copy_blocks(to, from, n / 16);
            if !n.is_multiple_of(16) {
                store8(to.add(n - 16), last.0);
                store8(to.add(n - 8), last.1);
            }
        } else {
            let last = load8(from.add(n - 8));
            asm!("rep movsq", inout("rcx") n / 8 => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
            store8(to.add(n - 8), last);
        }
    }
}

/// Copies fewer than 8 bytes, all loaded before any is stored.
///
/// # Safety
/// The requirements of [`copy`] apply.
#[inline]
unsafe fn copy_bytes(to: *mut u8, from: *const u8, n: usize) {
    let mut bytes = [0; 8];
    for (i, byte) in bytes.iter_mut().enumerate().take(n) {
        // SAFETY: `i` is below `n`, and the byte is shared as an atomic.
        *byte = unsafe { AtomicU8::from_ptr(from.add(i).cast_mut()) }.load(Ordering::Relaxed);
    }
    for (i, byte) in bytes.into_iter().enumerate().take(n) {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(to.add(i)) }.store(byte, Ordering::Relaxed);
    }
}

/// Copies blocks of 16 bytes, four at a time while at least four are left.
///
/// # Safety
/// The requirements of [`copy`] apply to `blocks` times 16 bytes.
#[inline]
unsafe fn copy_blocks(to: *mut u8, from: *const u8, blocks: usize) {
    // SAFETY: the caller's promise; each loop ends where its count does.
    unsafe {
        asm!(
            "test {fours}, {fours}",
            "jz 3f",
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {fours}",
            "jnz 2b",
            "3:",
            "test {ones}, {ones}",
            "jz 5f",
            "4:",
            "movups {a}, [{from}]",
            "movups [{to}], {a}",
            "add {from}, 16",
            "add {to}, 16",
            "dec {ones}",
            "jnz 4b",
            "5:",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            fours = inout(reg) blocks / 4 => _,
            ones = inout(reg) blocks % 4 => _,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies `n` bytes between blocks that may overlap in any way.
///
/// # Safety
/// The requirements of [`copy`] apply, except that the blocks may overlap.
pub(crate) unsafe fn copy_overlapping(to: *mut u8, from: *const u8, n: usize) {
    const PART: usize = 256;
    if (to as usize).wrapping_sub(from as usize) >= n {
        // SAFETY: `to` is below `from`, or beyond the block.
        unsafe { copy(to, from, n) };
        return;
    }
    // Copies from the end, part by part, so that no byte is overwritten before it is read.
    let mut part = [0u8; PART];
    let mut left = n;
    while left > 0 {
        let len = left.min(PART);
        left -= len;
        // SAFETY: the access stays within the caller's blocks and within the local part.
        unsafe {
            copy(part.as_mut_ptr(), from.add(left), len);
            copy(to.add(left), part.as_ptr(), len);
        }
    }
}

/// Sets `n` bytes to `byte`.
///
/// # Safety
/// The requirements of [`copy`] for its target apply.
pub(crate) unsafe fn fill(to: *mut u8, byte: u8, n: usize) {
    let block = [byte; 16];
    let mut at = 0;
    if n >= mem::fill_string_bytes() {
        // SAFETY: the caller's promise.
        unsafe {
            asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") byte,
                options(nostack, preserves_flags));
        }
        return;
    }
    while n - at >= block.len() {
        // SAFETY: `at + 16` is not beyond `n`.
        unsafe { copy_blocks(to.add(at), block.as_ptr(), 1) };
        at += block.len();
    }
    for i in at..n {
        // SAFETY: `i` is below `n`, and the byte is shared as an atomic.
        unsafe { AtomicU8::from_ptr(to.add(i)) }.store(byte, Ordering::Relaxed);
    }
}
