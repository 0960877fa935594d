//! One core's run queue, timers and pollers. Any core pushes to the queue, under a lock that masks
//! interrupts. The pollers belong to the core: they run in its main loop or in an interrupt of a task, never
//! in both at once.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use core::time::Duration;
use platform::Instant;
use spin::Once;

use super::attention::Attention;
use super::idle::{Idle, max_spin};
use super::poller::{POLL_INTERVAL, Poller};
use super::poller_list::{PollerList, Which};
use super::sleep::Timers;
use crate::arch::{self, apic, interrupts, percpu};
use crate::sync::IrqMutex;
use crate::time;

/// The least time to which the timer is set.
const SHORTEST_TICK: Duration = Duration::from_micros(50);
/// A task that runs this long without a poll computes, so its core has used much memory.
const LONG_RUN: Duration = Duration::from_micros(250);

/// Metadata of a task.
#[derive(Debug)]
pub(crate) struct Meta {
    /// The name, for diagnostics.
    pub name: &'static str,
    /// The part by which the task is woken.
    pub(super) attention: Attention,
}

/// A task that is ready to run.
pub(super) type Runnable = async_task::Runnable<Meta>;

/// The activity of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Activity {
    /// The core polls, looks for work, or is halted.
    Loop = 0,
    /// The core runs a task.
    Task = 1,
}

/// The reason for which a task pays no more attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attended {
    /// The task has been woken.
    Woken,
    /// The main loop must do its other work. The task goes on afterwards.
    MustTurn,
    /// Another task is ready, or the core has spun for long enough.
    MustSleep,
}

/// A core's part of the executor, in cache lines that have nothing of another core.
// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Core {
    /// The task that became ready while no other was: it is older than those in the queue. Null for none.
    first: AtomicPtr<()>,
    queue: IrqMutex<VecDeque<Runnable>>,
    /// The length of the queue. Changes under the lock of the queue.
    ready: AtomicUsize,
    /// Set before a halt. A processor that pushes to the queue and finds it set sends an interrupt.
    sleeping: AtomicBool,
    tasks: AtomicUsize,
    state: AtomicU8,
    /// The time of the last poll, in nanoseconds.
    last_poll: AtomicU64,
    /// The time at which the timer fires, in nanoseconds; `u64::MAX` if it is not armed.
    armed: AtomicU64,
    pub timers: IrqMutex<Timers>,
    /// The time of the next turn that calls all pollers and wakes timers, in nanoseconds. Only the
    /// core itself uses it.
    next_full_turn: AtomicU64,
    pollers: UnsafeCell<PollerList>,
    idle: Idle,
    new_pollers: IrqMutex<PollerList>,
    has_new_pollers: AtomicBool,
    current: AtomicPtr<Meta>,
    /// Iterations of the main loop.
    pub rounds: AtomicU64,
    pub halts: AtomicU64,
    pub halted_ns: AtomicU64,
    pub interrupt_polls: AtomicU64,
}

// SAFETY: only the core itself accesses `pollers` (see `poll`), and `idle` outside of interrupts; all other
// fields are locked or atomic.
unsafe impl Sync for Core {}
// SAFETY: pollers are `Send`.
unsafe impl Send for Core {}

static CORES: [Once<&'static Core>; percpu::MAX_CPUS] = [const { Once::new() }; percpu::MAX_CPUS];

/// Creates the state of core `cpu`.
pub(super) fn install(cpu: usize) {
    if let Some(slot) = CORES.get(cpu) {
        slot.call_once(|| {
            Box::leak(Box::new(Core {
                first: AtomicPtr::new(core::ptr::null_mut()),
                queue: IrqMutex::new(VecDeque::with_capacity(64)),
                ready: AtomicUsize::new(0),
                sleeping: AtomicBool::new(false),
                tasks: AtomicUsize::new(0),
                state: AtomicU8::new(Activity::Loop as u8),
                last_poll: AtomicU64::new(0),
                armed: AtomicU64::new(u64::MAX),
                timers: IrqMutex::new(Timers::new()),
                next_full_turn: AtomicU64::new(0),
                pollers: UnsafeCell::new(PollerList::new()),
                idle: Idle::new(),
                new_pollers: IrqMutex::new(PollerList::new()),
                has_new_pollers: AtomicBool::new(false),
                current: AtomicPtr::new(core::ptr::null_mut()),
                rounds: AtomicU64::new(0),
                halts: AtomicU64::new(0),
                halted_ns: AtomicU64::new(0),
                interrupt_polls: AtomicU64::new(0),
            }))
        });
    }
}

/// Returns the state of core `cpu`, if it runs.
pub(super) fn core(cpu: usize) -> Option<&'static Core> {
    CORES.get(cpu)?.get().copied()
}

impl Core {
    /// Counts a new task and reserves room for it in the queue. A task is in the queue at most once, so
    /// waking a task never allocates.
    pub(super) fn admit(&self) {
        let tasks = self.tasks.fetch_add(1, Ordering::Relaxed) + 1;
        let mut queue = self.queue.lock();
        let len = queue.len();
        queue.reserve(tasks.saturating_sub(len));
    }

    /// Counts a task that has ended.
    pub(super) fn leave(&self) {
        self.tasks.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of live tasks.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }

    /// Makes a task ready. Callable from any core in any context.
    pub(super) fn push(&self, cpu: usize, runnable: Runnable) {
        if let Err(runnable) = self.push_first(runnable) {
            let mut queue = self.queue.lock();
            queue.push_back(runnable);
            self.ready.store(queue.len(), Ordering::Relaxed);
        }
        self.kick(cpu);
    }

    /// Makes a task ready without the lock of the queue, if no other task is ready. Returns it otherwise.
    fn push_first(&self, runnable: Runnable) -> Result<(), Runnable> {
        if self.ready.load(Ordering::Relaxed) > 0 {
            return Err(runnable);
        }
        let raw = runnable.into_raw();
        let (none, order) = (core::ptr::null_mut(), Ordering::Relaxed);
        match self.first.compare_exchange(none, raw.as_ptr(), Ordering::Release, order) {
            Ok(_) => Ok(()),
            // SAFETY: `raw` is of `into_raw` above, and nobody else has it.
            Err(_) => Err(unsafe { Runnable::from_raw(raw) }),
        }
    }

    /// Ends the halt of this core, whose index is `cpu`, if it is halted.
    pub(super) fn kick(&self, cpu: usize) {
        if cpu == arch::this_cpu_index() {
            return;
        }
        // Pairs with the fence in `prepare_halt`: either this processor sees `sleeping`, or the core sees the
        // pushed task.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed)
            && let Some(target) = percpu::cpu(cpu)
        {
            apic::send(target.apic_id.load(Ordering::Relaxed), interrupts::WAKE);
        }
    }

    /// Returns the number of ready tasks without the lock of the queue, so that a spinning core
    /// takes no lock. The core looks again under the lock before it halts.
    pub(super) fn ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed) + usize::from(self.has_first())
    }

    fn has_first(&self) -> bool {
        !self.first.load(Ordering::Relaxed).is_null()
    }

    /// Returns the task that has been ready for longest. Call on the core itself.
    pub(super) fn pop(&self) -> Option<Runnable> {
        if self.has_first() {
            // Only this core takes the task, so it is still there.
            let raw = NonNull::new(self.first.swap(core::ptr::null_mut(), Ordering::Acquire))?;
            // SAFETY: the pointer is of `into_raw` in `push_first`, and has been taken once.
            return Some(unsafe { Runnable::from_raw(raw) });
        }
        let mut queue = self.queue.lock();
        let runnable = queue.pop_front();
        self.ready.store(queue.len(), Ordering::Relaxed);
        runnable
    }

    /// Announces a halt of this core. Returns true if the core may halt because no task is ready. Call with
    /// interrupts off.
    pub(super) fn prepare_halt(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.has_first() && self.queue.lock().is_empty() && !self.has_new_pollers.load(Ordering::Relaxed)
    }

    /// Records that the halt is over, or did not happen.
    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Runs `runnable`. The time is `now`.
    pub(super) fn run(&self, runnable: Runnable, now: Instant) {
        let meta: *const Meta = runnable.metadata();
        self.current.store(meta.cast_mut(), Ordering::Relaxed);
        self.state.store(Activity::Task as u8, Ordering::Release);
        // This order matters: a timer that fires from here on sees the task and re-arms itself. A timer that
        // fired before would not.
        self.ensure_tick(now);
        runnable.run();
        self.state.store(Activity::Loop as u8, Ordering::Release);
        self.current.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// Returns this core's activity.
    pub(super) fn state(&self) -> Activity {
        if self.state.load(Ordering::Acquire) == Activity::Task as u8 {
            Activity::Task
        } else {
            Activity::Loop
        }
    }

    /// Returns the task that this core runs. Call on the core itself.
    pub(super) fn current(&self) -> Option<&'static str> {
        let meta = self.current.load(Ordering::Relaxed);
        // SAFETY: the task is running on this core, below the caller's frame, so its metadata exists.
        unsafe { meta.as_ref() }.filter(|_| self.state() == Activity::Task).map(|m| m.name)
    }

    pub(super) fn add_poller(&self, poller: Box<dyn Poller>) {
        log::debug!("poller {}", poller.name());
        self.new_pollers.lock().add(poller);
        self.has_new_pollers.store(true, Ordering::Release);
    }

    pub(super) fn last_poll(&self) -> Instant {
        Instant::from_nanos(self.last_poll.load(Ordering::Relaxed))
    }

    /// Moves newly registered pollers into the list.
    ///
    /// # Safety
    /// Call on this core, in its main loop, outside of polls and tasks.
    pub(super) unsafe fn adopt_pollers(&self) {
        if self.has_new_pollers.swap(false, Ordering::Acquire) {
            let new = core::mem::take(&mut *self.new_pollers.lock());
            // SAFETY: the caller's promise: no other code accesses the list.
            unsafe { (*self.pollers.get()).append(new) };
        }
    }

    /// Calls some pollers at `now`, once each. Returns true if any had work.
    ///
    /// # Safety
    /// Call on this core: in its main loop outside of tasks, or with interrupts off while it is in a task.
    pub(super) unsafe fn poll(&self, now: Instant, which: Which) -> bool {
        // SAFETY: the caller's promise: no other code accesses the list.
        let worked = unsafe { (*self.pollers.get()).poll(now, which) };
        self.last_poll.store(now.as_nanos(), Ordering::Relaxed);
        worked
    }

    /// Calls the urgent pollers once within a task, if nothing else waits for this core. Returns false if
    /// something does, or has come; the task must then yield.
    ///
    /// # Safety
    /// Call on this core, in a task that no poller and no other task has called.
    pub(super) unsafe fn poll_in_task(&self) -> bool {
        let mut now = time::now();
        if self.ready() > 0 || self.is_full_turn_due(now) {
            return false;
        }
        // SAFETY: the main loop is in `run`, where it uses no poller, and interrupts find no task.
        let worked = self.outside_of_task(&mut now, |now| unsafe { self.poll(*now, Which::InTask) });
        // The pollers may have woken this task, which is not among the ready ones while it runs.
        !worked && self.ready() == 0
    }

    /// Spins within a task that waits: calls the urgent pollers until `is_woken`, or until something else
    /// needs the core. `resumes`: the spin goes on after a turn of the main loop.
    ///
    /// # Safety
    /// Call on this core, in a task that no poller and no other task has called.
    pub(super) unsafe fn attend(&self, resumes: bool, is_woken: impl Fn() -> bool) -> Attended {
        let mut now = time::now();
        if !resumes {
            if self.has_run_long(now) {
                return Attended::MustTurn;
            }
            self.idle.begin(now);
        }
        self.outside_of_task(&mut now, |now| {
            loop {
                if self.is_full_turn_due(*now) {
                    return Attended::MustTurn;
                }
                self.count_round();
                // SAFETY: the main loop is in `run`, where it uses no poller, and interrupts find no task.
                let worked = unsafe { self.poll(*now, Which::Urgent) };
                if is_woken() {
                    return Attended::Woken;
                }
                let from = core::mem::replace(now, time::now());
                if worked {
                    self.idle.begin(*now);
                } else {
                    self.idle.after_turn(from, *now);
                }
                if self.ready() > 0 || !self.idle.lasts(*now) {
                    return Attended::MustSleep;
                }
                self.idle.pause();
            }
        })
    }

    /// Calls `polls` within a task, as if the core were in its main loop: interrupts leave the pollers alone
    /// meanwhile. `now` is the time, which `polls` may advance.
    #[inline(always)]
    fn outside_of_task<T>(&self, now: &mut Instant, polls: impl FnOnce(&mut Instant) -> T) -> T {
        self.state.store(Activity::Loop as u8, Ordering::Release);
        let result = polls(now);
        self.state.store(Activity::Task as u8, Ordering::Release);
        // A timer that fired before has not been set again.
        self.ensure_tick(*now);
        result
    }

    /// Counts an iteration of a loop that polls.
    pub(super) fn count_round(&self) {
        // Only this core writes the counter, so no locked instruction is needed.
        self.rounds.store(self.rounds.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns true if a task of this core that ends its run at `now` has computed for long.
    pub(super) fn has_run_long(&self, now: Instant) -> bool {
        now >= self.last_poll() + LONG_RUN
    }

    /// Returns true if the main loop must call all pollers and wake timers.
    pub(super) fn is_full_turn_due(&self, now: Instant) -> bool {
        now.as_nanos() >= self.next_full_turn.load(Ordering::Relaxed)
    }

    /// Sets the time from which a full turn is due.
    pub(super) fn set_full_turn(&self, at: Instant) {
        self.next_full_turn.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// Makes a full turn due at `at`, the time of a new timer, unless one is due before. Call on the core
    /// itself.
    pub(super) fn expect_timer(&self, at: Instant) {
        // An interrupt does not change the word, so it need not be read and written in one step.
        if !self.is_full_turn_due(at) {
            self.set_full_turn(at);
        }
    }

    /// Returns the time of the earliest timer; [`Instant::MAX`] if there is none.
    pub(super) fn next_timer(&self) -> Instant {
        self.timers.lock().next()
    }

    /// Adapts the spin to a halt that has ended at `now`, and begins another.
    ///
    /// # Safety
    /// Call on this core, in its main loop outside of tasks and polls.
    pub(super) unsafe fn after_halt(&self, now: Instant, halted: Duration) {
        // SAFETY: the caller's promise.
        let has_pollers = !unsafe { (*self.pollers.get()).is_empty() };
        self.idle.after_halt(now, halted, max_spin(has_pollers));
        self.idle.begin(now);
    }

    /// Returns the spin of the core. Only the core uses it.
    pub(super) fn idle(&self) -> &Idle {
        &self.idle
    }

    /// Returns the earliest deadline of a timer or poller.
    ///
    /// # Safety
    /// Call on this core, in its main loop outside of tasks and polls.
    pub(super) unsafe fn next_deadline(&self) -> Instant {
        // SAFETY: the caller's promise.
        self.next_timer().min(unsafe { (*self.pollers.get()).next_deadline() })
    }

    /// Arms all pollers. Returns true if any has work already.
    ///
    /// # Safety
    /// Call on this core, in its main loop outside of tasks and polls.
    pub(super) unsafe fn arm_all(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (*self.pollers.get()).arm() }
    }

    /// Records that the local timer has fired.
    pub(super) fn timer_fired(&self) {
        self.armed.store(u64::MAX, Ordering::Relaxed);
    }

    /// Sets the local timer to `at`, unless the timer is set to `at` already.
    pub(super) fn set_timer(&self, at: Instant) {
        if self.armed.swap(at.as_nanos(), Ordering::Relaxed) != at.as_nanos() {
            apic::set_timer((at != Instant::MAX).then(|| time::to_tsc(at)));
        }
    }

    /// Ensures that the timer fires when [`POLL_INTERVAL`] has passed since the last poll, or very soon
    /// after.
    pub(super) fn ensure_tick(&self, now: Instant) {
        self.tick_at((self.last_poll() + POLL_INTERVAL).max(now + SHORTEST_TICK));
    }

    /// Ensures that the timer fires at `tick` or earlier.
    pub(super) fn tick_at(&self, tick: Instant) {
        if self.armed.load(Ordering::Relaxed) > tick.as_nanos() {
            self.set_timer(tick);
        }
    }
}
