//! Equal work with verbs alone, as tasks of the same executor: the difference to a figure is the cost of
//! LITE.

use lite::testing::{DirectRnic, Native};
use platform::{Lent, Platform};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::hint::black_box;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, CqId, CqOptions, Gid, LinkKind, MacAddr, PathMtu, Payload, PortAddress, Psn,
    QpConnect, QpNum, QpOptions, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, WrId,
};

/// One end of the queue pair.
struct End {
    rnic: Arc<DirectRnic>,
    cq: CqId,
    qp: QpNum,
    /// A page of this end's memory.
    page: Box<dyn Lent>,
}

/// Two ends of one queue pair.
pub(crate) struct Bare<'a> {
    native: &'a Native,
    ends: [End; 2],
    /// Completions that the task has not seen.
    arrived: Cell<usize>,
    waker: RefCell<Waker>,
}

impl<'a> Bare<'a> {
    /// Connects the first two nodes.
    pub(crate) fn new(native: &'a Native) -> Self {
        let ends = [0, 1].map(|i| {
            let node = &native.nodes[i];
            let rnic = node.rnic.clone();
            let cq = rnic.create_cq(CqOptions { depth: 64 }).unwrap();
            let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 16, recv_depth: 16 };
            let qp = rnic.create_qp(options).unwrap();
            rnic.post_recv(qp, &[RecvWr { id: WrId(0), scatter: &[] }; 8]).unwrap();
            End { rnic, cq, qp, page: node.host.memory().lend(8192).unwrap() }
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
        Self { native, ends, arrived: Cell::new(0), waker: RefCell::new(Waker::noop().clone()) }
    }

    fn target(&self, end: usize) -> RemoteAddr {
        let end = &self.ends[end];
        RemoteAddr { addr: end.page.addr(), key: end.rnic.memory_key().rkey }
    }

    fn post(&self, end: usize, op: SendOp<'_>) {
        let end = &self.ends[end];
        let work = SendWr { id: WrId(1), op, signaled: true, solicited: false, fence: false };
        end.rnic.post_send(end.qp, &[work]).unwrap();
    }

    /// Runs `task` while the completions of the first `polled` ends are polled.
    fn run(&self, polled: usize, task: impl Future<Output = ()>) {
        let mut out = [Completion::BLANK; 64];
        let poll = |_| {
            let ends = self.ends.iter().take(polled);
            let n: usize = ends.map(|end| end.rnic.poll_cq(end.cq, &mut out)).sum();
            if n > 0 {
                self.arrived.set(self.arrived.get() + n);
                self.waker.borrow().wake_by_ref();
            }
            n > 0
        };
        self.native.run_polled(poll, task);
    }

    /// Posts `op` and waits for `count` completions.
    async fn done(&self, end: usize, op: SendOp<'_>, count: usize) {
        let mut posted = false;
        poll_fn(|cx| {
            if !posted {
                posted = true;
                if !self.waker.borrow().will_wake(cx.waker()) {
                    *self.waker.borrow_mut() = cx.waker().clone();
                }
                self.post(end, op);
            }
            let left = self.arrived.get().checked_sub(count);
            left.map_or(Poll::Pending, |left| {
                self.arrived.set(left);
                Poll::Ready(())
            })
        })
        .await;
    }

    /// Does `count` WRITEs of `data`, one after the other.
    pub(crate) fn writes(&self, data: &[u8], count: u32) {
        let remote = self.target(1);
        let page = &self.ends[0].page;
        self.run(1, async {
            for _ in 0..count {
                if data.len() <= 128 {
                    let data = Payload::Inline(black_box(data));
                    self.done(0, SendOp::Write { data, remote, imm: None }, 1).await;
                } else {
                    let sges = [Sge { addr: page.addr(), len: data.len() as u32 }];
                    page.write(0, black_box(data)).unwrap();
                    self.done(0, SendOp::Write { data: Payload::Gather(&sges), remote, imm: None }, 1).await;
                }
            }
        });
    }

    /// Does `count` READs into `data`, one after the other.
    pub(crate) fn reads(&self, data: &mut [u8], count: u32) {
        let remote = self.target(1);
        let page = &self.ends[0].page;
        let sges = [Sge { addr: page.addr(), len: data.len() as u32 }];
        self.run(1, async {
            for _ in 0..count {
                self.done(0, SendOp::Read { into: &sges, remote }, 1).await;
                page.read(0, black_box(&mut *data)).unwrap();
            }
        });
    }

    /// Does `count` fetch-and-adds, one after the other.
    pub(crate) fn adds(&self, count: u32) {
        let remote = self.target(1);
        let result = self.ends[0].page.addr();
        self.run(1, async {
            for _ in 0..count {
                self.done(0, SendOp::FetchAdd { result, remote, add: 1 }, 1).await;
            }
        });
    }

    /// Sends `count` messages of `data` there and back, each as a WRITE with immediate.
    pub(crate) fn round_trips(&self, data: &[u8], count: u32) {
        let (there, back) = (self.target(1), self.target(0));
        let receive = [RecvWr { id: WrId(0), scatter: &[] }];
        self.run(2, async {
            for _ in 0..count {
                for (end, remote) in [(0, there), (1, back)] {
                    let data = Payload::Inline(black_box(data));
                    // The completion on this side, and the message at the other end.
                    self.done(end, SendOp::Write { data, remote, imm: Some(1) }, 2).await;
                    let other = &self.ends[1 - end];
                    other.rnic.post_recv(other.qp, &receive).unwrap();
                }
            }
        });
    }
}
