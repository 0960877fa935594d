//! The data path allocates nothing: neither `softroce` nor the transport in `roce`, from posting to the completion, also
//! when packets get lost and come again.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use platform::{Arena, Instant, IoAddr, Memory};
use softroce::{Config, EthernetPort, SoftRoce};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Payload, Psn, QpConnect,
    QpNum, QpOptions, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, WrId,
};

const SLOTS: usize = 256;

/// A ring of frames, each in a place of its own, that loses every so manieth.
struct Ring {
    frames: Vec<(usize, Vec<u8>)>,
    head: usize,
    tail: usize,
    sent: usize,
    lose_every: usize,
}

/// One end of a wire in memory.
struct Port {
    side: u8,
    to: Arc<Mutex<Ring>>,
    from: Arc<Mutex<Ring>>,
}

impl EthernetPort for Port {
    fn mac(&self) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, self.side])
    }
    fn mtu(&self) -> usize {
        4200
    }
    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut ring = self.from.lock().unwrap();
        let n = budget.min(ring.tail - ring.head);
        for _ in 0..n {
            let (len, frame) = &ring.frames[ring.head % SLOTS];
            each(&frame[..*len]);
            ring.head += 1;
        }
        n
    }
    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut ring = self.to.lock().unwrap();
        if ring.tail - ring.head == SLOTS {
            return false;
        }
        let at = ring.tail % SLOTS;
        let (len, frame) = &mut ring.frames[at];
        *len = fill(&mut frame[..max_len]);
        ring.sent += 1;
        let lost = ring.lose_every > 0 && ring.sent.is_multiple_of(ring.lose_every);
        ring.tail += usize::from(!lost);
        true
    }
    fn flush(&mut self) {}
    fn arm(&mut self) -> bool {
        false
    }
}

struct Node {
    rnic: SoftRoce<Port, spin::Mutex<()>>,
    memory: Arc<Arena>,
    cq: CqId,
    qp: QpNum,
}

impl Node {
    fn new(side: u8, to: &Arc<Mutex<Ring>>, from: &Arc<Mutex<Ring>>) -> Self {
        let memory = Arc::new(Arena::new(IoAddr(1 << 20), 1 << 20));
        let port = Port { side, to: Arc::clone(to), from: Arc::clone(from) };
        let config = Config::new(Gid::from_ipv4([10, 0, 0, side]), [side; 16]);
        let rnic = SoftRoce::new(port, memory.clone(), config);
        let cq = rnic.create_cq(CqOptions { depth: 256 }).unwrap();
        let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 64, recv_depth: 64 };
        let qp = rnic.create_qp(options).unwrap();
        Self { rnic, memory, cq, qp }
    }

    fn connect(&self, peer: &Self) {
        let address = AddressVector {
            link: LinkKind::RoceV2,
            peer: peer.rnic.attributes().port,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
        };
        let connect = QpConnect {
            address,
            remote_qp: peer.qp,
            send_psn: Psn::new(0xff_fff0),
            recv_psn: Psn::new(0xff_fff0),
            mtu: PathMtu::B1024,
            max_rd_atomic: 16,
            ack_timeout: Duration::from_millis(1),
            retries: 7,
            rnr_retries: 7,
            min_rnr_delay: Duration::from_micros(100),
        };
        self.rnic.connect_qp(self.qp, &connect).unwrap();
    }
}

/// Does one of each kind of work, small and large, `rounds` times; gives how many completions there were.
fn work(nodes: &[Node; 2], now: &mut u64, rounds: u64) -> usize {
    let [a, b] = nodes;
    let (base, key) = (a.memory.range().0, b.rnic.memory_key().rkey);
    let at = |offset: u64| IoAddr(base.0 + offset);
    let remote = |offset| RemoteAddr { addr: at(offset), key };
    let small = [Sge { addr: base, len: 64 }];
    let large = [Sge { addr: base, len: 20_000 }, Sge { addr: at(40_000), len: 7_777 }];
    let into = [Sge { addr: at(100_000), len: 20_000 }];
    let mut ended = 0;
    for round in 0..rounds {
        let scatter = [Sge { addr: at(200_000), len: 40_000 }];
        let receives = [RecvWr { id: WrId(round), scatter: &scatter }; 3];
        // Sometimes only after the message has come.
        let late = round % 4 == 3;
        if !late {
            b.rnic.post_recv(b.qp, &receives).unwrap();
        }
        let gather = |data| SendOp::Write { data, remote: remote(300_000), imm: None };
        let ops = [
            gather(Payload::Gather(&small)),
            gather(Payload::Gather(&large)),
            gather(Payload::Inline(&[7; 100])),
            SendOp::Write { data: Payload::Gather(&small), remote: remote(300_000), imm: Some(1) },
            SendOp::Send { data: Payload::Gather(&small), imm: None },
            SendOp::Send { data: Payload::Gather(&large), imm: Some(2) },
            SendOp::Read { into: &into, remote: remote(500_000) },
            SendOp::FetchAdd { result: at(600_000), remote: remote(700_000), add: 1 },
            SendOp::CompareSwap { result: at(600_000), remote: remote(700_000), compare: 0, swap: 1 },
        ];
        let wanted = ended + ops.len() + receives.len();
        for op in ops {
            let wr = SendWr { id: WrId(round), op, signaled: true, solicited: false, fence: false };
            a.rnic.post_send(a.qp, &[wr]).unwrap();
        }
        let (mut calls, mut posted_late) = (0, !late);
        while ended < wanted {
            *now += 20_000;
            for node in nodes {
                node.rnic.progress(Instant::from_nanos(*now), 64);
                let mut out = [Completion::BLANK; 16];
                let n = node.rnic.poll_cq(node.cq, &mut out);
                assert!(out[..n].iter().all(|c| c.status == Status::Success));
                ended += n;
            }
            calls += 1;
            if calls > 20 && !posted_late {
                b.rnic.post_recv(b.qp, &receives).unwrap();
                posted_late = true;
            }
            assert!(calls < 100_000, "it never ends");
        }
    }
    ended
}

#[test]
fn the_data_path_allocates_nothing() {
    for lose_every in [0, 7] {
        let ring = || {
            let frames = vec![(0, vec![0; 4300]); SLOTS];
            Arc::new(Mutex::new(Ring { frames, head: 0, tail: 0, sent: 0, lose_every }))
        };
        let (there, back) = (ring(), ring());
        let nodes = [Node::new(1, &there, &back), Node::new(2, &back, &there)];
        nodes[0].connect(&nodes[1]);
        nodes[1].connect(&nodes[0]);
        let (mut now, mut ended) = (1_000, 0);
        let allocated = allocation_counter::measure(|| ended = work(&nodes, &mut now, 40));
        assert_eq!(ended, 40 * 12);
        assert_eq!(allocated.count_total, 0, "{allocated:?}, losing every {lose_every}");
        // It was not all plain.
        let count = |wanted| {
            let mut count = 0;
            nodes[0].rnic.counters(&mut |(name, n)| count += if name == wanted { n } else { 0 });
            count
        };
        if lose_every == 0 {
            assert!(count("rx_rnr_naks") > 0 && count("rx_naks") == 0);
        } else {
            assert!(count("rx_naks") > 0 && count("timeouts") > 0);
        }
    }
    // What is measured is what is allocated.
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 10]))).count_total, 1);
}
