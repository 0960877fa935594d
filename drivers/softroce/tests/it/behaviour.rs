//! The behaviour of the RNIC without faults: frames, acknowledgements, order, loopback.

use crate::common;
use crate::common::{Options, Pair, address, drain, wr};
use platform::Instant;
use roce::wire::{Frame, Operation};
use verbs::{
    Completion, CqOptions, LinkKind, PathMtu, Payload, Psn, QpConnect, QpOptions, RecvWr, SendOp, SendWr,
    Sge, Status, VerbsError, WorkKind, WrId,
};

fn inline_write(pair: &Pair, from: usize, at: u64, bytes: &'static [u8]) -> SendOp<'static> {
    SendOp::Write { data: Payload::Inline(bytes), remote: pair.nodes[1 - from].remote(at), imm: None }
}

/// Returns the operations of the frames logged so far, each with its sender.
fn operations(pair: &Pair) -> Vec<(usize, Operation)> {
    let mut wire = pair.wire.lock().unwrap();
    let log = wire.log.replace(Vec::new()).unwrap_or_default();
    log.iter()
        .map(|(side, bytes)| (*side, Frame::parse(bytes).unwrap().packet.bth.opcode.operation))
        .collect()
}

#[test]
fn a_small_write_is_one_frame_and_its_reply_goes_before_the_acknowledgement() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    operations(&pair);
    let now = || Instant::from_nanos(pair.now());
    a.send(1, inline_write(&pair, 0, 0, b"12345678"));
    assert_eq!(a.rnic.next_deadline(), Some(Instant::ZERO), "posted work is due at once");
    assert!(a.rnic.progress(now(), 64));
    assert_eq!(operations(&pair), [(0, Operation::WriteOnly)]);
    pair.advance();
    assert!(b.rnic.progress(now(), 64));
    assert_eq!(b.get(0, 8), b"12345678", "one call of progress receives it");
    assert_eq!(operations(&pair), [], "the acknowledgement waits for a reply");
    assert!(b.rnic.arm(), "but nobody may sleep over it");
    assert_eq!(b.rnic.next_deadline(), Some(Instant::ZERO));
    b.send(1, inline_write(&pair, 1, 0, b"87654321"));
    assert!(b.rnic.progress(now(), 64));
    assert_eq!(operations(&pair), [(1, Operation::WriteOnly), (1, Operation::Acknowledge)]);
    pair.advance();
    assert!(a.rnic.progress(now(), 64));
    assert_eq!((a.get(0, 8), pair.sends(0).len()), (b"87654321".to_vec(), 1));
    pair.run();
    assert_eq!(operations(&pair), [(0, Operation::Acknowledge)]);
    assert_eq!(pair.sends(1).len(), 1);
    assert_eq!((a.rnic.next_deadline(), b.rnic.next_deadline()), (None, None));
    assert!(!a.rnic.arm() && !b.rnic.arm());
}

#[test]
fn requests_received_together_are_acknowledged_together() {
    let pair = Pair::new(&Options::default());
    let a = &pair.nodes[0];
    operations(&pair);
    for id in 0..32 {
        a.send(id, inline_write(&pair, 0, 8 * id, b"abcdefgh"));
    }
    assert_eq!(pair.finish(0).len(), 32);
    let acks = operations(&pair).iter().filter(|(side, _)| *side == 1).count();
    assert!(acks <= 2, "{acks} acknowledgements for 32 writes at once");
}

#[test]
fn unsignaled_work_completes_in_silence() {
    let pair = Pair::new(&Options { depth: 8, ..Options::default() });
    let a = &pair.nodes[0];
    // Far more work than the queues hold: the room is released without a completion.
    for id in 0..100 {
        let quiet = SendWr { signaled: id % 10 == 9, ..wr(id, inline_write(&pair, 0, 0, b"abcdefgh")) };
        a.rnic.post_send(a.qp, &[quiet]).unwrap();
        if id % 8 == 7 {
            pair.run();
        }
        let ended = pair.sends(0);
        assert!(ended.iter().all(|c| c.id.0 % 10 == 9));
    }
}

#[test]
fn a_fence_waits_for_reads_before_it() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    b.put(0, &[1; 60_000]);
    a.put(0x10_0000, &[2; 60_000]);
    let into = [Sge { addr: a.at(0), len: 60_000 }];
    let from = [Sge { addr: a.at(0x10_0000), len: 60_000 }];
    a.send(1, SendOp::Read { into: &into, remote: b.remote(0) });
    let op = SendOp::Write { data: Payload::Gather(&from), remote: b.remote(0), imm: None };
    a.rnic.post_send(a.qp, &[SendWr { fence: true, ..wr(2, op) }]).unwrap();
    assert_eq!(pair.finish(0).len(), 2);
    assert!(a.get(0, 60_000).iter().all(|&byte| byte == 1));
    assert!(b.get(0, 60_000).iter().all(|&byte| byte == 2));
}

#[test]
fn a_queue_pair_reaches_its_own_node_without_the_wire() {
    let pair = Pair::new(&Options::default());
    let a = &pair.nodes[0];
    let options = QpOptions { send_cq: a.cq, recv_cq: a.recv_cq, send_depth: 16, recv_depth: 16 };
    let (one, two) = (a.rnic.create_qp(options).unwrap(), a.rnic.create_qp(options).unwrap());
    let own = a.rnic.create_qp(options).unwrap();
    for (from, to) in [(one, two), (two, one), (own, own)] {
        let connect = QpConnect {
            address: address(a, LinkKind::RoceV2),
            remote_qp: to,
            send_psn: Psn::new(5),
            recv_psn: Psn::new(5),
            mtu: PathMtu::B4096,
            ..pair.connect(0, &Options::default())
        };
        a.rnic.connect_qp(from, &connect).unwrap();
    }
    a.put(0, &40u64.to_ne_bytes());
    let data = common::pattern(100_000, 9);
    a.put(0x10_0000, &data);
    let (from, into) =
        ([Sge { addr: a.at(0x10_0000), len: 100_000 }], [Sge { addr: a.at(0x30_0000), len: 100_000 }]);
    for qp in [one, own] {
        let target = if qp == one { two } else { own };
        let scatter = [Sge { addr: a.at(0x40_0000), len: 100_000 }];
        a.rnic.post_recv(target, &[verbs::RecvWr { id: verbs::WrId(77), scatter: &scatter }]).unwrap();
        let work = [
            wr(1, SendOp::FetchAdd { result: a.at(8), remote: a.remote(0), add: 2 }),
            wr(2, SendOp::Write { data: Payload::Gather(&from), remote: a.remote(0x20_0000), imm: None }),
            wr(3, SendOp::Read { into: &into, remote: a.remote(0x20_0000) }),
            wr(4, SendOp::Send { data: Payload::Gather(&from), imm: Some(3) }),
        ];
        a.rnic.post_send(qp, &work).unwrap();
        let mut calls = 0;
        while a.rnic.progress(Instant::from_nanos(1), 1000) {
            calls += 1;
        }
        assert!(calls < 10, "local work does not wait: {calls}");
        let ended = drain(&*a.rnic, a.cq);
        assert!(
            ended.len() == 4 && ended.iter().all(|c| c.status == Status::Success && c.qp == qp),
            "{ended:?}"
        );
        let received = drain(&*a.rnic, a.recv_cq);
        assert_eq!((received.len(), received[0].kind, received[0].qp), (1, WorkKind::Recv, target));
        assert!(a.get(0x30_0000, 100_000) == data && a.get(0x40_0000, 100_000) == data);
    }
    assert_eq!((a.word(0), a.word(8)), (44, 42));
    assert_eq!(pair.wire.lock().unwrap().sent, 0, "nothing went over the wire");
    assert_eq!(a.rnic.next_deadline(), None);
}

#[test]
fn a_local_atomic_completes_in_the_call_that_sends_it() {
    let pair = Pair::new(&Options::default());
    let a = &pair.nodes[0];
    let options = QpOptions { send_cq: a.cq, recv_cq: a.recv_cq, send_depth: 4, recv_depth: 4 };
    let own = a.rnic.create_qp(options).unwrap();
    let connect = pair.connect(0, &Options::default());
    let psn = Psn::new(0);
    let connect = QpConnect {
        address: address(a, LinkKind::RoceV2),
        remote_qp: own,
        send_psn: psn,
        recv_psn: psn,
        ..connect
    };
    a.rnic.connect_qp(own, &connect).unwrap();
    let op = SendOp::CompareSwap { result: a.at(8), remote: a.remote(0), compare: 0, swap: 5 };
    a.rnic.post_send(own, &[wr(1, op)]).unwrap();
    a.rnic.progress(Instant::ZERO, 16);
    assert_eq!((drain(&*a.rnic, a.cq).len(), a.word(0)), (1, 5));
}

#[test]
fn calls_with_wrong_arguments_are_refused() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    let attributes = a.rnic.attributes();
    assert_eq!((attributes.driver, attributes.max_mtu), ("softroce", PathMtu::B4096));
    let options = QpOptions { send_cq: a.cq, recv_cq: a.recv_cq, send_depth: 4, recv_depth: 4 };
    let qp = a.rnic.create_qp(options).unwrap();
    let connect = pair.connect(0, &Options::default());
    assert_eq!(
        a.rnic.post_send(qp, &[wr(1, inline_write(&pair, 0, 0, b"x"))]),
        Err((0, VerbsError::InvalidState))
    );
    assert_eq!(a.rnic.connect_qp(a.qp, &connect), Err(VerbsError::InvalidState), "connected already");
    assert_eq!(a.rnic.connect_qp(b.qp, &connect), Err(VerbsError::NotFound));
    let infiniband = QpConnect { address: address(b, LinkKind::InfiniBand), ..connect };
    assert_eq!(a.rnic.connect_qp(qp, &infiniband), Err(VerbsError::InvalidArgument));
    let greedy = QpConnect { max_rd_atomic: 17, ..connect };
    assert_eq!(a.rnic.connect_qp(qp, &greedy), Err(VerbsError::InvalidArgument));
    assert_eq!(a.rnic.create_cq(CqOptions { depth: 0 }), Err(VerbsError::InvalidArgument));
    let nowhere = QpOptions { send_cq: verbs::CqId(99), ..options };
    assert_eq!(a.rnic.create_qp(nowhere), Err(VerbsError::NotFound));
    let numbers: Vec<_> = (0..50).map(|_| a.rnic.create_qp(options).unwrap().get()).collect();
    assert!(numbers.iter().all(|&n| n > 0xfff), "special queue pairs are left out");
}

/// Completion queues can be made and destroyed, but not while a queue pair uses them; their numbers are
/// reused.
#[test]
fn completion_queues_are_destroyed() {
    let pair = Pair::new(&Options::default());
    let [a, _] = &pair.nodes;
    let count = || {
        let mut count = None;
        a.rnic.counters(&mut |(name, n)| count = if name == "completion_queues" { Some(n) } else { count });
        count.unwrap()
    };
    let before = count();
    for _ in 0..1000 {
        let cq = a.rnic.create_cq(CqOptions { depth: 4 }).unwrap();
        let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 2, recv_depth: 2 };
        let qp = a.rnic.create_qp(options).unwrap();
        a.rnic.post_recv(qp, &[RecvWr { id: WrId(1), scatter: &[] }]).unwrap();
        assert_eq!((count(), a.rnic.destroy_cq(cq)), (before + 1, Err(VerbsError::InvalidState)));
        a.rnic.destroy_qp(qp).unwrap();
        assert_eq!(a.rnic.destroy_cq(cq), Ok(()));
        assert_eq!(a.rnic.destroy_cq(cq), Err(VerbsError::NotFound));
        assert_eq!(a.rnic.create_qp(options), Err(VerbsError::NotFound));
        let mut none = [Completion::BLANK; 2];
        assert_eq!(a.rnic.poll_cq(cq, &mut none), 0);
    }
    assert_eq!(count(), before);
}
