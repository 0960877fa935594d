//! Two nodes whose connections share one link with a rate, a delay, a queue and faults, in virtual time, by
//! seed.

use netfault::{FaultQueue, Faults};
use platform::{Arena, Instant, IoAddr};
use softroce::{Config, EthernetPort, SoftRoce};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Payload, Psn, QpConnect,
    QpNum, QpOptions, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, WrId,
};

/// The length of one work request, in bytes.
const MESSAGE: u32 = 64 << 10;
/// The number of work requests outstanding on each connection.
const OUTSTANDING: usize = 8;

type Link = Arc<Mutex<FaultQueue<()>>>;

struct Port {
    out: Link,
    into: Link,
    clock: Arc<AtomicU64>,
    side: u8,
}

impl EthernetPort for Port {
    fn mac(&self) -> MacAddr {
        MacAddr([0x52, 0x54, 0, 0, 0, self.side])
    }

    fn mtu(&self) -> usize {
        4200
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let now = self.clock.load(Ordering::Relaxed);
        for n in 0..budget {
            let Some(((), frame)) = self.into.lock().unwrap().pop(now) else { return n };
            each(&frame);
        }
        budget
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; max_len];
        let len = fill(&mut frame);
        frame.truncate(len);
        self.out.lock().unwrap().push((), frame, self.clock.load(Ordering::Relaxed));
        true
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }
}

/// The operation of the connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    Write,
    Read,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub load: Load,
    pub qps: usize,
    /// The faults of both directions, in the text form of netfault.
    pub link: &'static str,
    pub loss: f64,
    /// The time for which the peers' processors are away every 20 ms, one after the other.
    pub pause: Duration,
    pub traffic_class: u8,
    pub seed: u64,
    pub time: Duration,
}

/// The parameters of the link: 4 KB take 10 us, as between two virtual machines, and a round trip 110 us: 11
/// packets fill it.
pub(crate) const LINK: &str = "rate_mbit=3200,delay_us=50,queue=64";

impl Default for Run {
    fn default() -> Self {
        Self {
            load: Load::Write,
            qps: 1,
            link: LINK,
            loss: 0.0,
            pause: Duration::ZERO,
            traffic_class: 0,
            seed: 1,
            time: Duration::from_millis(100),
        }
    }
}

/// The result of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Bytes completed, by connection.
    pub bytes: Vec<u64>,
    pub frames: u64,
    pub retransmits: u64,
    pub timeouts: u64,
    pub probes: u64,
    pub naks: u64,
    pub cnps: u64,
    /// The numbers of frames that the links dropped because a queue was full, and that they marked.
    pub overflowed: u64,
    pub marked: u64,
    pub qp_errors: u64,
}

impl Outcome {
    pub(crate) fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Returns Jain's fairness index: 1 if all connections got the same, 1/n if one got everything.
    pub(crate) fn fairness(&self) -> f64 {
        let sum: f64 = self.bytes.iter().map(|&b| b as f64).sum();
        let squares: f64 = self.bytes.iter().map(|&b| (b as f64).powi(2)).sum();
        sum * sum / (self.bytes.len() as f64 * squares)
    }
}

struct Node {
    rnic: SoftRoce<Port, spin::Mutex<()>>,
    cq: CqId,
    qps: Vec<QpNum>,
}

const fn base(side: u8) -> u64 {
    0x1000_0000 << side
}

fn node(side: u8, run: &Run, out: &Link, into: &Link, clock: &Arc<AtomicU64>) -> Node {
    let port = Port { out: out.clone(), into: into.clone(), clock: clock.clone(), side };
    let memory = Arc::new(Arena::new(IoAddr(base(side)), 1 << 20));
    let config = Config::new(Gid::from_ipv4([10, 0, 0, side]), [run.seed as u8 ^ side; 16]);
    let rnic = SoftRoce::new(port, memory, config);
    let cq = rnic.create_cq(CqOptions { depth: 1024 }).unwrap();
    let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 16, recv_depth: 1 };
    let qps = (0..run.qps).map(|_| rnic.create_qp(options).unwrap()).collect();
    Node { rnic, cq, qps }
}

impl Run {
    /// Runs the scenario: the first node's connections are kept busy for `time`.
    pub(crate) fn go(&self) -> Outcome {
        let faults = Faults { loss: self.loss, ..Faults::parse(self.link).unwrap() };
        let clock = Arc::new(AtomicU64::new(1_000));
        let link = |seed| Arc::new(Mutex::new(FaultQueue::new(faults, seed)));
        let (there, back) = (link(self.seed), link(!self.seed));
        let nodes = [node(1, self, &there, &back, &clock), node(2, self, &back, &there, &clock)];
        for side in 0..2 {
            let (own, peer) = (&nodes[side], &nodes[1 - side]);
            for (&qp, &remote_qp) in own.qps.iter().zip(&peer.qps) {
                let address = AddressVector {
                    link: LinkKind::RoceV2,
                    peer: peer.rnic.attributes().port,
                    traffic_class: self.traffic_class,
                    hop_limit: 64,
                    service_level: 0,
                };
                let connect = QpConnect {
                    address,
                    remote_qp,
                    send_psn: Psn::new(7),
                    recv_psn: Psn::new(7),
                    mtu: PathMtu::B4096,
                    max_rd_atomic: 16,
                    ack_timeout: Duration::from_millis(30),
                    retries: 7,
                    rnr_retries: 7,
                    min_rnr_delay: Duration::from_millis(1),
                };
                own.rnic.connect_qp(qp, &connect).unwrap();
            }
        }
        let mut outcome = Outcome { bytes: vec![0; self.qps], ..Outcome::default() };
        for index in 0..self.qps {
            (0..OUTSTANDING).for_each(|_| self.post(&nodes, index));
        }
        let end = self.time.as_nanos() as u64;
        while clock.load(Ordering::Relaxed) < end {
            let now = Instant::from_nanos(clock.load(Ordering::Relaxed));
            let mut worked = false;
            for (side, node) in nodes.iter().enumerate() {
                worked |= self.awake(side, now.as_nanos()) == now.as_nanos() && node.rnic.progress(now, 64);
            }
            self.complete(&nodes, &mut outcome);
            if !worked {
                let arrivals = [(1, &there), (0, &back)]
                    .map(|(side, link)| (side, link.lock().unwrap().next_deadline()));
                let deadlines = [0, 1].map(|side| (side, nodes[side].rnic.next_deadline()));
                let deadlines = deadlines.map(|(side, at)| (side, at.map(Instant::as_nanos)));
                let events = arrivals.into_iter().chain(deadlines);
                let next = events.filter_map(|(side, at)| Some(self.awake(side, at?.max(now.as_nanos()))));
                clock.store(next.min().unwrap().max(now.as_nanos() + 1), Ordering::Relaxed);
            }
        }
        for node in &nodes {
            node.rnic.counters(&mut |(name, n)| match name {
                "tx_packets" => outcome.frames += n,
                "retransmits" => outcome.retransmits += n,
                "timeouts" => outcome.timeouts += n,
                "probes" => outcome.probes += n,
                "rx_naks" => outcome.naks += n,
                "rx_cnps" => outcome.cnps += n,
                "qp_errors" => outcome.qp_errors += n,
                _ => {}
            });
        }
        for link in [there, back] {
            let counters = link.lock().unwrap().counters();
            outcome.overflowed += counters.overflowed;
            outcome.marked += counters.marked;
        }
        outcome
    }

    /// Returns the time from `at` on at which the processor of `side` runs next.
    fn awake(&self, side: usize, at: u64) -> u64 {
        const PERIOD: u64 = 20_000_000;
        let phase = (at + side as u64 * PERIOD / 2) % PERIOD;
        at + (self.pause.as_nanos() as u64).saturating_sub(phase)
    }

    fn post(&self, nodes: &[Node; 2], index: usize) {
        let list = [Sge { addr: IoAddr(base(1)), len: MESSAGE }];
        let remote = RemoteAddr { addr: IoAddr(base(2)), key: nodes[1].rnic.memory_key().rkey };
        let op = match self.load {
            Load::Write => SendOp::Write { data: Payload::Gather(&list), remote, imm: None },
            Load::Read => SendOp::Read { into: &list, remote },
        };
        let wr = SendWr { id: WrId(index as u64), op, signaled: true, solicited: false, fence: false };
        nodes[0].rnic.post_send(nodes[0].qps[index], &[wr]).unwrap();
    }

    /// Takes completions, and posts one new work request for each.
    fn complete(&self, nodes: &[Node; 2], outcome: &mut Outcome) {
        let mut some = [Completion::BLANK; 64];
        let n = nodes[0].rnic.poll_cq(nodes[0].cq, &mut some);
        for done in &some[..n] {
            assert_eq!(done.status, Status::Success, "{self:?}");
            let index = done.id.0 as usize;
            outcome.bytes[index] += u64::from(MESSAGE);
            self.post(nodes, index);
        }
    }
}
