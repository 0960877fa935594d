//! Two cards in one process, without QEMU: every operation of a reliable connection, and the card's refusals.

use connectx3_testdriver::driver::{Entry, KEY, Node, Queue, data, exchange, remote};

fn pair() -> ([Node; 2], [Queue; 2]) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let qa = a.connect(0x51, 0x81, &b, 0x62);
    let qb = b.connect(0x62, 0x92, &a, 0x51);
    ([a, b], [qa, qb])
}

const WRITE: u32 = 0x08;
const WRITE_IMM: u32 = 0x09;
const SEND: u32 = 0x0a;
const READ: u32 = 0x10;
const COMPARE_SWAP: u32 = 0x11;
const FETCH_ADD: u32 = 0x12;

#[test]
fn write_read_send_and_atomics() {
    let ([mut a, mut b], [mut qa, mut qb]) = pair();
    let (here, there) = (a.alloc(0x8000), b.alloc(0x8000));
    let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    a.machine.put(here, &bytes);

    a.post_send(&mut qa, WRITE, 0, &[remote(there + 3, KEY), data(here, 10_000)].concat());
    exchange(&mut a, &mut b, |_| false);
    let done = a.poll(&mut qa).unwrap();
    assert_eq!((done.qpn, done.wqe, done.send, done.opcode), (0x51, 0, true, WRITE as u8));
    assert_eq!(b.machine.bytes(there + 3, 10_000), bytes);

    a.post_send(&mut qa, READ, 0, &[remote(there + 4, KEY), data(here + 0x4000, 5000)].concat());
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(a.poll(&mut qa).unwrap().opcode, READ as u8);
    assert_eq!(a.machine.bytes(here + 0x4000, 5000), bytes[1..5001]);

    b.post_receive(&mut qb, there, 100);
    b.post_receive(&mut qb, there + 100, 100);
    a.post_send(&mut qa, SEND, 0, &data(here, 77));
    a.post_send(&mut qa, WRITE_IMM, 0xabcd, &[remote(there + 0x4000, KEY), data(here, 8)].concat());
    exchange(&mut a, &mut b, |_| false);
    let received = b.poll(&mut qb).unwrap();
    assert_eq!(
        received,
        Entry { qpn: 0x62, wqe: 0, send: false, opcode: 1, len: 77, imm: 0, syndrome: 0, vendor: 0 }
    );
    assert_eq!(b.machine.bytes(there, 77), bytes[..77]);
    let received = b.poll(&mut qb).unwrap();
    assert_eq!((received.wqe, received.opcode, received.imm, received.len), (1, 0, 0xabcd, 8));

    b.machine.put(there, &40u64.to_ne_bytes());
    a.post_send(&mut qa, FETCH_ADD, 0, &[remote(there, KEY), [0, 2, 0, 0], data(here, 8)].concat());
    a.post_send(&mut qa, COMPARE_SWAP, 0, &[remote(there, KEY), [0, 9, 0, 42], data(here + 8, 8)].concat());
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(a.machine.bytes(here, 8), 40u64.to_ne_bytes());
    assert_eq!(a.machine.bytes(here + 8, 8), 42u64.to_ne_bytes());
    assert_eq!(b.machine.bytes(there, 8), 9u64.to_ne_bytes());
    assert!(b.poll(&mut qb).is_none());
}

#[test]
fn a_wrong_key_ends_the_queue_pair_and_changes_nothing() {
    let ([mut a, mut b], [mut qa, _qb]) = pair();
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    let before = b.machine.bytes(there, 0x1000);
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY ^ 1), data(here, 64)].concat());
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 64)].concat());
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(a.poll(&mut qa).unwrap().syndrome, 0x13, "remote access");
    assert_eq!(a.poll(&mut qa).unwrap().syndrome, 0x05, "flushed");
    assert_eq!(b.machine.bytes(there, 0x1000), before);
}

#[test]
fn rings_go_round_many_times_under_loss() {
    let ([mut a, mut b], [mut qa, _qb]) = pair();
    let (here, there) = (a.alloc(0x4000), b.alloc(0x4000));
    let mut frames = 0u32;
    for lap in 0..300u32 {
        let bytes: Vec<u8> = (0..3000u32).map(|i| (i + lap) as u8).collect();
        a.machine.put(here, &bytes);
        a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 3000)].concat());
        let done = loop {
            exchange(&mut a, &mut b, |_| {
                frames += 1;
                frames.is_multiple_of(13)
            });
            if let Some(done) = a.poll(&mut qa) {
                break done;
            }
            for node in [&a, &b] {
                node.machine.advance(10_000_000);
            }
        };
        assert_eq!((done.opcode, done.wqe), (WRITE as u8, lap as u16));
        assert_eq!(b.machine.bytes(there, 3000), bytes);
    }
}

#[test]
fn an_armed_completion_queue_makes_one_event_and_one_interrupt() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let eq = a.create_eq(0, 6);
    let mut qa = a.connect(0x51, 0x81, &b, 0x62);
    let _qb = b.connect(0x62, 0x92, &a, 0x51);
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    let arm = |node: &mut Node, consumer: u32| {
        let words = [2 << 24 | 0x81u32, consumer].map(u32::to_be_bytes).concat();
        node.card.write_bar2(0x80_020, &words, &node.machine);
    };
    arm(&mut a, 0);
    for _ in 0..3 {
        a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 64)].concat());
    }
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(*a.machine.interrupts.lock().unwrap(), [3]);
    assert_eq!(a.machine.be32(eq + 4), 0x81);
    assert_eq!(a.machine.bytes(eq + 31, 1), [0], "the entry is the driver's on the first lap");
    assert_eq!(a.machine.bytes(eq + 63, 1), [0x80], "the next is not");
    // The completion queue is armed while completions are unseen, and the event queue behind its producer:
    // both fire at once.
    a.card.write_bar2(0x800, &0x8000_0001u32.to_be_bytes(), &a.machine);
    arm(&mut a, 1);
    assert_eq!(*a.machine.interrupts.lock().unwrap(), [3, 3]);
}

#[test]
fn commands_out_of_order_are_refused() {
    let mut node = Node::new(1);
    assert_eq!(node.try_command(0x01b, 0, 0x70, &[]), 0x10, "no transition from reset to ready to send");
    assert_eq!(node.try_command(0x007, 0, 0, &[(0, 2 << 24)]), 0x04, "INIT_HCA twice");
    assert_eq!(node.try_command(0x3ff, 0, 0, &[]), 0x02, "no such command");
    assert_eq!(node.try_command(0x043, 0, 3, &[]), 0x03, "no such port");
    assert_eq!(node.try_command(0x013, 0, 9, &[(0x0c, 30 << 24)]), 0x08, "an event queue of 2^30 entries");
    assert_eq!(node.raw_command(0x016, 0, 9, 0xffff_ffff_f000).0, 0x03, "a mailbox outside memory");
}

#[test]
fn a_resized_completion_queue_goes_on_where_the_driver_put_what_waited() {
    let ([mut a, mut b], [mut qa, _qb]) = pair();
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    let write = |a: &mut Node, b: &mut Node, qa: &mut Queue| {
        a.post_send(qa, WRITE, 0, &[remote(there, KEY), data(here, 64)].concat());
        exchange(a, b, |_| false);
    };
    // Until the second lap of the old buffer, and with completions that have not been polled.
    for _ in 0..300 {
        write(&mut a, &mut b, &mut qa);
        assert!(a.poll(&mut qa).is_some());
    }
    write(&mut a, &mut b, &mut qa);
    write(&mut a, &mut b, &mut qa);
    a.resize_cq(&mut qa, 4);
    write(&mut a, &mut b, &mut qa);
    let polled: Vec<u16> = std::iter::from_fn(|| a.poll(&mut qa)).map(|entry| entry.wqe).collect();
    assert_eq!(polled, [300, 301, 302]);
    for n in 303..400 {
        write(&mut a, &mut b, &mut qa);
        assert_eq!(a.poll(&mut qa).map(|entry| entry.wqe), Some(n));
        assert_eq!(a.poll(&mut qa), None);
    }
}
