//! Both services over every link, the contents of frames, and dropped packets.

use crate::common;
use crate::common::{Options, Pair, address, drain, pattern, wr};
use roce::wire::{Bth, Deth, Ecn, Ethernet, Ext, Frame, Headers, Net, Opcode, Packet, Udp};
use verbs::{
    AddressVector, Completion, CqId, GRH_LEN, Gid, LinkKind, PathMtu, Payload, Psn, QKey, QpNum, QpOptions,
    RecvWr, RemoteKey, SendOp, Sge, Status, UdOptions, UdQp, UdSendWr, VerbsError, WorkKind, WrId,
};

/// The frame formats: RoCEv2 over IPv4 and IPv6, RoCEv1 with both kinds of GID.
const LINKS: [(LinkKind, bool); 4] = [
    (LinkKind::RoceV2, false),
    (LinkKind::RoceV2, true),
    (LinkKind::RoceV1, false),
    (LinkKind::RoceV1, true),
];
const QKEY: QKey = QKey(0x0fed_cba9);

/// Makes a pair with a datagram queue pair on each node, which completes into the node's queues.
fn datagrams(options: &Options) -> (Pair, [UdQp; 2]) {
    let pair = Pair::new(options);
    let qps = pair.nodes.each_ref().map(|node| {
        let (send_cq, recv_cq) = (node.cq, node.recv_cq);
        let options = UdOptions { send_cq, recv_cq, send_depth: 16, recv_depth: 16, qkey: QKEY };
        node.rnic.create_ud_qp(options).unwrap()
    });
    pair.wire.lock().unwrap().log = Some(Vec::new());
    (pair, qps)
}

fn receive(pair: &Pair, side: usize, qp: UdQp, id: u64, offset: u64, len: u32) {
    let node = &pair.nodes[side];
    let scatter = [Sge { addr: node.at(offset), len }];
    node.rnic.post_recv(qp.number(), &[RecvWr { id: WrId(id), scatter: &scatter }]).unwrap();
}

fn datagram<'a>(pair: &Pair, to: usize, qp: UdQp, link: LinkKind, data: Payload<'a>) -> UdSendWr<'a> {
    let to = address(&pair.nodes[to], link);
    let (id, remote_qp) = (WrId(1), qp.number());
    UdSendWr { id, to, remote_qp, qkey: QKEY, data, imm: None, signaled: true, solicited: false }
}

fn logged(pair: &Pair) -> Vec<Vec<u8>> {
    let log = pair.wire.lock().unwrap().log.replace(Vec::new()).unwrap();
    log.into_iter().map(|(_, frame)| frame).collect()
}

/// Returns traffic class and hop limit on the wire.
fn class_and_hops(net: &Net) -> (u8, u8) {
    match net {
        Net::V4(ip, _) => (ip.tos, ip.ttl),
        Net::V6(ip, _) | Net::Grh(ip) => (ip.traffic_class, ip.hop_limit),
        Net::InfiniBand(..) => panic!("a software RNIC has no InfiniBand"),
    }
}

fn is_of(headers: &Headers, link: LinkKind, ipv6: bool) -> bool {
    match (headers.ethernet.ethertype, headers.net) {
        (0x0800, Net::V4(..)) => link == LinkKind::RoceV2 && !ipv6,
        (0x86dd, Net::V6(..)) => link == LinkKind::RoceV2 && ipv6,
        (0x8915, Net::Grh(_)) => link == LinkKind::RoceV1,
        _ => false,
    }
}

#[test]
fn datagrams_over_every_link() {
    for (link, ipv6) in LINKS {
        let (pair, [from, to]) = datagrams(&Options { link, ipv6, ..Options::default() });
        let [a, b] = &pair.nodes;
        // The port's MTU is the length of the longest message.
        let sizes = [0u32, 1, 8, 1023, 4096];
        for (id, &len) in (0..).zip(&sizes) {
            receive(&pair, 1, to, id, id << 16, len + GRH_LEN);
            a.put(0, &pattern(len as usize, id as u8));
            let gather = [
                Sge { addr: a.at(0), len: len / 2 },
                Sge { addr: a.at(u64::from(len / 2)), len: len - len / 2 },
            ];
            let mut work = datagram(&pair, 1, to, link, Payload::Gather(&gather));
            work.imm = (id % 2 == 1).then_some(id as u32);
            (work.to.traffic_class, work.to.hop_limit) = (0xa0 | id as u8 & 3, 30 + id as u8);
            a.rnic.post_send_ud(from, &[work]).unwrap();
            pair.run();
        }
        assert!(pair.sends(0).iter().all(|c| (c.status, c.kind) == (Status::Success, WorkKind::Send)));
        let got = pair.recvs(1);
        let frames = logged(&pair);
        assert_eq!((got.len(), frames.len()), (sizes.len(), sizes.len()), "nobody acknowledges a datagram");
        for ((id, &len), (completion, bytes)) in (0..).zip(&sizes).zip(got.iter().zip(&frames)) {
            let expected = Completion {
                byte_len: len + GRH_LEN,
                imm: (id % 2 == 1).then_some(id as u32),
                src_qp: Some(from.number()),
                ..Completion::new(WrId(id), to.number(), Status::Success, WorkKind::Recv)
            };
            assert_eq!(*completion, expected);
            let frame = Frame::parse(bytes).unwrap();
            assert!(is_of(&frame.headers, link, ipv6), "{:?}", frame.headers);
            assert_eq!(class_and_hops(&frame.headers.net), (0xa0 | id as u8 & 3, 30 + id as u8));
            // The bytes before the message are the network header of the frame.
            let header = &bytes[Ethernet::LEN..];
            let origin = match frame.headers.net {
                Net::V4(..) => [&[0; 20], &header[..20]].concat(),
                Net::V6(..) | Net::Grh(_) => header[..40].to_vec(),
                Net::InfiniBand(..) => panic!("a software RNIC has no InfiniBand"),
            };
            assert_eq!(b.get(id << 16, 40), origin);
            assert_eq!(b.get((id << 16) + 40, len as usize), pattern(len as usize, id as u8));
        }
    }
}

#[test]
fn connections_carry_class_and_hops_over_every_link() {
    for (link, ipv6) in LINKS {
        for (class, hops) in [(0, 64), (0x62, 1), (0xff, 255)] {
            let options = Options { link, ipv6, traffic_class: class, hop_limit: hops, ..Options::default() };
            let pair = Pair::new(&options);
            pair.wire.lock().unwrap().log = Some(Vec::new());
            let [a, b] = &pair.nodes;
            a.put(0, b"by any link");
            let list = [Sge { addr: a.at(0), len: 11 }];
            a.send(1, SendOp::Write { data: Payload::Gather(&list), remote: b.remote(64), imm: None });
            a.send(2, SendOp::Read { into: &list, remote: b.remote(64) });
            assert!(pair.finish(0).iter().all(|c| c.status == Status::Success));
            assert_eq!(b.get(64, 11), b"by any link");
            let frames = logged(&pair);
            assert!(frames.len() >= 3);
            for bytes in &frames {
                let frame = Frame::parse(bytes).unwrap();
                assert!(is_of(&frame.headers, link, ipv6) && frame.icrc_ok());
                assert_eq!(class_and_hops(&frame.headers.net), (class, hops));
            }
        }
    }
}

#[test]
fn a_mark_on_the_way_is_seen_and_harms_nothing() {
    for (link, ipv6) in LINKS {
        let options = Options { link, ipv6, traffic_class: Ecn::Capable0 as u8, ..Options::default() };
        let pair = Pair::new(&options);
        let [a, b] = &pair.nodes;
        pair.wire.lock().unwrap().cut = true;
        pair.wire.lock().unwrap().log = Some(Vec::new());
        a.send(1, SendOp::Write { data: Payload::Inline(b"marked"), remote: b.remote(0), imm: None });
        pair.settle();
        let sent = logged(&pair).remove(0);
        // A switch changes the code point and the checksum over it. The ICRC does not cover them.
        let frame = Frame::parse(&sent).unwrap();
        let mut headers = frame.headers;
        match &mut headers.net {
            Net::V4(ip, _) => ip.tos = Ecn::CongestionExperienced.set(ip.tos),
            Net::V6(ip, _) | Net::Grh(ip) => {
                ip.traffic_class = Ecn::CongestionExperienced.set(ip.traffic_class);
            }
            Net::InfiniBand(..) => panic!("a software RNIC has no InfiniBand"),
        }
        let Packet { bth, ext, payload } = frame.packet;
        let mut marked = vec![0; sent.len()];
        headers.emit(&bth, &ext, payload.len(), &mut marked, |to| to.copy_from_slice(payload)).unwrap();
        assert_eq!(marked[marked.len() - 4..], sent[sent.len() - 4..], "the same ICRC");
        pair.wire.lock().unwrap().inject(0, pair.now(), marked);
        pair.settle();
        assert_eq!(b.get(0, 6), b"marked");
        assert_eq!(b.counter("rx_ecn_marked"), u64::from(link == LinkKind::RoceV2));
    }
}

#[test]
fn datagrams_that_are_dropped_are_counted() {
    let (pair, [from, to]) = datagrams(&Options::default());
    let [a, b] = &pair.nodes;
    let send = |work: UdSendWr<'_>| {
        a.rnic.post_send_ud(from, &[work]).unwrap();
        pair.run();
        logged(&pair).pop().unwrap()
    };
    let good = datagram(&pair, 1, to, LinkKind::RoceV2, Payload::Inline(b"good"));
    let frame = send(good);
    receive(&pair, 1, to, 1, 0, 43);
    send(good);
    send(UdSendWr { qkey: QKey(QKEY.0 ^ 1), ..good });
    send(UdSendWr { remote_qp: QpNum::new(to.number().get() ^ 0x4000), ..good });
    // A datagram to a connected queue pair, and a connected packet to a datagram queue pair.
    send(UdSendWr { remote_qp: b.qp, ..good });
    let inject = |bth: Bth, ext: Ext| {
        let headers = Frame::parse(&frame).unwrap().headers;
        let mut out = vec![0; headers.frame_len(&ext, 4)];
        headers.emit(&bth, &ext, 4, &mut out, |to| to.copy_from_slice(b"evil")).unwrap();
        pair.wire.lock().unwrap().inject(0, pair.now(), out);
        pair.settle();
    };
    let bth = Frame::parse(&frame).unwrap().packet.bth;
    let deth = Ext::Deth(Deth { qkey: QKEY.0, reserved: 0, src_qp: from.number() });
    inject(Bth { opcode: Opcode::from_byte(4).unwrap(), ..bth }, Ext::None);
    inject(Bth { pkey: 0x8001, ..bth }, deth);
    inject(Bth { version: 1, ..bth }, deth);
    let dropped = [
        ("rx_no_receive", 1),
        ("rx_too_long", 1),
        ("rx_bad_qkey", 1),
        ("rx_unknown_qp", 1),
        ("rx_wrong_service", 2),
        ("rx_bad_pkey", 1),
        ("rx_malformed", 1),
    ];
    assert_eq!(dropped.map(|(name, _)| (name, b.counter(name))), dropped);
    assert_eq!(pair.sends(0).len(), 5, "the sender does not know");
    assert_eq!((b.get(0, 64), pair.recvs(1).len()), (vec![0; 64], 0));
    // Limited membership of the partition suffices, and the receive fits.
    receive(&pair, 1, to, 2, 0, 44);
    b.rnic.destroy_qp(b.qp).unwrap();
    inject(Bth { pkey: 0x7fff, ..bth }, deth);
    let got: Vec<_> = pair.recvs(1).iter().map(|c| (c.id.0, c.status)).collect();
    assert_eq!(got, [], "the oldest receive is the one of 43 bytes");
    assert_eq!(b.counter("rx_too_long"), 2);
}

#[test]
fn datagrams_within_the_rnic() {
    for (link, ipv6) in LINKS {
        let (pair, [from, _]) = datagrams(&Options { ipv6, ..Options::default() });
        let node = &pair.nodes[0];
        let (send_cq, recv_cq) = (node.cq, node.recv_cq);
        let options = UdOptions { send_cq, recv_cq, send_depth: 4, recv_depth: 4, qkey: QKey(7) };
        let other = node.rnic.create_ud_qp(options).unwrap();
        receive(&pair, 0, other, 1, 0, 100);
        receive(&pair, 0, from, 2, 4096, 100);
        let work =
            UdSendWr { qkey: QKey(7), ..datagram(&pair, 0, other, link, Payload::Inline(b"next door")) };
        let own = datagram(&pair, 0, from, link, Payload::Inline(b"myself"));
        node.rnic.post_send_ud(from, &[work, own, UdSendWr { remote_qp: node.qp, ..own }]).unwrap();
        pair.run();
        let got: Vec<_> = pair.recvs(0).iter().map(|c| (c.id.0, c.byte_len, c.src_qp)).collect();
        assert_eq!(got, [(1, 49, Some(from.number())), (2, 46, Some(from.number()))]);
        assert_eq!((node.get(40, 9), node.get(4096 + 40, 6)), (b"next door".to_vec(), b"myself".to_vec()));
        // The origin names the node itself.
        let gid = node.rnic.attributes().port.gid;
        let source = match gid.ipv4() {
            Some(ip) if link == LinkKind::RoceV2 => {
                assert_eq!(node.get(32, 4), ip);
                gid
            }
            _ => Gid(node.get(8, 16).try_into().unwrap()),
        };
        assert_eq!((source, logged(&pair).len(), node.counter("rx_wrong_service")), (gid, 0, 1));
    }
}

#[test]
fn what_cannot_be_posted_is_refused() {
    let (pair, [from, to]) = datagrams(&Options::default());
    let node = &pair.nodes[0];
    let good = datagram(&pair, 1, to, LinkKind::RoceV2, Payload::Inline(b"good"));
    let long = [Sge { addr: node.at(0), len: 4097 }];
    let native = AddressVector { link: LinkKind::InfiniBand, ..good.to };
    let mut mixed = good.to;
    mixed.peer.gid = Gid([0xfe; 16]);
    for (work, error) in [
        (UdSendWr { data: Payload::Gather(&long), ..good }, VerbsError::InvalidArgument),
        (UdSendWr { to: native, ..good }, VerbsError::InvalidArgument),
        (UdSendWr { to: mixed, ..good }, VerbsError::InvalidArgument),
    ] {
        assert_eq!(node.rnic.post_send_ud(from, &[good, work, good]), Err((1, error)));
    }
    // Neither service accepts the other's work; a datagram queue pair cannot be connected.
    let send = wr(1, SendOp::Send { data: Payload::Inline(b"x"), imm: None });
    assert_eq!(node.rnic.post_send(from.number(), &[send]), Err((0, VerbsError::InvalidArgument)));
    assert_eq!(node.rnic.post_send_ud(UdQp::new(node.qp), &[good]), Err((0, VerbsError::InvalidArgument)));
    let nobody = UdQp::new(QpNum::new(0xf00));
    assert_eq!(node.rnic.post_send_ud(nobody, &[good]), Err((0, VerbsError::NotFound)));
    let connect = pair.connect(0, &Options::default());
    assert_eq!(node.rnic.connect_qp(from.number(), &connect), Err(VerbsError::InvalidArgument));
    let options = UdOptions { send_cq: CqId(99), recv_cq: node.cq, send_depth: 1, recv_depth: 1, qkey: QKEY };
    assert_eq!(node.rnic.create_ud_qp(options), Err(VerbsError::NotFound));
    let options = UdOptions { send_cq: node.cq, send_depth: 0, ..options };
    assert_eq!(node.rnic.create_ud_qp(options), Err(VerbsError::InvalidArgument));
    // Three were valid. Destroyed, the queue pair completes nothing and no longer exists.
    receive(&pair, 0, from, 7, 0, 100);
    node.rnic.destroy_qp(from.number()).unwrap();
    let flushed = Status::WorkRequestFlushed;
    assert_eq!(pair.sends(0).iter().map(|c| c.status).collect::<Vec<_>>(), [flushed; 3]);
    assert_eq!(pair.recvs(0).iter().map(|c| (c.id.0, c.status)).collect::<Vec<_>>(), [(7, flushed)]);
    assert_eq!(node.rnic.post_send_ud(from, &[good]), Err((0, VerbsError::NotFound)));
    pair.run();
    assert_eq!(logged(&pair).len(), 0);
}

#[test]
fn many_datagrams_both_ways_beside_a_connection() {
    let (pair, qps) = datagrams(&Options { transmit_ring: 3, ..Options::default() });
    for side in 0..2 {
        let (node, peer) = (&pair.nodes[side], &pair.nodes[1 - side]);
        for id in 0..16 {
            receive(&pair, side, qps[side], id, (id << 13) + 0x10_0000, 4096 + GRH_LEN);
        }
        node.put(0, &pattern(65536, side as u8));
        let list = [Sge { addr: node.at(0), len: 65536 }];
        node.send(
            99,
            SendOp::Write { data: Payload::Gather(&list), remote: peer.remote(0x40_0000), imm: None },
        );
        for id in 0..16 {
            let piece = [Sge { addr: node.at(id << 12), len: 4096 }];
            let work = datagram(&pair, 1 - side, qps[1 - side], LinkKind::RoceV2, Payload::Gather(&piece));
            node.rnic.post_send_ud(qps[side], &[work]).unwrap();
        }
    }
    pair.run();
    for side in 0..2 {
        let (node, data) = (&pair.nodes[side], pattern(65536, 1 - side as u8));
        let got: Vec<_> = pair.recvs(side).iter().map(|c| (c.id.0, c.status)).collect();
        assert_eq!(got, (0..16).map(|id| (id, Status::Success)).collect::<Vec<_>>());
        for id in 0..16usize {
            let at = ((id as u64) << 13) + 0x10_0000 + 40;
            assert!(node.get(at, 4096) == data[id << 12..(id + 1) << 12], "{id}");
        }
        assert!(node.get(0x40_0000, 65536) == data);
        assert_eq!(pair.sends(side).len(), 17);
    }
}

#[test]
fn the_one_key_is_not_for_peers_to_invalidate() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    for id in 0..3 {
        b.recv(id, 0, 64);
        b.send(10 + id, SendOp::Read { into: &[Sge { addr: b.at(0), len: 4 }], remote: a.remote(0) });
    }
    pair.run();
    assert_eq!(pair.sends(1).len(), 3);
    let key = b.rnic.memory_key().rkey;
    for (id, key) in [(1, key), (2, RemoteKey(key.0 ^ 1))] {
        a.send(id, SendOp::SendInvalidate { data: Payload::Inline(b"let go"), key });
    }
    a.send(3, SendOp::Write { data: Payload::Inline(b"never"), remote: b.remote(512), imm: None });
    let ended = |c: Vec<Completion>| c.iter().map(|c| (c.id.0, c.status)).collect::<Vec<_>>();
    let flushed = Status::WorkRequestFlushed;
    // Everything outstanding completes, in order, at both ends.
    assert_eq!(ended(pair.finish(0)), [(1, Status::RemoteAccessError), (2, flushed), (3, flushed)]);
    assert_eq!(ended(pair.recvs(1)), [(0, Status::RemoteInvalidRequest), (1, flushed), (2, flushed)]);
    assert_eq!(b.get(512, 5), [0; 5]);
    // The key is still valid for others.
    let options = QpOptions { send_cq: a.cq, recv_cq: a.recv_cq, send_depth: 4, recv_depth: 4 };
    let next = [a, b].map(|node| {
        let (send_cq, recv_cq) = (node.cq, node.recv_cq);
        node.rnic.create_qp(QpOptions { send_cq, recv_cq, ..options }).unwrap()
    });
    for (side, node) in [a, b].into_iter().enumerate() {
        let mut connect = pair.connect(side, &Options::default());
        connect.remote_qp = next[1 - side];
        node.rnic.connect_qp(next[side], &connect).unwrap();
    }
    let write = SendOp::Write { data: Payload::Inline(b"again"), remote: b.remote(512), imm: None };
    a.rnic.post_send(next[0], &[wr(4, write)]).unwrap();
    pair.run();
    assert_eq!(
        (ended(drain(&*a.rnic, a.cq)), b.get(512, 5)),
        (vec![(4, Status::Success)], b"again".to_vec())
    );
}

#[test]
fn outstanding_work_ends_in_order_at_both_ends() {
    let pair = Pair::new(&Options { mtu: PathMtu::B256, ..Options::default() });
    let [a, b] = &pair.nodes;
    for side in 0..2 {
        for id in 0..4 {
            pair.nodes[side].recv(id, 0, 1000);
        }
    }
    let list = [Sge { addr: a.at(0x1000), len: 1000 }];
    let data = Payload::Gather(&list);
    let mut bad = b.remote(0);
    bad.key = RemoteKey(bad.key.0 ^ 1);
    a.send(1, SendOp::Send { data, imm: None });
    a.send(2, SendOp::FetchAdd { result: a.at(0x2000), remote: b.remote(0x3000), add: 1 });
    a.send(3, SendOp::Write { data, remote: bad, imm: None });
    a.send(4, SendOp::Read { into: &list, remote: b.remote(0) });
    a.send(5, SendOp::Send { data, imm: None });
    // The peer has work in flight too, which gets no response.
    b.send(6, SendOp::Send { data: Payload::Gather(&[Sge { addr: b.at(0), len: 64 }]), imm: None });
    b.send(7, SendOp::Read { into: &[Sge { addr: b.at(0), len: 1000 }], remote: a.remote(0) });
    pair.run();
    let ended = |c: Vec<Completion>| c.iter().map(|c| (c.id.0, c.status)).collect::<Vec<_>>();
    let (ok, flushed) = (Status::Success, Status::WorkRequestFlushed);
    let refused = Status::RemoteAccessError;
    assert_eq!(ended(pair.sends(0)), [(1, ok), (2, ok), (3, refused), (4, flushed), (5, flushed)]);
    assert_eq!(ended(pair.recvs(1)), [(0, ok), (1, flushed), (2, flushed), (3, flushed)]);
    let sends = ended(pair.sends(1));
    assert_eq!(sends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [6, 7]);
    assert_eq!(sends[1].1, flushed);
    let recvs = ended(pair.recvs(0));
    assert_eq!(recvs.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(recvs[1..].iter().all(|(_, status)| *status == flushed));
    // Later work completes at once.
    a.recv(8, 0, 8);
    b.send(9, SendOp::Send { data: Payload::Inline(b"late"), imm: None });
    assert_eq!((ended(pair.recvs(0)), ended(pair.sends(1))), (vec![(8, flushed)], vec![(9, flushed)]));
    // Packets for it are counted, and change nothing.
    let before = b.counter("rx_wrong_state");
    let headers = Headers {
        ethernet: Ethernet { dst: common::mac(1), src: common::mac(0), ethertype: 0x0800 },
        net: Net::V4(
            roce::wire::Ipv4 {
                tos: 0,
                id: 0,
                flags_fragment: 0,
                ttl: 64,
                protocol: Udp::PROTOCOL,
                src: [10, 0, 0, 1],
                dst: [10, 0, 0, 2],
            },
            Udp { src: 0xc000, dst: roce::wire::ROCE_PORT, checksum: 0 },
        ),
    };
    let reth = roce::wire::Reth { addr: b.at(0x5000), key: b.rnic.memory_key().rkey, len: 4 };
    let bth = Bth::new(Opcode::rc(roce::wire::Operation::WriteOnly), b.qp, Psn::new(0x0a_0b0c + 9));
    let mut out = vec![0; headers.frame_len(&Ext::Reth(reth), 4)];
    headers.emit(&bth, &Ext::Reth(reth), 4, &mut out, |to| to.copy_from_slice(b"evil")).unwrap();
    pair.wire.lock().unwrap().inject(0, pair.now(), out);
    pair.run();
    assert_eq!((b.counter("rx_wrong_state") - before, b.get(0x5000, 4)), (1, vec![0; 4]));
}
