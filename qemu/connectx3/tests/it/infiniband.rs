//! Two cards with InfiniBand ports on a cable. Each is configured by datagrams that the firmware answers
//! (MAD_IFC), as a subnet manager would do.

use connectx3_testdriver::driver::{Node, Queue, Setup, data, exchange, gid_words, remote};
use connectx3_testdriver::smp::{GET, NODE_INFO, PORT_INFO, SET, request, symbol_of};
use roce::wire::{Frame, Lrh, Net, Symbol};
use verbs::{Gid, MacAddr};

const WRITE: u32 = 0x08;
const SEND: u32 = 0x0a;
const KEY: u32 = connectx3_testdriver::driver::KEY;
const QKEY: u32 = 0x1234;
const GRH: u64 = 40;
const P_KEY_TABLE: u16 = 0x16;
/// States of a port.
const DOWN: u8 = 1;
const INIT: u8 = 2;
const ARMED: u8 = 3;
const ACTIVE: u8 = 4;

fn nothing_lost(_: &[u8]) -> bool {
    false
}

/// Runs MAD_IFC. Returns the answer's status and data.
fn ask(node: &mut Node, method: u8, attribute: u16, modifier: u32, set: &[u8]) -> (u16, [u8; 64]) {
    const MAD_IFC: u32 = 0x024;
    let mad = request(1, method, attribute, modifier, set);
    let words: Vec<_> = mad
        .chunks(4)
        .enumerate()
        .map(|(i, word)| (4 * i, u32::from_be_bytes(word.try_into().unwrap())))
        .collect();
    node.command(MAD_IFC, 3, 1, &words);
    let bytes: Vec<u8> = (0..32).flat_map(|i| node.output(4 * i).to_be_bytes()).collect();
    assert_eq!(bytes[3], 0x81);
    (u16::from_be_bytes([bytes[4], bytes[5]]), bytes[64..128].try_into().unwrap())
}

fn state(node: &mut Node) -> u8 {
    ask(node, GET, PORT_INFO, 1, &[]).1[32] & 0xf
}

/// Sets LIDs and, unless 0, the state.
fn configure(node: &mut Node, lid: u16, manager: u16, state: u8) {
    let mut info = ask(node, GET, PORT_INFO, 1, &[]).1;
    info[16..18].copy_from_slice(&lid.to_be_bytes());
    info[18..20].copy_from_slice(&manager.to_be_bytes());
    (info[32], info[33]) = (state, 0);
    assert_eq!(ask(node, SET, PORT_INFO, 1, &info).0, 0);
    node.lid = lid;
}

/// Creates two cards whose connected ports have trained their link.
fn trained() -> (Node, Node) {
    let (mut a, mut b) = (Node::infiniband(1), Node::infiniband(2));
    exchange(&mut a, &mut b, nothing_lost);
    (a, b)
}

/// Creates two cards whose ports are active, with LIDs 1 and 2.
fn active() -> (Node, Node) {
    let (mut a, mut b) = trained();
    for wanted in [ARMED, ACTIVE] {
        configure(&mut a, 1, 1, wanted);
        configure(&mut b, 2, 1, wanted);
    }
    (a, b)
}

/// Returns the port's own GID.
fn gid(node: &Node) -> Gid {
    let MacAddr([a, b, c, d, e, f]) = node.mac;
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f])
}

fn datagrams(qkey: u32) -> Setup {
    Setup { service: 3, qkey, ..Setup::default() }
}

/// Returns the words of a datagram segment to a LID at a service level, with a GRH if a GID is given.
fn to(lid: u16, level: u32, gid: Option<Gid>, qpn: u32) -> Vec<u32> {
    let global = if gid.is_some() { 0x80 << 16 } else { 0 };
    let mut words = vec![1 << 24, global | u32::from(lid), 64, level << 28];
    words.extend(gid_words(gid.unwrap_or(Gid([0; 16]))));
    words.extend([qpn, QKEY, 0, 0]);
    words
}

fn message(node: &mut Node, bytes: &[u8]) -> [u32; 4] {
    let at = node.alloc(bytes.len() as u64);
    node.machine.put(at, bytes);
    data(at, bytes.len() as u32)
}

#[test]
fn ports_find_each_other_and_a_manager_brings_them_up() {
    let mut a = Node::infiniband(1);
    assert_eq!(state(&mut a), DOWN);
    let (status, node) = ask(&mut a, GET, NODE_INFO, 0, &[]);
    assert_eq!((status, node[2], node[3]), (0, 1, 1), "a channel adapter of one port");
    let mut b = Node::infiniband(2);
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!((state(&mut a), state(&mut b)), (INIT, INIT));
    let mut bad = ask(&mut a, GET, PORT_INFO, 1, &[]).1;
    (bad[32], bad[33]) = (ACTIVE, 0);
    assert_eq!(ask(&mut a, SET, PORT_INFO, 1, &bad).0, 0x1c, "no LID, and not armed");
    assert_eq!(ask(&mut a, GET, PORT_INFO, 2, &[]).0, 0x1c, "no such port");
    for wanted in [ARMED, ACTIVE] {
        configure(&mut a, 7, 9, wanted);
        assert_eq!(state(&mut a), wanted);
    }
    assert_eq!(ask(&mut a, GET, PORT_INFO, 1, &[]).1[16..20], [0, 7, 0, 9]);
}

#[test]
fn a_partner_is_sought_until_it_is_there() {
    let (mut a, mut b) = (Node::infiniband(1), Node::infiniband(2));
    // Everything sent in the first second is lost.
    for _ in 0..10 {
        exchange(&mut a, &mut b, |_| true);
        for node in [&a, &b] {
            node.machine.advance(100_000_000);
        }
    }
    assert_eq!((state(&mut a), state(&mut b)), (DOWN, DOWN));
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!((state(&mut a), state(&mut b)), (INIT, INIT));
}

#[test]
fn the_driver_is_told_what_a_manager_changes() {
    const PORT_CHANGE: u8 = 0x09;
    const PORT_MANAGEMENT: u8 = 0x1d;
    let (mut a, mut b) = trained();
    let eq = a.create_eq(0, 6);
    assert_eq!(a.raw_command(0x012, 0, 0, 1 << PORT_CHANGE | 1 << PORT_MANAGEMENT).0, 0);
    let mut seen = 0;
    let mut next = |node: &Node| {
        let entry = node.machine.bytes(eq + 32 * seen, 32);
        seen += 1;
        (entry[31] >> 7 == 0).then_some(entry)
    };
    configure(&mut a, 5, 3, ARMED);
    let event = next(&a).unwrap();
    assert_eq!((event[1], event[3], event[7]), (PORT_MANAGEMENT, 0x15, 1));
    assert_eq!(event[8..12], [0, 3, 0, 5], "the manager's LID and the port's");
    assert_eq!(event[15], 0b101, "these have changed");
    configure(&mut a, 5, 3, ACTIVE);
    let event = next(&a).unwrap();
    assert_eq!((event[1], event[3], event[12] >> 4), (PORT_CHANGE, 4, 1));
    assert_eq!(ask(&mut a, SET, P_KEY_TABLE, 0, &[0xff, 0xff, 0x80, 0x10]).0, 0);
    let event = next(&a).unwrap();
    assert_eq!((event[1], event[3], event[15]), (PORT_MANAGEMENT, 0x16, 0b10));
    // The partner is reset, and announces that in its last frame.
    b.write_register(0xf0010, 1);
    exchange(&mut b, &mut a, nothing_lost);
    let event = next(&a).unwrap();
    assert_eq!((event[1], event[3]), (PORT_CHANGE, 1));
    assert_eq!(state(&mut a), DOWN);
    assert_eq!(next(&a), None);
}

#[test]
fn connections_go_by_lid_once_the_ports_are_active() {
    let (mut a, mut b) = trained();
    configure(&mut a, 1, 1, 0);
    configure(&mut b, 2, 1, 0);
    let mut qa = a.connect(0x51, 0x81, &b, 0x62);
    let _qb = b.connect(0x62, 0x92, &a, 0x51);
    let (here, there) = (a.alloc(0x4000), b.alloc(0x4000));
    let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    a.machine.put(here, &bytes);
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 10_000)].concat());
    exchange(&mut a, &mut b, |frame| panic!("sent before the port is active: {frame:02x?}"));
    for wanted in [ARMED, ACTIVE] {
        configure(&mut a, 1, 1, wanted);
        configure(&mut b, 2, 1, wanted);
    }
    // Unsent packets are retransmitted.
    let mut routes = Vec::new();
    for _ in 0..100 {
        a.machine.advance(100_000_000);
        b.machine.advance(100_000_000);
        exchange(&mut a, &mut b, |frame| {
            let parsed = Frame::parse(frame).unwrap();
            let Net::InfiniBand(lrh, None) = parsed.headers.net else { panic!("{parsed:?}") };
            assert!(parsed.icrc_ok());
            routes.push((lrh.slid, lrh.dlid));
            false
        });
    }
    assert_eq!(a.poll(&mut qa).map(|entry| entry.syndrome), Some(0));
    assert_eq!(b.machine.bytes(there, 10_000), bytes);
    assert!(routes.contains(&(1, 2)) && routes.contains(&(2, 1)), "{routes:?}");
}

/// Creates two active cards, each with a queue pair for datagrams.
fn pair() -> ([Node; 2], [Queue; 2]) {
    let (mut a, mut b) = active();
    let qa = a.connect_as(0x51, 0x81, &b, 0, datagrams(QKEY));
    let qb = b.connect_as(0x62, 0x92, &a, 0, datagrams(QKEY));
    ([a, b], [qa, qb])
}

#[test]
fn datagrams_say_where_they_came_from() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let buffer = b.alloc(0x1000);
    for global in [false, true] {
        b.machine.put(buffer, &[0xee; 200]);
        b.post_receive(&mut qb, buffer, 200);
        let text = message(&mut a, b"a datagram");
        let way = to(2, 5, global.then(|| gid(&b)), 0x62);
        a.post_send(&mut qa, SEND, 0, &[&way[..], &text].concat());
        exchange(&mut a, &mut b, nothing_lost);
        assert_eq!(a.poll(&mut qa).map(|entry| entry.syndrome), Some(0));
        let got = b.poll(&mut qb).unwrap();
        assert_eq!((got.opcode, got.len, got.imm), (1, 50, 0), "of the partition at index 0");
        let entry = b.last_entry(&qb);
        assert_eq!(entry[8..12], [u8::from(global) << 7, 0, 0, 0x51]);
        assert_eq!(entry[0x0c..0x10], [5 << 4, 0, 0, 1], "service level and source");
        assert_eq!(b.machine.bytes(buffer + GRH, 10), b"a datagram");
        let before = b.machine.bytes(buffer, GRH as usize);
        if global {
            assert_eq!((&before[8..24], &before[24..40]), (&gid(&a).0[..], &gid(&b).0[..]));
        }
    }
}

#[test]
fn within_a_port_by_its_own_lid() {
    let (mut a, mut b) = active();
    let mut from = a.connect_as(0x51, 0x81, &b, 0, datagrams(QKEY));
    let mut other = a.connect_as(0x52, 0x82, &b, 0, datagrams(QKEY));
    let buffer = a.alloc(0x1000);
    a.post_receive(&mut other, buffer, 200);
    let text = message(&mut a, b"to myself");
    a.post_send(&mut from, SEND, 0, &[&to(1, 0, None, 0x52)[..], &text].concat());
    exchange(&mut a, &mut b, |_| panic!("nothing leaves"));
    assert_eq!(a.poll(&mut other).map(|entry| entry.len), Some(49));
    assert_eq!(a.machine.bytes(buffer + GRH, 9), b"to myself");
}

#[test]
fn groups_have_members_on_both_sides() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let group = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let mut own = a.connect_as(0x52, 0x82, &b, 0, datagrams(QKEY));
    a.make_group(group, &[0x52]);
    b.make_group(group, &[0x62]);
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    a.post_receive(&mut own, here, 200);
    b.post_receive(&mut qb, there, 200);
    let text = message(&mut a, b"to all");
    a.post_send(&mut qa, SEND, 0, &[&to(0xc000, 0, Some(group), 0xff_ffff)[..], &text].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(a.poll(&mut own).map(|entry| entry.len), Some(46));
    assert_eq!(b.poll(&mut qb).map(|entry| entry.len), Some(46));
    assert_eq!(b.machine.bytes(there + GRH, 6), b"to all");
}

#[test]
fn packets_of_other_partitions_and_lids_are_dropped() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let buffer = b.alloc(0x1000);
    b.post_receive(&mut qb, buffer, 200);
    let text = message(&mut a, b"lost");
    a.post_send(&mut qa, SEND, 0, &[&to(3, 0, None, 0x62)[..], &text].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(b.poll(&mut qb), None, "not its LID");
    assert_eq!(ask(&mut b, SET, P_KEY_TABLE, 0, &[0x80, 0x11]).0, 0);
    a.post_send(&mut qa, SEND, 0, &[&to(2, 0, None, 0x62)[..], &text].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(b.poll(&mut qb), None, "not in the default partition");
    assert_eq!(b.card.transport_counters().rx_bad_pkey, 1);
}

#[test]
fn subnet_management_passes_before_there_are_lids() {
    const CONF_SPECIAL_QP: u32 = 0x023;
    const BASE: u32 = 0x400;
    const LANE_15: u32 = 1 << 17;
    const SOURCE_GIVEN: u32 = 1 << 16;
    let (mut a, mut b) = trained();
    for node in [&mut a, &mut b] {
        node.command(CONF_SPECIAL_QP, 0, BASE, &[]);
    }
    let setup = Setup { service: 7, ..datagrams(0) };
    let mut qa = a.connect_as(BASE, 0x81, &b, 0, setup);
    let mut qb = b.connect_as(BASE, 0x92, &a, 0, setup);
    let buffer = b.alloc(0x1000);
    b.post_receive(&mut qb, buffer, 300);
    let frame = connectx3_testdriver::smp::directed(&[1], GET, NODE_INFO, 0, &[]);
    // The packet from the local route header to the end of the datagram, then room for the ICRC. The driver
    // fills in the lengths too.
    let packet = &frame[16..frame.len() - 6];
    let (headers, mad) = packet.split_at(packet.len() - 256);
    let mut words = inline(headers);
    words.extend(message(&mut a, mad));
    words.extend(inline(&[0; 4]));
    a.write_flagged(&mut qa, SEND, LANE_15 | SOURCE_GIVEN, 0xffff_0000, &words);
    a.ring(&qa);
    let mut sent = Vec::new();
    exchange(&mut a, &mut b, |frame| {
        sent.push(frame.to_vec());
        false
    });
    let parsed = Frame::parse(&sent[0]).unwrap();
    assert!(parsed.icrc_ok());
    let permissive = Lrh::PERMISSIVE_LID;
    let lrh = Lrh { lane: 15, service_level: 0, dlid: permissive, slid: permissive };
    assert_eq!(parsed.headers.net, Net::InfiniBand(lrh, None));
    assert_eq!(a.poll(&mut qa).map(|entry| entry.syndrome), Some(0));
    assert_eq!(b.poll(&mut qb).map(|entry| (entry.qpn, entry.len)), Some((BASE, 296)));
    assert_eq!(b.last_entry(&qb)[0x0e..0x10], [0xff, 0xff]);
    assert_eq!(b.machine.bytes(buffer + GRH, 256), mad);
}

/// Returns the words of an inline segment.
fn inline(bytes: &[u8]) -> Vec<u32> {
    let mut segment = (1 << 31 | bytes.len() as u32).to_be_bytes().to_vec();
    segment.extend(bytes);
    segment.resize(segment.len().next_multiple_of(16), 0);
    segment.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_card_that_is_reset_lets_its_partner_know() {
    let (mut a, _) = trained();
    a.write_register(0xf0010, 1);
    let symbols: Vec<_> = a.card.take_outbox().iter().map(|(_, frame)| symbol_of(frame)).collect();
    assert_eq!(symbols, [Some(Symbol::Silence)]);
}
