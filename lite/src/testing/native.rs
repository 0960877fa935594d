//! Nodes in one thread for each core, over an RNIC that completes at once, with as little around them as
//! possible: for measurements of the cost of LITE itself.

use super::direct::{DirectFabric, DirectRnic};
use super::hub::Hub;
use super::words::Words;
use crate::{Config, Lite};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use platform::{Instant, IoAddr, Memory, Platform, Task};
use spin::Mutex;
use verbs::{Gid, MacAddr, PortAddress};

/// A clock: nanoseconds since some time in the past.
pub type Clock = fn() -> u64;

/// The cores of each machine.
#[derive(Clone, Copy)]
pub struct Cores {
    /// The number of cores, each of which is a thread.
    pub count: usize,
    /// Returns the core that the calling thread is.
    pub present: fn() -> usize,
}

impl Cores {
    /// One core.
    pub const ONE: Self = Self { count: 1, present: || 0 };
}

/// The number of times that the nodes may be polled in a row without work.
const IDLE: u32 = 1_000_000;

/// The ready tasks of a core, in cache lines of their own, as an appliance's cores have them.
// Two cache lines, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Queue(Mutex<VecDeque<Arc<Job>>>);

/// A task, in cache lines of its own, so that tasks of two cores have none in common.
#[repr(align(128))]
struct Job {
    queue: Arc<Queue>,
    task: Mutex<Option<Task>>,
    queued: AtomicBool,
}

/// Aligns the task that has this value to two cache lines.
#[repr(align(128))]
struct OwnLines;

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            let queue = self.queue.clone();
            queue.0.lock().push_back(self);
        }
    }
}

impl Queue {
    /// Runs the ready tasks; returns true if any was ready.
    fn run(&self) -> bool {
        let mut any = false;
        loop {
            let job = self.0.lock().pop_front();
            let Some(job) = job else { return any };
            any = true;
            job.queued.store(false, Ordering::Release);
            let waker = Waker::from(job.clone());
            let mut task = job.task.lock();
            if let Some(t) = task.as_mut()
                && t.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                *task = None;
            }
        }
    }
}

/// A machine of the native cluster.
pub struct NativeHost {
    clock: Clock,
    memory: Arc<Words>,
    random: AtomicU64,
    /// The tasks that are ready, by core.
    queues: Arc<[Arc<Queue>]>,
    cores: Cores,
}

impl Platform for NativeHost {
    fn now(&self) -> Instant {
        Instant::from_nanos((self.clock)())
    }

    fn fill_random(&self, buf: &mut [u8]) {
        // splitmix64 yields the same numbers in every run.
        for chunk in buf.chunks_mut(8) {
            let state = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }

    fn cpus(&self) -> usize {
        self.cores.count
    }

    fn cpu(&self) -> usize {
        (self.cores.present)()
    }

    /// The task runs on the present core.
    fn spawn(&self, _: &'static str, task: Task) {
        let queue = self.queues[self.cpu()].clone();
        let job = Job { queue, task: Mutex::new(Some(task)), queued: AtomicBool::new(false) };
        Arc::new(job).wake();
    }

    fn memory(&self) -> &dyn Memory {
        &*self.memory
    }
}

/// A node.
pub struct NativeNode {
    /// The machine of the node.
    pub host: Arc<NativeHost>,
    /// The RNIC of the node.
    pub rnic: Arc<DirectRnic>,
    /// The LITE of the node.
    pub lite: Lite,
}

/// Nodes in one thread for each core.
pub struct Native {
    /// The nodes; the first has node number 1.
    pub nodes: Vec<NativeNode>,
    /// The network.
    pub fabric: Arc<DirectFabric>,
    queues: Arc<[Arc<Queue>]>,
    cores: Cores,
    clock: Clock,
}

/// The task that runs in the foreground of a core: true if it is ready.
#[repr(align(128))]
struct Main(AtomicBool);

impl Wake for Main {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Native {
    /// Returns joined nodes with one core each; `memory` is the bytes of each node.
    ///
    /// # Panics
    /// If a node cannot start.
    #[must_use]
    pub fn new(memory: &[u64], clock: Clock, config: &Config) -> Self {
        Self::with_cores(memory, clock, config, Cores::ONE)
    }

    /// Returns joined nodes with `cores` each; `memory` is the bytes of each node. The calling thread is one
    /// of the cores.
    ///
    /// # Panics
    /// If a node cannot start.
    #[must_use]
    pub fn with_cores(memory: &[u64], clock: Clock, config: &Config, cores: Cores) -> Self {
        let (fabric, hub) = (DirectFabric::new(), Hub::new());
        let queues: Arc<[Arc<Queue>]> = (0..cores.count).map(|_| Arc::default()).collect();
        let nodes = memory.iter().zip(1u8..).map(|(len, i)| {
            let memory = Arc::new(Words::new(IoAddr(u64::from(i) << 40), *len));
            let gid = Gid::from_ipv4([10, 0, 0, i]);
            let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, i]), gid, lid: 0 };
            let rnic = fabric.rnic(port, memory.clone());
            let host = Arc::new(NativeHost {
                clock,
                memory,
                random: AtomicU64::new(u64::from(i)),
                queues: queues.clone(),
                cores,
            });
            let (link, welcome) = hub.join(&*rnic);
            let lite = Lite::start(host.clone(), rnic.clone(), link, welcome, config.clone());
            NativeNode { host, rnic, lite: lite.expect("node starts") }
        });
        let nodes = nodes.collect();
        let native = Self { nodes, fabric, queues, cores, clock };
        while native.queues.iter().fold(false, |any, queue| queue.run() | any) {
            native.poll_all();
        }
        native
    }

    fn poll_all(&self) -> bool {
        let now = Instant::from_nanos((self.clock)());
        self.nodes.iter().fold(false, |any, n| n.lite.poll(now) | any)
    }

    /// Runs `task` on the present core until it ends, with the pollers that the first `polled` nodes have for
    /// this core.
    ///
    /// # Panics
    /// If the task waits for something that does not happen.
    pub fn run_here<T>(&self, polled: usize, task: impl Future<Output = T>) -> T {
        let (nodes, core) = (self.nodes.get(..polled).expect("so many nodes"), (self.cores.present)());
        let poll = |now| nodes.iter().fold(false, |any, n| n.lite.poll_core(core, now) | any);
        self.run_polled(poll, task)
    }

    /// Runs `task` until it ends, with all nodes polled in turn.
    pub fn run<T>(&self, task: impl Future<Output = T>) -> T {
        self.run_on(self.nodes.len(), task)
    }

    /// Runs `task` until it ends, while only the first `polled` nodes are polled: one-sided operations need
    /// only the RNICs of the others.
    ///
    /// # Panics
    /// If the task waits for something that does not happen.
    pub fn run_on<T>(&self, polled: usize, task: impl Future<Output = T>) -> T {
        let nodes = self.nodes.get(..polled).expect("so many nodes");
        self.run_polled(|now| nodes.iter().fold(false, |any, n| n.lite.poll(now) | any), task)
    }

    /// Runs `task` until it ends, in turn with `poll`, which returns true if it had work.
    ///
    /// # Panics
    /// If the task waits for something that does not happen.
    pub fn run_polled<T>(&self, mut poll: impl FnMut(Instant) -> bool, task: impl Future<Output = T>) -> T {
        let main = Arc::new(Main(AtomicBool::new(true)));
        let waker = Waker::from(main.clone());
        let mut cx = Context::from_waker(&waker);
        let mut task = pin!(task);
        let mut idle = 0;
        loop {
            if main.0.load(Ordering::Acquire) {
                main.0.store(false, Ordering::Release);
                if let Poll::Ready(value) = task.as_mut().poll(&mut cx) {
                    return value;
                }
            }
            let ran = self.queues[(self.cores.present)()].run();
            let worked = poll(Instant::from_nanos((self.clock)())) | ran;
            idle = if worked { 0 } else { idle + 1 };
            assert!(idle < IDLE, "the task waits for something that does not come");
        }
    }

    /// Starts a task of node `i`, counted from 1, on the present core. Its state is in cache lines of its
    /// own.
    pub fn spawn(&self, i: usize, task: impl Future<Output = ()> + Send + 'static) {
        let own_lines = OwnLines;
        let task = async move {
            let _ = &own_lines;
            task.await;
        };
        self.nodes[i - 1].host.spawn("native", Box::pin(task));
    }
}
