//! [`Platform`] on Linux: tasks on threads, the RNIC's memory, randomness of the operating system.
//!
//! LITE's own tasks have a thread to themselves. They are short, and what they do (reading acknowledgements of heartbeats
//! above all) must not wait for an application that computes without giving way.

use crate::Clock;
use crate::poller::Alarm;
use async_executor::Executor;
use futures_lite::{FutureExt, future};
use parking_lot::{Mutex, RwLock};
use platform::{Instant, Memory, Platform, Task};
use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

/// What the names of LITE's own tasks begin with.
const OWN: &str = "lite-";

/// The machine as LITE and applications see it.
pub(crate) struct Host {
    me: Weak<Self>,
    clock: Clock,
    cpus: usize,
    memory: Arc<dyn Memory>,
    alarm: Arc<Alarm>,
    /// LITE's tasks and the applications'; none once the node has ended.
    executors: RwLock<Option<Executors>>,
    /// Closed to end the threads.
    stop: async_channel::Sender<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Told of the first task that panics, and why.
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
                // An error: closed, which is what is waited for.
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

    /// Has `told` called if a task panics; once.
    pub(crate) fn on_panic(&self, told: impl FnOnce(&str) + Send + 'static) {
        *self.on_panic.lock() = Some(Box::new(told));
    }

    /// Ends the threads and drops all tasks; none is started any more. Waits for tasks that are running just now, so it
    /// must not be called by one.
    pub(crate) fn stop(&self) {
        self.stop.close();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // It ends by itself: panics of tasks are caught.
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
}
