//! Extended reliable connections: each request names a shared receive queue, which determines the responder's
//! rights.

use core::cell::RefCell;
use platform::{Arena, Instant, IoAddr};
use roce::transport::{Completions, Counters, Denied, Env, Limits, OneKey, ReliableQp, RemoteAccess, Right};
use roce::wire::{
    Bth, Ecn, Ext, Frame, Headers, NakCode, Opcode, Operation, Packet, Service, Syndrome, XrcEth,
};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, Gid, LinkKind, MacAddr, PathMtu, Payload, PortAddress, Psn, QpConnect, QpNum,
    RecvWr, RemoteAddr, RemoteKey, SendOp, SendWr, Sge, Status, WrId,
};

const BASE: u64 = 0x1000;
const KEY: RemoteKey = RemoteKey(0x1d59);
const MTU: usize = 1024;
/// The shared receive queues that may be named, and one that may not.
const QUEUES: [u32; 2] = [0x71, 0x72];
const FOREIGN: u32 = 0x73;
const FIRST_PSN: Psn = Psn::new(9);

#[derive(Default)]
struct Log {
    sends: Vec<Status>,
    recvs: Vec<(u64, Status)>,
}

impl Completions for Log {
    fn send_ended(&mut self, completion: &Completion, _: bool) {
        self.sends.push(completion.status);
    }
    fn recv_ended(&mut self, completion: &Completion) {
        self.recvs.push((completion.id.0, completion.status));
    }
}

/// One key, and a record of the queues that were entered.
struct Memory<'a>(OneKey<'a>, &'a RefCell<Vec<u32>>);

impl RemoteAccess for Memory<'_> {
    fn check(&self, key: RemoteKey, addr: IoAddr, len: u32, right: Right) -> Result<(), Denied> {
        self.0.check(key, addr, len, right)
    }
    fn write(&self, key: RemoteKey, addr: IoAddr, data: &[u8]) -> Result<(), Denied> {
        self.0.write(key, addr, data)
    }
    fn read(&self, key: RemoteKey, addr: IoAddr, out: &mut [u8]) -> Result<(), Denied> {
        self.0.read(key, addr, out)
    }
    fn fetch_add(&self, key: RemoteKey, addr: IoAddr, add: u64) -> Result<u64, Denied> {
        self.0.fetch_add(key, addr, add)
    }
    fn compare_swap(&self, key: RemoteKey, addr: IoAddr, compare: u64, swap: u64) -> Result<u64, Denied> {
        self.0.compare_swap(key, addr, compare, swap)
    }
    fn invalidate(&self, key: RemoteKey) -> Result<(), Denied> {
        self.0.invalidate(key)
    }
    fn enter(&self, srq: u32) -> Result<(), Denied> {
        self.1.borrow_mut().push(srq);
        if QUEUES.contains(&srq) { Ok(()) } else { Err(Denied) }
    }
}

struct End {
    qp: ReliableQp,
    memory: Arena,
    counters: Counters,
    log: Log,
    entered: RefCell<Vec<u32>>,
}

impl End {
    fn new(number: u32, peer: u32) -> Self {
        let limits = Limits {
            send_depth: 16,
            recv_depth: 16,
            max_sge: 1,
            max_inline: 64,
            max_rd_atomic: 4,
            max_window: 32,
        };
        let port = PortAddress { mac: MacAddr([2; 6]), gid: Gid::from_ipv4([10, 0, 0, 2]), lid: 0 };
        let address = AddressVector {
            link: LinkKind::RoceV2,
            peer: port,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
        };
        let connect = QpConnect {
            address,
            remote_qp: QpNum::new(peer),
            send_psn: FIRST_PSN,
            recv_psn: FIRST_PSN,
            mtu: PathMtu::B1024,
            max_rd_atomic: 4,
            ack_timeout: Duration::from_secs(1),
            retries: 7,
            rnr_retries: 7,
            min_rnr_delay: Duration::from_millis(1),
        };
        let headers =
            Headers::towards(MacAddr([4; 6]), Gid::from_ipv4([10, 0, 0, 1]), &address, 0xc000).unwrap();
        let mut qp = ReliableQp::new_extended(QpNum::new(number), &limits);
        qp.connect(&connect, Some(headers)).unwrap();
        let memory = Arena::new(IoAddr(BASE), 1 << 16);
        Self { qp, memory, counters: Counters::default(), log: Log::default(), entered: RefCell::default() }
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut ReliableQp, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: Instant::ZERO,
            memory: &self.memory,
            remote: &Memory(OneKey { key: KEY, memory: &self.memory }, &self.entered),
            counters: &mut self.counters,
            completions: &mut self.log,
        };
        f(&mut self.qp, &mut env)
    }

    fn post(&mut self, op: SendOp<'_>, srq: u32) {
        let work = SendWr { id: WrId(1), op, signaled: true, solicited: false, fence: false };
        self.with(|qp, env| qp.post_send_to(&work, srq, env)).unwrap();
    }

    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let tx = self.qp.next_tx(1)?;
        let mut out = vec![0; self.qp.frame_len(&tx)];
        let remote = Memory(OneKey { key: KEY, memory: &self.memory }, &self.entered);
        let (len, good) = self.qp.emit(&tx, 0, &mut out, &self.memory, &remote).unwrap();
        assert!(good && len == out.len());
        self.with(|qp, env| qp.sent(&tx, env));
        Some(out)
    }

    fn receive(&mut self, packet: &Packet<'_>) {
        self.with(|qp, env| qp.receive(packet, Ecn::NotCapable, 0, env));
    }

    /// Returns the syndrome of the next packet, which is an acknowledgement.
    fn answer(&mut self) -> Syndrome {
        let bytes = self.next_frame().unwrap();
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!(frame.packet.bth.opcode, extended(Operation::Acknowledge));
        assert_eq!(frame.packet.bth.xrc, None);
        let Ext::Aeth(aeth) = frame.packet.ext else { panic!("no AETH") };
        aeth.syndrome
    }
}

const fn extended(operation: Operation) -> Opcode {
    Opcode { service: Service::Xrc, operation }
}

fn request(operation: Operation, psn: u32, srq: u32) -> Bth {
    let mut bth = Bth::new(extended(operation), QpNum::new(8), FIRST_PSN.add(psn));
    bth.xrc = Some(XrcEth::new(srq));
    bth.ack_request = true;
    bth
}

#[test]
fn requests_name_queues_and_answers_do_not() {
    let (mut a, mut b) = (End::new(7, 8), End::new(8, 7));
    let place = [Sge { addr: IoAddr(BASE), len: 3000 }];
    let remote = RemoteAddr { addr: IoAddr(BASE), key: KEY };
    a.post(SendOp::Write { data: Payload::Gather(&place), remote, imm: None }, QUEUES[0]);
    a.post(SendOp::Read { into: &place, remote }, QUEUES[1]);
    let mut named = Vec::new();
    for _ in 0..20 {
        while let Some(bytes) = a.next_frame() {
            let frame = Frame::parse(&bytes).unwrap();
            assert!(frame.icrc_ok());
            let mut again = vec![0; bytes.len()];
            assert_eq!((frame.emit(&mut again), again), (Some(bytes.len()), bytes.clone()));
            let bth = frame.packet.bth;
            named.push((bth.opcode.to_byte(), bth.xrc.unwrap().srq()));
            b.receive(&frame.packet);
        }
        while let Some(bytes) = b.next_frame() {
            let frame = Frame::parse(&bytes).unwrap();
            assert!(frame.icrc_ok() && frame.packet.bth.opcode.service == Service::Xrc);
            assert_eq!(frame.packet.bth.xrc, None);
            a.receive(&frame.packet);
        }
    }
    assert_eq!(a.log.sends, [Status::Success; 2]);
    assert_eq!(named[..4], [(0xa6, 0x71), (0xa7, 0x71), (0xa8, 0x71), (0xac, 0x72)]);
    // Each request, and each packet of the READ's response.
    assert_eq!(b.entered.take(), [0x71, 0x71, 0x71, 0x72, 0x72, 0x72, 0x72]);
}

#[test]
fn a_queue_that_may_not_be_named_is_an_access_error() {
    let mut b = End::new(8, 7);
    let bth = request(Operation::SendOnly, 0, FOREIGN);
    b.receive(&Packet { bth, ext: Ext::None, payload: &[1; 8] });
    assert_eq!(b.answer(), Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!(b.counters.access_errors, 1);
}

#[test]
fn a_message_keeps_to_its_queue() {
    let mut b = End::new(8, 7);
    let scatter = [Sge { addr: IoAddr(BASE), len: 4096 }];
    b.with(|qp, env| qp.post_recv(&RecvWr { id: WrId(3), scatter: &scatter }, env)).unwrap();
    let first = request(Operation::SendFirst, 0, QUEUES[0]);
    b.receive(&Packet { bth: first, ext: Ext::None, payload: &[1; MTU] });
    assert_eq!(b.answer(), Syndrome::ACK);
    let last = request(Operation::SendLast, 1, QUEUES[1]);
    b.receive(&Packet { bth: last, ext: Ext::None, payload: &[1; 8] });
    assert_eq!(b.answer(), Syndrome::Nak(NakCode::InvalidRequest));
    assert_eq!(b.log.recvs, [(3, Status::RemoteInvalidRequest)]);
}
