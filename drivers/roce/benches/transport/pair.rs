//! Two queue pairs back to back.

use platform::{Arena, Instant, IoAddr};
use roce::transport::{Completions, Counters, Env, Limits, MAX_RD_ATOMIC, OneKey, ReliableQp};
use roce::wire::{ETHERTYPE_IPV4, Ecn, Ethernet, Frame, Headers, Ipv4, Net, ROCE_PORT, Udp};
use std::time::Duration;
use verbs::{
    AddressVector, Completion, Gid, LinkKind, MacAddr, PathMtu, Payload, PortAddress, Psn, QpConnect, QpNum,
    RecvWr, RemoteAddr, RemoteKey, SendOp, SendWr, Sge, Status, WrId,
};

const KEY: RemoteKey = RemoteKey(0x1234);
const BASE: IoAddr = IoAddr(1 << 20);

/// The operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Write,
    Read,
    Send,
    FetchAdd,
}

impl Operation {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Send => "SEND",
            Self::FetchAdd => "FETCH_ADD",
        }
    }
}

/// The path of packets from one end to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// Packets go to the other end as parsed structures.
    Packets,
    /// Packets go to the other end as encoded frames, which the other end parses.
    Frames,
}

/// A sink that counts completions.
#[derive(Default)]
struct Done {
    sends: u64,
    recvs: u64,
}

impl Completions for Done {
    fn send_ended(&mut self, completion: &Completion, _report: bool) {
        assert_eq!(completion.status, Status::Success);
        self.sends += 1;
    }
    fn recv_ended(&mut self, completion: &Completion) {
        assert_eq!(completion.status, Status::Success);
        self.recvs += 1;
    }
}

/// A queue pair and its environment.
struct End {
    qp: ReliableQp,
    memory: Arena,
    counters: Counters,
    done: Done,
}

impl End {
    fn with<T>(&mut self, f: impl FnOnce(&mut ReliableQp, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            now: Instant::ZERO,
            memory: &self.memory,
            remote: &OneKey { key: KEY, memory: &self.memory },
            counters: &mut self.counters,
            completions: &mut self.done,
        };
        f(&mut self.qp, &mut env)
    }
}

/// Two connected queue pairs, each with its memory.
pub(crate) struct Pair {
    ends: [End; 2],
    via: Via,
    round: u32,
    buffer: Vec<u8>,
    /// The lengths of the frames of the last run.
    pub frame_lens: Vec<usize>,
}

impl Pair {
    pub(crate) fn new(via: Via) -> Self {
        let ends = [0u8, 1].map(|side| {
            let number = |side: u8| QpNum::new(0x100 + u32::from(side));
            let limits = Limits {
                send_depth: 64,
                recv_depth: 64,
                max_sge: 4,
                max_inline: 128,
                max_rd_atomic: MAX_RD_ATOMIC,
                max_window: 64,
            };
            let mut qp = ReliableQp::new(number(side), &limits);
            let mac = |side| MacAddr([2, 0, 0, 0, 0, side]);
            let ip = |side| [10, 0, 0, side];
            let gid = Gid::from_ipv4(ip(1 - side));
            let address = AddressVector {
                link: LinkKind::RoceV2,
                peer: PortAddress { mac: mac(1 - side), gid, lid: 0 },
                traffic_class: 0,
                hop_limit: 64,
                service_level: 0,
            };
            let connect = QpConnect {
                address,
                remote_qp: number(1 - side),
                send_psn: Psn::new(0),
                recv_psn: Psn::new(0),
                mtu: PathMtu::B4096,
                max_rd_atomic: 16,
                ack_timeout: Duration::from_secs(1),
                retries: 7,
                rnr_retries: 7,
                min_rnr_delay: Duration::from_millis(1),
            };
            let ethernet = Ethernet { dst: mac(1 - side), src: mac(side), ethertype: ETHERTYPE_IPV4 };
            let v4 = Ipv4 {
                tos: 0,
                id: 0,
                flags_fragment: Ipv4::DONT_FRAGMENT,
                ttl: 64,
                protocol: Udp::PROTOCOL,
                src: ip(side),
                dst: ip(1 - side),
            };
            let net = Net::V4(v4, Udp { src: 0xc000, dst: ROCE_PORT, checksum: 0 });
            qp.connect(&connect, Some(Headers { ethernet, net })).unwrap();
            End {
                qp,
                memory: Arena::new(BASE, 1 << 16),
                counters: Counters::default(),
                done: Done::default(),
            }
        });
        Self { ends, via, round: 0, buffer: vec![0; 5000], frame_lens: Vec::with_capacity(1024) }
    }

    /// Does `n` operations of `bytes` bytes at once, from posting to the last completion, and returns `n`.
    pub(crate) fn run(&mut self, operation: Operation, bytes: u32, n: u32) -> u64 {
        self.frame_lens.clear();
        let list = [Sge { addr: BASE, len: bytes }];
        let remote = RemoteAddr { addr: IoAddr(BASE.0 + 8192), key: KEY };
        let data = Payload::Gather(&list);
        let op = match operation {
            Operation::Write => SendOp::Write { data, remote, imm: None },
            Operation::Read => SendOp::Read { into: &list, remote },
            Operation::Send => SendOp::Send { data, imm: None },
            Operation::FetchAdd => SendOp::FetchAdd { result: BASE, remote, add: 1 },
        };
        let wr = SendWr { id: WrId(0), op, signaled: true, solicited: false, fence: false };
        let before = self.ends[0].done.sends;
        for _ in 0..n {
            if operation == Operation::Send {
                let work = RecvWr { id: WrId(0), scatter: &list };
                self.ends[1].with(|qp, env| qp.post_recv(&work, env)).unwrap();
            }
            self.ends[0].with(|qp, env| qp.post_send(&wr, env)).unwrap();
        }
        while self.ends[0].done.sends < before + u64::from(n) {
            self.round = self.round.wrapping_add(1);
            let moved = self.drain(0) + self.drain(1);
            // An acknowledgement waits for the next round.
            assert!(moved > 0 || self.ends[1].qp.has_work(), "the transport makes no progress");
        }
        let smooth =
            |end: &End| end.counters.retransmits + end.counters.rx_naks + end.counters.access_errors == 0;
        assert!(self.ends.iter().all(smooth), "something was sent twice or refused");
        u64::from(n)
    }

    /// Carries all packets of `side` to the other, and returns their number.
    fn drain(&mut self, side: usize) -> usize {
        let Self { ends: [a, b], via, round, buffer, frame_lens } = self;
        let (from, to) = if side == 0 { (a, b) } else { (b, a) };
        let mut moved = 0;
        while let Some(tx) = from.qp.next_tx(*round) {
            let remote = OneKey { key: KEY, memory: &from.memory };
            let packet = match via {
                Via::Packets => from.qp.loop_back(&tx, buffer, &from.memory, &remote).unwrap(),
                Via::Frames => {
                    let (len, good) = from.qp.emit(&tx, 0, buffer, &from.memory, &remote).unwrap();
                    assert!(good);
                    frame_lens.push(len);
                    let frame = Frame::parse(&buffer[..len]).unwrap();
                    assert!(frame.icrc_ok());
                    frame.packet
                }
            };
            from.with(|qp, env| qp.sent(&tx, env));
            to.with(|qp, env| qp.receive(&packet, Ecn::NotCapable, *round, env));
            moved += 1;
        }
        moved
    }
}
