//! Unreliable connections: the same packets as Linux's, sent and received; the cost of a loss; dropped
//! packets.

use crate::common::{data, frames};
use platform::{Arena, Instant, IoAddr, Memory};
use proptest::prelude::*;
use roce::transport::{Completions, Counters, Env, Limits, OneKey, State, UnreliableQp};
use roce::wire::{Bth, Ext, Frame, Headers, Net, Opcode, Operation, Packet, Reth, Service};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, Gid, LinkKind, MacAddr, PathMtu, Payload, PortAddress, Psn, QpConnect, QpNum,
    RecvWr, RemoteAddr, RemoteKey, SendOp, SendWr, Sge, Status, VerbsError, WorkKind, WrId,
};

const BASE: u64 = 0x1000;
const KEY: RemoteKey = RemoteKey(0x1d59);
const MTU: usize = 1024;

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
    qp: UnreliableQp,
    memory: Arena,
    counters: Counters,
    log: Log,
}

impl End {
    /// Makes an end whose memory begins at `base`, so that it can contain the addresses of a capture.
    fn new(number: u32, peer: u32, first: u32, headers: Headers, base: u64) -> Self {
        let limits = Limits {
            send_depth: 16,
            recv_depth: 64,
            max_sge: 2,
            max_inline: 64,
            max_rd_atomic: 0,
            max_window: 0,
        };
        let peer_port = PortAddress { mac: headers.ethernet.dst, gid: headers.net.dst(), lid: 0 };
        let connect = QpConnect {
            address: AddressVector {
                link: LinkKind::RoceV2,
                peer: peer_port,
                traffic_class: 0,
                hop_limit: 64,
                service_level: 0,
            },
            remote_qp: QpNum::new(peer),
            send_psn: Psn::new(first),
            recv_psn: Psn::new(first),
            mtu: PathMtu::B1024,
            max_rd_atomic: 0,
            ack_timeout: Duration::ZERO,
            retries: 0,
            rnr_retries: 0,
            min_rnr_delay: Duration::ZERO,
        };
        let mut qp = UnreliableQp::new(QpNum::new(number), &limits);
        qp.ready_to_receive(&connect, Some(headers)).unwrap();
        qp.ready_to_send(&connect).unwrap();
        let memory = Arena::new(IoAddr(base), 1 << 18);
        Self { qp, memory, counters: Counters::default(), log: Log::default() }
    }

    fn pair() -> [Self; 2] {
        let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]];
        let headers = |from, to| {
            let peer = PortAddress { mac: MacAddr([2; 6]), gid: Gid::from_ipv4(to), lid: 0 };
            let way = AddressVector {
                link: LinkKind::RoceV2,
                peer,
                traffic_class: 0,
                hop_limit: 64,
                service_level: 0,
            };
            Headers::towards(MacAddr([4; 6]), Gid::from_ipv4(from), &way, 0xc000).unwrap()
        };
        [Self::new(7, 8, 0xff_fffe, headers(a, b), BASE), Self::new(8, 7, 0xff_fffe, headers(b, a), BASE)]
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut UnreliableQp, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: Instant::ZERO,
            memory: &self.memory,
            remote: &OneKey { key: KEY, memory: &self.memory },
            counters: &mut self.counters,
            completions: &mut self.log,
        };
        f(&mut self.qp, &mut env)
    }

    fn recv(&mut self, id: u64, addr: u64, len: u32) {
        let scatter = [Sge { addr: IoAddr(addr), len }];
        self.with(|qp, env| qp.post_recv(&RecvWr { id: WrId(id), scatter: &scatter }, env)).unwrap();
    }

    fn post(&mut self, id: u64, op: SendOp<'_>, solicited: bool) -> Result<(), VerbsError> {
        let work = SendWr { id: WrId(id), op, signaled: true, solicited, fence: false };
        self.with(|qp, env| qp.post_send(&work, env))
    }

    /// Returns the next frame, with an IPv4 identification.
    fn next_frame(&mut self, id: u16) -> Option<Vec<u8>> {
        let tx = self.qp.next_tx()?;
        let mut out = vec![0; self.qp.frame_len(&tx)];
        let (len, good) = self.qp.emit(&tx, id, &mut out, &self.memory).unwrap();
        assert_eq!(len, out.len());
        self.with(|qp, env| if good { qp.sent(&tx, env) } else { qp.payload_failed(&tx, env) });
        Some(out)
    }

    fn receive(&mut self, packet: &Packet<'_>) {
        self.with(|qp, env| qp.receive(packet, env));
    }

    fn get(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.memory.read(IoAddr(addr), &mut out).unwrap();
        out
    }

    fn received(&self) -> Vec<(u64, u32, Option<u32>)> {
        assert!(self.log.recvs.iter().all(|c| c.status == Status::Success));
        self.log.recvs.iter().map(|c| (c.id.0, c.byte_len, c.imm)).collect()
    }
}

/// A message of a capture: its bytes, its target if it is a WRITE, its immediate data, and the solicited bit.
#[derive(Default)]
struct Message {
    bytes: Vec<u8>,
    to: Option<Reth>,
    imm: Option<u32>,
    solicited: bool,
}

fn messages(capture: &[Vec<u8>]) -> Vec<Message> {
    let mut messages = vec![Message::default()];
    for bytes in capture {
        let packet = Frame::parse(bytes).unwrap().packet;
        let last = messages.last_mut().unwrap();
        last.bytes.extend_from_slice(packet.payload);
        match packet.ext {
            Ext::Reth(reth) => last.to = Some(reth),
            Ext::RethImm(reth, imm) => (last.to, last.imm) = (Some(reth), Some(imm)),
            Ext::Imm(imm) => last.imm = Some(imm),
            _ => {}
        }
        last.solicited |= packet.bth.solicited;
        use Operation as O;
        if !matches!(
            packet.bth.opcode.operation,
            O::SendFirst | O::SendMiddle | O::WriteFirst | O::WriteMiddle
        ) {
            messages.push(Message::default());
        }
    }
    assert!(messages.pop().unwrap().bytes.is_empty(), "the capture ends with a whole message");
    messages
}

#[test]
fn we_send_and_receive_what_linux_sent() {
    for name in ["uc_send.pcap", "uc_write_imm.pcap"] {
        let capture = frames(&data().join(name));
        let first = Frame::parse(&capture[0]).unwrap();
        let Bth { dest_qp, psn, .. } = first.packet.bth;
        let base = match first.packet.ext {
            Ext::Reth(reth) | Ext::RethImm(reth, _) => reth.addr.0 & !0xfff,
            _ => BASE,
        };
        let mut client = End::new(9, dest_qp.get(), psn.get(), first.headers, base);
        let mut server = End::new(dest_qp.get(), 9, psn.get(), first.headers, base);
        let key = match first.packet.ext {
            Ext::Reth(reth) | Ext::RethImm(reth, _) => reth.key,
            _ => KEY,
        };
        assert_eq!(key, KEY);
        let messages = messages(&capture);
        let mut next = capture.iter();
        for (id, message) in (0u64..).zip(&messages) {
            // Into a buffer far from the targets of WRITEs.
            let at = base + 0x2_0000;
            client.memory.write(IoAddr(at), &message.bytes).unwrap();
            let half = message.bytes.len() as u32 / 2;
            let gather = [
                Sge { addr: IoAddr(at), len: half },
                Sge { addr: IoAddr(at + u64::from(half)), len: message.bytes.len() as u32 - half },
            ];
            let inline = message.bytes.len() <= 64;
            let payload = if inline { Payload::Inline(&message.bytes) } else { Payload::Gather(&gather) };
            let op = match message.to {
                None => SendOp::Send { data: payload, imm: message.imm },
                Some(Reth { addr, key, .. }) => {
                    SendOp::Write { data: payload, remote: RemoteAddr { addr, key }, imm: message.imm }
                }
            };
            client.post(id, op, message.solicited).unwrap();
            server.recv(id, base + 0x2_0000, 0x4000);
            while client.qp.has_work() {
                let bytes = next.next().unwrap();
                let frame = Frame::parse(bytes).unwrap();
                let Net::V4(ip, _) = frame.headers.net else { panic!("the capture is over IPv4") };
                assert_eq!(&client.next_frame(ip.id).unwrap(), bytes, "{name}, message {id}");
                server.receive(&frame.packet);
            }
            let place = message.to.map_or(base + 0x2_0000, |reth| reth.addr.0);
            assert_eq!(server.get(place, message.bytes.len()), message.bytes, "{name}, message {id}");
            assert_eq!(client.log.sends.last().unwrap().0.id, WrId(id), "ended with its last packet");
        }
        assert!(next.next().is_none());
        let taken: Vec<_> = messages.iter().filter(|m| m.to.is_none() || m.imm.is_some()).collect();
        assert_eq!(server.log.recvs.len(), taken.len());
        for (completion, message) in server.log.recvs.iter().zip(taken) {
            assert_eq!((completion.byte_len, completion.imm), (message.bytes.len() as u32, message.imm));
        }
        assert_eq!(server.counters, Counters::default(), "nothing was dropped");
    }
}

proptest! {
    /// Whatever is lost, a message arrives completely and once, or not at all; messages without a loss
    /// arrive.
    #[test]
    fn a_loss_costs_the_message_it_hit(
        lengths in prop::collection::vec(0u32..5000, 1..16),
        lost in prop::collection::vec(any::<bool>(), 96),
        rare in 1u32..8,
    ) {
        let [mut a, mut b] = End::pair();
        let mut lost = lost.into_iter().zip(0u32..).map(|(lost, n)| lost && n.is_multiple_of(rare));
        let mut whole = Vec::new();
        for (id, &len) in (0u64..).zip(&lengths) {
            b.recv(id, BASE + 0x2000 * id, 5000);
            let bytes: Vec<u8> = (0..len).map(|i| (u64::from(i) * 7 + id) as u8).collect();
            a.memory.write(IoAddr(BASE), &bytes).unwrap();
            let gather = [Sge { addr: IoAddr(BASE), len }];
            a.post(id, SendOp::Send { data: Payload::Gather(&gather), imm: Some(id as u32) }, false).unwrap();
            let mut hit = false;
            while let Some(bytes) = a.next_frame(0) {
                if lost.next() == Some(true) {
                    hit = true;
                } else {
                    b.receive(&Frame::parse(&bytes).unwrap().packet);
                }
            }
            if !hit {
                let at = BASE + 0x2000 * whole.len() as u64;
                prop_assert_eq!(b.get(at, bytes.len()), bytes);
                whole.push((whole.len() as u64, len, Some(id as u32)));
            }
        }
        prop_assert_eq!(b.received(), whole);
        prop_assert_eq!(a.log.sends.len(), lengths.len());
        prop_assert_eq!(b.qp.state(), State::ReadyToSend);
    }

    /// Any packets in any order leave the queue pair usable, and write only into its receives.
    #[test]
    fn any_packets_are_survived(
        packets in prop::collection::vec((0u8..14, 0u32..6, 0usize..1100, 0u64..0x1_0000, 0u32..3000), 0..60),
    ) {
        let [_, mut b] = End::pair();
        for id in 0..8 {
            b.recv(id, BASE + 0x1000 * id, 0x800);
        }
        let payload = vec![0x5a; 1100];
        for (operation, psn, len, addr, total) in packets {
            let Some(opcode) = Opcode::from_byte(0x20 | operation) else { continue };
            let bth = Bth::new(opcode, QpNum::new(8), Psn::new(psn));
            let reth = Reth { addr: IoAddr(BASE + 0x1_0000 + addr), key: KEY, len: total };
            let ext = match operation {
                3 | 5 | 9 => Ext::Imm(1),
                6 | 10 => Ext::Reth(reth),
                11 => Ext::RethImm(reth, 2),
                _ => Ext::None,
            };
            b.receive(&Packet { bth, ext, payload: &payload[..len] });
        }
        prop_assert!(b.log.recvs.iter().all(|c| c.status == Status::Success && c.byte_len <= 3000));
        for id in 0..8 {
            prop_assert!(b.get(BASE + 0x1000 * id + 0x800, 0x800).iter().all(|&byte| byte == 0));
        }
        prop_assert_eq!(b.qp.state(), State::ReadyToSend);
    }
}

fn packet(operation: Operation, psn: u32, ext: Ext, payload: &[u8]) -> Packet<'_> {
    let opcode = Opcode { service: Service::Uc, operation };
    Packet { bth: Bth::new(opcode, QpNum::new(8), Psn::new(0xff_fffe).add(psn)), ext, payload }
}

#[test]
fn lengths_are_checked() {
    use Operation as O;
    let full = [1; MTU];
    let reth = |len| Ext::Reth(Reth { addr: IoAddr(BASE + 0x1_0000), key: KEY, len });
    let invalid: [&[(Operation, Ext, usize)]; 8] = [
        &[(O::SendFirst, Ext::None, MTU - 1)],
        &[(O::SendOnly, Ext::None, MTU + 1)],
        &[(O::SendFirst, Ext::None, MTU), (O::SendMiddle, Ext::None, 1)],
        &[(O::SendFirst, Ext::None, MTU), (O::SendLast, Ext::None, 0)],
        &[(O::SendFirst, Ext::None, MTU), (O::WriteLast, Ext::None, 5)],
        &[(O::WriteOnly, reth(9), 8)],
        &[(O::WriteFirst, reth(MTU as u32 + 4), MTU), (O::WriteLast, Ext::None, 5)],
        &[(O::WriteFirst, reth(u32::MAX), MTU)],
    ];
    for case in invalid {
        let [_, mut b] = End::pair();
        b.recv(1, BASE, 3000);
        for (psn, &(operation, ext, len)) in (0..).zip(case) {
            b.receive(&packet(operation, psn, ext, &vec![1; len]));
        }
        assert_eq!(b.counters.invalid_requests, 1, "{case:?}");
        // The next message uses the receive.
        b.receive(&packet(O::SendOnly, case.len() as u32, Ext::None, b"good"));
        assert_eq!(b.received(), [(1, 4, None)], "{case:?}");
    }
    let [_, mut b] = End::pair();
    b.recv(1, BASE, MTU as u32 + 3);
    b.receive(&packet(O::SendFirst, 0, Ext::None, &full));
    b.receive(&packet(O::SendLast, 1, Ext::None, b"last"));
    assert_eq!((b.counters.rx_too_long, b.log.recvs.len()), (1, 0));
    assert_eq!(b.get(BASE + MTU as u64, 8), [0; 8]);
    b.receive(&packet(O::SendFirst, 2, Ext::None, &full));
    b.receive(&packet(O::SendLast, 3, Ext::None, b"end"));
    assert_eq!(b.received(), [(1, MTU as u32 + 3, None)]);
}

#[test]
fn no_receive() {
    use Operation as O;
    let [_, mut b] = End::pair();
    let reth = Reth { addr: IoAddr(BASE), key: KEY, len: 4 };
    b.receive(&packet(O::SendOnly, 0, Ext::None, b"lost"));
    b.receive(&packet(O::WriteOnlyImm, 1, Ext::RethImm(reth, 5), b"data"));
    b.recv(1, BASE + 0x100, 100);
    assert_eq!((b.counters.rx_no_receive, b.log.recvs.len()), (2, 0));
    assert_eq!(b.get(BASE, 4), b"data", "only the immediate data needs a receive");
    b.receive(&packet(O::WriteOnlyImm, 2, Ext::RethImm(reth, 6), b"data"));
    assert_eq!(b.received(), [(1, 4, Some(6))]);
    assert_eq!(b.log.recvs[0].kind, WorkKind::RecvWriteImm);
}

#[test]
fn keys_are_checked() {
    use Operation as O;
    let [_, mut b] = End::pair();
    let before = b.get(BASE, 1 << 18);
    for (n, (addr, key)) in (0..).zip([(BASE, RemoteKey(1)), (BASE + (1 << 18) - 3, KEY)]) {
        let reth = Reth { addr: IoAddr(addr), key, len: 4 };
        b.receive(&packet(O::WriteOnly, n, Ext::Reth(reth), b"evil"));
    }
    assert_eq!(b.counters.access_errors, 2);
    assert_eq!(b.get(BASE, 1 << 18), before);
    // A length of zero writes nothing, with any key.
    let nothing = Reth { addr: IoAddr(0), key: RemoteKey(0), len: 0 };
    b.receive(&packet(O::WriteOnly, 2, Ext::Reth(nothing), b""));
    b.receive(&Packet {
        bth: Bth::new(Opcode::rc(O::SendOnly), QpNum::new(8), Psn::new(1)),
        ..packet(O::SendOnly, 3, Ext::None, b"")
    });
    let Counters { access_errors, rx_wrong_service, qp_errors, .. } = b.counters;
    assert_eq!((access_errors, rx_wrong_service, qp_errors), (2, 1, 0));
}

#[test]
fn memory_that_is_gone() {
    let [mut a, mut b] = End::pair();
    for id in 0..3 {
        let gather = [Sge { addr: IoAddr(BASE), len: 2000 }];
        a.post(id, SendOp::Send { data: Payload::Gather(&gather), imm: None }, false).unwrap();
        b.recv(id, BASE, 3000);
    }
    let frame = a.next_frame(0).unwrap();
    for end in [&mut a, &mut b] {
        end.memory = Arena::new(IoAddr(1 << 30), 4096);
    }
    let damaged = a.next_frame(0).unwrap();
    assert!(!Frame::parse(&damaged).unwrap().icrc_ok(), "nobody takes it for data");
    b.receive(&Frame::parse(&frame).unwrap().packet);
    let (failed, flushed) = (Status::LocalProtectionError, Status::WorkRequestFlushed);
    let sends: Vec<_> = a.log.sends.iter().map(|(c, report)| (c.id.0, c.status, *report)).collect();
    assert_eq!(sends, [(0, failed, true), (1, flushed, true), (2, flushed, true)]);
    let recvs: Vec<_> = b.log.recvs.iter().map(|c| (c.id.0, c.status)).collect();
    assert_eq!(recvs, [(0, failed), (1, flushed), (2, flushed)]);
    assert_eq!((a.qp.state(), b.qp.state()), (State::ReadyToSend, State::Error));
    assert_eq!((a.counters.qp_errors, b.counters.operation_errors), (1, 1));
    let late = SendOp::Send { data: Payload::Inline(b"late"), imm: None };
    a.post(3, late, false).unwrap();
    assert_eq!(a.log.sends.last().unwrap().0.status, flushed);
    // An error of the send queue does not affect receiving, and ends when the owner resumes.
    a.recv(4, 1 << 30, 100);
    a.receive(&packet(Operation::SendOnly, 0, Ext::None, b"data"));
    assert_eq!(a.received(), [(4, 4, None)]);
    a.qp.resume_sending();
    a.post(5, late, false).unwrap();
    assert!(Frame::parse(&a.next_frame(0).unwrap()).unwrap().icrc_ok());
    assert_eq!(a.log.sends.last().unwrap().0.status, Status::Success);
}

#[test]
fn only_what_the_service_has_is_posted() {
    let [mut a, _] = End::pair();
    let remote = RemoteAddr { addr: IoAddr(BASE), key: KEY };
    let result = IoAddr(BASE);
    for op in [
        SendOp::Read { into: &[], remote },
        SendOp::FetchAdd { result, remote, add: 1 },
        SendOp::CompareSwap { result, remote, compare: 1, swap: 2 },
        SendOp::SendInvalidate { data: Payload::Inline(b""), key: KEY },
    ] {
        assert_eq!(a.post(1, op, false), Err(VerbsError::Unsupported));
    }
    assert!(!a.qp.has_work());
    let limits =
        Limits { send_depth: 1, recv_depth: 1, max_sge: 1, max_inline: 1, max_rd_atomic: 0, max_window: 0 };
    a.qp = UnreliableQp::new(QpNum::new(1), &limits);
    assert_eq!(
        a.post(1, SendOp::Send { data: Payload::Inline(b""), imm: None }, false),
        Err(VerbsError::InvalidState)
    );
}
