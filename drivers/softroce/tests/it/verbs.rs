//! Every verb between two software RNICs, at every path MTU, over good and bad wires.

use crate::common::{Faults, Options, Pair, pattern};
use verbs::{LinkKind, PathMtu, Payload, SendOp, Sge, Status, WorkKind};

/// Does one work request of each verb with a message of `len` bytes, and checks everything.
fn all_verbs(pair: &Pair, len: usize) {
    let [a, b] = &pair.nodes;
    let (far, back) = (2 << 20, 4 << 20);
    let data = pattern(len, 0x5a);
    a.put(0, &data);
    let list = [
        Sge { addr: a.at(0), len: len as u32 / 3 },
        Sge { addr: a.at(len as u64 / 3), len: (len - len / 3) as u32 },
    ];
    let gather = Payload::Gather(&list);
    b.recv(100, 0, len as u32 + 5);
    b.recv(101, 0x30_0000, len as u32);
    b.recv(102, 0, 0);
    a.send(1, SendOp::Write { data: gather, remote: b.remote(far), imm: None });
    a.send(2, SendOp::Read { into: &[Sge { addr: a.at(back), len: len as u32 }], remote: b.remote(far) });
    a.send(3, SendOp::Send { data: gather, imm: None });
    a.send(4, SendOp::Send { data: gather, imm: Some(0x1234_5678) });
    a.send(5, SendOp::Write { data: gather, remote: b.remote(0x50_0001), imm: Some(9) });
    b.put(0x70_0000, &40u64.to_ne_bytes());
    a.send(6, SendOp::FetchAdd { result: a.at(0x70_0000), remote: b.remote(0x70_0000), add: 2 });
    a.send(
        7,
        SendOp::CompareSwap { result: a.at(0x70_0008), remote: b.remote(0x70_0000), compare: 42, swap: 7 },
    );
    a.send(
        8,
        SendOp::CompareSwap { result: a.at(0x70_0010), remote: b.remote(0x70_0000), compare: 42, swap: 8 },
    );
    let sent = pair.finish(0);
    let ended: Vec<_> = sent.iter().map(|c| (c.id.0, c.status)).collect();
    assert_eq!(ended, (1..=8).map(|id| (id, Status::Success)).collect::<Vec<_>>());
    let got: Vec<_> = pair.recvs(1).iter().map(|c| (c.id.0, c.status, c.kind, c.byte_len, c.imm)).collect();
    let n = len as u32;
    assert_eq!(
        got,
        [
            (100, Status::Success, WorkKind::Recv, n, None),
            (101, Status::Success, WorkKind::Recv, n, Some(0x1234_5678)),
            (102, Status::Success, WorkKind::RecvWriteImm, n, Some(9)),
        ]
    );
    assert!(b.get(far, len) == data && b.get(0x50_0001, len) == data, "written");
    assert!(a.get(back, len) == data, "read");
    assert!(b.get(0, len) == data && b.get(0x30_0000, len) == data, "sent");
    assert_eq!(b.get(len as u64, 5), [0; 5], "nothing past the end");
    assert_eq!((a.word(0x70_0000), a.word(0x70_0008), a.word(0x70_0010)), (40, 42, 7));
    assert_eq!(b.word(0x70_0000), 7);
}

fn sizes(mtu: PathMtu) -> [usize; 8] {
    let m = mtu.bytes();
    [0, 1, m - 1, m, m + 1, 2 * m, 65536, 1 << 20]
}

#[test]
fn every_verb_at_every_size_and_mtu() {
    for mtu in PathMtu::ALL {
        for len in sizes(mtu) {
            let pair = Pair::new(&Options { mtu, ..Options::default() });
            all_verbs(&pair, len);
            for node in &pair.nodes {
                assert_eq!(node.counter("retransmits"), 0, "{mtu:?} {len}");
                assert_eq!(node.counter("rx_malformed"), 0);
            }
        }
    }
}

#[test]
fn every_verb_over_ipv6_and_roce_v1() {
    for (ipv6, link) in [(true, LinkKind::RoceV2), (false, LinkKind::RoceV1), (true, LinkKind::RoceV1)] {
        for len in [0, 1, 1024, 5000] {
            all_verbs(&Pair::new(&Options { ipv6, link, ..Options::default() }), len);
        }
    }
}

#[test]
fn every_verb_over_a_bad_wire() {
    let faults = Faults { loss: 10_000, duplicate: 10_000, reorder: 10_000, corrupt: 10_000 };
    let mut total = std::collections::BTreeMap::new();
    for mtu in PathMtu::ALL {
        for (seed, len) in (1..).zip(sizes(mtu)) {
            let pair = Pair::new(&Options { mtu, faults, seed, retries: 20, ..Options::default() });
            all_verbs(&pair, len);
            for node in &pair.nodes {
                node.rnic.counters(&mut |(name, n)| *total.entry(name).or_insert(0) += n);
            }
        }
    }
    // The wire was as bad as intended, and every remedy was used.
    for name in
        ["rx_icrc_errors", "rx_duplicates", "rx_out_of_sequence", "tx_naks", "retransmits", "timeouts"]
    {
        assert!(total[name] > 10, "{name}: {total:?}");
    }
}
