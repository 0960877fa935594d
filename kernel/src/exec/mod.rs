//! The executor, one on each core: cooperative async tasks that stay on their core, pollers, and timers.
//!
//! The main loop polls, runs ready tasks, spins for a bounded adaptive time, then arms interrupts and halts.
//! Most turns of the loop are quick: they call only the urgent pollers (LITE, and an RNIC in software),
//! because each lock and each reading of the clock in a turn delays the completion for which a task waits. A
//! task that waits goes on with such turns in its own run ([`attention`]). Progress does not wait for a
//! task: if a task has run for [`POLL_INTERVAL`] without a poll, the next interrupt (the timer's at the
//! latest) runs the core's pollers in interrupt context, for at most [`INTERRUPT_POLL_LIMIT`].
//!
//! ```text
//! loop:
//!     poll LITE, and an RNIC in software
//!     every 300 us: poll the others, wake due timers
//!     run up to 16 ready tasks
//!     if there was work, or the spin goes on: continue
//!     arm the pollers, set `sleeping`
//!     halt, unless work came meanwhile, until an interrupt or a wake of another core
//!
//! on_interrupt:
//!     poll, if the last poll is 1 ms ago
//! ```
//!
//! A core that makes a task of another core ready pushes it to that core's queue and, if `sleeping` is set,
//! sends an interrupt.

mod attention;
mod core_state;
mod idle;
mod main_loop;
mod poller;
mod poller_list;
mod sleep;

use alloc::boxed::Box;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll};
#[cfg(feature = "selftest")]
use core::time::Duration;
use platform::Instant;

use crate::arch::{self, percpu};
use crate::time;
use attention::Attention;
use core_state::{Activity, Core, Runnable};
use poller::{INTERRUPT_POLL_LIMIT, POLL_INTERVAL};
use poller_list::Which;

pub(crate) use core_state::Meta;
pub(crate) use idle::set_max_spin;
pub(crate) use main_loop::run;
pub(crate) use poller::{INTERRUPT_BUDGET, Poller};
pub(crate) use sleep::{sleep, sleep_until};

/// Prepares this processor to run tasks.
pub(crate) fn init_this_cpu() {
    core_state::install(arch::this_cpu_index());
}

/// Adds `poller` to core `cpu` (0 for NICs).
///
/// # Panics
/// Panics if there is no such core.
pub(crate) fn register_poller(cpu: usize, poller: Box<dyn Poller>) {
    let core = core_state::core(cpu).expect("poller for a core that does not run");
    core.add_poller(poller);
    core.kick(cpu);
}

/// Returns the time of the last poll of core `cpu`.
pub(crate) fn last_poll(cpu: usize) -> Instant {
    core_state::core(cpu).map_or(Instant::ZERO, Core::last_poll)
}

/// Wakes core `cpu` if it is halted, so that it looks for work.
pub(crate) fn kick(cpu: usize) {
    if let Some(core) = core_state::core(cpu) {
        core.kick(cpu);
    }
}

/// Calls the urgent pollers of this processor once, on behalf of the task that it runs, and so
/// spares the task a turn of the main loop. Returns false if other work waits for the processor;
/// the task must then yield.
pub(crate) fn poll_in_task() -> bool {
    let core = core_state::core(arch::this_cpu_index()).filter(|core| core.state() == Activity::Task);
    // SAFETY: this core is in a task. Pollers call no task, and tasks do not call each other.
    core.is_some_and(|core| unsafe { core.poll_in_task() })
}

/// Starts a task on core `cpu`. Dropping the handle cancels the task; detach it to let it run.
///
/// # Panics
/// Panics if there is no such core.
pub(crate) fn spawn_on<F>(cpu: usize, name: &'static str, future: F) -> async_task::Task<F::Output, Meta>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let core = core_state::core(cpu).expect("task for a core that does not run");
    core.admit();
    let counted = Counted { core, future };
    let schedule = move |runnable: Runnable| core.push(cpu, runnable);
    let meta = Meta { name, attention: Attention::new() };
    let run = |meta: &Meta| {
        // SAFETY: the metadata is in the same allocation as the task, and outlasts its future.
        counted.run(unsafe { &*core::ptr::from_ref(&meta.attention) })
    };
    let (runnable, task) = async_task::Builder::new().metadata(meta).spawn(run, schedule);
    runnable.schedule();
    task
}

/// Starts a task on the core with the fewest tasks, the lowest index first.
pub(crate) fn spawn<F>(name: &'static str, future: F) -> async_task::Task<F::Output, Meta>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let load = |cpu: &usize| core_state::core(*cpu).map_or(usize::MAX, Core::tasks);
    let cpu = (0..percpu::count()).min_by_key(load).unwrap_or(0);
    spawn_on(cpu, name, future)
}

/// A task's future, counted as one of its core's tasks from its start until it is dropped. The task
/// is in cache lines of its own, so that tasks of two cores have none in common.
#[repr(align(128))]
struct Counted<F> {
    core: &'static Core,
    future: F,
}

impl<F: Future> Counted<F> {
    async fn run(self, attention: &'static Attention) -> F::Output {
        struct Leave(&'static Core);
        impl Drop for Leave {
            fn drop(&mut self) {
                self.0.leave();
            }
        }
        let _leave = Leave(self.core);
        let mut future = pin!(self.future);
        let (core, mut output) = (self.core, None);
        poll_fn(|cx| {
            let mut poll = |cx: &mut Context<'_>| match future.as_mut().poll(cx) {
                Poll::Ready(ended) => {
                    output = Some(ended);
                    true
                }
                Poll::Pending => false,
            };
            // SAFETY: this is a run of the task that the metadata belongs to, and the task stays on its core.
            unsafe { attention.poll(core, cx, &mut poll) }
        })
        .await;
        output.expect("the future has ended")
    }
}

/// Statistics of a core's main loop.
#[cfg(feature = "selftest")]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    /// Iterations of the main loop.
    pub rounds: u64,
    /// The number of halts.
    pub halts: u64,
    /// The total duration of halts.
    pub halted: Duration,
    /// The number of interrupts that ran the pollers because a task did not yield.
    pub interrupt_polls: u64,
}

/// Returns the statistics of core `cpu`.
#[cfg(feature = "selftest")]
pub(crate) fn stats(cpu: usize) -> Option<Stats> {
    let core = core_state::core(cpu)?;
    Some(Stats {
        rounds: core.rounds.load(Ordering::Relaxed),
        halts: core.halts.load(Ordering::Relaxed),
        halted: Duration::from_nanos(core.halted_ns.load(Ordering::Relaxed)),
        interrupt_polls: core.interrupt_polls.load(Ordering::Relaxed),
    })
}

/// Returns the name of the task that this processor runs, if any.
pub(crate) fn current_task() -> Option<&'static str> {
    core_state::core(arch::this_cpu_index())?.current()
}

/// Makes the timer of this processor fire after `after`, unless it fires earlier. For self-tests that need
/// many interrupts.
#[cfg(feature = "selftest")]
pub(crate) fn tick_after(after: Duration) {
    if let Some(core) = core_state::core(arch::this_cpu_index()) {
        core.tick_at(time::now() + after);
    }
}

/// Runs at the end of each interrupt, with interrupts off and on the interrupt stack.
pub(crate) fn on_interrupt(timer: bool) {
    let Some(core) = core_state::core(arch::this_cpu_index()) else { return };
    if timer {
        core.timer_fired();
    }
    if core.state() != Activity::Task {
        return;
    }
    let now = time::now();
    if now >= core.last_poll() + POLL_INTERVAL {
        core.interrupt_polls.fetch_add(1, Ordering::Relaxed);
        let limit = now + INTERRUPT_POLL_LIMIT;
        // SAFETY: this core is in a task, so its main loop is not in a poller, and interrupts are off.
        while unsafe { core.poll(time::now(), Which::Interrupt) } && time::now() < limit {}
    }
    core.ensure_tick(time::now());
}
