//! A responder with several keys, driven packet by packet.
#![allow(dead_code, reason = "each test file uses a part")]

use platform::{Arena, Instant, IoAddr, Memory};
use roce::transport::{Completions, Counters, Denied, Env, Limits, ReliableQp, RemoteAccess, Right, State};
use roce::wire::{
    Aeth, AtomicEth, Bth, Ecn, Ext, NakCode, Opcode, Operation, Packet, Reth, RnrTimer, Syndrome,
};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use verbs::{
    AddressVector, Completion, Gid, LinkKind, MacAddr, PathMtu, PortAddress, Psn, QpConnect, QpNum, RecvWr,
    RemoteKey, Sge, Status, WrId,
};

pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY: u64 = 1 << 16;
pub(crate) const MTU: usize = 256;
pub(crate) const RNR: Duration = Duration::from_micros(640);
/// A permanent key with every right on all memory.
pub(crate) const ALL: RemoteKey = RemoteKey(0x100);

/// Returns the PSN of packet `n`. The PSNs soon wrap.
pub(crate) const fn psn(n: u32) -> Psn {
    Psn::new(0xff_fff0).add(n)
}

/// An entry of the table of keys.
#[derive(Clone)]
pub(crate) struct Key {
    pub key: RemoteKey,
    pub addr: u64,
    pub len: u64,
    pub rights: Vec<Right>,
    pub can_go: bool,
}

/// A table of keys over one memory, as an RNIC with memory regions and windows has it.
pub(crate) struct Keys {
    pub table: RefCell<Vec<Key>>,
    memory: Arc<Arena>,
}

impl Keys {
    fn find(&self, key: RemoteKey) -> Result<Key, Denied> {
        self.table.borrow().iter().find(|k| k.key == key).cloned().ok_or(Denied)
    }
}

impl RemoteAccess for Keys {
    fn check(&self, key: RemoteKey, addr: IoAddr, len: u32, right: Right) -> Result<(), Denied> {
        let key = self.find(key)?;
        let offset = addr.0.checked_sub(key.addr).ok_or(Denied)?;
        let inside = offset.checked_add(u64::from(len)).is_some_and(|end| end <= key.len);
        if inside && key.rights.contains(&right) { Ok(()) } else { Err(Denied) }
    }
    fn write(&self, key: RemoteKey, addr: IoAddr, data: &[u8]) -> Result<(), Denied> {
        self.find(key)?;
        Ok(self.memory.write(addr, data)?)
    }
    fn read(&self, key: RemoteKey, addr: IoAddr, out: &mut [u8]) -> Result<(), Denied> {
        self.find(key)?;
        Ok(self.memory.read(addr, out)?)
    }
    fn fetch_add(&self, key: RemoteKey, addr: IoAddr, add: u64) -> Result<u64, Denied> {
        self.find(key)?;
        Ok(self.memory.fetch_add(addr, add)?)
    }
    fn compare_swap(&self, key: RemoteKey, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, Denied> {
        self.find(key)?;
        Ok(self.memory.compare_swap(addr, compare, swap)?)
    }
    fn invalidate(&self, key: RemoteKey) -> Result<(), Denied> {
        if !self.find(key)?.can_go {
            return Err(Denied);
        }
        self.table.borrow_mut().retain(|k| k.key != key);
        Ok(())
    }
}

#[derive(Default)]
pub(crate) struct Log {
    pub recvs: Vec<Completion>,
}

impl Completions for Log {
    fn send_ended(&mut self, completion: &Completion, _report: bool) {
        panic!("nothing was sent, but {completion:?}");
    }
    fn recv_ended(&mut self, completion: &Completion) {
        self.recvs.push(*completion);
    }
}

/// A parsed response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub operation: Operation,
    pub psn: Psn,
    pub syndrome: Option<Syndrome>,
    pub msn: Option<u32>,
    /// The previous value, for an atomic.
    pub before: Option<u64>,
    pub payload: Vec<u8>,
}

pub(crate) fn ack(n: u32, msn: u32) -> Response {
    acknowledge(n, msn, Syndrome::ACK)
}

pub(crate) fn nak(n: u32, msn: u32, code: NakCode) -> Response {
    acknowledge(n, msn, Syndrome::Nak(code))
}

pub(crate) fn rnr(n: u32, msn: u32) -> Response {
    acknowledge(n, msn, Syndrome::RnrNak(RnrTimer::at_least(RNR)))
}

fn acknowledge(n: u32, msn: u32, syndrome: Syndrome) -> Response {
    let (operation, psn) = (Operation::Acknowledge, psn(n));
    Response { operation, psn, syndrome: Some(syndrome), msn: Some(msn), before: None, payload: Vec::new() }
}

pub(crate) struct Server {
    pub qp: ReliableQp,
    pub memory: Arc<Arena>,
    pub keys: Keys,
    pub counters: Counters,
    pub log: Log,
    round: u32,
}

impl Server {
    /// Makes a connected server that holds `max_rd_atomic` READs and atomics.
    pub(crate) fn new(max_rd_atomic: u8) -> Self {
        let limits = Limits {
            send_depth: 1,
            recv_depth: 16,
            max_sge: 2,
            max_inline: 0,
            max_rd_atomic,
            max_window: 16,
        };
        let mut qp = ReliableQp::new(QpNum::new(0x12_3456), &limits);
        let peer = PortAddress { mac: MacAddr([2; 6]), gid: Gid::from_ipv4([10, 0, 0, 1]), lid: 0 };
        let link = LinkKind::RoceV2;
        let connect = QpConnect {
            address: AddressVector { link, peer, traffic_class: 0, hop_limit: 64, service_level: 0 },
            remote_qp: QpNum::new(0x65_4321),
            send_psn: Psn::new(0),
            recv_psn: psn(0),
            mtu: PathMtu::B256,
            max_rd_atomic: 1,
            ack_timeout: Duration::from_secs(1),
            retries: 7,
            rnr_retries: 7,
            min_rnr_delay: RNR,
        };
        qp.connect(&connect, None).unwrap();
        let memory = Arc::new(Arena::new(IoAddr(BASE), MEMORY));
        let rights = vec![Right::Read, Right::Write, Right::Atomic];
        let all = Key { key: ALL, addr: BASE, len: MEMORY, rights, can_go: false };
        let keys = Keys { table: RefCell::new(vec![all]), memory: Arc::clone(&memory) };
        Self { qp, memory, keys, counters: Counters::default(), log: Log::default(), round: 0 }
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut ReliableQp, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: Instant::ZERO,
            memory: &*self.memory,
            remote: &self.keys,
            counters: &mut self.counters,
            completions: &mut self.log,
        };
        f(&mut self.qp, &mut env)
    }

    pub(crate) fn recv(&mut self, id: u64, offset: u64, len: u32) {
        let scatter = [Sge { addr: IoAddr(BASE + offset), len }];
        self.with(|qp, env| qp.post_recv(&RecvWr { id: WrId(id), scatter: &scatter }, env)).unwrap();
    }

    /// Delivers a request as packet `n`, which requests an acknowledgement.
    pub(crate) fn request(&mut self, n: u32, operation: Operation, ext: Ext, payload: &[u8]) {
        let mut bth = Bth::new(Opcode::rc(operation), self.qp.number(), psn(n));
        bth.ack_request = true;
        let round = self.round;
        let packet = Packet { bth, ext, payload };
        self.with(|qp, env| qp.receive(&packet, Ecn::NotCapable, round, env));
    }

    /// Returns all pending responses.
    pub(crate) fn answers(&mut self) -> Vec<Response> {
        self.round += 1;
        std::iter::from_fn(|| self.answer()).collect()
    }

    /// Returns the next response, or the refusal in place of one that is impossible.
    pub(crate) fn answer(&mut self) -> Option<Response> {
        loop {
            let tx = self.qp.next_tx(self.round)?;
            let mut scratch = [0; MTU];
            let Some(packet) = self.qp.loop_back(&tx, &mut scratch, &*self.memory, &self.keys) else {
                self.with(|qp, env| qp.payload_failed(&tx, env));
                continue;
            };
            assert_eq!(packet.bth.dest_qp, self.qp.remote_qp());
            let (aeth, before) = match packet.ext {
                Ext::Aeth(aeth) => (Some(aeth), None),
                Ext::AtomicAck(aeth, before) => (Some(aeth), Some(before)),
                Ext::None => (None, None),
                other => panic!("a response with {other:?}"),
            };
            let response = Response {
                operation: packet.bth.opcode.operation,
                psn: packet.bth.psn,
                syndrome: aeth.map(|a: Aeth| a.syndrome),
                msn: aeth.map(|a| a.msn),
                before,
                payload: packet.payload.to_vec(),
            };
            self.with(|qp, env| qp.sent(&tx, env));
            return Some(response);
        }
    }

    /// Returns the completed receives.
    pub(crate) fn ended(&self) -> Vec<(u64, Status)> {
        self.log.recvs.iter().map(|c| (c.id.0, c.status)).collect()
    }

    /// Checks that the request as packet `n` gets `answer` and puts the queue pair into error: receives
    /// complete as in `recvs`, the repeated request gets the same answer, and nothing else is executed or
    /// answered.
    pub(crate) fn refuses(
        &mut self,
        n: u32,
        (operation, ext, payload): (Operation, Ext, &[u8]),
        answer: &Response,
        recvs: &[(u64, Status)],
    ) {
        let before = self.get(0, MEMORY as usize);
        self.request(n, operation, ext, payload);
        assert_eq!(self.answers(), std::slice::from_ref(answer), "{operation:?} {ext:?}");
        assert_eq!(self.qp.state(), State::Error);
        assert_eq!(self.ended(), recvs, "{operation:?} {ext:?}");
        self.request(n, operation, ext, payload);
        assert_eq!(self.answers(), std::slice::from_ref(answer), "{operation:?} again");
        self.request(n + 1, Operation::WriteOnly, reth(ALL, 0, 4), b"late");
        assert!(self.answers().is_empty(), "after {operation:?}");
        assert_eq!((self.counters.rx_wrong_state, self.counters.qp_errors), (1, 1));
        assert!(self.get(0, MEMORY as usize) == before, "{operation:?} changed memory");
        // Receives that are posted later complete as well.
        self.recv(99, 0, 4);
        assert_eq!(self.ended().last(), Some(&(99, Status::WorkRequestFlushed)));
    }

    pub(crate) fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read(IoAddr(BASE + offset), &mut out).unwrap();
        out
    }

    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(IoAddr(BASE + offset), bytes).unwrap();
    }

    pub(crate) fn word(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }
}

fn header(key: RemoteKey, offset: u64, len: u32) -> Reth {
    Reth { addr: IoAddr(BASE.wrapping_add(offset)), key, len }
}

pub(crate) fn reth(key: RemoteKey, offset: u64, len: u32) -> Ext {
    Ext::Reth(header(key, offset, len))
}

pub(crate) fn reth_imm(key: RemoteKey, offset: u64, len: u32, imm: u32) -> Ext {
    Ext::RethImm(header(key, offset, len), imm)
}

pub(crate) fn atomic(key: RemoteKey, offset: u64, swap_add: u64, compare: u64) -> Ext {
    Ext::Atomic(AtomicEth { addr: IoAddr(BASE.wrapping_add(offset)), key, swap_add, compare })
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + (i >> 8) * 13) as u8 ^ seed).collect()
}
