//! One end of a captured connection, played by our queue pair.

use super::capture::{Capture, Event};
use platform::{Arena, Instant, IoAddr, Memory};
use roce::transport::{
    Completions, Counters, Denied, Env, Limits, MAX_RD_ATOMIC, ReliableQp, RemoteAccess, Right,
};
use roce::wire::{Ecn, Frame, Headers, Net, Packet};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;
use verbs::{
    AddressVector, Completion, LinkKind, PortAddress, Psn, QpConnect, RecvWr, RemoteKey, SendWr, Sge, WrId,
};

/// Completions, in order.
#[derive(Default)]
pub(super) struct Log {
    pub sends: Vec<Completion>,
    pub recvs: Vec<Completion>,
}

impl Completions for Log {
    fn send_ended(&mut self, completion: &Completion, _report: bool) {
        self.sends.push(*completion);
    }
    fn recv_ended(&mut self, completion: &Completion) {
        self.recvs.push(*completion);
    }
}

/// A memory under several keys, as the captured programs had registered it, including a memory window.
pub(super) struct Keys {
    pub memory: Arena,
    pub valid: RefCell<Vec<RemoteKey>>,
}

impl RemoteAccess for Keys {
    fn check(&self, key: RemoteKey, addr: IoAddr, len: u32, _right: Right) -> Result<(), Denied> {
        if !self.valid.borrow().contains(&key) {
            return Err(Denied);
        }
        Ok(self.memory.check(addr, u64::from(len))?)
    }
    fn write(&self, _key: RemoteKey, addr: IoAddr, data: &[u8]) -> Result<(), Denied> {
        Ok(self.memory.write(addr, data)?)
    }
    fn read(&self, _key: RemoteKey, addr: IoAddr, out: &mut [u8]) -> Result<(), Denied> {
        Ok(self.memory.read(addr, out)?)
    }
    fn fetch_add(&self, _key: RemoteKey, addr: IoAddr, add: u64) -> Result<u64, Denied> {
        Ok(self.memory.fetch_add(addr, add)?)
    }
    fn compare_swap(&self, _key: RemoteKey, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, Denied> {
        Ok(self.memory.compare_swap(addr, compare, swap)?)
    }
    fn invalidate(&self, key: RemoteKey) -> Result<(), Denied> {
        let mut valid = self.valid.borrow_mut();
        let before = valid.len();
        valid.retain(|&k| k != key);
        if valid.len() < before { Ok(()) } else { Err(Denied) }
    }
}

/// A queue pair and its environment. The packets that it sends are queued in `requests` and `responses`.
pub(super) struct End {
    pub qp: ReliableQp,
    pub keys: Keys,
    pub counters: Counters,
    pub log: Log,
    pub now: Instant,
    pub requests: VecDeque<Vec<u8>>,
    pub responses: VecDeque<Vec<u8>>,
    round: u32,
    posted_receives: u64,
    posted_sends: u64,
}

/// The size of the memory in bytes, and the offsets of its parts: addresses that peers name, then data to
/// send, receives, and read data.
const MEMORY: u64 = 8 << 20;
const SOURCE: u64 = 2 << 20;
const RECEIVES: u64 = 5 << 20;
const LANDING: u64 = 6 << 20;

impl End {
    /// Makes the end of `side`. Its memory contains the addresses that the peer named, except with
    /// `elsewhere`.
    pub(super) fn new(capture: &Capture, events: &[Event<'_>], side: usize, elsewhere: bool) -> Self {
        let of = |from: usize| &events.iter().find(|e| e.side == from).unwrap().frame;
        let (own, peer) = (of(side), of(1 - side));
        let first = |from: usize| {
            // The first PSN of a direction without requests is never visible.
            events.iter().find(|e| e.side == from && e.is_request()).map_or(Psn::new(0x5a_0b0c), Event::psn)
        };
        let (number, remote_qp) = (peer.packet.bth.dest_qp, own.packet.bth.dest_qp);
        let limits = Limits {
            send_depth: 64,
            recv_depth: 64,
            max_sge: 1,
            max_inline: 16,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_window: 64,
        };
        let mut qp = ReliableQp::new(number, &limits);
        let peer_port = PortAddress { mac: own.headers.ethernet.dst, gid: own.headers.net.dst(), lid: 0 };
        let connect = QpConnect {
            address: AddressVector {
                link: LinkKind::RoceV2,
                peer: peer_port,
                traffic_class: 0,
                hop_limit: 64,
                service_level: 0,
            },
            remote_qp,
            send_psn: first(side),
            recv_psn: first(1 - side),
            mtu: capture.mtu,
            max_rd_atomic: 16,
            ack_timeout: Duration::from_secs(100),
            retries: 7,
            rnr_retries: 7,
            min_rnr_delay: Duration::from_micros(10_240),
        };
        qp.connect(&connect, Some(own.headers)).unwrap();
        let named: Vec<_> =
            events.iter().filter(|e| e.side != side && e.is_request()).filter_map(Event::remote).collect();
        let base = named.first().map_or(1 << 30, |&(addr, ..)| (addr & !0xfff) - (1 << 20));
        let base = if elsewhere { 1 << 30 } else { base };
        let keys = Keys {
            memory: Arena::new(IoAddr(base), MEMORY),
            valid: RefCell::new(named.into_iter().map(|(_, key, _)| key).collect()),
        };
        keys.valid.borrow_mut().dedup();
        Self {
            qp,
            keys,
            counters: Counters::default(),
            log: Log::default(),
            now: Instant::ZERO,
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            round: 0,
            posted_receives: 0,
            posted_sends: 0,
        }
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut ReliableQp, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: self.now,
            memory: &self.keys.memory,
            remote: &self.keys,
            counters: &mut self.counters,
            completions: &mut self.log,
        };
        f(&mut self.qp, &mut env)
    }

    /// Receives a packet of the peer, and sends the reaction.
    pub(super) fn receive(&mut self, packet: &Packet<'_>) {
        self.receive_only(packet);
        self.send();
    }

    /// Receives a packet of the peer.
    pub(super) fn receive_only(&mut self, packet: &Packet<'_>) {
        let round = self.round;
        self.with(|qp, env| qp.receive(packet, Ecn::NotCapable, round, env));
    }

    /// Sends everything that may be sent, including the next round.
    pub(super) fn send(&mut self) {
        for _ in 0..2 {
            self.round += 1;
            while let Some(tx) = self.qp.next_tx(self.round) {
                let mut out = vec![0; self.qp.frame_len(&tx)];
                let (len, good) = self.qp.emit(&tx, 0, &mut out, &self.keys.memory, &self.keys).unwrap();
                assert!(good && len == out.len());
                self.with(|qp, env| qp.sent(&tx, env));
                let frame = Frame::parse(&out).unwrap();
                assert!(frame.icrc_ok(), "our own ICRC");
                let response = frame.packet.bth.opcode.operation.is_response();
                if response { &mut self.responses } else { &mut self.requests }.push_back(out);
            }
        }
    }

    /// Advances the time to `time`, with all timers on the way.
    pub(super) fn advance_to(&mut self, time: u64) {
        let time = Instant::from_nanos(time);
        while let Some(deadline) = self.qp.deadline().filter(|&d| d <= time) {
            self.now = deadline;
            self.with(|qp, env| qp.on_timer(env));
            self.send();
        }
        self.now = time;
    }

    pub(super) fn post_send(&mut self, wr: &SendWr<'_>) {
        self.with(|qp, env| qp.post_send(wr, env)).unwrap();
        self.posted_sends += 1;
    }

    /// Posts the next receive.
    pub(super) fn post_receive(&mut self) {
        let id = self.posted_receives;
        let scatter = [Sge { addr: self.at(RECEIVES), len: 16 << 10 }];
        let scatter = [Sge { addr: IoAddr(scatter[0].addr.0 + (id << 14)), ..scatter[0] }];
        self.with(|qp, env| qp.post_recv(&RecvWr { id: WrId(id), scatter: &scatter }, env)).unwrap();
        self.posted_receives += 1;
    }

    /// Returns the number of the next send.
    pub(super) const fn next_send(&self) -> u64 {
        self.posted_sends
    }

    fn at(&self, offset: u64) -> IoAddr {
        IoAddr(self.keys.memory.range().0.0 + offset)
    }

    /// Returns the address of the data of send `id`.
    pub(super) fn source(&self, id: u64) -> IoAddr {
        self.at(SOURCE + (id << 16))
    }

    /// Returns the address of the result of READ or atomic `id`.
    pub(super) fn landing(&self, id: u64) -> IoAddr {
        self.at(LANDING + (id << 14))
    }

    /// Returns the contents of receive `id`.
    pub(super) fn received(&self, id: u64, len: usize) -> Vec<u8> {
        self.bytes(self.at(RECEIVES + (id << 14)), len)
    }

    pub(super) fn bytes(&self, addr: IoAddr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.keys.memory.read(addr, &mut bytes).unwrap();
        bytes
    }
}

/// Returns `frame` with the IPv4 identification of `other`, the only field that may differ.
pub(super) fn with_id_of(frame: &[u8], other: &Headers) -> Vec<u8> {
    let mut parsed = Frame::parse(frame).unwrap();
    if let (Net::V4(ip, _), Net::V4(theirs, _)) = (&mut parsed.headers.net, &other.net) {
        ip.id = theirs.id;
    }
    let mut out = vec![0; frame.len()];
    parsed.emit(&mut out).unwrap();
    out
}
