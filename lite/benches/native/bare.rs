//! The same work with verbs alone: what is left of a figure when this is taken off is LITE's.

use lite::testing::{DirectRnic, Native};
use platform::{Instant, IoAddr, Platform};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Payload, PortAddress, Psn,
    QpConnect, QpNum, QpOptions, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, WrId,
};

/// One end.
struct End {
    rnic: Arc<DirectRnic>,
    cq: CqId,
    qp: QpNum,
    /// A page of its memory.
    page: IoAddr,
}

/// Two ends of one queue pair.
pub struct Bare<'a> {
    native: &'a Native,
    ends: [End; 2],
}

impl<'a> Bare<'a> {
    /// Between the first two nodes.
    pub fn new(native: &'a Native) -> Self {
        let ends = [0, 1].map(|i| {
            let node = &native.nodes[i];
            let rnic = node.rnic.clone();
            let cq = rnic.create_cq(CqOptions { depth: 64 }).unwrap();
            let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 16, recv_depth: 16 };
            let qp = rnic.create_qp(options).unwrap();
            rnic.post_recv(qp, &[RecvWr { id: WrId(0), scatter: &[] }; 8]).unwrap();
            End { rnic, cq, qp, page: node.host.memory().alloc(8192).unwrap() }
        });
        for (here, there, host) in [(0, 1, 2), (1, 0, 1)] {
            let gid = Gid::from_ipv4([10, 0, 0, host]);
            let peer = PortAddress { mac: MacAddr([0; 6]), gid, lid: 0 };
            let connect = QpConnect {
                address: AddressVector {
                    link: LinkKind::RoceV2,
                    peer,
                    traffic_class: 0,
                    hop_limit: 1,
                    service_level: 0,
                },
                remote_qp: ends[there as usize].qp,
                send_psn: Psn::new(0),
                recv_psn: Psn::new(0),
                mtu: PathMtu::B4096,
                max_rd_atomic: 16,
                ack_timeout: Duration::from_millis(1),
                retries: 7,
                rnr_retries: 7,
                min_rnr_delay: Duration::from_millis(1),
            };
            ends[here as usize].rnic.connect_qp(ends[here as usize].qp, &connect).unwrap();
        }
        Self { native, ends }
    }

    fn target(&self, end: usize) -> RemoteAddr {
        let end = &self.ends[end];
        RemoteAddr { addr: end.page, key: end.rnic.memory_key().rkey }
    }

    fn post(&self, end: usize, op: SendOp<'_>) {
        let end = &self.ends[end];
        let work = SendWr { id: WrId(1), op, signaled: true, solicited: false, fence: false };
        end.rnic.post_send(end.qp, &[work]).unwrap();
    }

    /// One turn of a poller: a look at the clock, and at the completions.
    fn poll(&self, end: usize, out: &mut [Completion]) -> usize {
        black_box::<Instant>(self.native.nodes[end].host.now());
        let end = &self.ends[end];
        end.rnic.poll_cq(end.cq, out)
    }

    /// `count` WRITEs of `data`, one after the other.
    pub fn writes(&self, data: &[u8], count: u32) {
        let remote = self.target(1);
        let memory = self.native.nodes[0].host.memory();
        let mut out = [Completion::BLANK; 64];
        for _ in 0..count {
            if data.len() <= 128 {
                self.post(0, SendOp::Write { data: Payload::Inline(black_box(data)), remote, imm: None });
            } else {
                let sges = [Sge { addr: self.ends[0].page, len: data.len() as u32 }];
                memory.write(self.ends[0].page, black_box(data)).unwrap();
                self.post(0, SendOp::Write { data: Payload::Gather(&sges), remote, imm: None });
            }
            while self.poll(0, &mut out) == 0 {}
        }
    }

    /// `count` READs into `data`.
    pub fn reads(&self, data: &mut [u8], count: u32) {
        let remote = self.target(1);
        let memory = self.native.nodes[0].host.memory();
        let sges = [Sge { addr: self.ends[0].page, len: data.len() as u32 }];
        let mut out = [Completion::BLANK; 64];
        for _ in 0..count {
            self.post(0, SendOp::Read { into: &sges, remote });
            while self.poll(0, &mut out) == 0 {}
            memory.read(self.ends[0].page, black_box(&mut *data)).unwrap();
        }
    }

    /// `count` fetch-and-adds.
    pub fn adds(&self, count: u32) {
        let remote = self.target(1);
        let mut out = [Completion::BLANK; 64];
        for _ in 0..count {
            self.post(0, SendOp::FetchAdd { result: self.ends[0].page, remote, add: 1 });
            while self.poll(0, &mut out) == 0 {}
        }
    }

    /// `count` messages of `data` there and back, each a WRITE with immediate.
    pub fn round_trips(&self, data: &[u8], count: u32) {
        let (there, back) = (self.target(1), self.target(0));
        let receive = [RecvWr { id: WrId(0), scatter: &[] }];
        let mut out = [Completion::BLANK; 64];
        for _ in 0..count {
            for (end, remote) in [(0, there), (1, back)] {
                let data = Payload::Inline(black_box(data));
                self.post(end, SendOp::Write { data, remote, imm: Some(1) });
                // Its own completion here, and the message at the other end.
                while self.poll(end, &mut out) == 0 {}
                while self.poll(1 - end, &mut out) == 0 {}
                let other = &self.ends[1 - end];
                other.rnic.post_recv(other.qp, &receive).unwrap();
            }
        }
    }
}
