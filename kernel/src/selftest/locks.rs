//! Tests of locks: an NMI waits for none, and suspended time does not count as waiting.

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::{Outcome, ensure};
use crate::arch::{apic, interrupts};
use crate::sync::Spin;
use crate::{console, time};

/// The longest time for an NMI to this processor.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) fn run() -> Outcome {
    nmi_while_the_console_is_taken()?;
    pauses_do_not_count()?;
    Ok("an NMI, and pauses".into())
}

/// Checks that the NMI handler returns although this processor holds the console. Its line is printed later.
fn nmi_while_the_console_is_taken() -> Result<(), alloc::string::String> {
    let count = || interrupts::NMIS.load(Ordering::Relaxed);
    let before = count();
    let came = console::while_locked(|| {
        apic::send_nmi_to_self();
        let end = time::now() + LIMIT;
        while count() == before && time::now() < end {
            core::hint::spin_loop();
        }
        count() - before
    });
    ensure!(came == 1, "{came} NMIs came, not one");
    // The main loop calls this too; it prints the line.
    console::poll();
    Ok(())
}

/// Checks that a spinning processor which was suspended for minutes has not waited for minutes.
fn pauses_do_not_count() -> Result<(), alloc::string::String> {
    const HERTZ: u64 = 1_000_000_000;
    let mut spin = Spin::new(5, HERTZ, 60);
    let mut now = 5;
    for round in 0..1000 {
        now += 600 * HERTZ;
        ensure!(!spin.is_over(now), "pause {round} of ten minutes counts as waiting");
    }
    // The wait does end: each round of a loop counts with its duration, up to a millisecond.
    let mut rounds = 0u64;
    while !spin.is_over(now) {
        now += HERTZ / 10_000;
        rounds += 1;
        ensure!(rounds < 1_000_000, "the wait never ends");
    }
    ensure!((589_000..591_001).contains(&rounds), "the wait ended after {rounds} rounds");
    Ok(())
}
