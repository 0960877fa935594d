//! Work of several processors in one thread, in random orders: a processor goes on until it takes a lock,
//! accesses memory or calls its RNIC, where another one may take over. `shuttle` runs the schedules; each
//! failing one is printed with its seed and replayed by it (`FERROLITE_INTERLEAVINGS_SEED`).

use lite::testing::{Fabric, Hub, on_lock};
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, RpcOptions};
use platform::{Arena, Instant, IoAddr, Lent, Memory, MemoryError, MemoryStats, Platform, Task};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config as Limits, MaxSteps, Runner, thread};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, Gid, MacAddr, MemoryKey, PortAddress, QpConnect, QpNum,
    QpOptions, RecvWr, Rnic, SendWr, VerbsError,
};

/// The schedules of each test.
const SCHEDULES: usize = 400;
/// The variable with the first seed; the clock decides if it is not set.
const SEED: &str = "FERROLITE_INTERLEAVINGS_SEED";

/// Another processor goes on at one of that many places on average: a processor that is stopped in the
/// middle of something stays so while others advance far.
const STAYS: u64 = 8;

std::thread_local! {
    /// True while this thread runs schedules: other tests take the same locks.
    static SCHEDULED: Cell<bool> = const { Cell::new(false) };
    static CHANCE: Cell<u64> = const { Cell::new(0) };
}

/// Returns a random number (splitmix64).
fn chance() -> u64 {
    let state = CHANCE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    CHANCE.set(state);
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A point at which another processor may go on.
fn switch() {
    if SCHEDULED.get() && chance().is_multiple_of(STAYS) {
        thread::yield_now();
    }
}

/// Runs `test` under many schedules of the processors.
fn explore(test: impl Fn() + Send + Sync + 'static) {
    on_lock(switch);
    let given = std::env::var(SEED).ok().map(|seed| seed.parse().expect("a seed is a number"));
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed: u64 = given.unwrap_or_else(clock);
    CHANCE.set(seed);
    println!("{SEED}={seed}");
    let mut limits = Limits::new();
    limits.stack_size = 1 << 20;
    limits.max_steps = MaxSteps::FailAfter(5_000_000);
    SCHEDULED.set(true);
    Runner::new(RandomScheduler::new_from_seed(seed, SCHEDULES), limits).run(test);
    SCHEDULED.set(false);
}

/// The ready tasks, and the time.
#[derive(Default)]
struct Shared {
    ready: Mutex<VecDeque<Arc<Job>>>,
    /// All tasks that may still run.
    jobs: Mutex<Vec<Weak<Job>>>,
    now: AtomicU64,
    random: AtomicU64,
}

struct Job {
    shared: Arc<Shared>,
    task: Mutex<Option<Task>>,
    queued: AtomicBool,
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            let shared = self.shared.clone();
            shared.ready.lock().unwrap().push_back(self);
        }
    }
}

impl Shared {
    /// Runs one ready task, if there is one.
    fn run_one(&self) -> bool {
        let Some(job) = self.ready.lock().unwrap().pop_front() else { return false };
        // The processor that runs it meanwhile must do so once more.
        let Ok(mut task) = job.task.try_lock() else {
            self.ready.lock().unwrap().push_back(job.clone());
            return true;
        };
        job.queued.store(false, Ordering::SeqCst);
        let waker = Waker::from(job.clone());
        if let Some(running) = task.as_mut()
            && running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        {
            *task = None;
        }
        true
    }
}

/// One machine. Another processor may go on before each access of its memory.
struct Machine {
    shared: Arc<Shared>,
    memory: Arc<Arena>,
}

impl Platform for Machine {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.shared.now.load(Ordering::SeqCst))
    }
    fn fill_random(&self, buf: &mut [u8]) {
        for byte in buf {
            let n = self.shared.random.fetch_add(1, Ordering::SeqCst);
            *byte = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        }
    }
    fn cpus(&self) -> usize {
        2
    }
    fn spawn(&self, _: &'static str, task: Task) {
        let (shared, task) = (self.shared.clone(), Mutex::new(Some(task)));
        let job = Arc::new(Job { shared, task, queued: AtomicBool::new(false) });
        self.shared.jobs.lock().unwrap().push(Arc::downgrade(&job));
        job.wake();
    }
    fn memory(&self) -> &dyn Memory {
        self
    }
}

impl Memory for Machine {
    fn range(&self) -> (IoAddr, u64) {
        self.memory.range()
    }
    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.memory.check(addr, len)
    }
    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        switch();
        self.memory.read(addr, buf)
    }
    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        switch();
        self.memory.write(addr, data)
    }
    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        self.memory.fill(addr, len, byte)
    }
    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.memory.copy(src, dst, len)
    }
    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        self.memory.fetch_add(addr, add)
    }
    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.memory.compare_swap(addr, compare, swap)
    }
    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        self.memory.lend(len).map(|run| Box::new(SwitchingRun(run)) as Box<dyn Lent>)
    }
    fn stats(&self) -> MemoryStats {
        self.memory.stats()
    }
    fn largest_free(&self) -> u64 {
        self.memory.largest_free()
    }
}

/// A run of the machine's memory: another processor may go on before each access.
struct SwitchingRun(Box<dyn Lent>);

impl Lent for SwitchingRun {
    fn addr(&self) -> IoAddr {
        self.0.addr()
    }
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        switch();
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        switch();
        self.0.write(offset, data)
    }
}

/// The platform of an RNIC: its memory, where no other processor goes on.
struct Direct(Arc<Machine>);

impl Platform for Direct {
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn fill_random(&self, buf: &mut [u8]) {
        self.0.fill_random(buf);
    }
    fn cpus(&self) -> usize {
        1
    }
    fn spawn(&self, name: &'static str, task: Task) {
        self.0.spawn(name, task);
    }
    fn memory(&self) -> &dyn Memory {
        &*self.0.memory
    }
}

/// An RNIC before each call of which another processor may go on.
struct Switching(Arc<dyn Rnic>);

impl Rnic for Switching {
    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }
    fn memory_key(&self) -> MemoryKey {
        self.0.memory_key()
    }
    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.0.create_cq(options)
    }
    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError> {
        self.0.destroy_cq(cq)
    }
    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        switch();
        self.0.create_qp(options)
    }
    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        switch();
        self.0.connect_qp(qp, connect)
    }
    fn destroy_qp(&self, qp: QpNum) -> Result<(), VerbsError> {
        switch();
        let result = self.0.destroy_qp(qp);
        switch();
        result
    }
    fn post_send(&self, qp: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        switch();
        let result = self.0.post_send(qp, work);
        switch();
        result
    }
    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.0.post_recv(qp, work)
    }
    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        switch();
        self.0.poll_cq(cq, out)
    }
    fn progress(&self, now: Instant, budget: usize) -> bool {
        switch();
        self.0.progress(now, budget)
    }
    fn next_deadline(&self) -> Option<Instant> {
        self.0.next_deadline()
    }
    fn arm(&self) -> bool {
        self.0.arm()
    }
    fn counters(&self, each: &mut dyn FnMut(Counter)) {
        self.0.counters(each);
    }
}

fn gid(i: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, i])
}

/// Nodes whose tasks and pollers run in threads of a schedule.
struct Cluster {
    shared: Arc<Shared>,
    fabric: Arc<Fabric>,
    hub: Arc<Hub>,
    nodes: Vec<(Arc<dyn Rnic>, Lite)>,
}

impl Drop for Cluster {
    /// Drops all tasks: they hold the nodes and the objects that they wait for, and those hold their wakers.
    fn drop(&mut self) {
        loop {
            // Dropping a task may start another one.
            let jobs = std::mem::take(&mut *self.shared.jobs.lock().unwrap());
            if jobs.is_empty() {
                break;
            }
            for job in jobs.iter().filter_map(Weak::upgrade) {
                let task = job.task.lock().unwrap().take();
                drop(task);
            }
        }
        self.shared.ready.lock().unwrap().clear();
    }
}

impl Cluster {
    fn new(count: u8) -> Arc<Self> {
        let (shared, fabric, hub) = (Arc::<Shared>::default(), Fabric::new(), Hub::new());
        let config = Config {
            operations: 32,
            bounce: [(256, 4), (4096, 4), (65536, 2)],
            ring: 16 << 10,
            ..Config::default()
        };
        let nodes = (1..=count).map(|i| {
            let memory = Arc::new(Arena::new(IoAddr(u64::from(i) << 32), 2 << 20));
            let machine = Arc::new(Machine { shared: shared.clone(), memory });
            let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, i]), gid: gid(i), lid: 0 };
            let rnic = fabric.rnic(port, Arc::new(Direct(machine.clone())));
            let rnic: Arc<dyn Rnic> = Arc::new(Switching(rnic));
            let (link, welcome) = hub.join(&*rnic);
            let lite = Lite::start(machine, rnic.clone(), link, welcome, config.clone());
            (rnic, lite.expect("node starts"))
        });
        let nodes = nodes.collect();
        Arc::new(Self { shared, fabric, hub, nodes })
    }

    fn lite(&self, i: usize) -> Lite {
        self.nodes[i - 1].1.clone()
    }

    fn poll(&self, node: usize) -> bool {
        let (rnic, lite) = &self.nodes[node];
        let now = Instant::from_nanos(self.shared.now.load(Ordering::SeqCst));
        rnic.progress(now, 64) | lite.poll(now)
    }

    /// Advances the time to the next deadline, because no work is due now.
    fn advance(&self) {
        let now = Instant::from_nanos(self.shared.now.load(Ordering::SeqCst));
        let next = self.nodes.iter().filter_map(|(_, lite)| lite.next_deadline()).min();
        let next = next.map_or(now + Duration::from_micros(1), |at| at.max(now + Duration::from_micros(1)));
        let next = next.min(now + Duration::from_millis(1));
        self.shared.now.store(next.as_nanos(), Ordering::SeqCst);
    }

    /// Runs everything in this thread alone, until `task` has ended.
    fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        self.spawn(async move { *place.lock().unwrap() = Some(task.await) });
        let was = SCHEDULED.replace(false);
        let value = loop {
            if let Some(value) = result.lock().unwrap().take() {
                break value;
            }
            self.turn();
        };
        SCHEDULED.set(was);
        value
    }

    /// Does all work that can be done now, in this thread alone.
    fn turn(&self) {
        let mut worked = false;
        while self.shared.run_one() {
            worked = true;
        }
        for node in 0..self.nodes.len() {
            worked |= self.poll(node);
        }
        if !worked {
            self.advance();
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.nodes[0].1.platform().spawn("test", Box::pin(task));
    }

    /// Runs everything in threads of the schedule: two that run tasks, one that polls the first node, one
    /// the others, and `beside`, until all of `tasks` have ended.
    fn run_interleaved(
        self: &Arc<Self>,
        tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
        beside: impl FnOnce(&Self) + Send + 'static,
    ) {
        let left = Arc::new(AtomicU64::new(tasks.len() as u64 + 1));
        for task in tasks {
            let left = left.clone();
            self.spawn(async move {
                task.await;
                left.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut threads = Vec::new();
        for worker in 0..4 {
            let (cluster, left) = (self.clone(), left.clone());
            threads.push(thread::spawn(move || {
                while left.load(Ordering::SeqCst) > 0 {
                    let worked = match worker {
                        0 | 1 => cluster.shared.run_one(),
                        2 => cluster.poll(0),
                        _ => (1..cluster.nodes.len()).fold(false, |any, node| cluster.poll(node) | any),
                    };
                    if !worked && worker == 2 && cluster.shared.ready.lock().unwrap().is_empty() {
                        cluster.advance();
                    }
                    if !worked {
                        thread::yield_now();
                    }
                    switch();
                }
            }));
        }
        let (cluster, left) = (self.clone(), left.clone());
        threads.push(thread::spawn(move || {
            beside(&cluster);
            left.fetch_sub(1, Ordering::SeqCst);
        }));
        threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
    }
}

const LEN: usize = 1000;
const RW: Permissions = Permissions::READ.union(Permissions::WRITE);

/// Allocates regions of `bytes` on nodes 2 and 3; node 2 echoes calls.
fn prepared(cluster: &Cluster) -> [Lmr; 2] {
    let server = cluster.lite(2).register(1, RpcOptions::default()).unwrap();
    cluster.spawn(async move {
        while let Ok(call) = server.receive().await {
            let request = call.request().to_vec();
            drop(call.reply(&request).await);
        }
    });
    let a = cluster.lite(1);
    cluster.run(async move {
        let mut lmrs = Vec::new();
        for node in [2, 3] {
            let lmr = a.alloc(NodeId(node), LEN as u64, RW).await.unwrap();
            lmr.write(0, &[node as u8; LEN]).await.unwrap();
            lmrs.push(lmr);
        }
        a.call(NodeId(2), 1, &[1; LEN], LEN).await.unwrap();
        lmrs.try_into().unwrap()
    })
}

/// Calls go to a node whose connection breaks at any moment, while other tasks use the resources that
/// become free: each reader gets the right data, and memory changes only by its writers.
#[test]
fn messages_reads_and_the_end_of_a_connection() {
    explore(|| {
        let cluster = Cluster::new(3);
        let lmrs = prepared(&cluster);
        let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
        for caller in 0..2u8 {
            let a = cluster.lite(1);
            tasks.push(Box::pin(async move {
                for round in 0..2 {
                    let request = vec![0x50 | caller << 2 | round; LEN];
                    match a.call(NodeId(2), 1, &request, LEN).await {
                        Ok(reply) => assert!(reply == request, "a reply of another call"),
                        Err(error) => assert_eq!(error, Error::Unknown),
                    }
                }
            }));
        }
        for _ in 0..2 {
            let lmr = lmrs[1].clone();
            tasks.push(Box::pin(async move {
                for _ in 0..2 {
                    let mut bytes = [0; LEN];
                    lmr.read(0, &mut bytes).await.unwrap();
                    assert!(bytes == [3; LEN], "it begins {:02x?}", &bytes[..8]);
                }
            }));
        }
        let lmr = lmrs[0].clone();
        tasks.push(Box::pin(async move {
            lmr.write(0, &[9; LEN]).await.unwrap();
            let mut bytes = [0; LEN];
            lmr.read(0, &mut bytes).await.unwrap();
            assert!(bytes == [9; LEN], "it begins {:02x?}", &bytes[..8]);
        }));
        cluster.run_interleaved(tasks, |cluster| {
            for _ in 0..chance() % 100 {
                thread::yield_now();
            }
            cluster.fabric.cut(gid(2), true);
            for _ in 0..chance() % 20 {
                thread::yield_now();
            }
            cluster.fabric.cut(gid(2), false);
        });
        let a = cluster.lite(1);
        cluster.run(async move {
            a.sleep(Duration::from_millis(50)).await;
            // A connection that has broken only at the peer is found when it is used.
            lmrs[0].write(0, &[1; LEN]).await.unwrap();
            let mut bytes = [0; LEN];
            lmrs[1].read(0, &mut bytes).await.unwrap();
            assert!(bytes == [3; LEN], "another's memory has changed: {:02x?}", &bytes[..8]);
        });
        // Mappings are released in the background.
        let a = cluster.lite(1);
        cluster.run(async move { a.sleep(Duration::from_millis(50)).await });
        assert_eq!(cluster.lite(1).audit(), []);
    });
}

/// A node's membership ends while the first atomic on its own memory makes its connection: that connection
/// is destroyed.
#[test]
fn the_end_of_a_membership_and_the_connection_with_oneself() {
    /// The number of tries in each schedule, because the critical window is short.
    const ROUNDS: usize = 8;
    explore(|| {
        for _ in 0..ROUNDS {
            let cluster = Cluster::new(1);
            let a = cluster.lite(1);
            let own = cluster.run(async move { a.alloc(NodeId(1), 8, Permissions::all()).await.unwrap() });
            let atomic = async move {
                let added = own.fetch_add(0, 1).await;
                assert!(matches!(added, Ok(0) | Err(Error::LinkDown | Error::Unknown)), "{added:?}");
            };
            cluster.run_interleaved(vec![Box::pin(atomic)], |cluster| {
                for _ in 0..chance() % 4 {
                    thread::yield_now();
                }
                cluster.hub.cut(NodeId(1));
            });
            let a = cluster.lite(1);
            cluster.run(async move { a.sleep(Duration::from_millis(50)).await });
            assert!(!cluster.lite(1).is_member());
            assert_eq!(cluster.fabric.queue_pairs(gid(1)), 0);
        }
    });
}

/// Tasks wait until own memory is unused, while the last write from it ends on another processor.
#[test]
fn the_end_of_the_last_use_of_own_memory() {
    /// The length of the memory, in bytes. It is too long for a copy.
    const MEMORY: u64 = 8192;
    const ROUNDS: usize = 10;
    explore(|| {
        let cluster = Cluster::new(2);
        let a = cluster.lite(1);
        let (lmr, memory) = cluster.run(async move {
            let lmr = a.alloc(NodeId(2), MEMORY, RW).await.unwrap();
            (lmr, Arc::new(a.local_memory(MEMORY).await.unwrap()))
        });
        let source = memory.clone();
        let writer = async move {
            for _ in 0..ROUNDS {
                lmr.write_from(0, &source, 0..MEMORY).await.unwrap();
            }
        };
        let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = vec![Box::pin(writer)];
        // Another processor may go on between the wake-ups of two tasks.
        for memory in [memory.clone(), memory] {
            tasks.push(Box::pin(async move {
                for _ in 0..ROUNDS {
                    memory.settled().await;
                }
            }));
        }
        cluster.run_interleaved(tasks, |_| ());
    });
}
