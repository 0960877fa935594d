//! The memory functions that compiled code calls, and the two symbols that prebuilt `core` refers to.

use core::arch::asm;

/// Copies `len` bytes. A call of the compiler's `memcpy` would need a relocation.
///
/// # Safety
/// The requirements of [`core::ptr::copy_nonoverlapping`] apply.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

/// Fills `len` bytes with zeros.
///
/// # Safety
/// The requirements of [`core::ptr::write_bytes`] apply.
pub(crate) unsafe fn clear(to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") 0_u8,
            options(nostack, preserves_flags));
    }
}

/// Returns the address of a symbol of entry.s, by an instruction that needs no relocation.
macro_rules! address_of {
    ($symbol:literal) => {{
        let at: *const u8;
        // SAFETY: the instruction computes an address, and accesses nothing.
        unsafe {
            core::arch::asm!(concat!("lea {}, [rip + ", $symbol, "]"), out(reg) at,
                options(nomem, nostack, pure, preserves_flags));
        }
        at
    }};
}
pub(crate) use address_of;

/// # Safety
/// The requirements of C's `memcpy` apply.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { copy(from, to, len) };
    to
}

/// # Safety
/// The requirements of C's `memmove` apply.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: the caller's promise; no byte is overwritten before it is copied.
        return unsafe { memcpy(to, from, len) };
    }
    let (last_to, last_from) = (to.wrapping_add(len).wrapping_sub(1), from.wrapping_add(len).wrapping_sub(1));
    // SAFETY: the caller's promise; the copy goes backwards, and the direction flag is clear after it.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") last_to => _,
            inout("rsi") last_from => _, options(nostack));
    }
    to
}

/// # Safety
/// The requirements of C's `memset` apply.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// The requirements of C's `memcmp` apply.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for i in 0..len {
        // SAFETY: the caller's promise. Volatile, or the compiler makes a call of `memcmp` of the loop.
        let (a, b) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
/// The requirements of C's `bcmp` apply.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, len) }
}

/// A symbol that prebuilt `core` refers to. It is never called, because a panic stops the machine.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// A symbol that is never called, like [`rust_eh_personality`].
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    crate::halt()
}
