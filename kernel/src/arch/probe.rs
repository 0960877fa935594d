//! Accesses that may fault and recover, for self-tests of the memory protection.

use core::arch::global_asm;
use core::sync::atomic::Ordering;

use super::interrupts::Frame;
use super::percpu::this_cpu;

// Each function takes an address in rdi and returns 0 if the access worked, 1 if it faulted. The write does
// not change the byte.
global_asm!(
    ".section .text.probe, \"ax\"",
    "probe_read:",
    "probe_read_at:",
    "mov al, [rdi]",
    "xor eax, eax",
    "ret",
    "probe_write:",
    "probe_write_at:",
    "lock or byte ptr [rdi], 0",
    "xor eax, eax",
    "ret",
    "probe_failed:",
    "mov eax, 1",
    "ret",
    "probe_return:",
    "ret",
    "probe_call:",
    "push rbp",
    "call rdi",
    "probe_call_returns:",
    "pop rbp",
    "xor eax, eax",
    "ret",
    "probe_call_failed:",
    "pop rbp",
    "mov eax, 1",
    "ret",
    ".text",
);

unsafe extern "C" {
    safe fn probe_read(addr: u64) -> u64;
    safe fn probe_write(addr: u64) -> u64;
    safe fn probe_call(addr: u64) -> u64;
    static probe_read_at: u8;
    static probe_write_at: u8;
    static probe_call_returns: u8;
    static probe_failed: u8;
    static probe_call_failed: u8;
    static probe_return: u8;
}

/// Returns true if `addr` can be read.
pub(crate) fn readable(addr: u64) -> bool {
    probe_read(addr) == 0
}

/// Returns true if `addr` can be written. Does not change its value.
pub(crate) fn writable(addr: u64) -> bool {
    probe_write(addr) == 0
}

/// Returns true if `addr` can be executed. If it holds anything, that must be a return instruction.
pub(crate) fn executable(addr: u64) -> bool {
    probe_call(addr) == 0
}

/// Returns the address of a return instruction in the kernel's text.
pub(crate) fn return_instruction() -> u64 {
    (&raw const probe_return) as u64
}

/// Makes a faulting probe return "faulted". Returns true if the exception came from a probe.
pub(crate) fn recover(vector: u8, frame: &mut Frame) -> bool {
    if vector != 13 && vector != 14 {
        return false;
    }
    let at = |symbol: *const u8| symbol as u64;
    if frame.rip == at(&raw const probe_read_at) || frame.rip == at(&raw const probe_write_at) {
        frame.rip = at(&raw const probe_failed);
    } else if frame.error & 16 != 0 && {
        // SAFETY: a call has just pushed its return address there.
        let returns = unsafe { (frame.rsp as *const u64).read() };
        returns == at(&raw const probe_call_returns)
    } {
        frame.rsp += 8;
        frame.rip = at(&raw const probe_call_failed);
    } else {
        return false;
    }
    this_cpu().probe_hits.fetch_add(1, Ordering::Relaxed);
    true
}
