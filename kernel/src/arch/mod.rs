//! The processor: features, descriptor tables, stacks, interrupts, local APIC.
//!
//! This module imports none of the kernel's others. What an interrupt or a fault leads to is set by
//! [`interrupts::init`].

pub(crate) mod apic;
pub(crate) mod copy;
pub(crate) mod cpu;
mod descriptors;
pub(crate) mod interrupts;
pub(crate) mod mem;
pub(crate) mod percpu;
#[cfg(feature = "selftest")]
pub(crate) mod probe;
pub(crate) mod stacks;

pub(crate) use percpu::{this_cpu_index, this_cpu_node};

/// Stops all other processors for ever, wherever they are. Call only when the machine is about to end.
pub(crate) fn stop_others() {
    interrupts::STOPPING.store(true, core::sync::atomic::Ordering::Release);
    apic::send_nmi_to_others();
}
