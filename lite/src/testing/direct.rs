//! An RNIC that has done its work when the posting call returns, at the least cost: no queue, no allocation,
//! a lock for each queue pair and each completion queue. Costs measured above it are those of the code above
//! it.

use super::words::Words;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use platform::{Instant, IoAddr, Memory};
use spin::{Mutex, Once};
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, LinkKind, MemoryKey, PathMtu, Payload, PortAddress,
    PortState, QpConnect, QpNum, QpOptions, RecvWr, RemoteAddr, RemoteKey, Rnic, SendOp, SendWr, Sge, Status,
    VerbsError, WorkKind, WrId,
};

const MAX_INLINE: u32 = 128;
const KEY: RemoteKey = RemoteKey(0x4c49_5445);
/// The bytes that are copied at once. They are few, because a copy first clears its buffer: clearing 4 KiB
/// took about as long as the rest of a READ of 64 bytes.
const PIECE: usize = 64;
/// The most RNICs of a network.
const PORTS: usize = 256;
/// The values of a table that are allocated at once, and the number of times that some are.
const CHUNK: usize = 64;
const CHUNKS: usize = 256;

struct Qp {
    options: QpOptions,
    peer: Option<(usize, QpNum)>,
    receives: VecDeque<WrId>,
    posts: u64,
    doorbells: u64,
}

struct Cq {
    depth: u32,
    completions: VecDeque<Completion>,
}

/// A value in cache lines of its own, with its lock.
#[repr(align(128))]
struct Place<T>(Mutex<Option<T>>);

/// Values that are allocated at once.
type Chunk<T> = Once<Box<[Place<T>]>>;

/// Values that are found by number without a lock that is common to them. Numbers are not used again.
struct Table<T> {
    count: AtomicUsize,
    chunks: Box<[Chunk<T>]>,
}

impl<T> Table<T> {
    fn new() -> Self {
        Self { count: AtomicUsize::new(0), chunks: (0..CHUNKS).map(|_| Once::new()).collect() }
    }

    /// Adds a value and returns its number.
    fn add(&self, value: T) -> Result<usize, VerbsError> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let chunk = self.chunks.get(number / CHUNK).ok_or(VerbsError::NoResources)?;
        let places = chunk.call_once(|| (0..CHUNK).map(|_| Place(Mutex::new(None))).collect());
        *places[number % CHUNK].0.lock() = Some(value);
        Ok(number)
    }

    fn place(&self, number: usize) -> Option<&Mutex<Option<T>>> {
        self.chunks.get(number / CHUNK)?.get().map(|places| &places[number % CHUNK].0)
    }

    /// Calls `f` with a value.
    fn with<R>(&self, number: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.place(number)?.lock().as_mut().map(f)
    }

    /// Removes a value.
    fn take(&self, number: usize) -> Option<T> {
        self.place(number)?.lock().take()
    }
}

struct Port {
    address: PortAddress,
    memory: Arc<Words>,
    cqs: Table<Cq>,
    qps: Table<Qp>,
    /// The work requests and the calls that posted them, of queue pairs that are destroyed.
    former: [AtomicU64; 2],
}

/// The network that connects the RNICs of a process. Cores that use different queue pairs and completion
/// queues write no common memory in it.
pub struct DirectFabric {
    ports: Box<[Once<Port>]>,
    count: AtomicUsize,
    still: AtomicBool,
}

/// An RNIC of the network in this process.
pub struct DirectRnic {
    fabric: Arc<DirectFabric>,
    port: usize,
}

impl DirectFabric {
    /// Returns a network without RNICs.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let ports = (0..PORTS).map(|_| Once::new()).collect();
        Arc::new(Self { ports, count: AtomicUsize::new(0), still: AtomicBool::new(false) })
    }

    /// Makes WRITEs and READs complete without moving bytes, because in a machine the processor does not
    /// move them. Messages do not arrive then.
    pub fn hold_still(&self) {
        self.still.store(true, Ordering::Relaxed);
    }

    /// Returns a new RNIC at `address`, whose GID must be unique.
    ///
    /// # Panics
    /// If there are 256 already.
    #[must_use]
    pub fn rnic(self: &Arc<Self>, address: PortAddress, memory: Arc<Words>) -> Arc<DirectRnic> {
        let port = self.count.fetch_add(1, Ordering::Relaxed);
        self.ports[port].call_once(|| Port {
            address,
            memory,
            cqs: Table::new(),
            qps: Table::new(),
            former: [const { AtomicU64::new(0) }; 2],
        });
        Arc::new(DirectRnic { fabric: self.clone(), port })
    }

    fn port(&self, port: usize) -> &Port {
        self.ports[port].get().expect("a port that exists")
    }
}

impl Port {
    /// Calls `f` with a queue pair.
    fn qp<R>(&self, number: QpNum, f: impl FnOnce(&mut Qp) -> R) -> Option<R> {
        self.qps.with((number.get() & 0xffff) as usize, f)
    }

    fn complete(&self, cq: CqId, completion: Completion) {
        self.cqs.with(usize::from(cq.0), |cq| {
            assert!(cq.completions.len() < cq.depth as usize, "completion queue overrun");
            cq.completions.push_back(completion);
        });
    }
}

/// Copies between the pieces at `sges` and `far`, in one of the two directions.
fn copy(near: &Words, sges: &[Sge], far: &Words, mut at: IoAddr, out: bool) -> Option<u32> {
    let mut total = 0;
    for sge in sges {
        let mut buffer = [0; PIECE];
        let mut done = 0;
        while done < sge.len {
            let len = (sge.len - done).min(PIECE as u32);
            let piece = &mut buffer[..len as usize];
            let local = sge.addr.checked_add(u64::from(done))?;
            if out {
                near.read(local, piece).ok()?;
                far.write(at, piece).ok()?;
            } else {
                far.read(at, piece).ok()?;
                near.write(local, piece).ok()?;
            }
            at = at.checked_add(u64::from(len))?;
            done += len;
        }
        total += sge.len;
    }
    Some(total)
}

impl DirectRnic {
    fn own(&self) -> &Port {
        self.fabric.port(self.port)
    }

    fn perform(moves: bool, from: &Port, to: &Port, op: &SendOp<'_>) -> (Status, WorkKind, u32) {
        let (near, far) = (&*from.memory, &*to.memory);
        let lens = |sges: &[Sge]| sges.iter().map(|s| s.len).sum::<u32>();
        let may = |remote: RemoteAddr, len: u32| {
            (remote.key == KEY && far.check(remote.addr, u64::from(len)).is_ok()).then_some(len)
        };
        let (kind, done) = match *op {
            SendOp::Write { data: Payload::Inline(bytes), remote, .. } => {
                let len = bytes.len() as u32;
                let done = may(remote, len).filter(|_| !moves || far.write(remote.addr, bytes).is_ok());
                (WorkKind::Write, done)
            }
            SendOp::Write { data: Payload::Gather(sges), remote, .. } => {
                let done = may(remote, lens(sges))
                    .filter(|_| !moves || copy(near, sges, far, remote.addr, true).is_some());
                (WorkKind::Write, done)
            }
            SendOp::Read { into, remote } => {
                let done = may(remote, lens(into))
                    .filter(|_| !moves || copy(near, into, far, remote.addr, false).is_some());
                (WorkKind::Read, done)
            }
            SendOp::FetchAdd { result, remote, add } => {
                let before = far.fetch_add(remote.addr, add).ok();
                (
                    WorkKind::FetchAdd,
                    before.and_then(|b| near.write(result, &b.to_ne_bytes()).ok()).map(|()| 8),
                )
            }
            SendOp::CompareSwap { result, remote, compare, swap } => {
                let before = far.compare_swap(remote.addr, compare, swap).ok();
                let stored = before.and_then(|b| near.write(result, &b.to_ne_bytes()).ok());
                (WorkKind::CompareSwap, stored.map(|()| 8))
            }
            SendOp::Send { .. } | SendOp::SendInvalidate { .. } => (WorkKind::Send, None),
        };
        match done {
            Some(len) => (Status::Success, kind, len),
            None => (Status::RemoteAccessError, kind, 0),
        }
    }
}

impl Rnic for DirectRnic {
    fn attributes(&self) -> Attributes {
        Attributes {
            driver: "direct",
            links: &[LinkKind::RoceV2],
            port: self.own().address,
            port_state: PortState::Active,
            max_mtu: PathMtu::B4096,
            max_qps: 1 << 16,
            max_depth: 1 << 16,
            max_sge: 4,
            max_inline: MAX_INLINE,
            max_rd_atomic: 16,
        }
    }

    fn memory_key(&self) -> MemoryKey {
        let (base, len) = self.own().memory.range();
        MemoryKey { rkey: KEY, base, len }
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        let completions = VecDeque::with_capacity(options.depth as usize);
        self.own().cqs.add(Cq { depth: options.depth, completions }).map(|number| CqId(number as u16))
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError> {
        self.own().cqs.take(usize::from(cq.0)).map(drop).ok_or(VerbsError::NotFound)
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        let receives = VecDeque::with_capacity(options.recv_depth as usize);
        let number = self.own().qps.add(Qp { options, peer: None, receives, posts: 0, doorbells: 0 })?;
        Ok(QpNum::new((self.port as u32) << 16 | number as u32))
    }

    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        let mut ports = self.fabric.ports.iter().map_while(Once::get);
        let there = ports.position(|p| p.address.gid == connect.address.peer.gid);
        let there = there.ok_or(VerbsError::Unreachable)?;
        let connected = self.own().qp(qp, |qp| qp.peer = Some((there, connect.remote_qp)));
        connected.ok_or(VerbsError::NotFound)
    }

    fn destroy_qp(&self, number: QpNum) -> Result<(), VerbsError> {
        let port = self.own();
        let qp = port.qps.take((number.get() & 0xffff) as usize).ok_or(VerbsError::NotFound)?;
        for (sum, count) in port.former.iter().zip([qp.posts, qp.doorbells]) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    fn post_send(&self, number: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        let moves = !self.fabric.still.load(Ordering::Relaxed);
        let from = self.own();
        let posted = from.qp(number, |qp| {
            qp.doorbells += 1;
            qp.posts += work.len() as u64;
            qp.peer.map(|peer| (peer, qp.options.send_cq))
        });
        let ((to, there), cq) =
            posted.ok_or((0, VerbsError::NotFound))?.ok_or((0, VerbsError::InvalidState))?;
        let to = self.fabric.port(to);
        for wr in work {
            let (mut status, kind, byte_len) = Self::perform(moves, from, to, &wr.op);
            let imm = match wr.op {
                SendOp::Write { imm, .. } if status == Status::Success => imm,
                _ => None,
            };
            let target = to.qp(there, |qp| {
                let id = imm.map(|_| qp.receives.pop_front().expect("a receive for every immediate"));
                id.map(|id| (id, qp.options.recv_cq))
            });
            match target {
                None => status = Status::RetryExceeded,
                Some(None) => {}
                Some(Some((id, recv_cq))) => {
                    let kind = WorkKind::RecvWriteImm;
                    let completion = Completion::new(id, there, Status::Success, kind);
                    to.complete(recv_cq, Completion { byte_len, imm, ..completion });
                }
            }
            let completion = Completion { byte_len, ..Completion::new(wr.id, number, status, kind) };
            if wr.signaled || status != Status::Success {
                from.complete(cq, completion);
            }
        }
        Ok(())
    }

    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        let posted = self.own().qp(qp, |qp| {
            if qp.receives.len() + work.len() > qp.options.recv_depth as usize {
                return Err(VerbsError::NoResources);
            }
            qp.receives.extend(work.iter().map(|w| w.id));
            Ok(())
        });
        posted.unwrap_or(Err(VerbsError::NotFound)).map_err(|e| (0, e))
    }

    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        let taken = self.own().cqs.with(usize::from(cq.0), |cq| {
            let n = cq.completions.len().min(out.len());
            for (entry, completion) in out.iter_mut().zip(cq.completions.drain(..n)) {
                *entry = completion;
            }
            n
        });
        taken.unwrap_or(0)
    }

    fn progress(&self, _: Instant, _: usize) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&self) -> bool {
        false
    }

    fn counters(&self, each: &mut dyn FnMut(Counter)) {
        let port = self.own();
        let mut sums = port.former.each_ref().map(|sum| sum.load(Ordering::Relaxed));
        for number in 0..port.qps.count.load(Ordering::Relaxed) {
            port.qps.with(number, |qp| sums = [sums[0] + qp.posts, sums[1] + qp.doorbells]);
        }
        each(("direct_posts", sums[0]));
        each(("direct_doorbells", sums[1]));
    }
}
