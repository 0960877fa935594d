//! Virtual functions without QEMU: a slave starts through its channel, transfers data, and can use only its
//! own resources.

use connectx3_testdriver::driver::{KEY, Node, Queue, data, exchange, remote};
use connectx3_testdriver::slave::{CQ, INTERNAL_ERROR, MAP, MPT, MTT, QP, RESERVE, RESERVE_AND_MAP};
use fastrand::Rng;

const WRITE: u32 = 0x08;
const READ: u32 = 0x10;

/// Statuses: EIO and errors without one of their own, EPERM, EINVAL, EBUSY.
const INTERNAL: u8 = 0x01;
const NOT_PERMITTED: u8 = 0x02;
const INVALID: u8 = 0x03;
const BUSY: u8 = 0x06;

fn pair() -> ([Node; 2], [Queue; 2]) {
    let (mut a, mut b) = (Node::slave(1), Node::slave(2));
    let ((qa, ca), (qb, cb)) = (a.numbers(), b.numbers());
    let queues = [a.connect(qa, ca, &b, qb), b.connect(qb, cb, &a, qa)];
    ([a, b], queues)
}

#[test]
fn two_slaves_write_and_read() {
    let ([mut a, mut b], [mut qa, _qb]) = pair();
    let (here, there) = (a.alloc(0x8000), b.alloc(0x8000));
    let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
    a.machine.put(here, &bytes);
    a.post_send(&mut qa, WRITE, 0, &[remote(there + 3, KEY), data(here, 10_000)].concat());
    a.post_send(&mut qa, READ, 0, &[remote(there + 3, KEY), data(here + 0x4000, 5000)].concat());
    exchange(&mut a, &mut b, |frame| {
        assert_eq!(frame[12..14], [0x89, 0x15], "RoCE v1");
        false
    });
    assert_eq!(a.poll(&mut qa).map(|entry| entry.opcode), Some(WRITE as u8));
    assert_eq!(a.poll(&mut qa).map(|entry| entry.opcode), Some(READ as u8));
    assert_eq!(b.machine.bytes(there + 3, 10_000), bytes);
    assert_eq!(a.machine.bytes(here + 0x4000, 5000), bytes[..5000]);
}

#[test]
fn a_slave_and_a_physical_function_speak_version_1() {
    let (mut a, mut b) = (Node::slave(1), Node::new(2));
    b.set_roce_v1();
    let (qpn, cqn) = a.numbers();
    let mut qa = a.connect(qpn, cqn, &b, 0x62);
    let _qb = b.connect(0x62, 0x92, &a, qpn);
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    a.machine.put(here, b"across");
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 6)].concat());
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(a.poll(&mut qa).map(|entry| entry.syndrome), Some(0));
    assert_eq!(b.machine.bytes(there, 6), b"across");
}

#[test]
fn the_slave_hears_what_a_function_may_know() {
    let mut slave = Node::slave(1);
    slave.command(0x004, 0, 0, &[]);
    assert_eq!((slave.output(0) & 0xffff, slave.output(8) >> 16 & 0xff, slave.output(0x20)), (2, 0xff, 0));
    slave.command(0x003, 0, 0, &[]);
    assert_eq!(slave.output(0x40) >> 31, 0, "no RoCE v2");
    assert_eq!(slave.output(0x94) & (1 << 19 | 1 << 9), 0, "no RoCE v2, no windows");
    slave.command(0xf0a, 0, 0xc000_0000, &[]);
    assert_eq!((slave.output(0) >> 24, slave.output(0) >> 16 & 0xff), (0xdc, 1));
    let quotas = [0x50, 0x54, 0x58, 0x60, 0x64].map(|offset| slave.output(offset));
    assert!(quotas.iter().all(|&quota| quota > 0));
    slave.command(0xf0a, 1, 1, &[]);
    assert_eq!(slave.output(0), 1, "the physical port");
    assert_eq!(slave.output(0x18) - slave.output(0x1c), 1024, "tunnel and proxy");
    assert_eq!(slave.try_command(0xf0a, 1, 2, &[]), INVALID);
    slave.command(0x043, 0, 1, &[]);
    assert_eq!(slave.output(0x0c) & 0xffff, 112, "GIDs");
    assert_eq!(slave.output(0x14), u32::from_be_bytes([0, 0, 0, 1]));
    assert_eq!(slave.try_command(0x043, 1, 1, &[]), INVALID);
}

#[test]
fn what_is_not_for_slaves_is_refused() {
    let mut slave = Node::slave(1);
    for (opcode, status) in [
        (0x007, INVALID),
        (0x008, INVALID),
        (0xffa, INVALID),
        (0x025, INVALID),
        (0xf05, INVALID),
        (0x059, NOT_PERMITTED),
        (0x080, NOT_PERMITTED),
        (0x203, NOT_PERMITTED),
        (0x065, INTERNAL),
    ] {
        assert_eq!(slave.try_command(opcode, 0, 0, &[]), status, "{opcode:#x}");
    }
    assert_eq!(slave.try_command(0x03a, 0, 0, &[]), NOT_PERMITTED, "CONFIG_DEV may only be read");
    assert_eq!(slave.try_command(0x00c, 1, 0xd01, &[]), INVALID, "SET_PORT of RoCE addresses");
    assert_eq!(slave.try_command(0x00c, 1, 0x201, &[]), INVALID, "SET_PORT of MAC addresses");
    let twice = [(0x0c, 7), (0x1c, 7)];
    assert_eq!(slave.try_command(0x00c, 1, 0x501, &twice), INVALID, "one GID twice");
    assert_eq!(slave.try_command(0x024, 3, 1, &[(0, 0x0181_0101)]), NOT_PERMITTED, "a directed route");
}

#[test]
fn only_what_was_allocated_may_be_used() {
    let ([mut a, _b], [qa, _qb]) = pair();
    assert_eq!(a.try_command(0x016, 0, 0x1234, &[]), INTERNAL, "a completion queue");
    assert_eq!(a.try_command(0x019, 0, 0x4321, &[]), INTERNAL, "a queue pair");
    assert_eq!(a.try_command(0x022, 0, 0x4321, &[]), INTERNAL);
    assert_eq!(a.try_command(0x00d, 0, 0x321, &[(0, 0x100)]), INTERNAL, "a region");
    assert_eq!(a.try_command(0x013, 0, 3, &[]), INTERNAL, "an event queue of the firmware");
    assert_eq!(a.try_command(0x054, 0, 5, &[]), INTERNAL, "a counter");
    assert_eq!(a.free(CQ, RESERVE_AND_MAP, 0x1234), INTERNAL);

    // Pages outside of the slave's own ranges.
    let (_, mtt) = a.allocate(MTT, RESERVE_AND_MAP, 1);
    assert_eq!(a.write_mtt(mtt, 2, 0), 0);
    assert_eq!(a.write_mtt(mtt, 3, 0), INVALID);
    assert_eq!(a.write_mtt(mtt + 2, 1, 0), INVALID);
    assert_eq!(a.write_mtt(mtt, 600, 0), INVALID);
    let (_, cqn) = a.allocate(CQ, RESERVE_AND_MAP, 0);
    let cq = |log: u32, mtt: u32| [(0x0c, log << 24), (0x1c, mtt * 8)];
    assert_eq!(a.try_command(0x016, 0, cqn, &cq(9, mtt)), NOT_PERMITTED, "more pages than the range has");
    assert_eq!(a.try_command(0x016, 0, cqn, &cq(8, mtt + 1)), INTERNAL, "not where a range begins");
    assert_eq!(a.try_command(0x016, 0, cqn, &cq(8, mtt)), 0);
    assert_eq!(a.try_command(0x016, 0, cqn, &cq(8, mtt)), INVALID, "twice");

    // Resources in use cannot be freed.
    assert_eq!(a.free(MTT, RESERVE_AND_MAP, 1 << 32 | u64::from(mtt)), BUSY);
    assert_eq!(a.free(CQ, RESERVE_AND_MAP, u64::from(cqn)), NOT_PERMITTED);
    assert_eq!(a.raw_command(0x017, 1, qa.cqn, 0).0, BUSY, "a completion queue of a queue pair");
    assert_eq!(a.free(QP, RESERVE, 1 << 32 | u64::from(qa.qpn)), NOT_PERMITTED);
    assert_eq!(a.raw_command(0x021, 2, qa.qpn, 0).0, 0);
    assert_eq!(a.raw_command(0x021, 2, qa.qpn, 0).0, INVALID, "it is reset");
    assert_eq!(a.raw_command(0x017, 1, qa.cqn, 0).0, 0);
    assert_eq!(a.raw_command(0x017, 1, cqn, 0).0, 0);
    assert_eq!(a.free(MTT, RESERVE_AND_MAP, u64::from(mtt)), INVALID, "another size");
    assert_eq!(a.free(MTT, RESERVE_AND_MAP, 1 << 32 | u64::from(mtt)), 0);
    assert_eq!(a.free(QP, RESERVE, 1 << 32 | u64::from(qa.qpn)), NOT_PERMITTED, "its context is mapped");
    assert_eq!(a.free(QP, MAP, u64::from(qa.qpn)), 0);
    assert_eq!(a.free(QP, RESERVE, 1 << 32 | u64::from(qa.qpn)), 0);
    assert_eq!(a.free(QP, RESERVE, 1 << 32 | u64::from(qa.qpn)), INTERNAL);

    // Windows, regions of other functions, and more than the quota.
    let (_, mpt) = a.allocate(MPT, RESERVE, 0);
    assert_eq!(a.try_command(0x00d, 0, mpt, &[(0, 0x300)]), INVALID, "no entry yet");
    assert_eq!(a.allocate(MPT, MAP, u64::from(mpt)).0, 0);
    assert_eq!(a.try_command(0x00d, 0, mpt, &[(0, 0x200), (8, mpt)]), NOT_PERMITTED, "a window");
    assert_eq!(
        a.try_command(0x00d, 0, mpt, &[(0, 0x300), (8, mpt), (0xc, 1 << 17)]),
        NOT_PERMITTED,
        "of the PF"
    );
    assert_eq!(a.try_command(0x00d, 0, mpt, &[(0, 0x300), (8, mpt), (0x1c, 64)]), 0);
    assert_eq!(a.allocate(QP, RESERVE, 1 << 32 | 250_000).0, INTERNAL, "the quota");
    assert_eq!(a.allocate(MTT, RESERVE_AND_MAP, 40).0, INTERNAL);
}

#[test]
fn a_reset_takes_everything_from_the_slave() {
    let ([mut a, mut b], [mut qa, _qb]) = pair();
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    b.enable_slave();
    assert_eq!(b.raw_command(0x022, 0, 0x848, 0).0, INTERNAL, "the queue pair is gone");
    let before = b.machine.bytes(there, 64);
    a.machine.put(here, &[7; 64]);
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 64)].concat());
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(b.machine.bytes(there, 64), before);

    // A word out of order or registers outside of memory are errors until a reset.
    assert_eq!(a.say(2, 0), INTERNAL_ERROR);
    assert_eq!(a.say(5, 0), INTERNAL_ERROR);
    a.enable_slave();
    assert_eq!(a.raw_command(0x031, 0, 0, 0).0, 0);
    assert_eq!(a.say(0, 0), 0x101);
    for command in 1..=4 {
        assert_eq!(a.say(command, 0xfff0), 0);
    }
    assert_eq!(a.say(5, 0), INTERNAL_ERROR);
    a.enable_slave();
    // A reset by flag.
    a.card.write_bar2(0xc, &(1u32 << 16).to_be_bytes(), &a.machine);
    assert_eq!(a.channel(0xc), 1 << 16 | 1 << 8);
    assert_eq!(a.say(5, 0), INTERNAL_ERROR);
    a.enable_slave();
}

#[test]
fn commands_with_an_event_are_counted() {
    let mut slave = Node::slave(1);
    let eq = slave.create_eq(16, 6);
    // MAP_EQ of command events; NOP with an event, twice.
    assert_eq!(slave.raw_command(0x012, 0, 16, 1 << 0x0a).0, 0);
    for count in 1..=2u64 {
        slave.post_with_event(0x031);
        let entry = eq + 32 * (count - 1);
        assert_eq!(slave.machine.bytes(entry + 1, 1), [0x0a]);
        assert_eq!(slave.machine.bytes(entry + 6, 2), [0, count as u8], "the token counts");
    }
    assert_eq!(slave.machine.interrupts.lock().unwrap().len(), 1, "armed once");
    assert_eq!(slave.raw_command(0x014, 1, 16, 0).0, 0);
    slave.post_with_event(0x031);
}

/// Returns unevenly distributed numbers: small ones, numbers of existing objects, and any numbers.
fn pick(random: &mut Rng) -> u32 {
    match random.u8(..4) {
        0 => random.u32(..0x100),
        1 => random.u32(0x840..0x860),
        2 => 0x40 << random.u32(..16) | 1,
        _ => random.u32(..),
    }
}

#[test]
fn rubbish_from_a_slave_neither_ends_the_card_nor_keeps_it_from_a_reset() {
    const OPCODES: [u32; 46] = [
        0x003, 0x004, 0x006, 0x009, 0x00a, 0x00b, 0x00c, 0x00d, 0x00e, 0x00f, 0x010, 0x011, 0x012, 0x013,
        0x014, 0x015, 0x016, 0x017, 0x018, 0x019, 0x01a, 0x01b, 0x01c, 0x01e, 0x021, 0x022, 0x023, 0x024,
        0x02c, 0x02f, 0x031, 0x035, 0x036, 0x037, 0x03a, 0x03b, 0x040, 0x043, 0x047, 0x054, 0x061, 0xf00,
        0xf01, 0xf08, 0xf0a, 0xf0b,
    ];
    for seed in 0..20 {
        let ([mut a, mut b], [mut qa, _qb]) = pair();
        let mut random = Rng::with_seed(seed);
        for _ in 0..1500 {
            let opcode = OPCODES[random.usize(..OPCODES.len())];
            let words: Vec<_> = (0..0x110).step_by(4).map(|at| (at, pick(&mut random))).collect();
            let op_mod = random.u32(..4);
            if random.bool() {
                let in_mod = pick(&mut random);
                a.try_command(opcode, op_mod, in_mod, &words);
            } else {
                let (in_mod, parameter) =
                    (pick(&mut random), u64::from(pick(&mut random)) << 32 | u64::from(pick(&mut random)));
                a.raw_command(opcode, op_mod, in_mod, parameter);
            }
            let doorbell = pick(&mut random).to_be_bytes();
            let (offset, machine) = (u64::from(pick(&mut random)) % (8 << 20), &a.machine);
            if offset >= 16 {
                a.card.write_bar2(offset & !3, &doorbell, machine);
            }
        }
        a.post_send(&mut qa, WRITE, 0, &data(0, 64));
        exchange(&mut a, &mut b, |_| false);
        a.enable_slave();
        assert_eq!(a.raw_command(0x031, 0, 0, 0).0, 0, "NOP after {seed}");
    }
}
