//! Instructions and features of a processor: time stamp counter, interrupt flag, CPUID, SSE and AVX state.

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _mm_lfence, _mm_sfence, _rdtsc, CpuidResult};
use core::sync::atomic::{AtomicBool, Ordering};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::Msr;
use x86_64::registers::xcontrol::{XCr0, XCr0Flags};

/// Returns the time stamp counter, read without order relative to other instructions.
#[inline]
pub(crate) fn tsc() -> u64 {
    // SAFETY: RDTSC has no effect on memory; CR4.TSD is clear and this is ring 0.
    unsafe { _rdtsc() }
}

/// Returns the time stamp counter, read after every earlier instruction has completed.
#[inline]
pub(crate) fn tsc_ordered() -> u64 {
    // SAFETY: LFENCE is SSE2, which x86-64 always has.
    unsafe { _mm_lfence() };
    tsc()
}

/// Returns CPUID `leaf`, sub-leaf `sub`; all zero if the processor does not have the leaf.
pub(crate) fn cpuid(leaf: u32, sub: u32) -> CpuidResult {
    let top = __cpuid_count(leaf & 0xf000_0000, 0).eax;
    if leaf > top || leaf & 0xf000_0000 != top & 0xf000_0000 {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    __cpuid_count(leaf, sub)
}

/// Returns true if QEMU's translator (TCG) executes this code, according to its hypervisor leaf. The call is
/// slow: cache its result.
pub(crate) fn is_tcg() -> bool {
    cpuid(0x4000_0000, 0).ebx == u32::from_le_bytes(*b"TCGT")
}

/// Returns true in a virtual machine, according to the processor's hypervisor bit.
pub(crate) fn is_virtual() -> bool {
    bit(cpuid(1, 0).ecx, 31)
}

/// Returns true if bit `bit` of a CPUID register is set.
pub(crate) const fn bit(register: u32, bit: u32) -> bool {
    register >> bit & 1 != 0
}

/// Turns interrupts off and returns true if they were on.
#[inline]
pub(crate) fn interrupts_off() -> bool {
    let flags: u64;
    // SAFETY: masking interrupts affects no memory. The slot of PUSHFQ is popped at once (this crate has no
    // red zone, and the asm block is not marked `nostack`).
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags & 0x200 != 0
}

/// Turns interrupts on again if `on`, the result of the matching [`interrupts_off`].
#[inline]
pub(crate) fn interrupts_restore(on: bool) {
    if on {
        interrupts_on();
    }
}

#[inline]
pub(crate) fn interrupts_on() {
    // SAFETY: every vector has a handler before anything turns interrupts on for the first time.
    unsafe { asm!("sti") };
}

/// Turns interrupts on and halts until one comes. Interrupts stay blocked for one instruction after STI, so
/// an interrupt between a check with interrupts off and the halt ends the halt.
#[inline]
pub(crate) fn interrupts_on_and_halt() {
    // SAFETY: as `interrupts_on`.
    unsafe { asm!("sti", "hlt") };
}

/// Stops this processor for ever.
pub(crate) fn halt_for_ever() -> ! {
    loop {
        // SAFETY: with interrupts masked only NMI, SMI or reset end the halt.
        unsafe { asm!("cli", "hlt") };
    }
}

/// Writes this processor's caches back to memory.
pub(crate) fn write_back_caches() {
    // SAFETY: the instruction changes no memory but makes it equal to what the caches hold.
    unsafe { asm!("wbinvd", options(nostack, preserves_flags)) };
}

/// Makes this processor shut down, which resets the machine: an exception without a descriptor table.
pub(crate) fn triple_fault() -> ! {
    let nothing = [0u16; 5];
    // SAFETY: the machine ends here.
    unsafe { asm!("lidt [{}]", "int3", in(reg) &raw const nothing, options(nostack)) };
    halt_for_ever()
}

/// True if the entry stubs save state with XSAVE (AVX is on) rather than FXSAVE. The stubs read it.
pub(crate) static XSAVE_ON: AtomicBool = AtomicBool::new(false);

/// Bytes of XSAVE state for x87, SSE and AVX: legacy area, header, upper halves.
pub(crate) const XSAVE_BYTES: usize = 832;

/// Enables SSE and, where the processor supports it, AVX, on this processor. Call before any code that
/// dispatches on CPU features.
pub(crate) fn init_floating_point() {
    let features = cpuid(1, 0);
    let avx = bit(features.ecx, 26) && bit(features.ecx, 28) && cpuid(0xd, 2).eax == 256;
    // SAFETY: SSE and AVX state is usable in ring 0 from here on; the entry stubs save it.
    unsafe {
        Cr0::update(|f| {
            f.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
            f.insert(Cr0Flags::MONITOR_COPROCESSOR | Cr0Flags::NUMERIC_ERROR | Cr0Flags::WRITE_PROTECT);
        });
        Cr4::update(|f| f.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE));
        if avx {
            Cr4::update(|f| f.insert(Cr4Flags::OSXSAVE));
            XCr0::write(XCr0Flags::X87 | XCr0Flags::SSE | XCr0Flags::AVX);
        }
    }
    if avx {
        XSAVE_ON.store(true, Ordering::Release);
    }
}

/// The MSR of memory types (Intel SDM volume 3, 12.12), with 8 bits for each combination of a page's bits
/// PAT, cache disable and write through.
const PAT: u32 = 0x277;
const PAT_BYTES: u64 = u64::from_le_bytes([BACK, COMBINING, WEAK, NONE, BACK, THROUGH, WEAK, NONE]);
const BACK: u8 = 6;
const COMBINING: u8 = 1;
const WEAK: u8 = 7;
const NONE: u8 = 0;
const THROUGH: u8 = 4;

/// Makes this processor combine writes to pages that are marked for writing through. Call before such a page
/// exists.
pub(crate) fn init_memory_types() {
    // SAFETY: each x86-64 processor has the MSR, the types are valid, and no page of the changed type exists
    // yet.
    unsafe { Msr::new(PAT).write(PAT_BYTES) };
}

/// Returns true if [`init_memory_types`] has run on this processor.
#[cfg(feature = "selftest")]
pub(crate) fn combines_writes() -> bool {
    // SAFETY: each x86-64 processor has the register.
    unsafe { Msr::new(PAT).read() == PAT_BYTES }
}

/// Completes all earlier stores, also those to write-combining memory, before any later store.
#[inline]
pub(crate) fn store_fence() {
    // SAFETY: SFENCE is SSE, which x86-64 always has.
    unsafe { _mm_sfence() };
}

/// Writes the processor's name, from CPUID, into `buf` and returns it.
pub(crate) fn brand(buf: &mut [u8; 48]) -> &str {
    for (i, chunk) in buf.chunks_exact_mut(16).enumerate() {
        let r = cpuid(0x8000_0002 + u32::try_from(i).unwrap_or(0), 0);
        for (word, reg) in chunk.chunks_exact_mut(4).zip([r.eax, r.ebx, r.ecx, r.edx]) {
            word.copy_from_slice(&reg.to_le_bytes());
        }
    }
    let end = buf.iter().position(|b| *b == 0).unwrap_or(48);
    core::str::from_utf8(&buf[..end]).unwrap_or("unnamed processor").trim()
}
