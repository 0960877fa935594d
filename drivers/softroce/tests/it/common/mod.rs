//! Two software RNICs over a wire in memory: virtual time, seeded faults, nothing sleeps.
#![allow(dead_code, reason = "each test file uses a part")]

use platform::{Arena, Instant, IoAddr, Memory};
use softroce::{Config, EthernetPort, SoftRoce};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Psn, QpConnect, QpNum,
    QpOptions, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, WrId,
};

pub(crate) const MEMORY: u64 = 8 << 20;

/// Probabilities in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub loss: u32,
    pub duplicate: u32,
    pub reorder: u32,
    pub corrupt: u32,
}

impl Faults {
    pub(crate) const NONE: Self = Self { loss: 0, duplicate: 0, reorder: 0, corrupt: 0 };
}

/// A seeded generator (xorshift64*).
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
    fn chance(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }
}

/// One direction of the wire: frames by time of arrival.
#[derive(Default)]
struct Lane {
    frames: BTreeMap<(u64, u64), Vec<u8>>,
}

/// The wire between two ports.
pub(crate) struct Wire {
    lanes: [Lane; 2],
    faults: Faults,
    random: Random,
    sequence: u64,
    delay: u64,
    /// The capacity of a receive ring, in frames; further ones are lost.
    ring: usize,
    /// True if the wire carries nothing.
    pub cut: bool,
    pub sent: u64,
    pub ring_lost: u64,
    /// Every frame ever passed to the wire, with its direction, if they are logged.
    pub log: Option<Vec<(usize, Vec<u8>)>>,
}

pub(crate) struct Port {
    wire: Arc<Mutex<Wire>>,
    clock: Arc<AtomicU64>,
    side: usize,
    mtu: usize,
    buf: Vec<u8>,
    /// The number of frames that the port accepts at one point of time.
    room: usize,
    /// The present time, and the number of frames that the port accepted at that time.
    taken: (u64, usize),
}

impl EthernetPort for Port {
    fn mac(&self) -> MacAddr {
        mac(self.side)
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let now = self.clock.load(Ordering::Relaxed);
        let mut n = 0;
        while n < budget {
            let mut wire = self.wire.lock().unwrap();
            let lane = &mut wire.lanes[1 - self.side];
            let Some(first) = lane.frames.first_entry().filter(|e| e.key().0 <= now) else { break };
            let frame = first.remove();
            drop(wire);
            each(&frame);
            n += 1;
        }
        n
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        assert!(max_len <= self.mtu + 14, "a frame of {max_len} bytes for an MTU of {}", self.mtu);
        let now = self.clock.load(Ordering::Relaxed);
        if self.taken.0 != now {
            self.taken = (now, 0);
        }
        if self.taken.1 >= self.room {
            return false;
        }
        self.taken.1 += 1;
        self.buf.resize(max_len, 0xee);
        let len = fill(&mut self.buf);
        let mut wire = self.wire.lock().unwrap();
        wire.carry(self.side, now, &self.buf[..len]);
        true
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        let now = self.clock.load(Ordering::Relaxed);
        self.wire.lock().unwrap().next_arrival(1 - self.side).is_some_and(|at| at <= now)
    }
}

impl Wire {
    fn carry(&mut self, side: usize, now: u64, frame: &[u8]) {
        self.sent += 1;
        if let Some(log) = &mut self.log {
            log.push((side, frame.to_vec()));
        }
        if self.cut || self.random.chance(self.faults.loss) {
            return;
        }
        let copies = 1 + u32::from(self.random.chance(self.faults.duplicate));
        for _ in 0..copies {
            if self.lanes[side].frames.len() >= self.ring {
                self.ring_lost += 1;
                return;
            }
            let mut frame = frame.to_vec();
            if self.random.chance(self.faults.corrupt) {
                let at = self.random.below(frame.len() as u64) as usize;
                frame[at] ^= 1 << self.random.below(8);
            }
            let mut at = now + self.delay;
            if self.random.chance(self.faults.reorder) {
                at += 1 + self.random.below(4 * self.delay);
            }
            self.sequence += 1;
            self.lanes[side].frames.insert((at, self.sequence), frame);
        }
    }

    /// Puts a frame on the wire as if `side` had sent it, without faults.
    pub(crate) fn inject(&mut self, side: usize, now: u64, frame: Vec<u8>) {
        self.sequence += 1;
        self.lanes[side].frames.insert((now, self.sequence), frame);
    }

    fn next_arrival(&self, lane: usize) -> Option<u64> {
        self.lanes[lane].frames.first_key_value().map(|(k, _)| k.0)
    }
}

pub(crate) fn mac(side: usize) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0, 0, 1 + side as u8])
}

/// A node of the pair.
pub(crate) struct Node {
    pub rnic: Arc<dyn Rnic>,
    pub memory: Arc<Arena>,
    pub base: u64,
    pub cq: CqId,
    pub recv_cq: CqId,
    pub qp: QpNum,
}

impl Node {
    pub(crate) fn at(&self, offset: u64) -> IoAddr {
        IoAddr(self.base + offset)
    }
    pub(crate) fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.at(offset), key: self.rnic.memory_key().rkey }
    }
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(self.at(offset), bytes).unwrap();
    }
    pub(crate) fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read(self.at(offset), &mut out).unwrap();
        out
    }
    pub(crate) fn word(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }
    pub(crate) fn send(&self, id: u64, op: SendOp<'_>) {
        self.rnic.post_send(self.qp, &[wr(id, op)]).unwrap();
    }
    pub(crate) fn recv(&self, id: u64, offset: u64, len: u32) {
        let scatter = [Sge { addr: self.at(offset), len }];
        self.rnic.post_recv(self.qp, &[RecvWr { id: WrId(id), scatter: &scatter }]).unwrap();
    }
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        self.rnic.counters(&mut |(n, v)| {
            if n == name {
                found = Some(v);
            }
        });
        found.unwrap_or_else(|| panic!("no counter {name}"))
    }
}

pub(crate) fn wr(id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr { id: WrId(id), op, signaled: true, solicited: false, fence: false }
}

/// The parameters of a pair.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub faults: Faults,
    pub seed: u64,
    pub mtu: PathMtu,
    pub psn: [u32; 2],
    pub link: LinkKind,
    pub ipv6: bool,
    pub ack_timeout: Duration,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub max_rd_atomic: u8,
    pub ring: usize,
    pub transmit_ring: usize,
    pub depth: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            faults: Faults::NONE,
            seed: 1,
            mtu: PathMtu::B1024,
            psn: [0x0a_0b0c, 0x5a_0b0c],
            link: LinkKind::RoceV2,
            ipv6: false,
            ack_timeout: ACK_TIMEOUT,
            traffic_class: 0,
            hop_limit: 64,
            retries: 7,
            rnr_retries: 7,
            max_rd_atomic: 16,
            ring: 256,
            transmit_ring: usize::MAX,
            depth: 256,
        }
    }
}

/// Two nodes with one connected queue pair each.
pub(crate) struct Pair {
    pub nodes: [Node; 2],
    pub wire: Arc<Mutex<Wire>>,
    clock: Arc<AtomicU64>,
}

pub(crate) const ACK_TIMEOUT: Duration = Duration::from_micros(500);

impl Pair {
    pub(crate) fn new(options: &Options) -> Self {
        let clock = Arc::new(AtomicU64::new(1_000));
        let wire = Arc::new(Mutex::new(Wire {
            lanes: Default::default(),
            faults: options.faults,
            random: Random::new(options.seed),
            sequence: 0,
            delay: 2_000,
            ring: options.ring,
            cut: false,
            sent: 0,
            ring_lost: 0,
            log: None,
        }));
        let nodes = [0, 1].map(|side| {
            let gid = if options.ipv6 {
                Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 1 + side as u8])
            } else {
                Gid::from_ipv4([10, 0, 0, 1 + side as u8])
            };
            let (wire, clock) = (Arc::clone(&wire), Arc::clone(&clock));
            let port = Port {
                wire,
                clock,
                side,
                mtu: 4200,
                buf: Vec::new(),
                room: options.transmit_ring,
                taken: (0, 0),
            };
            let base = 0x1000_0000 << side;
            let memory = Arc::new(Arena::new(IoAddr(base), MEMORY));
            let mut random = [0; 16];
            let mut numbers = Random::new(options.seed ^ 77 << side);
            random.fill_with(|| numbers.next() as u8);
            let rnic = SoftRoce::<_, spin::Mutex<()>>::new(port, memory.clone(), Config::new(gid, random));
            let rnic: Arc<dyn Rnic> = Arc::new(rnic);
            let cq = rnic.create_cq(CqOptions { depth: 2 * options.depth }).unwrap();
            let recv_cq = rnic.create_cq(CqOptions { depth: 2 * options.depth }).unwrap();
            let (send_depth, recv_depth) = (options.depth, options.depth);
            let qp = rnic.create_qp(QpOptions { send_cq: cq, recv_cq, send_depth, recv_depth }).unwrap();
            Node { rnic, memory, base, cq, recv_cq, qp }
        });
        let pair = Self { nodes, wire, clock };
        for side in 0..2 {
            let connect = pair.connect(side, options);
            pair.nodes[side].rnic.connect_qp(pair.nodes[side].qp, &connect).unwrap();
        }
        pair
    }

    /// Returns the parameters that connect the queue pair of `side` to the other.
    pub(crate) fn connect(&self, side: usize, options: &Options) -> QpConnect {
        let peer = &self.nodes[1 - side];
        QpConnect {
            address: AddressVector {
                traffic_class: options.traffic_class,
                hop_limit: options.hop_limit,
                ..address(peer, options.link)
            },
            remote_qp: peer.qp,
            send_psn: Psn::new(options.psn[side]),
            recv_psn: Psn::new(options.psn[1 - side]),
            mtu: options.mtu,
            max_rd_atomic: options.max_rd_atomic,
            ack_timeout: options.ack_timeout,
            retries: options.retries,
            rnr_retries: options.rnr_retries,
            min_rnr_delay: Duration::from_micros(100),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Runs both nodes until neither has work at this time.
    pub(crate) fn settle(&self) {
        let mut calls = 0;
        while self.step() {
            calls += 1;
            assert!(calls < 1_000_000, "progress never ends");
        }
    }

    fn step(&self) -> bool {
        let now = Instant::from_nanos(self.now());
        let worked = self.nodes.each_ref().map(|node| node.rnic.progress(now, 64));
        worked[0] || worked[1]
    }

    /// Advances the clock to `now` without running a node.
    pub(crate) fn advance_to(&self, now: u64) {
        self.clock.fetch_max(now, Ordering::Relaxed);
    }

    /// Advances the clock to the next event. Returns false if there is none.
    pub(crate) fn advance(&self) -> bool {
        let wire = self.wire.lock().unwrap();
        let arrivals = [0, 1].into_iter().filter_map(|lane| wire.next_arrival(lane));
        let deadlines = self.nodes.iter().filter_map(|n| n.rnic.next_deadline()).map(|d| d.as_nanos());
        let Some(next) = arrivals.chain(deadlines).min() else { return false };
        drop(wire);
        self.clock.fetch_max(next, Ordering::Relaxed);
        true
    }

    /// Runs until there are no more events.
    pub(crate) fn run(&self) {
        self.settle();
        let mut steps = 0;
        while self.advance() {
            self.settle();
            steps += 1;
            assert!(steps < 5_000_000, "the pair never comes to rest");
        }
    }

    /// Runs to the end, and returns the send completions of `side`.
    pub(crate) fn finish(&self, side: usize) -> Vec<Completion> {
        self.run();
        self.sends(side)
    }

    pub(crate) fn sends(&self, side: usize) -> Vec<Completion> {
        drain(&*self.nodes[side].rnic, self.nodes[side].cq)
    }

    pub(crate) fn recvs(&self, side: usize) -> Vec<Completion> {
        drain(&*self.nodes[side].rnic, self.nodes[side].recv_cq)
    }
}

pub(crate) fn address(peer: &Node, link: LinkKind) -> AddressVector {
    let peer = peer.rnic.attributes().port;
    AddressVector { link, peer, traffic_class: 0, hop_limit: 64, service_level: 0 }
}

pub(crate) fn drain(rnic: &dyn Rnic, cq: CqId) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        let mut some = [Completion::BLANK; 16];
        let n = rnic.poll_cq(cq, &mut some);
        all.extend_from_slice(&some[..n]);
        if n == 0 {
            return all;
        }
    }
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + (i >> 8) * 13) as u8 ^ seed).collect()
}
