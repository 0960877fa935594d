//! [`platform::Platform`] for the code above: the clock, randomness, executor and memory of this kernel.

use alloc::sync::Arc;
use platform::{Instant, Memory, Platform, Task};
use spin::Once;

use crate::arch::percpu;
use crate::mm::memory::PhysicalMemory;
use crate::{exec, random, time};

/// What peers may reach, if that is a part of memory only.
static ARENA: Once<Arc<dyn Memory>> = Once::new();

/// From now on peers reach this part only, and what they are given is allocated in it. Once, before there is an RNIC.
pub fn set_arena(arena: Arc<dyn Memory>) {
    ARENA.call_once(|| arena);
}

/// The part of memory that peers may reach, if it is not all.
pub fn arena() -> Option<&'static Arc<dyn Memory>> {
    ARENA.get()
}

/// This machine.
pub struct Machine;

impl Platform for Machine {
    fn now(&self) -> Instant {
        time::now()
    }

    /// Unpredictable only where [`random::is_seeded`]; whoever joins a cluster must ask first.
    fn fill_random(&self, buf: &mut [u8]) {
        random::fill(buf);
    }

    fn cpu(&self) -> usize {
        percpu::this_cpu_index()
    }

    fn cpus(&self) -> usize {
        percpu::count().max(1)
    }

    fn spawn(&self, name: &'static str, task: Task) {
        exec::spawn(name, task).detach();
    }

    /// Core 0 polls (see `node::pollers`).
    fn wake_poller(&self) {
        exec::kick(0);
    }

    fn memory(&self) -> &dyn Memory {
        arena().map_or(&PhysicalMemory, |arena| &**arena)
    }
}
