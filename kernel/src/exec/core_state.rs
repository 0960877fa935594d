//! One core's run queue, timers and pollers, and who may touch what: any core pushes to the queue, by a lock that masks
//! interrupts; the pollers belong to the core, in its main loop or in an interrupt of a task, never both.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use core::time::Duration;
use platform::Instant;
use spin::Once;

use super::sleep::Timers;
use super::{POLL_INTERVAL, Poller};
use crate::arch::{self, apic, interrupts, percpu};
use crate::sync::IrqMutex;
use crate::time;

/// The timer is not set to less than this from now.
const SHORTEST_TICK: Duration = Duration::from_micros(50);

/// What is known of each task.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// For diagnosis.
    pub name: &'static str,
}

/// A task that is ready.
pub type Runnable = async_task::Runnable<Meta>;

/// What a core is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Polling, looking for work, or halted.
    Loop = 0,
    /// Running a task.
    Task = 1,
}

/// A core's part of the executor.
pub struct Core {
    queue: IrqMutex<VecDeque<Runnable>>,
    /// Set before a halt; who pushes to the queue and finds it set sends an interrupt.
    sleeping: AtomicBool,
    tasks: AtomicUsize,
    state: AtomicU8,
    /// Nanoseconds of the last poll.
    last_poll: AtomicU64,
    /// Nanoseconds at which the timer will fire, `u64::MAX` if not armed.
    armed: AtomicU64,
    pub timers: IrqMutex<Timers>,
    pollers: UnsafeCell<Vec<Box<dyn Poller>>>,
    new_pollers: IrqMutex<Vec<Box<dyn Poller>>>,
    has_new_pollers: AtomicBool,
    current: AtomicPtr<Meta>,
    /// Turns of the main loop.
    pub rounds: AtomicU64,
    pub halts: AtomicU64,
    pub halted_ns: AtomicU64,
    pub interrupt_polls: AtomicU64,
}

// SAFETY: `pollers` is touched by the core itself only (see `poll_all`); all else is locked or atomic.
unsafe impl Sync for Core {}
// SAFETY: pollers are `Send`.
unsafe impl Send for Core {}

static CORES: [Once<Core>; percpu::MAX_CPUS] = [const { Once::new() }; percpu::MAX_CPUS];

/// Makes the state of core `cpu`.
pub fn install(cpu: usize) {
    if let Some(slot) = CORES.get(cpu) {
        slot.call_once(|| Core {
            queue: IrqMutex::new(VecDeque::with_capacity(64)),
            sleeping: AtomicBool::new(false),
            tasks: AtomicUsize::new(0),
            state: AtomicU8::new(State::Loop as u8),
            last_poll: AtomicU64::new(0),
            armed: AtomicU64::new(u64::MAX),
            timers: IrqMutex::new(Timers::new()),
            pollers: UnsafeCell::new(Vec::new()),
            new_pollers: IrqMutex::new(Vec::new()),
            has_new_pollers: AtomicBool::new(false),
            current: AtomicPtr::new(core::ptr::null_mut()),
            rounds: AtomicU64::new(0),
            halts: AtomicU64::new(0),
            halted_ns: AtomicU64::new(0),
            interrupt_polls: AtomicU64::new(0),
        });
    }
}

/// The state of core `cpu`, if it runs.
pub fn core(cpu: usize) -> Option<&'static Core> {
    CORES.get(cpu)?.get()
}

impl Core {
    /// Counts a new task and makes room for it in the queue, so that waking a task never allocates: each stands in the
    /// queue at most once.
    pub fn admit(&self) {
        let tasks = self.tasks.fetch_add(1, Ordering::Relaxed) + 1;
        let mut queue = self.queue.lock();
        let len = queue.len();
        queue.reserve(tasks.saturating_sub(len));
    }

    /// A task has ended.
    pub fn leave(&self) {
        self.tasks.fetch_sub(1, Ordering::Relaxed);
    }

    /// Tasks that live.
    pub fn tasks(&self) -> usize {
        self.tasks.load(Ordering::Relaxed)
    }

    /// Makes a task ready. From any core, any context.
    pub fn push(&self, cpu: usize, runnable: Runnable) {
        self.queue.lock().push_back(runnable);
        self.kick(cpu);
    }

    /// Ends the halt of this core, which is `cpu`, if it halts.
    pub fn kick(&self, cpu: usize) {
        // Pairs with the fence in `prepare_halt`: either this sees `sleeping`, or the core sees what was pushed.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed)
            && cpu != arch::this_cpu_index()
            && let Some(target) = percpu::cpu(cpu)
        {
            apic::send(target.apic_id.load(Ordering::Relaxed), interrupts::WAKE);
        }
    }

    /// The next ready task.
    pub fn pop(&self) -> Option<Runnable> {
        self.queue.lock().pop_front()
    }

    /// Says that this core is about to halt; gives whether it may: nothing is ready. With interrupts off.
    pub fn prepare_halt(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.queue.lock().is_empty() && !self.has_new_pollers.load(Ordering::Relaxed)
    }

    /// The halt is over, or did not come about.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Runs `runnable`.
    pub fn run(&self, runnable: Runnable) {
        let meta: *const Meta = runnable.metadata();
        self.current.store(meta.cast_mut(), Ordering::Relaxed);
        self.state.store(State::Task as u8, Ordering::Release);
        // In this order: a timer that fires from here on sees the task and arms itself anew. One that fired before would
        // leave the task without.
        self.ensure_tick(time::now());
        runnable.run();
        self.state.store(State::Loop as u8, Ordering::Release);
        self.current.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// What this core is doing.
    pub fn state(&self) -> State {
        if self.state.load(Ordering::Acquire) == State::Task as u8 { State::Task } else { State::Loop }
    }

    /// The task that this core runs; asked on the core itself.
    pub fn current(&self) -> Option<&'static str> {
        let meta = self.current.load(Ordering::Relaxed);
        // SAFETY: the task is running on this core, beneath the caller, so its metadata is there.
        unsafe { meta.as_ref() }.filter(|_| self.state() == State::Task).map(|m| m.name)
    }

    pub fn add_poller(&self, poller: Box<dyn Poller>) {
        log::debug!("poller {}", poller.name());
        self.new_pollers.lock().push(poller);
        self.has_new_pollers.store(true, Ordering::Release);
    }

    pub fn last_poll(&self) -> Instant {
        Instant::from_nanos(self.last_poll.load(Ordering::Relaxed))
    }

    /// Takes in pollers that were registered.
    ///
    /// # Safety
    /// On this core, in its main loop, outside of `with_pollers` and tasks.
    pub unsafe fn adopt_pollers(&self) {
        if self.has_new_pollers.swap(false, Ordering::Acquire) {
            let mut new = core::mem::take(&mut *self.new_pollers.lock());
            // SAFETY: the caller's promise: nobody else is in the list.
            unsafe { (*self.pollers.get()).append(&mut new) };
        }
    }

    /// Polls all once, `budget` items each. Gives whether any had work.
    ///
    /// # Safety
    /// On this core: in its main loop outside of tasks, or with interrupts off while it is in a task.
    pub unsafe fn poll_all(&self, budget: u32, interrupt: bool) -> bool {
        let mut worked = false;
        // SAFETY: the caller's promise: nobody else is in the list.
        for poller in unsafe { &mut *self.pollers.get() } {
            if !interrupt || poller.may_interrupt() {
                worked |= poller.poll(time::now(), budget);
            }
        }
        self.last_poll.store(time::now().as_nanos(), Ordering::Relaxed);
        worked
    }

    /// The earliest deadline of a timer or poller.
    ///
    /// # Safety
    /// As [`Core::poll_all`], in the main loop.
    pub unsafe fn next_deadline(&self) -> Instant {
        let timers = self.timers.lock().next();
        // SAFETY: the caller's promise.
        unsafe { &*self.pollers.get() }.iter().map(|p| p.next_deadline()).fold(timers, Instant::min)
    }

    /// Arms all pollers; gives whether any has work already.
    ///
    /// # Safety
    /// As [`Core::poll_all`], in the main loop.
    pub unsafe fn arm_all(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.pollers.get() }.iter_mut().any(|p| p.arm())
    }

    /// The local timer has fired.
    pub fn timer_fired(&self) {
        self.armed.store(u64::MAX, Ordering::Relaxed);
    }

    /// Sets the local timer to `at`, unless it is.
    pub fn set_timer(&self, at: Instant) {
        if self.armed.swap(at.as_nanos(), Ordering::Relaxed) != at.as_nanos() {
            apic::set_timer(at);
        }
    }

    /// Makes sure that the timer fires when [`POLL_INTERVAL`] has passed since the last poll, or very soon.
    pub fn ensure_tick(&self, now: Instant) {
        self.tick_at((self.last_poll() + POLL_INTERVAL).max(now + SHORTEST_TICK));
    }

    /// Makes sure that the timer fires at `tick` or before.
    pub fn tick_at(&self, tick: Instant) {
        if self.armed.load(Ordering::Relaxed) > tick.as_nanos() {
            self.set_timer(tick);
        }
    }
}
