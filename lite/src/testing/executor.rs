//! A deterministic executor: one thread, virtual time, and tasks in an order that the seed decides.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::Future;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use core::task::{Context, Waker};
use core::time::Duration;
use platform::{Arena, Instant, IoAddr, Memory, Platform, Task};
use spin::Mutex;

/// Something that works when it is polled: an RNIC with its LITE, or a wire.
pub trait Device: Send + Sync {
    /// Does the work that is due at `now`; returns true if any was due.
    fn poll(&self, now: Instant) -> bool;
    /// Returns the time of the next poll if nothing else happens before, by the clock of the device's host,
    /// if it has one.
    fn next_deadline(&self) -> Option<Instant>;
}

struct Shared {
    now: AtomicU64,
    random: Mutex<u64>,
    ready: Mutex<Vec<Arc<Job>>>,
    /// All tasks that may still run.
    jobs: Mutex<Vec<Weak<Job>>>,
    /// True once the world has been dropped. No task begins or is woken any more: the list of ready tasks
    /// would keep them, and with them their hosts and this list.
    over: AtomicBool,
}

impl Shared {
    /// splitmix64 (Steele, Lea, Flood 2014).
    fn random(&self) -> u64 {
        let mut state = self.random.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::SeqCst))
    }

    fn spawn(self: &Arc<Self>, host: Option<Arc<Host>>, name: &'static str, task: Task) {
        if self.over.load(Ordering::SeqCst) {
            return;
        }
        let core = host.as_ref().map_or(0, |host| host.next_core());
        let job = Arc::new(Job {
            shared: Arc::downgrade(self),
            host,
            core,
            name,
            future: Mutex::new(Some(task)),
            queued: AtomicBool::new(false),
        });
        let mut jobs = self.jobs.lock();
        if jobs.len() == jobs.capacity() {
            // Ended tasks are removed before the list grows.
            jobs.retain(|j| j.strong_count() > 0);
        }
        jobs.push(Arc::downgrade(&job));
        drop(jobs);
        job.wake();
    }
}

/// A task and the host that it runs on; `None` for a task of the test itself.
struct Job {
    shared: Weak<Shared>,
    host: Option<Arc<Host>>,
    /// The core of the host.
    core: usize,
    name: &'static str,
    future: Mutex<Option<Task>>,
    queued: AtomicBool,
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst)
            && let Some(shared) = self.shared.upgrade()
            && !shared.over.load(Ordering::SeqCst)
        {
            shared.ready.lock().push(self);
        }
    }
}

const MILLION: i64 = 1_000_000;

/// One machine: memory, and tasks that can be paused or ended together.
pub struct Host {
    me: Weak<Host>,
    shared: Arc<Shared>,
    memory: Arc<Arena>,
    paused: AtomicBool,
    dead: AtomicBool,
    /// The names of the tasks that do not run.
    held: Mutex<Vec<&'static str>>,
    /// The rate by which the node's clock is fast, in millionths.
    drift: AtomicI64,
    /// The number of cores, and the number of tasks that have been distributed over them.
    cores: (AtomicUsize, AtomicUsize),
    /// The core whose task runs, or ran last.
    core: AtomicUsize,
}

impl Host {
    /// Stops the tasks and devices of this host, or lets them go on.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    /// Stops the tasks with that name, or lets them go on. Everything else on the machine goes on
    /// meanwhile.
    pub fn hold(&self, task: &'static str, held: bool) {
        let mut names = self.held.lock();
        names.retain(|name| *name != task);
        if held {
            names.push(task);
        }
    }

    /// Returns true if tasks called `task` may run: the host is not paused, and does not hold them up.
    fn lets(&self, task: &'static str) -> bool {
        !self.paused.load(Ordering::SeqCst) && !self.held.lock().contains(&task)
    }

    /// Makes the clock of this host fast by `millionths` millionths of the time since the start; slow if
    /// negative. Must be called before the host has read its clock.
    pub fn drift(&self, millionths: i32) {
        self.drift.store(i64::from(millionths).clamp(-500_000, 500_000), Ordering::SeqCst);
    }

    /// Sets the number of cores, over which the tasks are distributed. Must be called before LITE starts on
    /// the host.
    pub fn set_cores(&self, count: usize) {
        self.cores.0.store(count.max(1), Ordering::SeqCst);
    }

    /// Returns the core for the next task.
    fn next_core(&self) -> usize {
        self.cores.1.fetch_add(1, Ordering::SeqCst) % self.cores.0.load(Ordering::SeqCst)
    }

    /// Returns the true time, which the clock of this host may not show.
    #[must_use]
    pub fn true_time(&self) -> Instant {
        self.shared.now()
    }

    /// Returns the first true time at which its clock shows `local` or later.
    fn when(&self, local: Instant) -> Instant {
        let drift = self.drift.load(Ordering::SeqCst);
        if drift == 0 {
            return local;
        }
        let rate = (MILLION + drift) as u128;
        let time = (u128::from(local.as_nanos()) * MILLION as u128).div_ceil(rate);
        Instant::from_nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }

    /// Ends the tasks and devices of this host for ever.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// Returns the memory of this host, for its RNIC.
    #[must_use]
    pub fn arena(&self) -> Arc<Arena> {
        self.memory.clone()
    }

    /// Returns true if this host has been killed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Returns true if the tasks and devices of this host run: it is neither paused nor dead.
    #[must_use]
    pub fn runs(&self) -> bool {
        !self.paused.load(Ordering::SeqCst) && !self.is_dead()
    }
}

impl Platform for Host {
    fn now(&self) -> Instant {
        let time = self.shared.now();
        let drift = self.drift.load(Ordering::SeqCst);
        if drift == 0 {
            return time;
        }
        let shown = u128::from(time.as_nanos()) * (MILLION + drift) as u128 / MILLION as u128;
        Instant::from_nanos(u64::try_from(shown).unwrap_or(u64::MAX))
    }

    fn fill_random(&self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let random = self.shared.random().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    fn cpus(&self) -> usize {
        self.cores.0.load(Ordering::SeqCst)
    }

    fn cpu(&self) -> usize {
        self.core.load(Ordering::SeqCst)
    }

    fn spawn(&self, name: &'static str, task: Task) {
        self.shared.spawn(self.me.upgrade(), name, task);
    }

    fn memory(&self) -> &dyn Memory {
        &*self.memory
    }
}

type Attached = (Option<Arc<Host>>, Arc<dyn Device>);

/// The number of rounds of work at one virtual time after which the world is in an endless loop. Real work
/// of one instant takes some thousand rounds.
const CIRCLES: u32 = 1_000_000;

/// The executor of a simulated cluster, with virtual time.
pub struct World {
    shared: Arc<Shared>,
    /// The devices; one with a host is polled only while the host runs.
    devices: Vec<Attached>,
    /// The tasks of paused hosts, and tasks that are held.
    frozen: Vec<Arc<Job>>,
}

impl Drop for World {
    /// Drops all tasks: they hold the objects that they wait for, and those hold their wakers.
    fn drop(&mut self) {
        loop {
            // Dropping a task may start another one.
            let jobs = core::mem::take(&mut *self.shared.jobs.lock());
            if jobs.is_empty() {
                break;
            }
            for job in jobs.iter().filter_map(Weak::upgrade) {
                let future = job.future.lock().take();
                drop(future);
            }
        }
        self.shared.over.store(true, Ordering::SeqCst);
        let ready = core::mem::take(&mut *self.shared.ready.lock());
        drop(ready);
    }
}

impl World {
    /// Returns a world at time zero.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let shared = Shared {
            now: AtomicU64::new(0),
            random: Mutex::new(seed),
            ready: Mutex::default(),
            jobs: Mutex::default(),
            over: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), devices: Vec::new(), frozen: Vec::new() }
    }

    /// Returns a new machine with `memory` bytes from `base`.
    #[must_use]
    pub fn host(&self, base: IoAddr, memory: u64) -> Arc<Host> {
        Arc::new_cyclic(|me| Host {
            me: me.clone(),
            shared: self.shared.clone(),
            memory: Arc::new(Arena::new(base, memory)),
            paused: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            held: Mutex::default(),
            drift: AtomicI64::new(0),
            cores: (AtomicUsize::new(1), AtomicUsize::new(0)),
            core: AtomicUsize::new(0),
        })
    }

    /// Polls `device` while `host` runs.
    pub fn attach(&mut self, host: &Arc<Host>, device: Arc<dyn Device>) {
        self.devices.push((Some(host.clone()), device));
    }

    /// Polls `device` in each round, without a host.
    pub fn attach_free(&mut self, device: Arc<dyn Device>) {
        self.devices.push((None, device));
    }

    /// Returns the time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.shared.now()
    }

    /// Returns a number that the seed decides.
    #[must_use]
    pub fn random(&self) -> u64 {
        self.shared.random()
    }

    /// Runs `task` as the test's own until it ends, and returns its result.
    ///
    /// # Panics
    /// If it has not ended after `limit` of virtual time.
    pub fn run<T: Send + 'static>(
        &mut self,
        limit: Duration,
        task: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let result = Arc::new(Mutex::new(None));
        let output = result.clone();
        self.shared.spawn(None, "test", Box::pin(async move { *output.lock() = Some(task.await) }));
        let end = self.now() + limit;
        let ended = self.run_until(end, || result.lock().is_some());
        assert!(ended, "the task has not ended by {end:?}");
        let value = result.lock().take();
        value.expect("the task has ended")
    }

    /// Runs tasks and devices for the time `time`.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now() + time;
        self.run_until(end, || false);
    }

    /// Runs everything until `done` or `end`; returns true if it is done.
    ///
    /// # Panics
    /// If there is work without end at one time.
    pub fn run_until(&mut self, end: Instant, done: impl Fn() -> bool) -> bool {
        let mut rounds = 0;
        loop {
            if done() {
                return true;
            }
            let tasks = self.run_tasks();
            let now = self.now();
            let mut worked = tasks;
            for (host, device) in &self.devices {
                match host {
                    Some(host) if host.runs() => worked |= device.poll(host.now()),
                    Some(_) => {}
                    None => worked |= device.poll(now),
                }
            }
            if worked {
                rounds += 1;
                assert!(rounds < CIRCLES, "virtual time stands still at {now:?}");
                continue;
            }
            rounds = 0;
            // Nothing more happens at this time.
            let runs = |d: &&Attached| d.0.as_ref().is_none_or(|h| h.runs());
            let due = |(host, device): &Attached| {
                let at = device.next_deadline()?;
                Some(host.as_ref().map_or(at, |h| h.when(at)))
            };
            let next = self.devices.iter().filter(runs).filter_map(due).min();
            let next = next.unwrap_or(end).max(Instant::from_nanos(now.as_nanos() + 1));
            if next > end {
                self.shared.now.store(end.max(now).as_nanos(), Ordering::SeqCst);
                return done();
            }
            self.shared.now.store(next.as_nanos(), Ordering::SeqCst);
        }
    }

    /// Runs the ready tasks in random order, as many as were ready; returns true if there were any.
    fn run_tasks(&mut self) -> bool {
        let thawed = self.frozen.extract_if(.., |j| j.host.as_ref().is_none_or(|h| h.lets(j.name)));
        self.shared.ready.lock().extend(thawed);
        let count = self.shared.ready.lock().len();
        let mut worked = false;
        for _ in 0..count {
            let job = {
                let mut ready = self.shared.ready.lock();
                if ready.is_empty() {
                    break;
                }
                let pick = (ready.len() > 1).then(|| self.shared.random() as usize % ready.len());
                ready.swap_remove(pick.unwrap_or(0))
            };
            match &job.host {
                Some(host) if host.is_dead() => {
                    *job.future.lock() = None;
                    continue;
                }
                Some(host) if !host.lets(job.name) => {
                    self.frozen.push(job);
                    continue;
                }
                _ => {}
            }
            worked = true;
            if let Some(host) = &job.host {
                host.core.store(job.core, Ordering::SeqCst);
            }
            job.queued.store(false, Ordering::SeqCst);
            let waker = Waker::from(job.clone());
            let mut future = job.future.lock();
            if let Some(f) = future.as_mut()
                && f.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                *future = None;
            }
        }
        worked
    }
}
