//! The main loop of a core.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use platform::Instant;

use super::core_state::{self, Core};
use super::poller_list::Which;
use super::{FULL_TURN, POLL_INTERVAL};
use crate::arch::{self, cpu};
use crate::{console, time};

/// The longest spin before a halt of a core that has pollers, in nanoseconds: longer than RDMA operations
/// take, so that neither their issuer nor their target is halted when the next packet comes. It is as long as
/// a tick of a usual host's scheduler, because the host's thread that moves frames may have to wait for one.
static MAX_SPIN_NS: AtomicU64 = AtomicU64::new(4_000_000);
/// The longest spin before a halt of a core without pollers. It waits for tasks that other cores make ready.
const MAX_SPIN_FOR_TASKS: Duration = Duration::from_micros(50);
/// The longest halt after which the spin grows: a longer spin would have seen the event that ended the halt.
const SHORT_HALT: Duration = Duration::from_millis(1);
/// The first and the shortest spin before a halt.
const FIRST_SPIN: Duration = Duration::from_micros(5);
/// The largest number of tasks that run between two polls.
const TASKS_PER_POLL: usize = 16;

/// Sets the longest spin before a halt.
pub(crate) fn set_max_spin(spin: Duration) {
    MAX_SPIN_NS.store(spin.as_nanos() as u64, Ordering::Relaxed);
}

/// A turn without work that takes longer shows that the host has run something else on this processor.
const STOLEN: Duration = Duration::from_millis(1);
/// The time for which a core does not spin after the host has taken its processor away: at first, and at
/// most. It doubles if that happens again before the core could spin for twice as long. A host that has too
/// few processors takes one away within some milliseconds of each spin, and other hosts do so now and then.
const MODEST: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// The duration of a spin. It grows while halts are short, so that an imminent event finds the core awake,
/// and shrinks when halts are long.
///
/// On a host with fewer processors than runnable threads a spin only delays the others, among them the host's
/// thread that moves this machine's frames: the host takes the processor away in the middle of the spin. The
/// core then halts for a while instead.
struct Spin {
    length: Duration,
    /// The core does not spin before.
    not_before: Instant,
    /// The time without a spin that ended there.
    modest: Duration,
}

impl Spin {
    const fn new() -> Self {
        Self { length: FIRST_SPIN, not_before: Instant::ZERO, modest: Duration::ZERO }
    }

    /// Adapts the spin to a halt that has ended at `now`, if the longest spin is `max`.
    fn after_halt(&mut self, now: Instant, halted: Duration, max: Duration) {
        self.length = if now < self.not_before {
            Duration::ZERO
        } else if halted <= SHORT_HALT.min(max) {
            (self.length * 2).max(FIRST_SPIN).min(max)
        } else {
            self.length / 4
        };
    }

    /// Adapts the spin to a turn without work that began at `from`; the next turn begins at `now`.
    fn after_turn(&mut self, from: Instant, now: Instant) {
        if now > from + STOLEN {
            let again = now < self.not_before + 2 * self.modest;
            self.modest = if again { (self.modest * 2).min(MODEST.1) } else { MODEST.0 };
            self.not_before = now + self.modest;
            self.length = Duration::ZERO;
        }
    }
}

/// The translation buffer of a processor that TCG emulates. It begins with 256 entries, which cover a
/// megabyte, and QEMU makes it larger only when it is flushed while most entries are in use
/// (`tlb_mmu_resize_locked` in QEMU's accel/tcg/cputlb.c). This kernel has one address space, so it never
/// flushes the buffer otherwise.
struct TranslationBuffer {
    /// The time from which the next long task ends with a flush. `None` on real processors and under KVM.
    next_flush: Option<Instant>,
}

impl TranslationBuffer {
    /// The least time between two flushes. After each, the entries in use are found again, which takes far
    /// less.
    const INTERVAL: Duration = Duration::from_millis(20);

    fn new() -> Self {
        Self { next_flush: cpu::is_tcg().then_some(Instant::ZERO) }
    }

    /// Flushes the buffer at `now`, after a task that has computed for long.
    fn after_long_task(&mut self, now: Instant) {
        if let Some(next) = self.next_flush.as_mut().filter(|next| now >= **next) {
            *next = now + Self::INTERVAL;
            x86_64::instructions::tlb::flush_all();
        }
    }
}

/// Runs this core's tasks and pollers for ever. Turns interrupts on.
pub(crate) fn run() -> ! {
    let index = arch::this_cpu_index();
    let core = core_state::core(index).expect("init_this_cpu has run on this processor");
    let mut spin = Spin::new();
    let mut idle_since = time::now();
    let mut idle_turn = None;
    let mut console_waits = false;
    let mut translations = TranslationBuffer::new();
    // TCG leaves its execution loop at every PAUSE and acquires QEMU's global lock when it re-enters. QEMU's
    // I/O thread then waits for that lock, which delays the very event for which the core spins.
    let pause = !cpu::is_tcg();
    cpu::interrupts_on();
    loop {
        // Only this core writes the counter, so no locked instruction is needed.
        core.rounds.store(core.rounds.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let now = time::now();
        if let Some(from) = idle_turn.take() {
            spin.after_turn(from, now);
        }
        // SAFETY: this is the core's main loop, outside of tasks and pollers.
        let mut worked = unsafe { core.poll(now, Which::Urgent) };
        // A full turn comes after the urgent pollers, so that frames which a task has just posted do not wait
        // for it.
        if core.is_full_turn_due(now) {
            // SAFETY: this is the core's main loop, outside of tasks and pollers.
            let others = unsafe {
                core.adopt_pollers();
                core.poll(now, Which::Others)
            } | fire_timers(core, now);
            console_waits = index == 0 && console::poll();
            // More work for the same pollers may wait, or come at once.
            core.set_full_turn(if others { Instant::ZERO } else { core.next_timer().min(now + FULL_TURN) });
            worked |= others;
        }
        if let Some(now) = run_tasks(core, now, &mut translations) {
            idle_since = now;
        } else if worked {
            idle_since = time::now();
        } else if now < idle_since + spin.length {
            idle_turn = Some(now);
            if pause {
                core::hint::spin_loop();
            }
        } else {
            if let Some(halted) = halt(core, console_waits) {
                idle_since = time::now();
                spin.after_halt(idle_since, halted, max_spin(core));
            }
            core.set_full_turn(Instant::ZERO);
        }
    }
}

fn max_spin(core: &Core) -> Duration {
    let max = Duration::from_nanos(MAX_SPIN_NS.load(Ordering::Relaxed));
    // SAFETY: this is the core's main loop, outside of tasks and pollers.
    if unsafe { core.has_pollers() } { max } else { max.min(MAX_SPIN_FOR_TASKS) }
}

/// Runs the tasks that are ready at the beginning, at `now`. A task that yields is ready again, and its next
/// run comes after a poll: at once if the last of these tasks has polled in its run, otherwise in the next
/// turn. Returns the time if a task has run.
fn run_tasks(core: &Core, mut now: Instant, translations: &mut TranslationBuffer) -> Option<Instant> {
    let mut after = None;
    let (mut ran, mut end) = (0, core.ready().min(TASKS_PER_POLL));
    while ran < end {
        let Some(runnable) = core.pop() else { break };
        let poll_before = core.last_poll();
        core.run(runnable, now);
        now = time::now();
        after = Some(now);
        if now >= core.last_poll() + POLL_INTERVAL / 4 {
            translations.after_long_task(now);
            break;
        }
        ran += 1;
        if ran == end && core.last_poll() > poll_before && !core.is_full_turn_due(now) {
            end = (ran + core.ready()).min(TASKS_PER_POLL);
        }
    }
    after
}

fn fire_timers(core: &Core, now: Instant) -> bool {
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
