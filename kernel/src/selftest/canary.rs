//! A canary in all free memory. Nothing may write there: no loader, no firmware, and no device that the
//! former kernel has left at work.

use alloc::format;
use alloc::vec::Vec;
use x86_64::PhysAddr;

use super::{Outcome, ensure, seconds};
use crate::exec;
use crate::mm::{PAGE, frames, phys_to_virt};

/// The memory that stays free for the heap, in bytes.
const RESERVE: u64 = 2 << 20;
/// The length of the longest run, in bytes.
const LONGEST: u64 = 1 << 30;
/// The most runs.
const MOST_RUNS: usize = 4096;
const WORD: u64 = 8;

/// A run of memory: its address, and its length in bytes.
type Run = (PhysAddr, u64);

/// Writes a pattern over all free memory, waits `selftest_s` seconds, and compares.
pub(super) async fn run() -> Outcome {
    let (_, free) = frames::totals();
    let runs = take()?;
    runs.iter().for_each(|run| write(*run));
    let duration = seconds(10);
    exec::sleep(duration).await;
    for (at, len) in &runs {
        for offset in (0..*len).step_by(WORD as usize) {
            let (found, wanted) = (read(*at + offset), pattern(*at + offset));
            ensure!(found == wanted, "{:?} contains {found:#018x}, not {wanted:#018x}", *at + offset);
        }
    }
    let taken: u64 = runs.iter().map(|(_, len)| len).sum();
    let first = runs.iter().map(|(at, _)| at.as_u64()).min().unwrap_or_default();
    let end = runs.iter().map(|(at, len)| at.as_u64() + len).max().unwrap_or_default();
    runs.iter().for_each(|(at, len)| frames::free(*at, *len));
    ensure!(taken + 2 * RESERVE >= free, "only {taken} of {free} free bytes could be taken");
    Ok(format!(
        "{} of {} MiB of free memory, from {first:#x} to {end:#x}, are intact after {} s",
        taken >> 20,
        free >> 20,
        duration.as_secs()
    ))
}

/// Allocates all free memory but the reserve, the longest runs first.
fn take() -> Result<Vec<Run>, alloc::string::String> {
    let mut runs = Vec::with_capacity(MOST_RUNS);
    let reserve = frames::alloc(RESERVE).ok_or("no memory for the reserve")?;
    let mut len = LONGEST;
    while len >= PAGE && runs.len() < MOST_RUNS {
        match frames::alloc(len) {
            Some(at) => runs.push((at, len)),
            None => len /= 2,
        }
    }
    frames::free(reserve, RESERVE);
    Ok(runs)
}

/// Returns the word that belongs to an address: no two addresses have the same.
fn pattern(at: PhysAddr) -> u64 {
    at.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn write((at, len): Run) {
    for offset in (0..len).step_by(WORD as usize) {
        // SAFETY: the run is allocated for this test, and the direct map contains it.
        unsafe { phys_to_virt(at + offset).cast::<u64>().write_volatile(pattern(at + offset)) };
    }
}

fn read(at: PhysAddr) -> u64 {
    // SAFETY: as in `write`.
    unsafe { phys_to_virt(at).cast::<u64>().read_volatile() }
}
