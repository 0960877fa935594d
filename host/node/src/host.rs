//! [`Platform`] on Linux: tasks on threads, the RNIC's memory, and random numbers of the operating system.
//!
//! LITE's own tasks have a thread to themselves. They are short, and their work (above all, reading
//! acknowledgements of heartbeats) must not wait for an application that computes without yielding.

use crate::poller::Alarm;
use crate::{Clock, log_ring};
use async_executor::Executor;
use futures_lite::{FutureExt, future};
use parking_lot::{Mutex, RwLock};
use platform::{Instant, Memory, Platform, Task};
use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

/// The prefix of the names of LITE's own tasks.
const OWN: &str = "lite-";

/// The machine as LITE and applications see it.
pub(crate) struct Host {
    me: Weak<Self>,
    clock: Clock,
    cpus: usize,
    memory: Arc<dyn Memory>,
    alarm: Arc<Alarm>,
    /// The executors of LITE's tasks and of the applications' tasks; `None` once the node has ended.
    executors: RwLock<Option<Executors>>,
    /// The channel whose end tells the threads to end.
    stop: async_channel::Sender<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Called for the first task that panics, with the reason.
    on_panic: Mutex<Option<OnPanic>>,
}

type OnPanic = Box<dyn FnOnce(&str) + Send>;

struct Executors {
    lite: Arc<Executor<'static>>,
    apps: Arc<Executor<'static>>,
}

impl Host {
    /// Starts the threads: one for LITE, `cpus` for applications.
    pub(crate) fn start(
        clock: Clock,
        cpus: usize,
        memory: Arc<dyn Memory>,
        alarm: Arc<Alarm>,
    ) -> io::Result<Arc<Self>> {
        let (stop, stopped) = async_channel::bounded::<()>(1);
        let executors = Executors { lite: Arc::default(), apps: Arc::default() };
        let mut threads = Vec::new();
        for n in 0..=cpus {
            let (name, executor) =
                if n == 0 { ("lite", &executors.lite) } else { ("lite-app", &executors.apps) };
            let (executor, stopped) = (executor.clone(), stopped.clone());
            let run = move || {
                // An error means that the channel is closed, which is the end.
                let _ = future::block_on(executor.run(stopped.recv()));
            };
            threads.push(thread::Builder::new().name(name.into()).spawn(run)?);
        }
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            clock,
            cpus,
            memory,
            alarm,
            executors: RwLock::new(Some(executors)),
            stop,
            threads: Mutex::new(threads),
            on_panic: Mutex::new(None),
        }))
    }

    /// Calls `told` once if a task panics.
    pub(crate) fn on_panic(&self, told: impl FnOnce(&str) + Send + 'static) {
        *self.on_panic.lock() = Some(Box::new(told));
    }

    /// Ends the threads and drops all tasks; no new task is started. Waits for the tasks that are running
    /// now, so a task must not call it.
    pub(crate) fn stop(&self) {
        self.stop.close();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // The thread does not panic, because panics of tasks are caught.
            let _ = thread.join();
        }
        // Tasks that are dropped may try to start others.
        let executors = self.executors.write().take();
        drop(executors);
    }

    fn panicked(&self, name: &str, payload: &(dyn Any + Send)) {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let why = format!("task {name} panicked: {}", text.unwrap_or("no reason given"));
        let told = self.on_panic.lock().take();
        if let Some(told) = told {
            told(&why);
        }
    }
}

impl Platform for Host {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn fill_random(&self, buf: &mut [u8]) {
        // Fails only where the system call does not exist, and then the join has failed before.
        getrandom::fill(buf).expect("the operating system gives random bytes");
    }

    fn cpus(&self) -> usize {
        self.cpus
    }

    fn spawn(&self, name: &'static str, task: Task) {
        let host = self.me.clone();
        let guarded = async move {
            if let Err(payload) = AssertUnwindSafe(task).catch_unwind().await
                && let Some(host) = host.upgrade()
            {
                host.panicked(name, &*payload);
            }
        };
        if let Some(executors) = &*self.executors.read() {
            let executor = if name.starts_with(OWN) { &executors.lite } else { &executors.apps };
            executor.spawn(guarded).detach();
        }
    }

    fn wake_poller(&self) {
        self.alarm.ring();
    }

    fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    fn take_log(&self, into: &mut [u8]) -> (usize, u64) {
        log_ring::take(into)
    }
}
