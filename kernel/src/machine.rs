//! The [`platform::Platform`] of this kernel: its clock, randomness, executor and memory.

use alloc::sync::Arc;
use platform::{Instant, Look, Memory, Platform, Task};
use spin::Once;

use crate::arch::percpu;
use crate::mm::memory::LentMemory;
use crate::{console, exec, random, time};

/// The memory of this machine that peers can access.
#[derive(Clone)]
pub(crate) enum RemoteAccess {
    /// Memory that is lent, as far as the RNIC can tell: softroce checks each access; a card has page entries
    /// for all memory that can be lent.
    Lendable,
    /// An arena, which contains all memory that is lent.
    Arena(Arc<dyn Memory>),
    /// Through a card, all memory that the card can address. Softroce has no such key: it behaves as for
    /// [`Lendable`](Self::Lendable).
    Physical,
}

static REMOTE_ACCESS: Once<RemoteAccess> = Once::new();

/// Sets the memory that peers can access. Call once, before an RNIC or LITE is started.
pub(crate) fn set_remote_access(access: RemoteAccess) {
    REMOTE_ACCESS.call_once(|| access);
}

/// Returns the memory that peers can access.
pub(crate) fn remote_access() -> &'static RemoteAccess {
    REMOTE_ACCESS.get().unwrap_or(&RemoteAccess::Lendable)
}

/// Returns the memory that is lent to devices and peers.
pub(crate) fn memory() -> &'static dyn Memory {
    match remote_access() {
        RemoteAccess::Arena(arena) => &**arena,
        RemoteAccess::Lendable | RemoteAccess::Physical => &LentMemory,
    }
}

/// This machine, as a platform.
pub(crate) struct Machine;

impl Platform for Machine {
    fn now(&self) -> Instant {
        time::now()
    }

    /// The bytes are unpredictable only if [`random::is_seeded`]; check that before joining a cluster.
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

    /// Core 0 drives the RNIC, and has the deadlines that are no core's own (see `node::pollers`).
    fn wake_poller(&self) {
        exec::kick(0);
    }

    fn poll_in_task(&self) -> Look {
        if exec::poll_in_task() { Look::Again } else { Look::Yield }
    }

    fn memory(&self) -> &dyn Memory {
        memory()
    }

    fn take_log(&self, into: &mut [u8]) -> (usize, u64) {
        console::take_log(into)
    }
}
