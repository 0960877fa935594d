//! An RNIC without a wire: work is done by the call that posts it, or later if the fabric holds it back.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use platform::{Instant, IoAddr, Platform};
use spin::Mutex;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, Gid, LinkKind, MemoryKey, PathMtu, Payload,
    PortAddress, PortState, QpConnect, QpNum, QpOptions, RecvWr, RemoteAddr, RemoteKey, Rnic, SendOp, SendWr,
    Status, VerbsError, WorkKind, WrId,
};

const MAX_INLINE: u32 = 128;

struct Qp {
    options: QpOptions,
    peer: Option<(Gid, QpNum)>,
    failed: bool,
    receives: VecDeque<WrId>,
    /// Work that is held back, or waits for a receive at the peer.
    held: VecDeque<(Id, Work)>,
}

/// The identifier of a work request, and true if its success makes a completion.
type Id = (WrId, bool);

/// A work request; its payload stays in place unless it is inline.
enum Work {
    Write { data: Result<Vec<(IoAddr, u32)>, Vec<u8>>, remote: RemoteAddr, imm: Option<u32> },
    Read { into: Vec<(IoAddr, u32)>, remote: RemoteAddr },
    FetchAdd { result: IoAddr, remote: RemoteAddr, add: u64 },
    CompareSwap { result: IoAddr, remote: RemoteAddr, compare: u64, swap: u64 },
}

struct Port {
    platform: Arc<dyn Platform>,
    key: RemoteKey,
    cqs: Vec<Option<(u32, VecDeque<Completion>)>>,
    qps: BTreeMap<QpNum, Qp>,
    next_qp: u32,
    cut: bool,
    /// True if queue pairs cannot be destroyed.
    keeps: bool,
}

/// The effect of a fault between two ports on the work of one for the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gap {
    /// The work waits until the fault ends.
    Held,
    /// The work fails as after too many retries, but its packets arrive later.
    Slow,
}

#[derive(Default)]
struct State {
    ports: BTreeMap<[u8; 16], Port>,
    holding: bool,
    /// By sending port and receiving port.
    gaps: BTreeMap<[[u8; 16]; 2], Gap>,
    /// The packets that arrive later: the receiving queue pair, and the effect of the packet on its memory.
    slow: Vec<((Gid, QpNum), RemoteAddr, Vec<u8>)>,
    posts: u64,
    /// True if a new queue pair gets the lowest free number.
    reuses: bool,
    /// The immediate and length of each write that was done; `None` while they are not recorded.
    writes: Option<Vec<(Option<u32>, u32)>>,
    /// The number of reads that were done.
    reads: u64,
}

/// The network that connects the RNICs of a process.
#[derive(Default)]
pub struct Fabric(Mutex<State>);

/// An RNIC that executes work at once.
pub struct InstantRnic {
    fabric: Arc<Fabric>,
    port: PortAddress,
}

impl Fabric {
    /// Returns a network without RNICs.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns a new RNIC at `port`, whose GID must be unique.
    #[must_use]
    pub fn rnic(self: &Arc<Self>, port: PortAddress, platform: Arc<dyn Platform>) -> Arc<InstantRnic> {
        let mut random = [0; 8];
        platform.fill_random(&mut random);
        let [a, b, c, d, e, f, g, h] = random;
        let state = Port {
            platform,
            key: RemoteKey(u32::from_le_bytes([a, b, c, d])),
            cqs: Vec::new(),
            qps: BTreeMap::new(),
            next_qp: u32::from_le_bytes([e, f, g, h]),
            cut: false,
            keeps: false,
        };
        self.0.lock().ports.insert(port.gid.0, state);
        Arc::new(InstantRnic { fabric: self.clone(), port })
    }

    /// Holds posted work back, or releases it: it is then done at the next `progress` of its RNIC.
    pub fn hold(&self, holding: bool) {
        self.0.lock().holding = holding;
    }

    /// Separates a port from all others, or connects it again. Work over the gap fails as after too many
    /// retries.
    pub fn cut(&self, gid: Gid, cut: bool) {
        if let Some(port) = self.0.lock().ports.get_mut(&gid.0) {
            port.cut = cut;
        }
    }

    /// Holds work of one port for another back, or releases it: it is then done at the next
    /// `progress` of its RNIC.
    pub fn hold_between(&self, from: Gid, to: Gid, holding: bool) {
        self.set_gap(from, to, holding.then_some(Gap::Held));
    }

    /// Makes work of one port for another fail at the sender as after too many retries, while its packets
    /// arrive only at [`arrive`](Self::arrive).
    pub fn delay_between(&self, from: Gid, to: Gid, delaying: bool) {
        self.set_gap(from, to, delaying.then_some(Gap::Slow));
    }

    fn set_gap(&self, from: Gid, to: Gid, gap: Option<Gap>) {
        let gaps = &mut self.0.lock().gaps;
        match gap {
            Some(gap) => drop(gaps.insert([from.0, to.0], gap)),
            None => drop(gaps.remove(&[from.0, to.0])),
        }
    }

    /// Lets delayed WRITEs arrive, each at its queue pair, if that still exists. Returns the number of
    /// WRITEs, and the number of those accepted.
    pub fn arrive(&self) -> (usize, usize) {
        let mut state = self.0.lock();
        let slow = core::mem::take(&mut state.slow);
        let (sent, mut taken) = (slow.len(), 0);
        for ((to, qp), remote, bytes) in slow {
            let Some(port) = state.ports.get(&to.0) else { continue };
            let is_there = port.qps.get(&qp).is_some_and(|q| !q.failed && q.peer.is_some());
            taken += usize::from(is_there && port.platform.memory().write(remote.addr, &bytes).is_ok());
        }
        (sent, taken)
    }

    /// Makes a port refuse to destroy queue pairs, which it goes on to serve, or stop refusing.
    pub fn keep_queue_pairs(&self, gid: Gid, keeps: bool) {
        if let Some(port) = self.0.lock().ports.get_mut(&gid.0) {
            port.keeps = keeps;
        }
    }

    /// Assigns the lowest free number to each new queue pair, as an RNIC may do.
    pub fn reuse_queue_pair_numbers(&self) {
        self.0.lock().reuses = true;
    }

    /// Records writes from now on.
    pub fn record_writes(&self) {
        self.0.lock().writes = Some(Vec::new());
    }

    /// Returns the immediate and length of each write that was done since, in order.
    #[must_use]
    pub fn writes(&self) -> Vec<(Option<u32>, u32)> {
        self.0.lock().writes.clone().unwrap_or_default()
    }

    /// Returns the number of reads that were done so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.0.lock().reads
    }

    /// Returns the number of queue pairs of a port.
    #[must_use]
    pub fn queue_pairs(&self, gid: Gid) -> usize {
        self.0.lock().ports.get(&gid.0).map_or(0, |port| port.qps.len())
    }

    /// Returns the number of completion queues of a port.
    #[must_use]
    pub fn completion_queues(&self, gid: Gid) -> usize {
        self.0.lock().ports.get(&gid.0).map_or(0, |port| port.cqs.iter().flatten().count())
    }

    /// Returns the number of work requests posted so far.
    #[must_use]
    pub fn posts(&self) -> u64 {
        self.0.lock().posts
    }
}

impl Port {
    fn complete(&mut self, cq: CqId, completion: Completion) {
        let (depth, queue) = self.cqs[usize::from(cq.0)].as_mut().expect("a completion queue");
        assert!(queue.len() < *depth as usize, "completion queue overrun");
        queue.push_back(completion);
    }
}

/// The result of a work request at a port with pending changes.
enum PendingChanges {
    Done(Status, u32),
    /// The peer has no receive posted.
    Waits,
}

impl State {
    /// Does the work that `qp` has queued, in order, as far as possible. Returns true if something was
    /// done.
    fn work(&mut self, gid: Gid, number: QpNum) -> bool {
        let mut any = false;
        loop {
            let Some(port) = self.ports.get_mut(&gid.0) else { return any };
            let Some(qp) = port.qps.get_mut(&number) else { return any };
            let Some(((id, signaled), work)) = qp.held.pop_front() else { return any };
            let (failed, peer, cq) = (qp.failed, qp.peer, qp.options.send_cq);
            let gap = peer.and_then(|(to, _)| self.gaps.get(&[gid.0, to.0]).copied());
            let fate = match peer {
                _ if failed => PendingChanges::Done(Status::WorkRequestFlushed, 0),
                Some(_) if gap == Some(Gap::Held) => PendingChanges::Waits,
                Some(peer) if gap == Some(Gap::Slow) => self.send_slowly(gid, peer, &work),
                Some(peer) => self.perform(gid, peer, &work),
                None => PendingChanges::Done(Status::LocalQpOperationError, 0),
            };
            let Some(port) = self.ports.get_mut(&gid.0) else { return any };
            let Some(qp) = port.qps.get_mut(&number) else { return any };
            match fate {
                PendingChanges::Waits => {
                    qp.held.push_front(((id, signaled), work));
                    return any;
                }
                PendingChanges::Done(status, byte_len) => {
                    qp.failed |= status != Status::Success;
                    let kind = match work {
                        Work::Write { .. } => WorkKind::Write,
                        Work::Read { .. } => WorkKind::Read,
                        Work::FetchAdd { .. } => WorkKind::FetchAdd,
                        Work::CompareSwap { .. } => WorkKind::CompareSwap,
                    };
                    if signaled || status != Status::Success {
                        let completion = Completion::new(id, number, status, kind);
                        port.complete(cq, Completion { byte_len, ..completion });
                    }
                    any = true;
                }
            }
        }
    }

    /// Makes the packets of a work request arrive after its sender has given it up.
    fn send_slowly(&mut self, from: Gid, to: (Gid, QpNum), work: &Work) -> PendingChanges {
        if let Work::Write { data, remote, imm: None } = work
            && let Some(here) = self.ports.get(&from.0)
        {
            let bytes = match data {
                Ok(pieces) => gather(here.platform.memory(), pieces).unwrap_or_default(),
                Err(inline) => inline.clone(),
            };
            self.slow.push((to, *remote, bytes));
        }
        PendingChanges::Done(Status::RetryExceeded, 0)
    }

    fn perform(&mut self, from: Gid, (to, qp): (Gid, QpNum), work: &Work) -> PendingChanges {
        let here = self.ports.get(&from.0).filter(|p| !p.cut || from == to);
        let there = self.ports.get(&to.0).filter(|p| !p.cut || from == to);
        let (Some(here), Some(there)) = (here, there) else {
            return PendingChanges::Done(Status::RetryExceeded, 0);
        };
        let Some(target) = there.qps.get(&qp).filter(|q| !q.failed && q.peer.is_some()) else {
            return PendingChanges::Done(Status::RetryExceeded, 0);
        };
        let remote = match work {
            Work::Write { remote, .. }
            | Work::Read { remote, .. }
            | Work::FetchAdd { remote, .. }
            | Work::CompareSwap { remote, .. } => *remote,
        };
        let (local, far) = (here.platform.memory(), there.platform.memory());
        let access = PendingChanges::Done(Status::RemoteAccessError, 0);
        let lost = PendingChanges::Done(Status::LocalProtectionError, 0);
        if remote.key != there.key {
            return access;
        }
        match work {
            Work::Write { data, imm, .. } => {
                if imm.is_some() && target.receives.is_empty() {
                    return PendingChanges::Waits;
                }
                let bytes = match data {
                    Ok(pieces) => match gather(local, pieces) {
                        Some(bytes) => bytes,
                        None => return lost,
                    },
                    Err(inline) => inline.clone(),
                };
                if !bytes.is_empty() && far.write(remote.addr, &bytes).is_err() {
                    return access;
                }
                let len = bytes.len() as u32;
                if let Some(writes) = &mut self.writes {
                    writes.push((*imm, len));
                }
                if let Some(imm) = imm {
                    self.receive(to, qp, *imm, len);
                }
                PendingChanges::Done(Status::Success, len)
            }
            Work::Read { into, .. } => {
                self.reads += 1;
                let total: u32 = into.iter().map(|(_, n)| n).sum();
                let mut bytes = vec![0; total as usize];
                if far.read(remote.addr, &mut bytes).is_err() {
                    return access;
                }
                if scatter(local, into, &bytes) { PendingChanges::Done(Status::Success, total) } else { lost }
            }
            Work::FetchAdd { result, add, .. } => match far.fetch_add(remote.addr, *add) {
                Ok(before) => store(local, *result, before),
                Err(_) => access,
            },
            Work::CompareSwap { result, compare, swap, .. } => {
                match far.compare_swap(remote.addr, *compare, *swap) {
                    Ok(before) => store(local, *result, before),
                    Err(_) => access,
                }
            }
        }
    }

    fn receive(&mut self, to: Gid, number: QpNum, imm: u32, byte_len: u32) {
        let Some(port) = self.ports.get_mut(&to.0) else { return };
        let Some(qp) = port.qps.get_mut(&number) else { return };
        let Some(id) = qp.receives.pop_front() else { return };
        let cq = qp.options.recv_cq;
        let kind = WorkKind::RecvWriteImm;
        let status = Status::Success;
        port.complete(
            cq,
            Completion { byte_len, imm: Some(imm), ..Completion::new(id, number, status, kind) },
        );
    }
}

/// Writes `bytes` to the pieces; returns false if one of them is outside of the memory.
fn scatter(memory: &dyn platform::Memory, pieces: &[(IoAddr, u32)], mut bytes: &[u8]) -> bool {
    pieces.iter().all(|(addr, len)| {
        let (now, rest) = bytes.split_at(*len as usize);
        bytes = rest;
        memory.write(*addr, now).is_ok()
    })
}

fn gather(memory: &dyn platform::Memory, pieces: &[(IoAddr, u32)]) -> Option<Vec<u8>> {
    let total: u32 = pieces.iter().map(|(_, n)| n).sum();
    let mut bytes = vec![0; total as usize];
    let mut at = 0;
    for (addr, n) in pieces {
        let end = at + *n as usize;
        memory.read(*addr, &mut bytes[at..end]).ok()?;
        at = end;
    }
    Some(bytes)
}

fn store(memory: &dyn platform::Memory, result: IoAddr, before: u64) -> PendingChanges {
    match memory.write(result, &before.to_ne_bytes()) {
        Ok(()) => PendingChanges::Done(Status::Success, 8),
        Err(_) => PendingChanges::Done(Status::LocalProtectionError, 0),
    }
}

impl InstantRnic {
    fn with<T>(&self, f: impl FnOnce(&mut Port) -> Result<T, VerbsError>) -> Result<T, VerbsError> {
        let mut state = self.fabric.0.lock();
        f(state.ports.get_mut(&self.port.gid.0).ok_or(VerbsError::DeviceFailed)?)
    }
}

impl Rnic for InstantRnic {
    fn attributes(&self) -> Attributes {
        Attributes {
            driver: "instant",
            links: &[LinkKind::RoceV2],
            port: self.port,
            port_state: PortState::Active,
            max_mtu: PathMtu::B4096,
            max_qps: 1 << 20,
            max_depth: 1 << 16,
            max_sge: 4,
            max_inline: MAX_INLINE,
            max_rd_atomic: 16,
        }
    }

    fn memory_key(&self) -> MemoryKey {
        let state = self.fabric.0.lock();
        let port = &state.ports[&self.port.gid.0];
        let (base, len) = port.platform.memory().range();
        MemoryKey { rkey: port.key, base, len }
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.with(|port| {
            port.cqs.push(Some((options.depth, VecDeque::new())));
            Ok(CqId(port.cqs.len() as u16 - 1))
        })
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError> {
        self.with(|port| {
            let uses = |qp: &Qp| [qp.options.send_cq, qp.options.recv_cq].contains(&cq);
            if port.qps.values().any(uses) {
                return Err(VerbsError::InvalidState);
            }
            let slot = port.cqs.get_mut(usize::from(cq.0)).ok_or(VerbsError::NotFound)?;
            slot.take().map(drop).ok_or(VerbsError::NotFound)
        })
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        let reuses = self.fabric.0.lock().reuses;
        self.with(|port| {
            let number = if reuses {
                (1..).map(QpNum::new).find(|number| !port.qps.contains_key(number))
            } else {
                port.next_qp = port.next_qp.wrapping_add(1);
                Some(QpNum::new(port.next_qp))
            };
            let number = number.ok_or(VerbsError::NoResources)?;
            let (receives, held) = (VecDeque::new(), VecDeque::new());
            port.qps.insert(number, Qp { options, peer: None, failed: false, receives, held });
            Ok(number)
        })
    }

    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        self.with(|port| {
            let qp = port.qps.get_mut(&qp).ok_or(VerbsError::NotFound)?;
            qp.peer = Some((connect.address.peer.gid, connect.remote_qp));
            Ok(())
        })
    }

    fn destroy_qp(&self, number: QpNum) -> Result<(), VerbsError> {
        self.with(|port| {
            if port.keeps && port.qps.contains_key(&number) {
                return Err(VerbsError::StillServed);
            }
            let qp = port.qps.remove(&number).ok_or(VerbsError::NotFound)?;
            let flushed = |id, kind| Completion::new(id, number, Status::WorkRequestFlushed, kind);
            for (id, _) in qp.held {
                port.complete(qp.options.send_cq, flushed(id.0, WorkKind::Write));
            }
            for id in qp.receives {
                port.complete(qp.options.recv_cq, flushed(id, WorkKind::Recv));
            }
            Ok(())
        })
    }

    fn post_send(&self, number: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        let mut state = self.fabric.0.lock();
        for (i, wr) in work.iter().enumerate() {
            state.posts += 1;
            let port = state.ports.get_mut(&self.port.gid.0).ok_or((i, VerbsError::DeviceFailed))?;
            let qp = port.qps.get_mut(&number).ok_or((i, VerbsError::NotFound))?;
            if qp.peer.is_none() {
                return Err((i, VerbsError::InvalidState));
            }
            if qp.held.len() >= qp.options.send_depth as usize {
                return Err((i, VerbsError::NoResources));
            }
            let pieces = |sges: &[verbs::Sge]| sges.iter().map(|s| (s.addr, s.len)).collect();
            let work = match wr.op {
                SendOp::Write { data, remote, imm } => {
                    let data = match data {
                        Payload::Gather(sges) => Ok(pieces(sges)),
                        Payload::Inline(bytes) if bytes.len() > MAX_INLINE as usize => {
                            return Err((i, VerbsError::InvalidArgument));
                        }
                        Payload::Inline(bytes) => Err(bytes.to_vec()),
                    };
                    Work::Write { data, remote, imm }
                }
                SendOp::Read { into, remote } => Work::Read { into: pieces(into), remote },
                SendOp::FetchAdd { result, remote, add } => Work::FetchAdd { result, remote, add },
                SendOp::CompareSwap { result, remote, compare, swap } => {
                    Work::CompareSwap { result, remote, compare, swap }
                }
                SendOp::Send { .. } | SendOp::SendInvalidate { .. } => {
                    return Err((i, VerbsError::InvalidArgument));
                }
            };
            qp.held.push_back(((wr.id, wr.signaled), work));
            if !state.holding {
                state.work(self.port.gid, number);
            }
        }
        Ok(())
    }

    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.with(|port| {
            let qp = port.qps.get_mut(&qp).ok_or(VerbsError::NotFound)?;
            if qp.receives.len() + work.len() > qp.options.recv_depth as usize {
                return Err(VerbsError::NoResources);
            }
            qp.receives.extend(work.iter().map(|w| w.id));
            Ok(())
        })
        .map_err(|e| (0, e))
    }

    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        let mut state = self.fabric.0.lock();
        let Some(port) = state.ports.get_mut(&self.port.gid.0) else { return 0 };
        let Some(Some((_, queue))) = port.cqs.get_mut(usize::from(cq.0)) else { return 0 };
        let n = queue.len().min(out.len());
        for (entry, completion) in out.iter_mut().zip(queue.drain(..n)) {
            *entry = completion;
        }
        n
    }

    fn progress(&self, _: Instant, _: usize) -> bool {
        let mut state = self.fabric.0.lock();
        if state.holding {
            return false;
        }
        let Some(port) = state.ports.get(&self.port.gid.0) else { return false };
        let waiting: Vec<_> = port.qps.iter().filter(|(_, q)| !q.held.is_empty()).map(|(n, _)| *n).collect();
        let mut any = false;
        for number in waiting {
            any |= state.work(self.port.gid, number);
        }
        any
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn arm(&self) -> bool {
        false
    }

    fn counters(&self, each: &mut dyn FnMut(Counter)) {
        each(("instant_posts", self.fabric.posts()));
    }
}
