//! What must not wait for a lock, and who waits for one how long.

use core::sync::atomic::Ordering;
use core::time::Duration;

use super::{Outcome, ensure};
use crate::arch::{apic, interrupts};
use crate::sync::Spin;
use crate::{console, time};

/// How long an NMI to the own processor may take.
const LIMIT: Duration = Duration::from_secs(2);

pub fn run() -> Outcome {
    nmi_while_the_console_is_taken()?;
    pauses_do_not_count()?;
    Ok("an NMI, and pauses".into())
}

/// The handler comes back although this processor has the console. Its line follows later.
fn nmi_while_the_console_is_taken() -> Result<(), alloc::string::String> {
    let count = || interrupts::NMIS.load(Ordering::Relaxed);
    let before = count();
    let came = console::while_taken(|| {
        apic::send_nmi_to_self();
        let end = time::now() + LIMIT;
        while count() == before && time::now() < end {
            core::hint::spin_loop();
        }
        count() - before
    });
    ensure!(came == 1, "{came} NMIs came, not one");
    // As the main loop does, which has the line written.
    console::poll();
    Ok(())
}

/// A processor that was put aside for minutes while it spins has not waited for minutes.
fn pauses_do_not_count() -> Result<(), alloc::string::String> {
    const HERTZ: u64 = 1_000_000_000;
    let mut spin = Spin::new(5, HERTZ, 60);
    let mut now = 5;
    for round in 0..1000 {
        now += 600 * HERTZ;
        ensure!(!spin.is_over(now), "pause {round} of ten minutes counts as waiting");
    }
    // It does end: each round of a loop counts as it is, up to a millisecond.
    let mut rounds = 0u64;
    while !spin.is_over(now) {
        now += HERTZ / 10_000;
        rounds += 1;
        ensure!(rounds < 1_000_000, "the wait never ends");
    }
    ensure!((589_000..591_001).contains(&rounds), "the wait ended after {rounds} rounds");
    Ok(())
}
