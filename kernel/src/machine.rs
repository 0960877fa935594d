//! [`platform::Platform`] for the code above: the clock, randomness, executor and memory of this kernel.

use alloc::sync::Arc;
use platform::{Instant, Memory, Platform, Task};
use spin::Once;

use crate::arch::percpu;
use crate::mm::memory::LentMemory;
use crate::{exec, random, time};

/// What peers may reach of this machine.
#[derive(Clone)]
pub enum Reach {
    /// Memory that is lent, as far as the RNIC can tell: softroce looks at each access, and a card has page entries for all
    /// memory that can be lent.
    Lendable,
    /// An arena, in which all that is lent lies.
    Arena(Arc<dyn Memory>),
    /// Through a card, whatever it can address. Softroce has no such key: it is as for [`Lendable`](Self::Lendable).
    Physical,
}

static REACH: Once<Reach> = Once::new();

/// Settles what peers reach. Once, before there is an RNIC or anything of LITE's.
pub fn set_reach(reach: Reach) {
    REACH.call_once(|| reach);
}

/// What peers reach.
pub fn reach() -> &'static Reach {
    REACH.get().unwrap_or(&Reach::Lendable)
}

/// The memory that is lent to devices and peers.
pub fn memory() -> &'static dyn Memory {
    match reach() {
        Reach::Arena(arena) => &**arena,
        Reach::Lendable | Reach::Physical => &LentMemory,
    }
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
        memory()
    }
}
