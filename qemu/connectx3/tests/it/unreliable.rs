//! Unreliable connections between two cards, and shared receive queues.

use connectx3_testdriver::driver::{KEY, Node, Queue, Setup, V2, data, datagram, exchange, remote};

const WRITE: u32 = 0x08;
const WRITE_IMM: u32 = 0x09;
const SEND: u32 = 0x0a;
const SEND_IMM: u32 = 0x0b;
const READ: u32 = 0x10;

fn pair(setup: Setup) -> ([Node; 2], [Queue; 2]) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let qa = a.connect_as(0x51, 0x81, &b, 0x62, setup);
    let qb = b.connect_as(0x62, 0x92, &a, 0x51, setup);
    ([a, b], [qa, qb])
}

fn unreliable() -> Setup {
    Setup { service: 1, ..Setup::default() }
}

fn nothing_lost(_: &[u8]) -> bool {
    false
}

#[test]
fn writes_and_sends_arrive_and_a_loss_costs_its_message() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair(unreliable());
    let (here, there) = (a.alloc(0x4000), b.alloc(0x8000));
    let bytes: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
    a.machine.put(here, &bytes);
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 5000)].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(b.machine.bytes(there, 5000), bytes);
    for n in 0..3 {
        b.post_receive(&mut qb, there + 0x2000 * n, 5000);
    }
    let mut frames = 0;
    let mut third_lost = |_: &[u8]| {
        frames += 1;
        frames == 3
    };
    a.post_send(&mut qa, SEND, 0, &data(here, 5000));
    exchange(&mut a, &mut b, &mut third_lost);
    a.post_send(&mut qa, SEND_IMM, 7, &data(here, 5000));
    a.post_send(&mut qa, WRITE_IMM, 8, &[remote(there + 0x6000, KEY), data(here, 100)].concat());
    exchange(&mut a, &mut b, nothing_lost);
    let sent: Vec<_> = std::iter::from_fn(|| a.poll(&mut qa)).map(|e| (e.wqe, e.syndrome)).collect();
    assert_eq!(sent, [(0, 0), (1, 0), (2, 0), (3, 0)], "the sender gets no error");
    assert_eq!(b.poll(&mut qb).map(|e| (e.wqe, e.opcode, e.imm, e.len)), Some((0, 2, 7, 5000)));
    assert_eq!(b.poll(&mut qb).map(|e| (e.wqe, e.opcode, e.imm, e.len)), Some((1, 0, 8, 100)));
    assert_eq!(b.machine.bytes(there, 5000), bytes);
    assert_eq!(b.poll(&mut qb), None);
}

#[test]
fn what_the_service_does_not_have_stops_the_send_queue() {
    let ([mut a, mut b], [mut qa, _qb]) = pair(unreliable());
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    a.post_send(&mut qa, READ, 0, &[remote(there, KEY), data(here, 64)].concat());
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 64)].concat());
    exchange(&mut a, &mut b, |_| panic!("nothing is sent"));
    assert_ne!(a.poll(&mut qa).unwrap().syndrome, 0);
    assert_eq!(a.poll(&mut qa).unwrap().syndrome, 0x05);
    a.command(0x01d, 0, 0x51, &[]);
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 64)].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(a.poll(&mut qa).map(|e| (e.wqe, e.syndrome)), Some((2, 0)));
    // An invalid key changes nothing, and neither side is notified.
    let before = b.machine.bytes(there, 0x1000);
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY ^ 1), data(here, 64)].concat());
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(a.poll(&mut qa).unwrap().syndrome, 0);
    assert_eq!(b.machine.bytes(there, 0x1000), before);
    assert_eq!(b.card.transport_counters().access_errors, 1);
}

/// Returns the type and the number of the events, in order.
fn events(node: &Node, eq: u64) -> Vec<(u8, u32)> {
    let entry = |i: u64| node.machine.bytes(eq + 32 * i, 32);
    (0..)
        .map(entry)
        .take_while(|entry| entry[31] & 0x80 == 0)
        .map(|entry| (entry[1], u32::from_be_bytes(entry[4..8].try_into().unwrap())))
        .collect()
}

#[test]
fn a_shared_receive_queue_serves_many_and_tells_when_it_runs_low() {
    const SRQ_LIMIT: u8 = 0x14;
    const LAST_WQE_REACHED: u8 = 0x13;
    for service in [0, 1, 3] {
        let (mut a, mut b) = (Node::new(1), Node::new(2));
        let eq = b.create_eq(0, 6);
        b.raw_command(0x012, 0, 0, 1 << SRQ_LIMIT | 1 << LAST_WQE_REACHED);
        let mut shared = b.create_srq(0x30);
        let setup = Setup { service, qkey: 5, ..Setup::default() };
        let on_srq = Setup { srqn: Some(0x30), ..setup };
        let mut senders = [0x51, 0x52].map(|qpn| a.connect_as(qpn, qpn + 0x100, &b, qpn + 0x10, setup));
        let mut takers = [0x61, 0x62].map(|qpn| b.connect_as(qpn, qpn + 0x100, &a, qpn - 0x10, on_srq));
        let (here, there) = (a.alloc(0x1000), b.alloc(0x1_0000));
        let grh = if service == 3 { 40 } else { 0 };
        for n in 0..6 {
            b.post_shared(&mut shared, there + 0x400 * n, 0x400);
        }
        assert_eq!(b.raw_command(0x040, 0, 0x30, 4).0, 0);
        assert_eq!(b.try_command(0x040, 0, 0x31, &[]), 0x05, "no such queue");
        let gid_and_mac = (b.gid, b.mac);
        let mut send = |a: &mut Node, b: &mut Node, which: usize, len: u32| {
            let mut words = Vec::new();
            if service == 3 {
                words = datagram(V2, gid_and_mac.0, gid_and_mac.1, 0x61 + which as u32, 5);
            }
            words.extend(data(here, len));
            a.post_send(&mut senders[which], SEND, 0, &words);
            exchange(a, b, nothing_lost);
        };
        for (n, which) in [0, 1, 0].into_iter().enumerate() {
            assert_eq!(events(&b, eq), [], "service {service}");
            send(&mut a, &mut b, which, 100);
            let got = b.poll(&mut takers[which]).unwrap();
            assert_eq!((got.wqe, got.len), (n as u16, 100 + grh), "service {service}");
        }
        assert_eq!(events(&b, eq), [(SRQ_LIMIT, 0x30)], "three are fewer than four; one event");
        send(&mut a, &mut b, 1, 100);
        assert_eq!(b.poll(&mut takers[1]).unwrap().wqe, 3);
        assert_eq!(events(&b, eq).len(), 1);
        // A queue pair that is destroyed takes no receive with it.
        b.command(0x01e, 0, 0x61, &[]);
        assert_eq!(events(&b, eq), [(SRQ_LIMIT, 0x30), (LAST_WQE_REACHED, 0x61)]);
        b.command(0x021, 2, 0x61, &[]);
        for n in 4..6 {
            send(&mut a, &mut b, 1, 100);
            assert_eq!(b.poll(&mut takers[1]).map(|e| e.wqe), Some(n), "service {service}");
        }
        b.command(0x037, 0, 0x30, &[]);
        assert_eq!(b.output(0x1c) >> 16, 0, "not armed any more");
    }
}

#[test]
fn a_write_takes_no_receive_from_a_shared_queue() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let mut shared = b.create_srq(0x30);
    let on_srq = Setup { srqn: Some(0x30), ..Setup::default() };
    let mut qa = a.connect(0x51, 0x81, &b, 0x62);
    let _first = b.connect_as(0x62, 0x92, &a, 0x51, on_srq);
    let mut qc = a.connect(0x53, 0x83, &b, 0x64);
    let mut second = b.connect_as(0x64, 0x94, &a, 0x53, on_srq);
    let (here, there) = (a.alloc(0x4000), b.alloc(0x4000));
    b.post_shared(&mut shared, there, 0x1000);
    a.post_send(&mut qa, WRITE, 0, &[remote(there + 0x2000, KEY), data(here, 3000)].concat());
    exchange(&mut a, &mut b, nothing_lost);
    a.post_send(&mut qc, SEND, 0, &data(here, 64));
    exchange(&mut a, &mut b, nothing_lost);
    assert_eq!(b.poll(&mut second).map(|e| (e.wqe, e.len)), Some((0, 64)));
}
