//! The RNIC, pairs of queue pairs on it, and the waits for them.

use ibverbs::{Arena, IbvRnic, OpenError, Options};
use platform::{Instant, IoAddr, Memory as _};
use std::sync::Arc;
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, LinkKind, Psn, QpConnect, QpNum, QpOptions, RecvWr,
    RemoteAddr, Rnic as _, SendOp, SendWr, Sge, Status, VerbsError, WorkKind, WrId,
};

/// The maximum time of any completion.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// The depth of each queue of a pair.
pub(crate) const DEPTH: u32 = 64;

pub(crate) struct Lab {
    pub rnic: Arc<IbvRnic>,
    pub arena: Arc<Arena>,
    started: std::time::Instant,
}

/// Two queue pairs that are connected to each other, or one to itself.
pub(crate) struct Pair<'a> {
    lab: &'a Lab,
    pub qps: [QpNum; 2],
    /// The completion queues of send work and of receive work, which both queue pairs use.
    pub send_cq: CqId,
    pub recv_cq: CqId,
}

impl Lab {
    pub(crate) fn open(options: &Options) -> Result<Self, OpenError> {
        let opened = ibverbs::open(options)?;
        Ok(Self { rnic: opened.rnic, arena: opened.arena, started: std::time::Instant::now() })
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    pub(crate) fn cq(&self, depth: u32) -> CqId {
        self.rnic.create_cq(CqOptions { depth }).unwrap()
    }

    pub(crate) fn qp(&self, send_cq: CqId, recv_cq: CqId) -> QpNum {
        let options = QpOptions { send_cq, recv_cq, send_depth: DEPTH, recv_depth: DEPTH };
        self.rnic.create_qp(options).unwrap()
    }

    /// Returns the parameters of a connection to `remote_qp` of this same port.
    pub(crate) fn connect(&self, remote_qp: QpNum, send_psn: u32, recv_psn: u32) -> QpConnect {
        let attributes = self.rnic.attributes();
        QpConnect {
            address: AddressVector {
                link: LinkKind::RoceV2,
                peer: attributes.port,
                traffic_class: 0,
                hop_limit: 64,
                service_level: 0,
            },
            remote_qp,
            send_psn: Psn::new(send_psn),
            recv_psn: Psn::new(recv_psn),
            mtu: attributes.max_mtu,
            max_rd_atomic: 8,
            ack_timeout: Duration::from_millis(100),
            retries: 3,
            rnr_retries: 7,
            min_rnr_delay: Duration::from_millis(1),
        }
    }

    /// Makes a pair; `change` may change the parameters of either connection.
    pub(crate) fn pair_with(&self, change: impl Fn(&mut QpConnect)) -> Pair<'_> {
        let (send_cq, recv_cq) = (self.cq(4 * DEPTH), self.cq(4 * DEPTH));
        let qps = [self.qp(send_cq, recv_cq), self.qp(send_cq, recv_cq)];
        let [a, b] = qps;
        for (qp, peer, send_psn, recv_psn) in [(a, b, 0xff_fff0, 77), (b, a, 77, 0xff_fff0)] {
            let mut connect = self.connect(peer, send_psn, recv_psn);
            change(&mut connect);
            self.rnic.connect_qp(qp, &connect).unwrap();
        }
        Pair { lab: self, qps, send_cq, recv_cq }
    }

    pub(crate) fn pair(&self) -> Pair<'_> {
        self.pair_with(|_| ())
    }

    pub(crate) fn alloc(&self, len: u64) -> IoAddr {
        self.arena.alloc(len).expect("the arena is large enough")
    }

    pub(crate) fn put(&self, at: IoAddr, data: &[u8]) {
        self.arena.write(at, data).unwrap();
    }

    pub(crate) fn get(&self, at: IoAddr, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.arena.read(at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn word(&self, at: IoAddr) -> u64 {
        u64::from_ne_bytes(self.get(at, 8).try_into().unwrap())
    }

    /// Returns the remote address of this process's memory.
    pub(crate) fn remote(&self, addr: IoAddr) -> RemoteAddr {
        RemoteAddr { addr, key: self.rnic.memory_key().rkey }
    }

    /// Waits for the next `count` completions of a queue, in order.
    pub(crate) fn wait(&self, cq: CqId, count: usize) -> Vec<Completion> {
        let deadline = std::time::Instant::now() + LIMIT;
        let mut got = Vec::new();
        while got.len() < count {
            got.extend(self.poll(cq));
            self.rnic.progress(self.now(), 16);
            assert!(std::time::Instant::now() < deadline, "{count} completions expected, came: {got:?}");
            std::thread::yield_now();
        }
        assert_eq!(got.len(), count, "{got:?}");
        got
    }

    /// Returns the completions of a queue.
    pub(crate) fn poll(&self, cq: CqId) -> Vec<Completion> {
        // An odd number, less than the driver takes at once.
        let mut out = [Completion::BLANK; 7];
        let count = self.rnic.poll_cq(cq, &mut out);
        out[..count].to_vec()
    }
}

impl Pair<'_> {
    pub(crate) fn send(&self, id: u64, op: SendOp<'_>) -> Result<(), VerbsError> {
        self.send_as(SendWr { id: WrId(id), op, signaled: true, solicited: false, fence: false })
    }

    pub(crate) fn send_as(&self, work: SendWr<'_>) -> Result<(), VerbsError> {
        self.lab.rnic.post_send(self.qps[0], &[work]).map_err(|(n, e)| {
            assert_eq!(n, 0);
            e
        })
    }

    /// Posts a receive at the far queue pair.
    pub(crate) fn recv(&self, id: u64, scatter: &[Sge]) -> Result<(), VerbsError> {
        let work = [RecvWr { id: WrId(id), scatter }];
        self.lab.rnic.post_recv(self.qps[1], &work).map_err(|(_, e)| e)
    }

    /// Waits for the next completions of send work. Returns identifiers, kinds and results.
    pub(crate) fn sent(&self, count: usize) -> Vec<(u64, WorkKind, Status)> {
        self.lab.wait(self.send_cq, count).iter().map(|c| (c.id.0, c.kind, c.status)).collect()
    }

    /// Waits for the next completions of receive work. Returns identifiers, kinds and results.
    pub(crate) fn received(&self, count: usize) -> Vec<(u64, WorkKind, Status)> {
        self.lab.wait(self.recv_cq, count).iter().map(|c| (c.id.0, c.kind, c.status)).collect()
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        for qp in self.qps {
            // A check may have destroyed it, and checked the result.
            let _ = self.lab.rnic.destroy_qp(qp);
        }
        for cq in [self.send_cq, self.recv_cq] {
            while !self.lab.poll(cq).is_empty() {}
        }
    }
}

/// Returns bytes that depend on their position and on `seed`.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(7).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}
