//! A node of the cluster: one thread, which runs tasks and LITE in turn.

use lite::testing::{DirectRnic, Words};
use lite::{Config, Lite};
use platform::{ControlLink, Instant, Memory, Platform, Task};
use proto::Welcome;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

/// The length of a sleep while nothing is measured.
const NAP: Duration = Duration::from_micros(100);

/// The tasks of a node that are ready.
#[derive(Default)]
struct Queue(Mutex<VecDeque<Arc<Job>>>);

struct Job {
    queue: Arc<Queue>,
    task: Mutex<Option<Task>>,
    queued: AtomicBool,
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let queue = self.queue.clone();
            queue.0.lock().unwrap().push_back(self);
        }
    }
}

impl Queue {
    /// Runs each task that is ready once; returns true if any was.
    fn run(&self) -> bool {
        let ready = std::mem::take(&mut *self.0.lock().unwrap());
        for job in &ready {
            job.queued.store(false, Ordering::Release);
            let waker = Waker::from(job.clone());
            let mut task = job.task.lock().unwrap();
            if let Some(future) = task.as_mut()
                && future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                *task = None;
            }
        }
        !ready.is_empty()
    }
}

/// The machine of a node, with one processor.
struct Machine {
    begun: std::time::Instant,
    memory: Words,
    random: AtomicU64,
    queue: Arc<Queue>,
}

impl Platform for Machine {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.begun.elapsed().as_nanos() as u64)
    }

    fn fill_random(&self, buf: &mut [u8]) {
        for byte in buf {
            *byte = (self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) >> 40) as u8;
        }
    }

    fn cpus(&self) -> usize {
        1
    }

    fn spawn(&self, _: &'static str, task: Task) {
        let queue = self.queue.clone();
        Arc::new(Job { queue, task: Mutex::new(Some(task)), queued: AtomicBool::new(false) }).wake();
    }

    fn memory(&self) -> &dyn Memory {
        &self.memory
    }
}

/// Starts a node with a thread of its own, which sleeps between two looks while `busy` is false.
pub(crate) fn start(
    busy: Arc<AtomicBool>,
    number: u64,
    memory: Words,
    rnic: Arc<DirectRnic>,
    link: Arc<dyn ControlLink>,
    welcome: Welcome,
) -> Lite {
    let (begun, queue) = (std::time::Instant::now(), Arc::<Queue>::default());
    let machine = Arc::new(Machine { begun, memory, random: AtomicU64::new(number), queue: queue.clone() });
    let lite = Lite::start(machine.clone(), rnic, link, welcome, Config::default()).unwrap();
    let polled = lite.clone();
    thread::spawn(move || {
        loop {
            let worked = queue.run() | polled.poll(machine.now());
            if worked || busy.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            } else {
                thread::sleep(NAP);
            }
        }
    });
    lite
}
