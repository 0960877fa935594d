//! The main loop of a core.

use core::sync::atomic::Ordering;
use core::time::Duration;
use platform::Instant;

use super::core_state::{self, Core};
use super::poller::FULL_TURN;
use super::poller_list::Which;
use crate::arch::{self, cpu};
use crate::{console, time};

/// The largest number of tasks that run between two polls.
const TASKS_PER_POLL: usize = 16;

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
    let idle = core.idle();
    let mut idle_turn = None;
    let mut console_waits = false;
    let mut translations = TranslationBuffer::new();
    cpu::interrupts_on();
    loop {
        core.count_round();
        let now = time::now();
        if let Some(from) = idle_turn.take() {
            idle.after_turn(from, now);
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
        let ran = run_tasks(core, now, &mut translations);
        if worked || idle.has_worked() {
            idle.begin(ran.unwrap_or_else(time::now));
        } else if ran.is_some() {
            // A task has only looked for its wake-up, so the spin goes on.
        } else if idle.lasts(now) {
            idle_turn = Some(now);
            idle.pause();
        } else {
            if let Some(halted) = halt(core, console_waits) {
                // SAFETY: this is the core's main loop, outside of tasks and pollers.
                unsafe { core.after_halt(time::now(), halted) };
            }
            core.set_full_turn(Instant::ZERO);
        }
    }
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
        if core.has_run_long(now) {
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
