//! How fast the software RNIC is at native speed: two of them back to back in one thread, so a figure is what both
//! ends cost together, ICRC on both sides included. Run with `cargo run --release -p softroce --example native_speed`.

use platform::{Arena, Instant, IoAddr, Memory};
use softroce::{Config, EthernetPort, SoftRoce};
use std::sync::{Arc, Mutex};
use std::time::{self, Duration};
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Payload, Psn, QpConnect,
    QpNum, QpOptions, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, WrId,
};

/// A ring of frames, each in a place of its own.
struct Ring {
    frames: Vec<(usize, Vec<u8>)>,
    head: usize,
    tail: usize,
}

const SLOTS: usize = 256;

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
        let mut ring = self.from.lock().expect("one thread");
        let n = budget.min(ring.tail - ring.head);
        for _ in 0..n {
            let (len, frame) = &ring.frames[ring.head % SLOTS];
            each(&frame[..*len]);
            ring.head += 1;
        }
        n
    }
    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut ring = self.to.lock().expect("one thread");
        if ring.tail - ring.head == SLOTS {
            return false;
        }
        let at = ring.tail % SLOTS;
        let (len, frame) = &mut ring.frames[at];
        *len = fill(&mut frame[..max_len]);
        ring.tail += 1;
        true
    }
    fn flush(&mut self) {}
    fn arm(&mut self) -> bool {
        false
    }
}

type Node = (SoftRoce<Port, spin::Mutex<()>>, CqId, QpNum, IoAddr);

fn node(side: u8, to: &Arc<Mutex<Ring>>, from: &Arc<Mutex<Ring>>) -> Node {
    let memory = Arc::new(Arena::new(IoAddr(1 << 20), 1 << 20));
    let base = memory.range().0;
    let port = Port { side, to: Arc::clone(to), from: Arc::clone(from) };
    let rnic = SoftRoce::new(port, memory, Config::new(Gid::from_ipv4([10, 0, 0, side]), [side; 16]));
    let cq = rnic.create_cq(CqOptions { depth: 1024 }).expect("a completion queue");
    let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 128, recv_depth: 128 };
    let qp = rnic.create_qp(options).expect("a queue pair");
    (rnic, cq, qp, base)
}

fn main() {
    let ring = || Arc::new(Mutex::new(Ring { frames: vec![(0, vec![0; 4300]); SLOTS], head: 0, tail: 0 }));
    let (there, back) = (ring(), ring());
    let nodes = [node(1, &there, &back), node(2, &back, &there)];
    for side in 0..2 {
        let peer = &nodes[1 - side];
        let address = AddressVector {
            link: LinkKind::RoceV2,
            peer: peer.0.attributes().port,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
        };
        let connect = QpConnect {
            address,
            remote_qp: peer.2,
            send_psn: Psn::new(0),
            recv_psn: Psn::new(0),
            mtu: PathMtu::B4096,
            max_rd_atomic: 16,
            ack_timeout: Duration::from_millis(100),
            retries: 7,
            rnr_retries: 7,
            min_rnr_delay: Duration::from_millis(1),
        };
        nodes[side].0.connect_qp(nodes[side].2, &connect).expect("connected");
    }
    let remote = RemoteAddr { addr: nodes[1].3, key: nodes[1].0.memory_key().rkey };
    println!("{:<34} {:>10} {:>8}", "both ends, one thread", "ns each", "GB/s");
    for (name, len, depth) in [
        ("WRITE, one at a time", 8, 1),
        ("WRITE, one at a time", 64, 1),
        ("WRITE, 64 in flight", 64, 64),
        ("WRITE, 64 in flight", 1024, 64),
        ("WRITE, 64 in flight", 4096, 64),
        ("WRITE, 16 in flight", 65536, 16),
    ] {
        let list = [Sge { addr: nodes[0].3, len }];
        let op = SendOp::Write { data: Payload::Gather(&list), remote, imm: None };
        report(name, len, run(&nodes, op, depth));
    }
    for (name, len, depth) in
        [("READ, one at a time", 64, 1), ("READ, 16 in flight", 4096, 16), ("READ, 16 in flight", 65536, 16)]
    {
        let list = [Sge { addr: nodes[0].3, len }];
        report(name, len, run(&nodes, SendOp::Read { into: &list, remote }, depth));
    }
    let add = SendOp::FetchAdd { result: nodes[0].3, remote, add: 1 };
    report("FETCH_ADD, one at a time", 8, run(&nodes, add, 1));
}

fn report(name: &str, len: u32, each: f64) {
    println!("{name:<26} {len:>5} B {each:>10.1} {:>8.2}", f64::from(len) / each);
}

/// Nanoseconds per operation, with `depth` in flight: the best of 60 runs of 2 ms, so that a busy host shows less.
fn run(nodes: &[Node; 2], op: SendOp<'_>, depth: usize) -> f64 {
    let [(a, cq, qp, _), (b, ..)] = nodes;
    let wr = SendWr { id: WrId(0), op, signaled: true, solicited: false, fence: false };
    let start = time::Instant::now();
    let mut best = f64::MAX;
    for _ in 0..60 {
        let (mut done, mut posted, began) = (0usize, 0usize, time::Instant::now());
        let elapsed = loop {
            for _ in 0..16 {
                while posted - done < depth {
                    a.post_send(*qp, &[wr]).expect("room for the work");
                    posted += 1;
                }
                let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
                a.progress(now, 64);
                b.progress(now, 64);
                let mut out = [Completion::BLANK; 64];
                let n = a.poll_cq(*cq, &mut out);
                assert!(out[..n].iter().all(|c| c.status == Status::Success), "{:?}", out[0]);
                done += n;
            }
            let elapsed = began.elapsed();
            if elapsed > Duration::from_millis(2) {
                break elapsed;
            }
        };
        best = best.min(elapsed.as_nanos() as f64 / done as f64);
        // Let what is in flight end before the next run.
        while posted > done {
            let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
            a.progress(now, 64);
            b.progress(now, 64);
            done += a.poll_cq(*cq, &mut [Completion::BLANK; 64]);
        }
    }
    best
}
