//! A peer that sends anything with a right ICRC: nothing panics, and nothing outside of the accessible memory
//! changes.

use crate::common::{MEMORY, Options, Pair, Random, mac, pattern};
use platform::IoAddr;
use proptest::prelude::*;
use roce::wire::{
    Aeth, AtomicEth, Bth, ETHERTYPE_IPV4, Ethernet, Ext, Headers, Ipv4, Net, Opcode, ROCE_PORT, Reth,
    Syndrome, Udp,
};
use verbs::{Payload, Psn, QpNum, RemoteKey, SendOp, Sge};

/// Makes a frame from node 0 to node 1.
fn frame(bth: &Bth, ext: &Ext, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let ip = Ipv4 { tos: 0, id: 0, flags_fragment: 0x4000, ttl: 64, protocol: Udp::PROTOCOL, src, dst };
    let ethernet = Ethernet { dst: mac(1), src: mac(0), ethertype: ETHERTYPE_IPV4 };
    let headers = Headers { ethernet, net: Net::V4(ip, Udp { src: 0xc000, dst: ROCE_PORT, checksum: 0 }) };
    let mut out = vec![0; headers.frame_len(ext, payload.len())];
    headers.emit(bth, ext, payload.len(), &mut out, |to| to.copy_from_slice(payload)).unwrap();
    out
}

/// Makes a random packet that passes many checks: PSNs near the expected ones, addresses near memory, lengths
/// near the MTU.
fn packet(random: &mut Random, qp: QpNum, key: RemoteKey, base: u64, psn: [u32; 2]) -> Vec<u8> {
    let opcode = loop {
        if let Some(opcode) = Opcode::from_byte(random.below(24) as u8) {
            break opcode;
        }
    };
    let near = if opcode.operation.is_response() { psn[1] } else { psn[0] };
    let psn = near.wrapping_add(random.below(6) as u32).wrapping_sub(random.below(3) as u32);
    let mut bth = Bth::new(opcode, qp, Psn::new(psn));
    bth.ack_request = random.below(2) == 0;
    let len = [0, 1, 2, 1023, 1024, 1025, 4096][random.below(7) as usize];
    // Only the first MB of memory is ever named.
    let addr = IoAddr(match random.below(4) {
        0 => base.wrapping_sub(random.below(2000)),
        _ => base + random.below(1 << 19),
    });
    let key = if random.below(8) == 0 { RemoteKey(key.0 ^ 4) } else { key };
    let dma = [len as u32, random.below(1 << 19) as u32, u32::MAX, 1 << 31][random.below(8).min(3) as usize];
    let aeth = Aeth { syndrome: Syndrome::from_byte(random.next() as u8), msn: random.next() as u32 };
    // The headers of the operation, by parsing random ones.
    let (ext, _) = Ext::parse(opcode, &[0; 64]).unwrap();
    let imm = random.next() as u32;
    let ext = match ext {
        Ext::Reth(_) => Ext::Reth(Reth { addr, key, len: dma }),
        Ext::RethImm(..) => Ext::RethImm(Reth { addr, key, len: dma }, imm),
        Ext::Imm(_) => Ext::Imm(imm),
        Ext::Aeth(_) => Ext::Aeth(aeth),
        Ext::AtomicAck(..) => Ext::AtomicAck(aeth, random.next()),
        Ext::Atomic(_) => {
            let addr = IoAddr(if random.below(4) == 0 { addr.0 } else { addr.0 & !7 });
            Ext::Atomic(AtomicEth { addr, key, swap_add: random.next(), compare: random.below(2) })
        }
        other => other,
    };
    frame(&bth, &ext, &pattern(len, imm as u8))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_packets(seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let first = random.below(1 << 24) as u32;
        let pair = Pair::new(&Options { psn: [first, 0xff_fffe], ..Options::default() });
        let node = &pair.nodes[1];
        let kept = pattern((MEMORY - (3 << 20)) as usize, 1);
        node.put(3 << 20, &kept);
        // Own work, so that responses have a target; it reads from and receives into the third MB.
        let into = [Sge { addr: node.at(2 << 20), len: 5000 }];
        let data = Payload::Gather(&into);
        for id in 0..3 {
            node.recv(id, 2 << 20, 3000);
            node.send(4 * id, SendOp::Read { into: &into, remote: pair.nodes[0].remote(0) });
            node.send(4 * id + 1, SendOp::Write { data, remote: pair.nodes[0].remote(0), imm: None });
            let (result, remote) = (node.at(2 << 20), pair.nodes[0].remote(0));
            node.send(4 * id + 2, SendOp::FetchAdd { result, remote, add: 1 });
        }
        pair.wire.lock().unwrap().cut = true;
        let key = node.rnic.memory_key().rkey;
        for n in 0..200u32 {
            // PSNs near the peer's requests, and near the node's own.
            let psn = [first.wrapping_add(n / 20), 0xff_fffe_u32.wrapping_add(n / 20)];
            let bytes = packet(&mut random, node.qp, key, node.base, psn);
            pair.wire.lock().unwrap().inject(0, pair.now(), bytes);
            if random.below(4) == 0 {
                pair.settle();
            }
            if random.below(20) == 0 {
                pair.advance();
            }
        }
        pair.settle();
        prop_assert!(node.get(3 << 20, kept.len()) == kept);
        prop_assert_eq!(node.counter("rx_icrc_errors") + node.counter("rx_unknown_qp"), 0);
        // The queue pair can be destroyed like any other.
        node.rnic.destroy_qp(node.qp).unwrap();
        prop_assert!(pair.sends(1).len() <= 9 && pair.recvs(1).len() == 3);
    }

    #[test]
    fn any_bytes(seed in any::<u64>(), changes in proptest::collection::vec((0usize..100, any::<u8>()), 0..4)) {
        let mut random = Random::new(seed);
        let pair = Pair::new(&Options::default());
        let node = &pair.nodes[1];
        for _ in 0..20 {
            let mut bytes = packet(&mut random, node.qp, RemoteKey(0), 0, [0x0a_0b0c, 0x5a_0b0c]);
            for &(at, value) in &changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            bytes.truncate(random.below(2000) as usize);
            pair.wire.lock().unwrap().inject(0, pair.now(), bytes);
            pair.settle();
        }
        prop_assert_eq!(node.counter("rx_packets"), 20);
    }
}

#[test]
fn packets_from_elsewhere_do_not_count() {
    let pair = Pair::new(&Options::default());
    let node = &pair.nodes[1];
    let key = node.rnic.memory_key().rkey;
    let reth = Reth { addr: node.at(0), key, len: 4 };
    let write = Opcode::from_byte(10).unwrap();
    let good = Bth::new(write, node.qp, Psn::new(0x0a_0b0c));
    let inject = |frame: Vec<u8>| {
        pair.wire.lock().unwrap().inject(0, pair.now(), frame);
        pair.settle();
    };
    // Another queue pair, another service, another protocol version, another partition.
    inject(frame(&Bth { dest_qp: QpNum::new(node.qp.get() ^ 0x1000), ..good }, &Ext::Reth(reth), b"evil"));
    inject(frame(&Bth { opcode: Opcode::from_byte(0x2a).unwrap(), ..good }, &Ext::Reth(reth), b"evil"));
    inject(frame(&Bth { version: 1, ..good }, &Ext::Reth(reth), b"evil"));
    inject(frame(&Bth { pkey: 0x1234, ..good }, &Ext::Reth(reth), b"evil"));
    // Another port, and another source address; emitting the frame again corrects the ICRC.
    for change in [
        |h: &mut Headers| h.ethernet.dst.0[5] = 9,
        |h: &mut Headers| {
            if let Net::V4(ip, _) = &mut h.net {
                ip.src[3] = 77;
            }
        },
        |h: &mut Headers| {
            if let Net::V4(ip, _) = &mut h.net {
                ip.dst[3] = 77;
            }
        },
    ] {
        let bytes = frame(&good, &Ext::Reth(reth), b"evil");
        let parsed = roce::wire::Frame::parse(&bytes).unwrap();
        let mut headers = parsed.headers;
        change(&mut headers);
        let mut out = vec![0; bytes.len()];
        headers.emit(&good, &Ext::Reth(reth), 4, &mut out, |to| to.copy_from_slice(b"evil")).unwrap();
        inject(out);
    }
    assert_eq!(node.get(0, 4), [0; 4]);
    let dropped = [
        ("rx_unknown_qp", 1),
        ("rx_wrong_service", 1),
        ("rx_malformed", 1),
        ("rx_bad_pkey", 1),
        ("rx_wrong_peer", 1),
        ("rx_not_ours", 2),
    ];
    assert_eq!(dropped.map(|(name, _)| (name, node.counter(name))), dropped);
    inject(frame(&good, &Ext::Reth(reth), b"good"));
    assert_eq!(node.get(0, 4), b"good");
}
