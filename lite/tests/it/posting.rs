//! Events while an operation is being posted: another processor may poll, end connections and use resources
//! that become free between any two steps of the poster. Here that happens inside of the poster's own
//! copies.

use lite::testing::{Fabric, Host, Hub, Poller, World};
use lite::{Config, Error, Lite, Lmr, NodeId, Permissions, RpcOptions};
use platform::{Instant, IoAddr, Lent, Memory, MemoryError, MemoryStats, Platform, Task};
use spin::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use verbs::{Gid, MacAddr, PortAddress, Rnic};

const LIMIT: Duration = Duration::from_secs(60);
const RW: Permissions = Permissions::READ.union(Permissions::WRITE);

type Hook = Box<dyn FnMut() + Send>;

/// A host that calls a hook before its memory is written.
struct Hooked {
    host: Arc<Host>,
    hooks: Arc<Hooks>,
}

/// A hook for the writes of LITE, and their number.
#[derive(Default)]
struct Hooks {
    /// The number of writes until the hook runs, once.
    hook: Mutex<Option<(u32, Hook)>>,
    /// The number of times that LITE has written to memory so far.
    writes: Mutex<u32>,
}

impl Hooks {
    fn set(&self, after: u32, hook: impl FnMut() + Send + 'static) {
        *self.hook.lock() = Some((after, Box::new(hook)));
    }

    fn touch(&self) {
        *self.writes.lock() += 1;
        let due = {
            let mut hook = self.hook.lock();
            match &mut *hook {
                Some((0, _)) => hook.take(),
                Some((after, _)) => {
                    *after -= 1;
                    None
                }
                None => None,
            }
        };
        if let Some((_, mut hook)) = due {
            hook();
        }
    }
}

impl Platform for Hooked {
    fn now(&self) -> Instant {
        self.host.now()
    }
    fn fill_random(&self, buf: &mut [u8]) {
        self.host.fill_random(buf);
    }
    fn cpus(&self) -> usize {
        2
    }
    fn spawn(&self, name: &'static str, task: Task) {
        self.host.spawn(name, task);
    }
    fn memory(&self) -> &dyn Memory {
        self
    }
}

impl Memory for Hooked {
    fn range(&self) -> (IoAddr, u64) {
        self.host.memory().range()
    }
    fn check(&self, addr: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.host.memory().check(addr, len)
    }
    fn read(&self, addr: IoAddr, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.host.memory().read(addr, buf)
    }
    fn write(&self, addr: IoAddr, data: &[u8]) -> Result<(), MemoryError> {
        self.hooks.touch();
        self.host.memory().write(addr, data)
    }
    fn fill(&self, addr: IoAddr, len: u64, byte: u8) -> Result<(), MemoryError> {
        self.host.memory().fill(addr, len, byte)
    }
    fn copy(&self, src: IoAddr, dst: IoAddr, len: u64) -> Result<(), MemoryError> {
        self.host.memory().copy(src, dst, len)
    }
    fn fetch_add(&self, addr: IoAddr, add: u64) -> Result<u64, MemoryError> {
        self.host.memory().fetch_add(addr, add)
    }
    fn compare_swap(&self, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, MemoryError> {
        self.host.memory().compare_swap(addr, compare, swap)
    }
    fn lend(&self, len: u64) -> Option<Box<dyn Lent>> {
        let run = self.host.memory().lend(len)?;
        Some(Box::new(HookedRun { run, hooks: self.hooks.clone() }))
    }
    fn stats(&self) -> MemoryStats {
        self.host.memory().stats()
    }
    fn largest_free(&self) -> u64 {
        self.host.memory().largest_free()
    }
}

/// A run of a hooked machine's memory.
struct HookedRun {
    run: Box<dyn Lent>,
    hooks: Arc<Hooks>,
}

impl Lent for HookedRun {
    fn addr(&self) -> IoAddr {
        self.run.addr()
    }
    fn size(&self) -> u64 {
        self.run.size()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MemoryError> {
        self.run.read(offset, buf)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.hooks.touch();
        self.run.write(offset, data)
    }
}

fn gid(i: u8) -> Gid {
    Gid::from_ipv4([10, 0, 0, i])
}

/// Three nodes, the first of them hooked, connected with the other two.
struct Three {
    world: World,
    fabric: Arc<Fabric>,
    hooked: Arc<Hooked>,
    rnic: Arc<dyn Rnic>,
    a: Lite,
    /// The regions on nodes 2 and 3, with a pattern.
    lmrs: [Lmr; 2],
}

/// The length of the regions, and the byte in each.
const LEN: usize = 1000;
const HELD: [u8; 2] = [0xaa, 0xbb];

fn three() -> Three {
    let (mut world, fabric, hub) = (World::new(1), Fabric::new(), Hub::new());
    let (mut nodes, mut first) = (Vec::new(), None);
    for i in 1..=3u8 {
        let host = world.host(IoAddr(u64::from(i) << 32), 16 << 20);
        let hooked = Arc::new(Hooked { host: host.clone(), hooks: Arc::default() });
        let port = PortAddress { mac: MacAddr([2, 0, 0, 0, 0, i]), gid: gid(i), lid: 0 };
        // The RNIC accesses the memory without the hook.
        let rnic: Arc<dyn Rnic> = fabric.rnic(port, host.clone());
        let (link, welcome) = hub.join(&*rnic);
        let lite = Lite::start(hooked.clone(), rnic.clone(), link, welcome, Config::default()).unwrap();
        world.attach(&host, Arc::new(Poller { rnic: rnic.clone(), lite: lite.clone() }));
        first.get_or_insert((hooked, rnic));
        nodes.push(lite);
    }
    for lite in &nodes[1..] {
        let (server, l) = (lite.register(1, RpcOptions::default()).unwrap(), lite.clone());
        l.platform().spawn(
            "echo",
            Box::pin(async move {
                while let Ok(call) = server.receive().await {
                    let request = call.request().to_vec();
                    drop(call.reply(&request).await);
                }
            }),
        );
    }
    world.run_for(Duration::from_millis(1));
    let a = nodes[0].clone();
    let made = a.clone();
    let lmrs = world.run(LIMIT, async move {
        let mut lmrs = Vec::new();
        for (node, byte) in [(2, HELD[0]), (3, HELD[1])] {
            let lmr = made.alloc(NodeId(node), LEN as u64, RW).await.unwrap();
            lmr.write(0, &[byte; LEN]).await.unwrap();
            made.call(NodeId(node), 1, b"!", 1).await.unwrap();
            lmrs.push(lmr);
        }
        lmrs.try_into().unwrap()
    });
    let (hooked, rnic) = first.unwrap();
    Three { world, fabric, hooked, rnic, a, lmrs }
}

/// The work of another processor: it polls until nothing is left to do.
fn poll(rnic: &dyn Rnic, lite: &Lite, now: Instant) {
    for _ in 0..100 {
        if !(rnic.progress(now, 64) | lite.poll(now)) {
            return;
        }
    }
    panic!("the poller does not come to an end");
}

type Reading = Pin<Box<dyn Future<Output = (Result<(), Error>, Vec<u8>)> + Send>>;

/// The poster's work, and true if the poster must learn that it was cut off.
#[derive(Clone, Copy, Debug)]
enum Posts {
    Call,
    Message,
    Write,
}

impl Posts {
    async fn run(self, a: Lite, lmr: Lmr) -> Result<(), Error> {
        match self {
            Self::Call => a.call(NodeId(2), 1, &[0x55; LEN], LEN).await.map(drop),
            Self::Message => a.send(NodeId(2), 2, &[0x55; LEN]).await,
            Self::Write => lmr.write(0, &[0x55; LEN]).await,
        }
    }
}

/// A task copies the data that it posts while another processor sees its connection end, and gives the
/// memory that becomes free to the next task, which reads. For every copy of the poster: the reader gets
/// the right data, and nothing else changes on the way.
#[test]
fn what_is_being_posted_keeps_its_buffer_while_its_connection_ends() {
    for posts in [Posts::Call, Posts::Message, Posts::Write] {
        for after in 0.. {
            let mut three = three();
            let Three { fabric, hooked, rnic, a, lmrs, .. } = &three;
            let reading: Arc<Mutex<Option<Reading>>> = Arc::default();
            let fired = Arc::new(Mutex::new(false));
            let hook = {
                let (fabric, rnic, a, lmrs) = (fabric.clone(), rnic.clone(), a.clone(), lmrs.clone());
                let (host, reading, fired) = (hooked.host.clone(), reading.clone(), fired.clone());
                move || {
                    *fired.lock() = true;
                    let mut cx = Context::from_waker(Waker::noop());
                    // The connection to node 2 ends, because an operation on it fails.
                    fabric.cut(gid(2), true);
                    // Short, so that it is not copied, which would call the hook.
                    let mut fails = Box::pin(lmrs[0].write(0, b"fails"));
                    assert!(fails.as_mut().poll(&mut cx).is_pending());
                    drop(fails);
                    poll(&*rnic, &a, host.now());
                    fabric.cut(gid(2), false);
                    // Another task takes the resources that have become free.
                    let lmr = lmrs[1].clone();
                    let mut read: Reading = Box::pin(async move {
                        let mut bytes = vec![0; LEN];
                        (lmr.read(0, &mut bytes).await, bytes)
                    });
                    assert!(read.as_mut().poll(&mut cx).is_pending());
                    poll(&*rnic, &a, host.now());
                    *reading.lock() = Some(read);
                }
            };
            hooked.hooks.set(after, hook);
            let work = posts.run(a.clone(), lmrs[0].clone());
            let result = three.world.run(LIMIT, work);
            if !*fired.lock() {
                assert!(after > 0, "{posts:?} copies nothing");
                break;
            }
            if let Posts::Write = posts {
                assert_eq!(result, Ok(()), "it is done again on another connection");
            }
            let read = reading.lock().take().unwrap();
            let (read, bytes) = three.world.run(LIMIT, read);
            assert_eq!(read, Ok(()), "{posts:?}, copy {after}");
            assert!(bytes == [HELD[1]; LEN], "{posts:?}, copy {after}: it begins {:02x?}", &bytes[..8]);
            three.world.run_for(Duration::from_secs(1));
            let held = three.a.audit();
            let expected = ["mappings", "terms of handles"];
            assert!(
                held.iter().all(|(what, _)| expected.contains(what)),
                "{posts:?}, copy {after}: {held:?}"
            );
        }
    }
}
