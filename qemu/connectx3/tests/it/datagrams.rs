//! Datagrams between two cards and within one: the data before them, their completions, groups, special queue
//! pairs.

use connectx3_testdriver::driver::{Node, Queue, Setup, V1, V2, data, datagram, exchange};
use roce::wire::{Ext, Frame, Net};
use verbs::{Gid, MacAddr};

const SEND: u32 = 0x0a;
const SEND_IMM: u32 = 0x0b;
const QKEY: u32 = 0x1234;
const GRH: u64 = 40;
/// The flag for a tag in the first word of a datagram segment.
const TAGGED: u32 = 1 << 29;

fn datagrams(qkey: u32) -> Setup {
    Setup { service: 3, qkey, ..Setup::default() }
}

/// Creates two cards, each with a queue pair.
fn pair() -> ([Node; 2], [Queue; 2]) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let qa = a.connect_as(0x51, 0x81, &b, 0, datagrams(QKEY));
    let qb = b.connect_as(0x62, 0x92, &a, 0, datagrams(QKEY));
    ([a, b], [qa, qb])
}

fn nothing_lost(_: &[u8]) -> bool {
    false
}

/// Stores `bytes` in memory and returns their data segment.
fn message(node: &mut Node, bytes: &[u8]) -> [u32; 4] {
    let at = node.alloc(bytes.len() as u64);
    node.machine.put(at, bytes);
    data(at, bytes.len() as u32)
}

#[test]
fn both_versions_bring_what_a_driver_looks_for() {
    for row in [V1, V2] {
        let ([mut a, mut b], [mut qa, mut qb]) = pair();
        let text = message(&mut a, b"a datagram");
        let buffer = b.alloc(0x1000);
        b.post_receive(&mut qb, buffer, 200);
        let to = datagram(row, b.gid, b.mac, 0x62, QKEY);
        a.post_send(&mut qa, SEND_IMM, 0xabcd, &[&to[..], &text].concat());
        exchange(&mut a, &mut b, nothing_lost);
        assert_eq!(a.poll(&mut qa).map(|e| (e.wqe, e.opcode, e.syndrome)), Some((0, SEND_IMM as u8, 0)));
        let got = b.poll(&mut qb).unwrap();
        assert_eq!((got.opcode, got.imm, got.len, got.qpn), (2, 0xabcd, 50, 0x62));
        let entry = b.last_entry(&qb);
        assert_eq!(
            entry[8..12],
            [0x80, 0, 0, 0x51],
            "the header before it is valid, and this queue pair has sent it"
        );
        assert_eq!(entry[0x0e..0x14], a.mac.0);
        assert_eq!((entry[0], entry[0x0c..0x0e].to_vec()), (0, vec![0, 0]), "not tagged");
        assert_eq!(b.machine.bytes(buffer + GRH, 10), b"a datagram");
        let before = b.machine.bytes(buffer, GRH as usize);
        if row == V1 {
            assert_eq!((before[0] >> 4, before[6], before[7]), (6, 0x1b, 64));
            assert_eq!((&before[8..24], &before[24..40]), (&a.gid.0[..], &b.gid.0[..]));
        } else {
            assert_eq!((before[20], before[28], before[29]), (0x45, 64, 17));
            assert_eq!((&before[32..36], &before[36..40]), (&[10, 9, 0, 1][..], &[10, 9, 0, 2][..]));
        }
    }
}

#[test]
fn a_tag_is_carried_and_told() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let text = message(&mut a, b"tagged");
    let buffer = b.alloc(0x1000);
    b.post_receive(&mut qb, buffer, 200);
    let mut to = datagram(V2, b.gid, b.mac, 0x62, QKEY);
    to[0] |= TAGGED;
    to[10] = to[10] & 0xffff | 0x6064 << 16;
    a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
    let mut tags = Vec::new();
    exchange(&mut a, &mut b, |frame| {
        tags.push(frame[12..16].to_vec());
        false
    });
    assert_eq!(tags, [[0x81, 0, 0x60, 0x64]]);
    assert_eq!(b.poll(&mut qb).unwrap().len, 46);
    let entry = b.last_entry(&qb);
    assert_eq!((entry[0], entry[0x0c..0x0e].to_vec()), (0x20, vec![0x60, 0x64]));
    assert_eq!(b.machine.bytes(buffer + GRH, 6), b"tagged");
}

/// Without a tag, rdma-core leaves the tag's field uninitialized.
#[test]
fn without_its_flag_no_tag_is_put_in() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let text = message(&mut a, b"not tagged");
    let buffer = b.alloc(0x1000);
    b.post_receive(&mut qb, buffer, 200);
    let mut to = datagram(V2, b.gid, b.mac, 0x62, QKEY);
    to[10] = to[10] & 0xffff | 0x3c08 << 16;
    a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
    exchange(&mut a, &mut b, |frame| {
        assert_eq!(frame[12..14], [0x08, 0x00], "IPv4, and no tag");
        false
    });
    assert_eq!(b.machine.bytes(buffer + GRH, 10), b"not tagged");
}

#[test]
fn a_connection_on_a_vlan_tags_its_frames() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let mut qa = a.connect(0x51, 0x81, &b, 0x62);
    let mut qb = b.connect(0x62, 0x92, &a, 0x51);
    let context = |words: &[(usize, u32)]| words.iter().map(|&(o, w)| (o + 8, w)).collect::<Vec<_>>();
    let paths = [a.path_to(&b, 0x51, 0x62), b.path_to(&a, 0x62, 0x51)];
    for ((node, number), mut path) in [(&mut a, 0x51), (&mut b, 0x62)].into_iter().zip(paths) {
        // Row 2 of the VLAN table.
        node.command(0x00c, 1, 0x301, &[(8, 1 << 31 | 100)]);
        // SQD, a path on that VLAN with priority 5, and back.
        path.extend(context(&[(0x18, 1 << 30), (0x38, 0x8300_0000 | 5 << 27 | 2 << 16)]));
        path.push((0, 1 << 7));
        node.command(0x01f, 0, number, &[]);
        node.command(0x038, 0, number, &path);
        node.command(0x020, 0, number, &[]);
    }
    let text = message(&mut a, b"tagged");
    let buffer = b.alloc(0x1000);
    b.post_receive(&mut qb, buffer, 100);
    a.post_send(&mut qa, SEND, 0, &text);
    let mut tags = Vec::new();
    exchange(&mut a, &mut b, |frame| {
        tags.push(frame[12..16].to_vec());
        false
    });
    assert!(tags.len() > 1 && tags.iter().all(|tag| *tag == [0x81, 0, 0xa0, 100]), "{tags:02x?}");
    assert_eq!(a.poll(&mut qa).map(|e| e.syndrome), Some(0));
    assert_eq!(b.poll(&mut qb).map(|e| e.len), Some(6));
}

#[test]
fn keys_of_datagrams() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let text = message(&mut a, b"x");
    let buffer = b.alloc(0x1000);
    for _ in 0..3 {
        b.post_receive(&mut qb, buffer, 100);
    }
    // A wrong key is dropped silently; a key with the high bit stands for the sender's own.
    for qkey in [QKEY + 1, 0x8000_0000] {
        let to = datagram(V2, b.gid, b.mac, 0x62, qkey);
        a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
        exchange(&mut a, &mut b, nothing_lost);
        assert_eq!(a.poll(&mut qa).unwrap().syndrome, 0);
    }
    assert_eq!(b.poll(&mut qb).map(|e| e.wqe), Some(0), "a dropped datagram uses no receive");
    assert_eq!(b.poll(&mut qb), None);
    assert_eq!(b.card.transport_counters().rx_bad_qkey, 1);
    // RTS2RTS with a new key.
    b.command(0x01c, 0, 0x62, &[(0, 1 << 5), (8 + 0xa8, 7)]);
    let to = datagram(V2, b.gid, b.mac, 0x62, 7);
    a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(b.poll(&mut qb).map(|e| e.wqe), Some(1));
}

#[test]
fn a_bad_send_stops_the_send_queue_until_the_driver_resumes_it() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let text = message(&mut a, b"good");
    let buffer = b.alloc(0x1000);
    b.post_receive(&mut qb, buffer, 100);
    let to = datagram(V2, b.gid, b.mac, 0x62, QKEY);
    // A send longer than the MTU, then one that ends as flushed.
    let long = message(&mut a, &[7; 1025]);
    a.post_send(&mut qa, SEND, 0, &[&to[..], &long].concat());
    a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(a.poll(&mut qa).map(|e| (e.wqe, e.syndrome)), Some((0, 0x01)), "local length");
    assert_eq!(a.poll(&mut qa).map(|e| (e.wqe, e.syndrome)), Some((1, 0x05)), "flushed");
    a.command(0x022, 0, 0x51, &[]);
    assert_eq!(a.output(8) >> 28, 4, "send queue error");
    // The queue pair still receives.
    let from_b = message(&mut b, b"hello");
    let here = a.alloc(0x1000);
    a.post_receive(&mut qa, here, 100);
    let back = datagram(V2, a.gid, a.mac, 0x51, QKEY);
    b.post_send(&mut qb, SEND, 0, &[&back[..], &from_b].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(a.poll(&mut qa).map(|e| (e.send, e.len)), Some((false, 45)));
    a.command(0x01d, 0, 0x51, &[]);
    a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(a.poll(&mut qa).map(|e| (e.wqe, e.syndrome)), Some((2, 0)));
    assert!(b.poll(&mut qb).unwrap().send);
    assert_eq!(b.poll(&mut qb).unwrap().len, 44);
}

#[test]
fn traffic_within_a_card_stays_inside() {
    let ([mut a, mut b], [mut qa, _qb]) = pair();
    let mut other = a.connect_as(0x52, 0x82, &b, 0, datagrams(QKEY));
    let text = message(&mut a, b"inside");
    let buffer = a.alloc(0x1000);
    a.post_receive(&mut other, buffer, 200);
    let to = datagram(V1, a.gid, a.mac, 0x52, QKEY);
    a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
    exchange(&mut a, &mut b, |_| panic!("nothing goes to the wire"));
    assert_eq!(a.poll(&mut other).unwrap().len, 46);
    assert_eq!(a.machine.bytes(buffer + GRH, 6), b"inside");
    // A reliable connection within the card, with many packets in both directions.
    let me = (a.gid, a.mac);
    let mut mirror = Node::new(9);
    (mirror.gid, mirror.mac) = me;
    let mut near = a.connect(0x71, 0x171, &mirror, 0x72);
    let mut far = a.connect(0x72, 0x172, &mirror, 0x71);
    let (from, into) = (a.alloc(0x8000), a.alloc(0x8000));
    let bytes: Vec<u8> = (0..30_000u32).map(|i| (i % 253) as u8).collect();
    a.machine.put(from, &bytes);
    a.post_receive(&mut far, into, 0x8000);
    a.post_send(&mut near, SEND, 0, &data(from, 30_000));
    exchange(&mut a, &mut b, |_| panic!("nothing goes to the wire"));
    assert_eq!(a.poll(&mut near).unwrap().syndrome, 0);
    assert_eq!(a.poll(&mut far).unwrap().len, 30_000);
    assert_eq!(a.machine.bytes(into, 30_000), bytes);
}

#[test]
fn groups_get_what_is_sent_to_them_and_block_what_they_ask_to() {
    const BLOCK: u32 = 1 << 30;
    for (row, gid, mac) in [
        (V1, Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]), [0x33, 0x33, 239, 1, 2, 3]),
        (V2, Gid::from_ipv4([239, 1, 2, 3]), [0x01, 0x00, 0x5e, 1, 2, 3]),
    ] {
        let ([mut a, mut b], [mut qa, mut qb]) = pair();
        let mut second = a.connect_as(0x52, 0x82, &b, 0, datagrams(QKEY));
        let mut stranger = b.connect_as(0x63, 0x93, &a, 0, datagrams(QKEY));
        a.make_group(gid, &[0x51 | BLOCK, 0x52 | BLOCK]);
        b.make_group(gid, &[0x62]);
        let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
        a.post_receive(&mut qa, here, 100);
        a.post_receive(&mut second, here + 0x100, 100);
        b.post_receive(&mut qb, there, 100);
        b.post_receive(&mut stranger, there + 0x100, 100);
        let text = message(&mut a, b"to all");
        let to = datagram(row, gid, MacAddr(mac), 0xff_ffff, QKEY);
        a.post_send(&mut qa, SEND, 0, &[&to[..], &text].concat());
        exchange(&mut a, &mut b, nothing_lost);
        assert!(a.poll(&mut qa).unwrap().send);
        assert_eq!(a.poll(&mut qa), None, "its own message is not looped back");
        assert_eq!(
            a.poll(&mut second).map(|e| e.len),
            Some(46),
            "but is received by another queue pair of the card"
        );
        assert_eq!(b.poll(&mut qb).map(|e| e.len), Some(46));
        assert_eq!(b.last_entry(&qb)[8..12], [0x80, 0, 0, 0x51]);
        assert_eq!(b.poll(&mut stranger), None);
        assert_eq!(b.machine.bytes(there + GRH, 6), b"to all");
    }
}

/// Returns the work request that a driver builds for a management datagram: all headers, in pieces that do
/// not cross 64 bytes, and room for the ICRC.
fn management(frame: &[u8]) -> Vec<u32> {
    let inline = |bytes: &[u8]| -> Vec<u8> {
        let mut segment = (1u32 << 31 | bytes.len() as u32).to_be_bytes().to_vec();
        segment.extend_from_slice(bytes);
        segment.resize(segment.len().next_multiple_of(16), 0);
        segment
    };
    let mut segments = inline(&frame[..44]);
    segments.extend(inline(&frame[44..]));
    segments.extend(inline(&[0; 4]));
    segments.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn special_queue_pairs_send_what_the_driver_made_and_receive_as_number_one() {
    const CONF_SPECIAL_QP: u32 = 0x023;
    const BASE: u32 = 0x400;
    const GSI: u32 = BASE + 2;
    const GSI_QKEY: u32 = 0x8001_0000;
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    for node in [&mut a, &mut b] {
        node.command(CONF_SPECIAL_QP, 0, BASE, &[]);
    }
    let setup = Setup { service: 7, ..datagrams(GSI_QKEY) };
    let mut qa = a.connect_as(GSI, 0x81, &b, 0, setup);
    let mut qb = b.connect_as(GSI, 0x92, &a, 0, setup);
    // An ordinary queue pair sends the datagram as the card builds it; the frame serves as the pattern.
    let mut pattern = a.connect_as(0x51, 0x83, &b, 0, datagrams(GSI_QKEY));
    let text = message(&mut a, b"management data.");
    let to = datagram(V2, b.gid, b.mac, 1, GSI_QKEY);
    let there = b.alloc(0x1000);
    b.post_receive(&mut qb, there, 300);
    b.post_receive(&mut qb, there + 0x200, 300);
    a.post_send(&mut pattern, SEND, 0, &[&to[..], &text].concat());
    let mut made = Vec::new();
    exchange(&mut a, &mut b, |frame| {
        made = frame.to_vec();
        false
    });
    assert_eq!(b.poll(&mut qb).map(|e| (e.qpn, e.len)), Some((GSI, 56)));
    // The same datagram built by hand, from queue pair 1, with lengths and checks that the card must fill in.
    let len = made.len();
    made.truncate(len - 4);
    made[59..62].copy_from_slice(&[0, 0, 1]);
    a.post_send(&mut qa, SEND, 0, &management(&made));
    let mut sent = Vec::new();
    exchange(&mut a, &mut b, |frame| {
        sent.push(frame.to_vec());
        false
    });
    assert_eq!(a.poll(&mut qa).map(|e| (e.qpn, e.syndrome)), Some((GSI, 0)));
    let frame = Frame::parse(&sent[0]).unwrap();
    assert!(frame.icrc_ok() && sent[0].len() == len);
    assert!(matches!(frame.headers.net, Net::V4(..)));
    assert!(matches!(frame.packet.ext, Ext::Deth(deth) if deth.src_qp.get() == 1));
    assert_eq!(b.poll(&mut qb).map(|e| (e.wqe, e.len)), Some((1, 56)));
    assert_eq!(b.last_entry(&qb)[8..12], [0x80, 0, 0, 1]);
    assert_eq!(b.machine.bytes(there + 0x200 + GRH, 16), b"management data.");
    // Invalid contents of a frame stop the send queue.
    a.post_send(&mut qa, SEND, 0, &management(&[0; 60]));
    exchange(&mut a, &mut b, |_| panic!("nothing is sent"));
    assert_eq!(a.poll(&mut qa).map(|e| e.syndrome), Some(0x02));
}
