//! The main loop of a core.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use super::core_state::{self, Core};
use super::{BUDGET, POLL_INTERVAL};
use crate::arch::{self, cpu};
use crate::{console, time};

/// The longest spin before a halt, in nanoseconds.
static MAX_SPIN_NS: AtomicU64 = AtomicU64::new(50_000);
/// The first and the shortest spin before a halt.
const FIRST_SPIN: Duration = Duration::from_micros(5);
/// The largest number of tasks that run between two polls.
const TASKS_PER_POLL: usize = 16;

/// Sets the longest spin before a halt.
pub(crate) fn set_max_spin(spin: Duration) {
    MAX_SPIN_NS.store(spin.as_nanos() as u64, Ordering::Relaxed);
}

/// The duration of a spin. It grows while halts are short, so that an imminent event finds the core awake,
/// and shrinks when halts are long.
struct Spin(Duration);

impl Spin {
    fn after_halt(&mut self, halted: Duration) {
        let max = Duration::from_nanos(MAX_SPIN_NS.load(Ordering::Relaxed));
        self.0 = if halted <= max { (self.0 * 2).max(FIRST_SPIN).min(max) } else { self.0 / 2 };
    }
}

/// Runs this core's tasks and pollers for ever. Turns interrupts on.
pub(crate) fn run() -> ! {
    let index = arch::this_cpu_index();
    let core = core_state::core(index).expect("init_this_cpu has run on this processor");
    let mut spin = Spin(FIRST_SPIN);
    let mut idle_since = time::now();
    // TCG leaves its execution loop at every PAUSE and acquires QEMU's global lock when it re-enters. QEMU's
    // I/O thread then waits for that lock, which delays the very event for which the core spins.
    let pause = !cpu::is_tcg();
    cpu::interrupts_on();
    loop {
        // Only this core writes the counter, so no locked instruction is needed.
        core.rounds.store(core.rounds.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // SAFETY: this is the core's main loop, outside of tasks and pollers.
        let mut worked = unsafe {
            core.adopt_pollers();
            core.poll_all(BUDGET, false)
        };
        let console_waits = index == 0 && console::poll();
        worked |= fire_timers(core);
        worked |= run_tasks(core);
        let now = time::now();
        if worked {
            idle_since = now;
        } else if now < idle_since + spin.0 {
            if pause {
                core::hint::spin_loop();
            }
        } else if let Some(halted) = halt(core, console_waits) {
            spin.after_halt(halted);
            idle_since = time::now();
        }
    }
}

fn run_tasks(core: &Core) -> bool {
    let mut ran = false;
    for _ in 0..TASKS_PER_POLL {
        let Some(runnable) = core.pop() else { break };
        core.run(runnable);
        ran = true;
        if time::now() >= core.last_poll() + POLL_INTERVAL / 4 {
            break;
        }
    }
    ran
}

fn fire_timers(core: &Core) -> bool {
    let now = time::now();
    let mut fired = false;
    loop {
        // The lock is not held while waking: that may drop a task, and with it other timers.
        let due = core.timers.lock().pop_due(now);
        let Some(waker) = due else { return fired };
        waker.wake();
        fired = true;
    }
}

/// Halts until an interrupt, unless there is work. Returns the duration of the halt.
fn halt(core: &Core, console_waits: bool) -> Option<Duration> {
    cpu::interrupts_off();
    // SAFETY: this is the core's main loop, outside of tasks and pollers.
    let deadline = unsafe {
        // Arming may wake tasks of this core, so the queue is checked afterwards.
        let may = !core.arm_all() && core.prepare_halt();
        may.then(|| core.next_deadline())
    };
    let now = time::now();
    let Some(mut deadline) = deadline.filter(|d| *d > now) else {
        core.awake();
        cpu::interrupts_on();
        return None;
    };
    if console_waits {
        deadline = deadline.min(now + Duration::from_micros(200));
    }
    core.set_timer(deadline);
    core.halts.fetch_add(1, Ordering::Relaxed);
    cpu::interrupts_on_and_halt();
    core.awake();
    let halted = time::now().saturating_since(now);
    core.halted_ns.fetch_add(halted.as_nanos() as u64, Ordering::Relaxed);
    Some(halted)
}
