//! Two software RNICs back to back over rings in memory, for measurements: nothing sleeps, and the wire costs
//! one copy.
#![allow(clippy::unwrap_used, reason = "its users may fail")]

use platform::{Arena, IoAddr};
use softroce::{Config, EthernetPort, SoftRoce};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use verbs::{
    AddressVector, CqId, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Psn, QpConnect, QpNum, QpOptions, Rnic,
};

const SLOTS: usize = 256;

/// A ring of frames, each in a place of its own, which loses one frame in a given number.
struct Ring {
    frames: Vec<(usize, Vec<u8>)>,
    head: usize,
    tail: usize,
    sent: usize,
    lose_every: usize,
}

/// One end of a wire in memory.
pub(crate) struct Port {
    side: u8,
    to: Arc<Mutex<Ring>>,
    from: Arc<Mutex<Ring>>,
    /// The number of times that frames were sent, of which there were one or more each time.
    doorbells: Arc<AtomicU64>,
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
    fn flush(&mut self) {
        self.doorbells.fetch_add(1, Ordering::Relaxed);
    }
    fn arm(&mut self) -> bool {
        false
    }
}

/// A software RNIC with one queue pair.
pub(crate) struct Node {
    pub rnic: SoftRoce<Port, spin::Mutex<()>>,
    /// The wire from this node to the other.
    wire: Arc<Mutex<Ring>>,
    doorbells: Arc<AtomicU64>,
    pub memory: Arc<Arena>,
    pub cq: CqId,
    pub qp: QpNum,
}

/// The parameters of the pair.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    /// The wire loses one frame in this number; 0 loses none.
    pub lose_every: usize,
    /// The depth of the work queues.
    pub depth: u32,
    pub mtu: PathMtu,
    pub first_psn: Psn,
    pub ack_timeout: Duration,
    pub rnr_delay: Duration,
}

impl Pair {
    pub(crate) fn nodes(self) -> [Node; 2] {
        let ring = || {
            let frames = vec![(0, vec![0; 4300]); SLOTS];
            Arc::new(Mutex::new(Ring { frames, head: 0, tail: 0, sent: 0, lose_every: self.lose_every }))
        };
        let (there, back) = (ring(), ring());
        let nodes = [Node::new(self, 1, &there, &back), Node::new(self, 2, &back, &there)];
        nodes[0].connect(self, &nodes[1]);
        nodes[1].connect(self, &nodes[0]);
        nodes
    }
}

impl Node {
    fn new(pair: Pair, side: u8, to: &Arc<Mutex<Ring>>, from: &Arc<Mutex<Ring>>) -> Self {
        let memory = Arc::new(Arena::new(IoAddr(1 << 20), 1 << 20));
        let doorbells = Arc::default();
        let port =
            Port { side, to: Arc::clone(to), from: Arc::clone(from), doorbells: Arc::clone(&doorbells) };
        let config = Config::new(Gid::from_ipv4([10, 0, 0, side]), [side; 16]);
        let rnic = SoftRoce::new(port, memory.clone(), config);
        let cq = rnic.create_cq(CqOptions { depth: 8 * pair.depth }).unwrap();
        let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: pair.depth, recv_depth: pair.depth };
        let qp = rnic.create_qp(options).unwrap();
        Self { rnic, wire: Arc::clone(to), doorbells, memory, cq, qp }
    }

    /// Returns the numbers of frames that the node has sent, and of doorbells for them.
    #[allow(dead_code, reason = "not all users count them")]
    pub(crate) fn sent(&self) -> (u64, u64) {
        (self.wire.lock().unwrap().sent as u64, self.doorbells.load(Ordering::Relaxed))
    }

    fn connect(&self, pair: Pair, peer: &Self) {
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
            send_psn: pair.first_psn,
            recv_psn: pair.first_psn,
            mtu: pair.mtu,
            max_rd_atomic: 16,
            ack_timeout: pair.ack_timeout,
            retries: 7,
            rnr_retries: 7,
            min_rnr_delay: pair.rnr_delay,
        };
        self.rnic.connect_qp(self.qp, &connect).unwrap();
    }
}
