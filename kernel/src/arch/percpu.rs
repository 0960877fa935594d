//! Data of each processor, accessed through GS.

use alloc::boxed::Box;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

use super::descriptors::Descriptors;

/// The most processors that are used.
pub(crate) const MAX_CPUS: usize = 512;

/// The data of one processor. Other processors access it by [`cpu`].
#[repr(C)]
pub(crate) struct PerCpu {
    /// The address of this structure, which `gs:0` reads.
    this: *const PerCpu,
    /// The index: 0 for the boot processor, then in the order of start.
    pub index: u32,
    /// True once the processor runs and [`cpu`] returns it.
    running: AtomicBool,
    pub apic_id: AtomicU32,
    /// The NUMA node; 0 if the firmware does not name it.
    pub node: AtomicUsize,
    /// Interrupts so far, timer and spurious ones included.
    pub interrupts: AtomicU64,
    /// Faults from which a probe has recovered; see `probe`.
    #[cfg(feature = "selftest")]
    pub probe_hits: AtomicU64,
    descriptors: Descriptors,
}

// SAFETY: `this` is only ever read; all other fields are atomic, or used only while their processor starts.
unsafe impl Sync for PerCpu {}

static CPUS: [AtomicPtr<PerCpu>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
/// The number of processors that have data, running or not.
static PREPARED: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Nonzero once the boot processor has set GS, so that [`this_cpu`] works there.
static READY: AtomicUsize = AtomicUsize::new(0);

/// Returns this processor's data.
///
/// Must not be called before [`install`] on this processor.
#[inline]
pub(crate) fn this_cpu() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: `install` has set GS to a `PerCpu` that is never freed and begins with its own address.
    unsafe {
        asm!("mov {}, gs:0", out(reg) this, options(nostack, preserves_flags, readonly, pure));
        &*this
    }
}

/// Returns this processor's index; 0 while the boot processor has no data yet.
#[inline]
pub(crate) fn this_cpu_index() -> usize {
    if READY.load(Ordering::Relaxed) == 0 { 0 } else { this_cpu().index as usize }
}

/// Returns the NUMA node of this processor; 0 while the boot processor has no data yet.
#[inline]
pub(crate) fn this_cpu_node() -> usize {
    if READY.load(Ordering::Relaxed) == 0 { 0 } else { this_cpu().node.load(Ordering::Relaxed) }
}

/// Returns a number above the index of each processor that runs.
#[inline]
pub(crate) fn limit() -> usize {
    PREPARED.load(Ordering::Acquire)
}

/// Returns the processor with index `index`, once it runs.
pub(crate) fn cpu(index: usize) -> Option<&'static PerCpu> {
    let p = CPUS.get(index)?.load(Ordering::Acquire);
    // SAFETY: `prepare` sets the pointer once, to data that is never freed and is changed only through
    // atomics.
    unsafe { p.as_ref() }.filter(|cpu| cpu.running.load(Ordering::Acquire))
}

/// Returns the number of running processors.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// Allocates the data of processor `index`, on the boot processor: a starting processor must not wait for the
/// heap's lock before it has its own data.
pub(crate) fn prepare(index: u32) {
    let data = Box::leak(Box::new(PerCpu {
        this: core::ptr::null(),
        index,
        running: AtomicBool::new(false),
        apic_id: AtomicU32::new(0),
        node: AtomicUsize::new(0),
        interrupts: AtomicU64::new(0),
        #[cfg(feature = "selftest")]
        probe_hits: AtomicU64::new(0),
        descriptors: Descriptors::new(index),
    }));
    data.this = &raw const *data;
    data.descriptors.link();
    if let Some(slot) = CPUS.get(index as usize) {
        slot.store(data, Ordering::Release);
        PREPARED.fetch_max(index as usize + 1, Ordering::AcqRel);
    }
}

/// Loads this processor's data, descriptor tables and interrupt stacks.
///
/// # Safety
/// Call once on each processor, with its own `index`, after [`prepare`]; its stacks must be mapped.
pub(crate) unsafe fn install(index: u32) {
    let data = CPUS.get(index as usize).map_or(core::ptr::null_mut(), |slot| slot.load(Ordering::Acquire));
    // SAFETY: `prepare` has set the pointer to data that is never freed. Loading the descriptors clears GS,
    // so its base is set afterwards.
    unsafe { (*data).descriptors.load() };
    GsBase::write(VirtAddr::from_ptr(data));
    READY.store(1, Ordering::Release);
}

/// Adds this processor to the running processors. Its local APIC has the id `apic_id`, and it belongs to a
/// NUMA node.
pub(crate) fn announce(apic_id: u32, node: usize) {
    let this = this_cpu();
    this.apic_id.store(apic_id, Ordering::Relaxed);
    this.node.store(node, Ordering::Relaxed);
    this.running.store(true, Ordering::Release);
    COUNT.fetch_add(1, Ordering::AcqRel);
}
