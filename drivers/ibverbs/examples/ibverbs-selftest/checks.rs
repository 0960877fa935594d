//! The checks of calls that must succeed.

use super::lab::{DEPTH, LIMIT, Lab, Pair, pattern};
use platform::{IoAddr, Memory as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{
    Gid, LinkKind, Payload, PortState, QpNum, RecvWr, Rnic as _, SendOp, SendWr, Sge, Status, VerbsError,
    WorkKind, WrId,
};

/// The number of bytes around a target that must stay unchanged.
const GUARD: u64 = 64;
const MARK: u8 = 0xee;

pub(crate) fn attributes(lab: &Lab) {
    let is = lab.rnic.attributes();
    assert_eq!((is.driver, is.links, is.port_state), ("ibverbs", &[LinkKind::RoceV2][..], PortState::Active));
    assert!(is.port.gid != Gid([0; 16]) && is.port.mac.0 != [0; 6] && is.port.lid == 0, "{is:?}");
    assert!(is.max_qps > 100 && is.max_depth >= 1024 && is.max_sge >= 3 && is.max_inline >= 64, "{is:?}");
    assert!(is.max_rd_atomic >= 8, "{is:?}");
    let key = lab.rnic.memory_key();
    assert_eq!((key.base, key.len), lab.arena.range());
    assert_eq!(lab.rnic.next_deadline(), None);
}

/// Does each verb, with messages from zero bytes to more than many packets, and compares every byte.
pub(crate) fn all_verbs(lab: &Lab) {
    let pair = lab.pair();
    let mtu = lab.rnic.attributes().max_mtu.bytes();
    const MOST: u64 = 1 << 20;
    let (near, far, back) = (lab.alloc(MOST), lab.alloc(MOST + 2 * GUARD), lab.alloc(MOST));
    for (turn, len) in
        [0, 1, 7, 8, mtu - 1, mtu, mtu + 1, 3 * mtu + 5, 65_537, MOST as usize].into_iter().enumerate()
    {
        let data = pattern(len, turn as u8);
        lab.put(near, &data);
        lab.arena.fill(far, MOST + 2 * GUARD, MARK).unwrap();
        lab.arena.fill(back, MOST, 0).unwrap();
        let to = IoAddr(far.0 + GUARD);
        let list = [Sge { addr: near, len: len as u32 }];
        let whole = Payload::Gather(&list);
        let whole_back = [Sge { addr: back, len: len as u32 }];
        let untouched = |what: &str| {
            assert_eq!(lab.get(far, GUARD as usize), [MARK; GUARD as usize], "{what} {len}: before");
            let after = lab.get(IoAddr(to.0 + len as u64), GUARD as usize);
            assert_eq!(after, [MARK; GUARD as usize], "{what} {len}: after");
        };
        let arrived = |what: &str| {
            assert!(lab.get(to, len) == data, "{what} of {len} bytes: content");
            untouched(what);
            lab.arena.fill(to, len as u64, MARK).unwrap();
        };
        let ok = |id, kind| vec![(id, kind, Status::Success)];

        pair.send(1, SendOp::Write { data: whole, remote: lab.remote(to), imm: None }).unwrap();
        assert_eq!(pair.sent(1), ok(1, WorkKind::Write));
        let read = SendOp::Read { into: &whole_back, remote: lab.remote(to) };
        pair.send_as(SendWr { id: WrId(2), op: read, signaled: true, solicited: false, fence: true })
            .unwrap();
        let read = lab.wait(pair.send_cq, 1);
        assert_eq!((read[0].id.0, read[0].kind, read[0].status), (2, WorkKind::Read, Status::Success));
        assert_eq!(read[0].byte_len as usize, len);
        assert!(lab.get(back, len) == data, "read of {len} bytes: content");
        arrived("write");

        let room = [Sge { addr: to, len: len as u32 }];
        for (id, imm) in [(3, None), (4, Some(0x0102_0304))] {
            pair.recv(100 + id, &room).unwrap();
            pair.send(id, SendOp::Send { data: whole, imm }).unwrap();
            assert_eq!(pair.sent(1), ok(id, WorkKind::Send));
            let got = lab.wait(pair.recv_cq, 1)[0];
            assert_eq!((got.id.0, got.kind, got.status), (100 + id, WorkKind::Recv, Status::Success));
            assert_eq!((got.byte_len as usize, got.imm, got.qp), (len, imm, pair.qps[1]));
            arrived("send");
        }

        pair.recv(105, &[]).unwrap();
        let work = SendOp::Write { data: whole, remote: lab.remote(to), imm: Some(9) };
        pair.send_as(SendWr { id: WrId(5), op: work, signaled: true, solicited: true, fence: false })
            .unwrap();
        assert_eq!(pair.sent(1), ok(5, WorkKind::Write));
        let got = lab.wait(pair.recv_cq, 1)[0];
        assert_eq!((got.id.0, got.kind, got.imm), (105, WorkKind::RecvWriteImm, Some(9)));
        assert_eq!((got.status, got.byte_len as usize), (Status::Success, len));
        arrived("write with immediate");
    }
    atomics(lab, &pair);
    for (at, len) in [(near, MOST), (far, MOST + 2 * GUARD), (back, MOST)] {
        lab.arena.free(at, len);
    }
}

fn atomics(lab: &Lab, pair: &Pair<'_>) {
    let words = lab.alloc(4096);
    let word = |n: u64| IoAddr(words.0 + 8 * n);
    lab.put(word(0), &40u64.to_ne_bytes());
    let target = lab.remote(word(0));
    pair.send(6, SendOp::FetchAdd { result: word(1), remote: target, add: 2 }).unwrap();
    pair.send(7, SendOp::CompareSwap { result: word(2), remote: target, compare: 42, swap: u64::MAX })
        .unwrap();
    pair.send(8, SendOp::CompareSwap { result: word(3), remote: target, compare: 42, swap: 1 }).unwrap();
    pair.send(9, SendOp::FetchAdd { result: word(4), remote: target, add: 6 }).unwrap();
    let swap = WorkKind::CompareSwap;
    let kinds = [(6, WorkKind::FetchAdd), (7, swap), (8, swap), (9, WorkKind::FetchAdd)];
    assert_eq!(pair.sent(4), kinds.map(|(id, kind)| (id, kind, Status::Success)));
    assert_eq!([0, 1, 2, 3, 4].map(|n| lab.word(word(n))), [5, 40, 42, u64::MAX, u64::MAX]);
    lab.arena.free(words, 4096);
}

/// A node reaches its own memory atomically.
pub(crate) fn self_connected(lab: &Lab) {
    let cq = lab.cq(2 * DEPTH);
    let qp = lab.qp(cq, cq);
    lab.rnic.connect_qp(qp, &lab.connect(qp, 5, 5)).unwrap();
    let words = lab.alloc(16);
    let result = IoAddr(words.0 + 8);
    for n in 0..10u64 {
        let op = SendOp::FetchAdd { result, remote: lab.remote(words), add: 3 };
        let work = SendWr { id: WrId(n), op, signaled: true, solicited: false, fence: false };
        lab.rnic.post_send(qp, &[work]).unwrap();
        let done = lab.wait(cq, 1)[0];
        assert_eq!((done.id.0, done.status, done.qp), (n, Status::Success, qp));
        assert_eq!(lab.word(result), 3 * n);
    }
    assert_eq!(lab.word(words), 30);
    lab.rnic.destroy_qp(qp).unwrap();
    lab.arena.free(words, 16);
}

pub(crate) fn lists(lab: &Lab) {
    let pair = lab.pair();
    let (near, far) = (lab.alloc(65_536), lab.alloc(65_536));
    lab.put(near, &pattern(65_536, 3));
    let piece = |base: IoAddr, at: u64, len| Sge { addr: IoAddr(base.0 + at), len };
    // An empty element in the middle, and borders within packets.
    let from = [piece(near, 1, 5000), piece(near, 9000, 0), piece(near, 20_001, 3)];
    let to = [piece(far, 40_000, 2501), piece(far, 0, 2502)];
    pair.recv(1, &to).unwrap();
    pair.send(2, SendOp::Send { data: Payload::Gather(&from), imm: None }).unwrap();
    assert_eq!(pair.sent(1), [(2, WorkKind::Send, Status::Success)]);
    assert_eq!(lab.wait(pair.recv_cq, 1)[0].byte_len, 5003);
    let all = pattern(65_536, 3);
    let sent = [&all[1..5001], &all[20_001..20_004]].concat();
    assert!([lab.get(to[0].addr, 2501), lab.get(to[1].addr, 2502)].concat() == sent, "scattered");
    let back = [piece(near, 50_000, 3), piece(near, 60_000, 2499)];
    pair.send(3, SendOp::Read { into: &back, remote: lab.remote(far) }).unwrap();
    assert_eq!(pair.sent(1), [(3, WorkKind::Read, Status::Success)]);
    assert!([lab.get(back[0].addr, 3), lab.get(back[1].addr, 2499)].concat() == sent[2501..], "read back");
    let too_many = vec![piece(near, 0, 1); lab.rnic.attributes().max_sge as usize + 1];
    let refused = pair.send(4, SendOp::Send { data: Payload::Gather(&too_many), imm: None });
    assert_eq!(refused, Err(VerbsError::InvalidArgument));
    lab.arena.free(near, 65_536);
    lab.arena.free(far, 65_536);
}

pub(crate) fn inline(lab: &Lab) {
    let pair = lab.pair();
    let far = lab.alloc(4096);
    let most = lab.rnic.attributes().max_inline as usize;
    for len in [0, 1, most] {
        let mut bytes = pattern(len, 9);
        let op = SendOp::Write { data: Payload::Inline(&bytes), remote: lab.remote(far), imm: None };
        pair.send(1, op).unwrap();
        // The call has copied them.
        bytes.fill(0);
        assert_eq!(pair.sent(1), [(1, WorkKind::Write, Status::Success)]);
        assert!(lab.get(far, len) == pattern(len, 9), "{len} bytes inline");
    }
    let too_long = vec![0; most + 1];
    let op = SendOp::Write { data: Payload::Inline(&too_long), remote: lab.remote(far), imm: None };
    assert_eq!(pair.send(2, op), Err(VerbsError::InvalidArgument));
    lab.arena.free(far, 4096);
}

/// Writes one number each to separate words. Only every tenth and the last are signaled.
pub(crate) fn unsignaled(lab: &Lab) {
    let pair = lab.pair();
    let far = lab.alloc(4096);
    // Three rounds, so that the rings wrap, with more work than one call's chain, and not a multiple of it.
    for round in 1..=3u64 {
        let numbers: Vec<[u8; 8]> = (0..50u64).map(|n| (n * round).to_ne_bytes()).collect();
        let work: Vec<SendWr<'_>> = (0u64..50)
            .map(|n| SendWr {
                id: WrId(n),
                op: SendOp::Write {
                    data: Payload::Inline(&numbers[n as usize]),
                    remote: lab.remote(IoAddr(far.0 + 8 * n)),
                    imm: None,
                },
                signaled: n % 10 == 4 || n == 49,
                solicited: false,
                fence: false,
            })
            .collect();
        lab.rnic.post_send(pair.qps[0], &work).unwrap();
        let expected = [4, 14, 24, 34, 44, 49].map(|id| (id, WorkKind::Write, Status::Success));
        assert_eq!(pair.sent(6), expected);
        assert!((0..50).all(|n| lab.word(IoAddr(far.0 + 8 * n)) == n * round), "round {round}");
    }
    assert!(lab.poll(pair.send_cq).is_empty());
    lab.arena.free(far, 4096);
}

pub(crate) fn full_queues(lab: &Lab) {
    let pair = lab.pair();
    let far = lab.alloc(4096);
    let list = [Sge { addr: far, len: 8 }];
    let recvs = vec![RecvWr { id: WrId(1), scatter: &list }; DEPTH as usize + 3];
    let refused = Err((DEPTH as usize, VerbsError::NoResources));
    assert_eq!(lab.rnic.post_recv(pair.qps[1], &recvs), refused);
    let op = SendOp::Write { data: Payload::Inline(&[1]), remote: lab.remote(far), imm: None };
    let work = SendWr { id: WrId(1), op, signaled: false, solicited: false, fence: false };
    // Work without a completion of its own keeps its room.
    assert_eq!(lab.rnic.post_send(pair.qps[0], &vec![work; DEPTH as usize + 3]), refused);
    assert_eq!(lab.rnic.post_send(pair.qps[0], &[work]), Err((0, VerbsError::NoResources)));
    // A completion queue that is smaller than the queues that complete into it is full as well.
    let small = lab.cq(2);
    let qp = lab.qp(small, small);
    assert_eq!(lab.rnic.post_recv(qp, &recvs[..3]), Err((2, VerbsError::NoResources)));
    lab.rnic.destroy_qp(qp).unwrap();
    assert_eq!(lab.wait(small, 2).iter().filter(|c| c.status == Status::WorkRequestFlushed).count(), 2);
    lab.arena.free(far, 4096);
}

/// An idle thread sleeps on the descriptors. Only a completion wakes it.
pub(crate) fn events(lab: &Lab) {
    let pair = lab.pair();
    let far = lab.alloc(4096);
    let wait = |limit: Timespec| {
        let [completions, events] = lab.rnic.event_fds();
        let mut fds = [PollFd::new(&completions, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).unwrap();
        fds[0].revents().contains(PollFlags::IN)
    };
    let write = |id| {
        let op = SendOp::Write { data: Payload::Inline(&[1]), remote: lab.remote(far), imm: None };
        pair.send(id, op).unwrap();
    };
    let (short, long) = (
        Timespec { tv_sec: 0, tv_nsec: 50_000_000 },
        Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 },
    );
    for id in 0..3 {
        assert!(!lab.rnic.arm(), "nothing waits");
        assert!(!wait(short), "nothing happens");
        write(id);
        assert!(wait(long), "a completion wakes");
        assert!(lab.rnic.progress(lab.now(), 16), "the event is taken");
        assert_eq!(pair.sent(1), [(id, WorkKind::Write, Status::Success)]);
        assert!(!wait(Timespec { tv_sec: 0, tv_nsec: 0 }), "the event is gone");
    }
    // Completions from before the arming are reported at once, repeatedly, and are not lost or reordered.
    write(10);
    write(11);
    let deadline = std::time::Instant::now() + LIMIT;
    while !lab.rnic.arm() {
        assert!(std::time::Instant::now() < deadline, "never told");
    }
    assert!(lab.rnic.arm());
    assert_eq!(pair.sent(2), [10, 11].map(|id| (id, WorkKind::Write, Status::Success)));
    lab.rnic.progress(lab.now(), 16);
    lab.arena.free(far, 4096);
}

pub(crate) fn counters(lab: &Lab) {
    let read = || {
        let mut sent = None;
        lab.rnic.counters(&mut |(name, count)| {
            if name == "sent_pkts" {
                sent = Some(count);
            }
        });
        sent
    };
    // The kernel may cache counts for some milliseconds.
    let Some(before) = read() else { return assert!(!lab.rnic.device().starts_with("rxe"), "rxe counts") };
    let deadline = std::time::Instant::now() + LIMIT;
    let far = lab.alloc(8);
    let pair = lab.pair();
    while read() <= Some(before) {
        assert!(std::time::Instant::now() < deadline, "{before} packets sent for ever");
        let op = SendOp::Write { data: Payload::Inline(&[1]), remote: lab.remote(far), imm: None };
        pair.send(1, op).unwrap();
        assert_eq!(pair.sent(1)[0].2, Status::Success);
    }
    assert_eq!(lab.rnic.destroy_qp(QpNum::new(0xff_fffe)), Err(VerbsError::NotFound));
    lab.arena.free(far, 8);
}
