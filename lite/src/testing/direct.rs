//! An RNIC that has done its work when the posting call returns, at the least cost: no queue, no
//! allocation, one lock. Costs measured above it are those of the code above it.

use super::words::Words;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use platform::{Instant, IoAddr, Memory};
use spin::Mutex;
use verbs::{
    Attributes, Completion, Counter, CqId, CqOptions, LinkKind, MemoryKey, PathMtu, Payload, PortAddress,
    PortState, QpConnect, QpNum, QpOptions, RecvWr, RemoteAddr, RemoteKey, Rnic, SendOp, SendWr, Sge, Status,
    VerbsError, WorkKind, WrId,
};

const MAX_INLINE: u32 = 128;
const KEY: RemoteKey = RemoteKey(0x4c49_5445);
/// The bytes that are copied at once.
const PIECE: usize = 4096;
const CLOSED: &str = "a queue pair that is there";

struct Qp {
    options: QpOptions,
    peer: Option<(usize, QpNum)>,
    receives: VecDeque<WrId>,
}

struct Port {
    address: PortAddress,
    memory: Arc<Words>,
    cqs: Vec<Option<(u32, VecDeque<Completion>)>>,
    qps: Vec<Option<Qp>>,
}

struct State {
    ports: Vec<Port>,
    posts: u64,
    doorbells: u64,
}

/// The network that connects the RNICs of a process.
pub struct DirectFabric {
    state: Mutex<State>,
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
        let state = State { ports: Vec::new(), posts: 0, doorbells: 0 };
        Arc::new(Self { state: Mutex::new(state), still: AtomicBool::new(false) })
    }

    /// Makes WRITEs and READs complete without moving bytes, because in a machine the processor does not
    /// move them. Messages do not arrive then.
    pub fn hold_still(&self) {
        self.still.store(true, Ordering::Relaxed);
    }

    /// Returns a new RNIC at `address`, whose GID must be unique.
    #[must_use]
    pub fn rnic(self: &Arc<Self>, address: PortAddress, memory: Arc<Words>) -> Arc<DirectRnic> {
        let mut state = self.state.lock();
        state.ports.push(Port { address, memory, cqs: Vec::new(), qps: Vec::new() });
        Arc::new(DirectRnic { fabric: self.clone(), port: state.ports.len() - 1 })
    }
}

impl Port {
    fn qp(&mut self, number: QpNum) -> Option<&mut Qp> {
        self.qps.get_mut((number.get() & 0xffff) as usize)?.as_mut()
    }

    fn complete(&mut self, cq: CqId, completion: Completion) {
        let Some(Some((depth, queue))) = self.cqs.get_mut(usize::from(cq.0)) else { return };
        assert!(queue.len() < *depth as usize, "completion queue overrun");
        queue.push_back(completion);
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

impl State {
    fn perform(&mut self, moves: bool, from: usize, to: usize, op: &SendOp<'_>) -> (Status, WorkKind, u32) {
        let (near, far) = (&*self.ports[from].memory, &*self.ports[to].memory);
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

impl DirectRnic {
    fn with<T>(&self, f: impl FnOnce(&mut Port) -> Result<T, VerbsError>) -> Result<T, VerbsError> {
        f(&mut self.fabric.state.lock().ports[self.port])
    }
}

impl Rnic for DirectRnic {
    fn attributes(&self) -> Attributes {
        Attributes {
            driver: "direct",
            links: &[LinkKind::RoceV2],
            port: self.fabric.state.lock().ports[self.port].address,
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
        let (base, len) = self.fabric.state.lock().ports[self.port].memory.range();
        MemoryKey { rkey: KEY, base, len }
    }

    fn create_cq(&self, options: CqOptions) -> Result<CqId, VerbsError> {
        self.with(|port| {
            port.cqs.push(Some((options.depth, VecDeque::with_capacity(options.depth as usize))));
            Ok(CqId(port.cqs.len() as u16 - 1))
        })
    }

    fn destroy_cq(&self, cq: CqId) -> Result<(), VerbsError> {
        self.with(|port| {
            let slot = port.cqs.get_mut(usize::from(cq.0)).and_then(Option::take);
            slot.map(drop).ok_or(VerbsError::NotFound)
        })
    }

    fn create_qp(&self, options: QpOptions) -> Result<QpNum, VerbsError> {
        let (high, depth) = ((self.port as u32) << 16, options.recv_depth as usize);
        self.with(|port| {
            port.qps.push(Some(Qp { options, peer: None, receives: VecDeque::with_capacity(depth) }));
            Ok(QpNum::new(high | (port.qps.len() as u32 - 1)))
        })
    }

    fn connect_qp(&self, qp: QpNum, connect: &QpConnect) -> Result<(), VerbsError> {
        let mut state = self.fabric.state.lock();
        let there = state.ports.iter().position(|p| p.address.gid == connect.address.peer.gid);
        let there = there.ok_or(VerbsError::Unreachable)?;
        let qp = state.ports[self.port].qp(qp).ok_or(VerbsError::NotFound)?;
        qp.peer = Some((there, connect.remote_qp));
        Ok(())
    }

    fn destroy_qp(&self, number: QpNum) -> Result<(), VerbsError> {
        self.with(|port| {
            let slot = port.qps.get_mut((number.get() & 0xffff) as usize).and_then(Option::take);
            slot.map(drop).ok_or(VerbsError::NotFound)
        })
    }

    fn post_send(&self, number: QpNum, work: &[SendWr<'_>]) -> Result<(), (usize, VerbsError)> {
        let moves = !self.fabric.still.load(Ordering::Relaxed);
        let mut state = self.fabric.state.lock();
        state.doorbells += 1;
        state.posts += work.len() as u64;
        let qp = state.ports[self.port].qp(number).ok_or((0, VerbsError::NotFound))?;
        let (to, there) = qp.peer.ok_or((0, VerbsError::InvalidState))?;
        let cq = qp.options.send_cq;
        for wr in work {
            let (mut status, kind, byte_len) = state.perform(moves, self.port, to, &wr.op);
            let target = state.ports[to].qp(there);
            status = if target.is_some() { status } else { Status::RetryExceeded };
            if let SendOp::Write { imm: imm @ Some(_), .. } = wr.op
                && status == Status::Success
            {
                let qp = target.expect(CLOSED);
                let id = qp.receives.pop_front().expect("a receive for every immediate");
                let recv_cq = qp.options.recv_cq;
                let kind = WorkKind::RecvWriteImm;
                let completion =
                    Completion { byte_len, imm, ..Completion::new(id, there, Status::Success, kind) };
                state.ports[to].complete(recv_cq, completion);
            }
            let completion = Completion { byte_len, ..Completion::new(wr.id, number, status, kind) };
            if wr.signaled || status != Status::Success {
                state.ports[self.port].complete(cq, completion);
            }
        }
        Ok(())
    }

    fn post_recv(&self, qp: QpNum, work: &[RecvWr<'_>]) -> Result<(), (usize, VerbsError)> {
        self.with(|port| {
            let qp = port.qp(qp).ok_or(VerbsError::NotFound)?;
            if qp.receives.len() + work.len() > qp.options.recv_depth as usize {
                return Err(VerbsError::NoResources);
            }
            qp.receives.extend(work.iter().map(|w| w.id));
            Ok(())
        })
        .map_err(|e| (0, e))
    }

    fn poll_cq(&self, cq: CqId, out: &mut [Completion]) -> usize {
        let mut state = self.fabric.state.lock();
        let Some(Some((_, queue))) = state.ports[self.port].cqs.get_mut(usize::from(cq.0)) else { return 0 };
        let n = queue.len().min(out.len());
        for (entry, completion) in out.iter_mut().zip(queue.drain(..n)) {
            *entry = completion;
        }
        n
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
        let state = self.fabric.state.lock();
        each(("direct_posts", state.posts));
        each(("direct_doorbells", state.doorbells));
    }
}
