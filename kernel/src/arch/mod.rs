//! The processor: features, descriptor tables, stacks, interrupts, local APIC.
//!
//! This module imports none of the kernel's others. What an interrupt or a fault leads to is set by
//! [`interrupts::init`].

pub mod apic;
pub mod copy;
pub mod cpu;
mod descriptors;
pub mod interrupts;
pub mod mem;
pub mod percpu;
#[cfg(feature = "selftest")]
pub mod probe;
pub mod stacks;

pub use percpu::this_cpu_index;

/// Stops all other processors for ever, wherever they are. Call only when the machine is about to end.
pub fn stop_others() {
    interrupts::STOPPING.store(true, core::sync::atomic::Ordering::Release);
    apic::send_nmi_to_others();
}
