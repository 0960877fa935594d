//! Datagrams: we send what Linux sent and receive what Linux received; dropped datagrams.

use crate::common::{data, frames};
use platform::{Arena, Instant, IoAddr, Memory};
use roce::transport::{Completions, Counters, DatagramQp, Env, Limits, OneKey, Route};
use roce::wire::{Bth, Deth, Ext, Frame, Net, Packet, ud_source_port};
use verbs::{
    AddressVector, Completion, LinkKind, PathMtu, Payload, PortAddress, Psn, QKey, QpNum, RecvWr, RemoteKey,
    Sge, Status, UdSendWr, VerbsError, WorkKind, WrId,
};

const BASE: u64 = 0x1000;
/// The Q_Key of both queue pairs in the capture.
const QKEY: QKey = QKey(0x1111_1111);

#[derive(Default)]
struct Log {
    sends: Vec<(Completion, bool)>,
    recvs: Vec<Completion>,
}

impl Completions for Log {
    fn send_ended(&mut self, completion: &Completion, report: bool) {
        self.sends.push((*completion, report));
    }
    fn recv_ended(&mut self, completion: &Completion) {
        self.recvs.push(*completion);
    }
}

struct End {
    qp: DatagramQp,
    memory: Arena,
    counters: Counters,
    log: Log,
}

impl End {
    fn new(number: u32) -> Self {
        let limits = Limits {
            send_depth: 8,
            recv_depth: 8,
            max_sge: 2,
            max_inline: 64,
            max_rd_atomic: 0,
            max_window: 0,
        };
        let first = Psn::new(0x0a_0b0c);
        let qp = DatagramQp::new(QpNum::new(number), QKEY, first, PathMtu::B1024, &limits);
        let memory = Arena::new(IoAddr(BASE), 1 << 20);
        Self { qp, memory, counters: Counters::default(), log: Log::default() }
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut DatagramQp, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: Instant::ZERO,
            memory: &self.memory,
            remote: &OneKey { key: RemoteKey(0), memory: &self.memory },
            counters: &mut self.counters,
            completions: &mut self.log,
        };
        f(&mut self.qp, &mut env)
    }

    /// Posts a receive of two pieces, neither of which has the 40 bytes before the message in one piece.
    fn recv(&mut self, id: u64, offset: u64, len: u32) {
        let first = len.min(50);
        let piece = |offset, len| Sge { addr: IoAddr(BASE + offset), len };
        let scatter = [piece(offset, first), piece(offset + 50, len - first)];
        self.with(|qp, env| qp.post_recv(&RecvWr { id: WrId(id), scatter: &scatter }, env)).unwrap();
    }

    fn post(&mut self, work: &UdSendWr<'_>, route: Route) -> Result<(), VerbsError> {
        self.with(|qp, env| qp.post_send(work, route, env))
    }

    fn receive(&mut self, frame: &Frame<'_>, packet: &Packet<'_>) {
        self.with(|qp, env| qp.receive(packet, &frame.origin(), env));
    }

    fn get(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read(IoAddr(BASE + offset), &mut out).unwrap();
        out
    }

    fn sends_ended(&self) -> Vec<(u64, Status)> {
        self.log.sends.iter().map(|(c, _)| (c.id.0, c.status)).collect()
    }
}

fn capture() -> Vec<Vec<u8>> {
    frames(&data().join("ud_send.pcap"))
}

/// Makes the work request for a datagram to the receiver of `frame`.
fn work<'a>(id: u64, frame: &Frame<'_>, data: Payload<'a>) -> UdSendWr<'a> {
    let (deth, imm) = match frame.packet.ext {
        Ext::Deth(deth) => (deth, None),
        Ext::DethImm(deth, imm) => (deth, Some(imm)),
        other => panic!("no datagram has {other:?}"),
    };
    let peer = PortAddress { mac: frame.headers.ethernet.dst, gid: frame.headers.net.dst(), lid: 0 };
    let to =
        AddressVector { link: LinkKind::RoceV2, peer, traffic_class: 0, hop_limit: 64, service_level: 0 };
    let Bth { solicited, dest_qp: remote_qp, .. } = frame.packet.bth;
    UdSendWr { id: WrId(id), to, remote_qp, qkey: QKey(deth.qkey), data, imm, signaled: true, solicited }
}

/// Returns the captured path, except for the source port, which we choose.
fn route(frame: &Frame<'_>, from: QpNum) -> Route {
    let mut headers = frame.headers;
    if let Net::V4(_, udp) = &mut headers.net {
        udp.src = ud_source_port(from);
    }
    Route { headers, within: false }
}

#[test]
fn we_send_what_linux_sent() {
    let mut client = End::new(190);
    let capture = capture();
    for (id, bytes) in (0..).zip(&capture) {
        let frame = Frame::parse(bytes).unwrap();
        let at = IoAddr(BASE + 0x1000);
        client.memory.write(at, frame.packet.payload).unwrap();
        let gather = [Sge { addr: at, len: frame.packet.payload.len() as u32 }];
        let inline = frame.packet.payload.len() <= 64 && id % 2 == 0;
        let payload = if inline { Payload::Inline(frame.packet.payload) } else { Payload::Gather(&gather) };
        let route = route(&frame, client.qp.number());
        client.post(&work(id, &frame, payload), route).unwrap();
        let tx = client.qp.next_tx().unwrap();
        let mut out = vec![0; client.qp.frame_len(&tx)];
        let Net::V4(ip, _) = frame.headers.net else { panic!("the capture is over IPv4") };
        assert_eq!(client.qp.emit(&tx, ip.id, &mut out, &client.memory), Some((bytes.len(), true)));
        assert_eq!(&out, bytes, "frame {id}");
        client.with(|qp, env| qp.sent(env));
        assert!(!client.qp.has_work() && client.qp.next_tx().is_none());
    }
    assert_eq!(client.sends_ended(), (0..6).map(|id| (id, Status::Success)).collect::<Vec<_>>());
}

#[test]
fn we_receive_what_linux_received() {
    let mut server = End::new(45);
    let capture = capture();
    for (id, bytes) in (0..).zip(&capture) {
        let frame = Frame::parse(bytes).unwrap();
        server.recv(id, id << 12, 2000);
        server.receive(&frame, &frame.packet);
    }
    // The completions that Linux' program printed: the length with the 40 bytes, and immediate data.
    let printed = [(40, None), (41, None), (48, None), (296, None), (1064, None), (104, Some(0xabcd_1234))];
    let got: Vec<_> = server.log.recvs.iter().map(|c| (c.byte_len, c.imm)).collect();
    assert_eq!(got, printed);
    for (id, completion) in (0..).zip(&server.log.recvs) {
        let Completion { id: got, status, kind, src_qp, .. } = *completion;
        assert_eq!((got.0, status, kind), (id, Status::Success, WorkKind::Recv));
        assert_eq!(src_qp, Some(QpNum::new(190)));
    }
    // The 40 bytes that it printed of the third.
    let origin = "00000000000000000000000000000000000000004500003cae8c4000401178220a0000020a000001";
    let printed: String = server.get(2 << 12, 40).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(printed, origin);
    for (id, bytes) in (0u64..).zip(&capture) {
        let payload = Frame::parse(bytes).unwrap().packet.payload;
        assert_eq!(server.get((id << 12) + 40, payload.len()), payload);
    }
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let capture = capture();
    let frame = Frame::parse(&capture[4]).unwrap();
    let empty = Frame::parse(&capture[0]).unwrap();
    // Too short by one byte, and too short even for the 40 bytes.
    for len in [1063, 40, 39, 0] {
        let mut server = End::new(45);
        server.recv(1, 0, len);
        server.receive(&frame, &frame.packet);
        assert_eq!((server.counters.rx_too_long, server.log.recvs.len()), (1, 0));
        // The receive is still there for a datagram that fits.
        server.receive(&empty, &empty.packet);
        assert_eq!(server.log.recvs.len(), usize::from(len >= 40));
    }
    let mut server = End::new(45);
    server.receive(&frame, &frame.packet);
    assert_eq!(server.counters.rx_no_receive, 1);
    server.recv(1, 0, 4096);
    let Ext::Deth(deth) = frame.packet.ext else { panic!("no immediate in this one") };
    for ext in [Ext::Deth(Deth { qkey: deth.qkey ^ 1, ..deth }), Ext::DethImm(Deth { qkey: 0, ..deth }, 5)] {
        server.receive(&frame, &Packet { ext, ..frame.packet });
    }
    // A datagram longer than the MTU of the port, and a packet that is not a datagram.
    server.receive(&frame, &Packet { payload: &[1; 1025], ..frame.packet });
    server.receive(&frame, &Packet { ext: Ext::None, ..frame.packet });
    let Counters { rx_bad_qkey, rx_too_long, rx_wrong_service, .. } = server.counters;
    assert_eq!((rx_bad_qkey, rx_too_long, rx_wrong_service), (2, 1, 1));
    assert_eq!((server.get(0, 4096), server.log.recvs.len()), (vec![0; 4096], 0));
    server.receive(&frame, &frame.packet);
    assert_eq!(server.log.recvs.len(), 1);
}

#[test]
fn sends_are_checked_when_posted() {
    let capture = capture();
    let frame = Frame::parse(&capture[0]).unwrap();
    let mut client = End::new(190);
    let to = route(&frame, client.qp.number());
    let piece = |addr, len| Sge { addr: IoAddr(addr), len };
    for (payload, error) in [
        (Payload::Gather(&[piece(BASE, 1025)]), VerbsError::InvalidArgument),
        (Payload::Gather(&[piece(BASE, 1024), piece(BASE, 1)]), VerbsError::InvalidArgument),
        (Payload::Gather(&[piece(1, 4)]), VerbsError::LocalProtection),
        (Payload::Gather(&[piece(BASE, 4); 3]), VerbsError::InvalidArgument),
        (Payload::Inline(&[0; 65]), VerbsError::InvalidArgument),
    ] {
        assert_eq!(client.post(&work(1, &frame, payload), to), Err(error));
    }
    assert!(!client.qp.has_work());
    let inline = Payload::Inline(b"data");
    for id in 0..8 {
        client.post(&UdSendWr { signaled: id == 7, ..work(id, &frame, inline) }, to).unwrap();
    }
    assert_eq!(client.post(&work(9, &frame, inline), to), Err(VerbsError::NoResources));
    for n in 0..8 {
        let tx = client.qp.next_tx().unwrap();
        let mut scratch = [0; 4];
        let packet = client.qp.loop_back(&tx, &mut scratch, &client.memory).unwrap();
        assert_eq!((packet.bth.psn, packet.payload), (Psn::new(0x0a_0b0c).add(n), &b"data"[..]));
        client.with(|qp, env| qp.sent(env));
    }
    let reported: Vec<_> = client.log.sends.iter().map(|(_, report)| *report).collect();
    assert_eq!(reported, [false, false, false, false, false, false, false, true]);
    // A controlled Q_Key stands for the queue pair's own.
    client.post(&UdSendWr { qkey: QKey(0x8000_0000), ..work(10, &frame, inline) }, to).unwrap();
    let tx = client.qp.next_tx().unwrap();
    let mut scratch = [0; 4];
    let packet = client.qp.loop_back(&tx, &mut scratch, &client.memory).unwrap();
    assert!(matches!(packet.ext, Ext::Deth(deth) if deth.qkey == QKEY.0 && deth.src_qp.get() == 190));
}

#[test]
fn memory_that_is_gone_ends_the_queue_that_named_it() {
    let capture = capture();
    let frame = Frame::parse(&capture[2]).unwrap();
    let mut end = End::new(45);
    let to = route(&frame, end.qp.number());
    for id in 0..3 {
        let gather = [Sge { addr: IoAddr(BASE), len: 8 }];
        end.post(&UdSendWr { signaled: false, ..work(id, &frame, Payload::Gather(&gather)) }, to).unwrap();
        end.recv(id, 0, 1000);
    }
    end.memory = Arena::new(IoAddr(1 << 30), 4096);
    let tx = end.qp.next_tx().unwrap();
    let mut out = vec![0; end.qp.frame_len(&tx)];
    let (len, good) = end.qp.emit(&tx, 0, &mut out, &end.memory).unwrap();
    assert!(!good && !Frame::parse(&out[..len]).unwrap().icrc_ok(), "nobody takes it for a datagram");
    end.with(|qp, env| qp.payload_failed(env));
    let (failed, flushed) = (Status::LocalProtectionError, Status::WorkRequestFlushed);
    let expected = [(0, failed), (1, flushed), (2, flushed)];
    assert_eq!((end.sends_ended(), end.log.recvs.len()), (expected.to_vec(), 0), "receiving goes on");
    end.receive(&frame, &frame.packet);
    let ended: Vec<_> = end.log.recvs.iter().map(|c| (c.id.0, c.status)).collect();
    assert_eq!(ended, expected);
    end.post(&work(4, &frame, Payload::Inline(b"late")), to).unwrap();
    assert_eq!(end.sends_ended().last(), Some(&(4, flushed)));
    assert_eq!((end.counters.qp_errors, end.counters.operation_errors), (2, 1));
}
