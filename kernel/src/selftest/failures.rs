//! Self-tests that end the machine by a panic, a fault or an exhausted heap, to test what it prints and
//! reports.

use alloc::vec::Vec;
use core::time::Duration;

use super::Outcome;
use crate::arch::percpu;
use crate::sync::IrqMutex;
use crate::{exec, time};

pub(super) fn panic() -> Outcome {
    panic!("asked for by selftest=panic")
}

/// Panics on the last processor while a task computes on the first, which must be stopped.
pub(super) async fn panic_elsewhere() -> Outcome {
    let last = percpu::count() - 1;
    exec::spawn_on(last, "elsewhere", async { panic!("asked for by selftest=panic2") }).detach();
    let end = time::now() + Duration::from_secs(5);
    while time::now() < end {
        platform::yield_now().await;
    }
    Err("the machine went on after a panic".into())
}

/// Waits for a lock that this processor holds. This ends in a panic that reports it.
pub(super) fn deadlock() -> Outcome {
    // The default limit is too long for a test.
    crate::sync::set_spin_limit(1);
    let lock = IrqMutex::new(0);
    let held = lock.lock();
    let again = lock.lock();
    Err(alloc::format!("took a lock twice: {held} {again}"))
}

/// Writes to an unmapped address.
pub(super) fn fault() -> Outcome {
    // SAFETY: none: this is meant to fault.
    unsafe { core::ptr::without_provenance_mut::<u64>(0xdead_0000).write_volatile(1) };
    Err("a write to an unmapped address went through".into())
}

/// Allocates until memory is exhausted.
pub(super) fn oom() -> Outcome {
    let mut hoard: Vec<Vec<u8>> = Vec::new();
    loop {
        hoard.push(alloc::vec![1; 1 << 20]);
    }
}

#[inline(never)]
fn descend(depth: u64, data: &[u64; 64]) -> u64 {
    let mut mine = [depth; 64];
    mine[(depth % 64) as usize] = data[(depth % 63) as usize];
    if depth == u64::MAX { 0 } else { descend(depth + 1, core::hint::black_box(&mine)) + mine[0] }
}

/// Recurses without end.
pub(super) fn stack_overflow() -> Outcome {
    Ok(alloc::format!("{}", descend(0, &[0; 64])))
}

/// Frees a run of frames twice.
pub(super) fn free_twice() -> Outcome {
    let run = crate::mm::frames::alloc(8192).ok_or("no frames")?;
    crate::mm::frames::free(run, 8192);
    crate::mm::frames::free(run, 8192);
    Err("a run of frames was given back twice".into())
}
