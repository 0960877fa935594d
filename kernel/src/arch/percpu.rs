//! What each processor has of its own, found through GS.

use alloc::boxed::Box;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

use super::descriptors::Descriptors;

/// Most processors used.
pub const MAX_CPUS: usize = 64;

/// One processor's own data. Others read it by [`cpu`].
#[repr(C)]
pub struct PerCpu {
    /// Its own address: what `gs:0` holds.
    this: *const PerCpu,
    /// 0 for the boot processor, then in the order of start.
    pub index: u32,
    /// It runs: [`cpu`] shows it to others.
    running: AtomicBool,
    /// Local APIC id.
    pub apic_id: AtomicU32,
    /// Interrupts taken, timer and spurious ones included.
    pub interrupts: AtomicU64,
    /// Faults that a probe has recovered from; see `probe`.
    #[cfg(feature = "selftest")]
    pub probe_hits: AtomicU64,
    descriptors: Descriptors,
}

// SAFETY: `this` is only ever read; all else is atomic or private to its processor's start.
unsafe impl Sync for PerCpu {}

static CPUS: [AtomicPtr<PerCpu>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The boot processor has set GS: [`this_cpu`] works there.
static READY: AtomicUsize = AtomicUsize::new(0);

/// This processor's data.
///
/// Before [`install`] on this processor there is none, and this must not be called.
#[inline]
pub fn this_cpu() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: `install` has set GS to a `PerCpu` that lives for ever and begins with its own address.
    unsafe {
        asm!("mov {}, gs:0", out(reg) this, options(nostack, preserves_flags, readonly, pure));
        &*this
    }
}

/// This processor's index; 0 while the boot processor has no data yet.
#[inline]
pub fn this_cpu_index() -> usize {
    if READY.load(Ordering::Relaxed) == 0 { 0 } else { this_cpu().index as usize }
}

/// The processor with index `index`, once it runs.
pub fn cpu(index: usize) -> Option<&'static PerCpu> {
    let p = CPUS.get(index)?.load(Ordering::Acquire);
    // SAFETY: set by `prepare`, once, to data that lives for ever and is changed no more but through atomics.
    unsafe { p.as_ref() }.filter(|cpu| cpu.running.load(Ordering::Acquire))
}

/// Processors that run.
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// Makes the data of processor `index`, on the boot processor: one that starts must not wait for the heap's lock before
/// it has its own data.
pub fn prepare(index: u32) {
    let data = Box::leak(Box::new(PerCpu {
        this: core::ptr::null(),
        index,
        running: AtomicBool::new(false),
        apic_id: AtomicU32::new(0),
        interrupts: AtomicU64::new(0),
        #[cfg(feature = "selftest")]
        probe_hits: AtomicU64::new(0),
        descriptors: Descriptors::new(index),
    }));
    data.this = &raw const *data;
    data.descriptors.link();
    if let Some(slot) = CPUS.get(index as usize) {
        slot.store(data, Ordering::Release);
    }
}

/// Gives this processor its data, descriptor tables and interrupt stacks.
///
/// # Safety
/// Once on each processor, with `index` its own, [`prepare`]d, and its stacks mapped.
pub unsafe fn install(index: u32) {
    let data = CPUS.get(index as usize).map_or(core::ptr::null_mut(), |slot| slot.load(Ordering::Acquire));
    // SAFETY: set by `prepare` to data that lives for ever. Loading the descriptors clears GS, so its base is set after.
    unsafe { (*data).descriptors.load() };
    GsBase::write(VirtAddr::from_ptr(data));
    READY.store(1, Ordering::Release);
}

/// Counts this processor, whose local APIC has the id `apic_id`, among those that run.
pub fn announce(apic_id: u32) {
    let this = this_cpu();
    this.apic_id.store(apic_id, Ordering::Relaxed);
    this.running.store(true, Ordering::Release);
    COUNT.fetch_add(1, Ordering::AcqRel);
}
