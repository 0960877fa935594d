//! The checks of calls that must fail, and of their results.

use super::lab::{DEPTH, Lab, Pair, pattern};
use platform::{IoAddr, Memory as _};
use std::time::Duration;
use verbs::{
    Completion, CqId, LinkKind, Payload, QpConnect, QpNum, QpOptions, RecvWr, RemoteAddr, RemoteKey,
    Rnic as _, SendOp, SendWr, Sge, Status, VerbsError, WorkKind, WrId,
};

const FLUSHED: Status = Status::WorkRequestFlushed;

pub(crate) fn wrong_state(lab: &Lab) {
    let cq = lab.cq(4 * DEPTH);
    let qp = lab.qp(cq, cq);
    let work = SendWr {
        id: WrId(1),
        op: SendOp::Send { data: Payload::Inline(&[]), imm: None },
        signaled: true,
        solicited: false,
        fence: false,
    };
    assert_eq!(lab.rnic.post_send(qp, &[work]), Err((0, VerbsError::InvalidState)), "not connected");
    let good = lab.connect(qp, 1, 1);
    let mut wrong = [good; 4];
    wrong[0].address.link = LinkKind::InfiniBand;
    wrong[1].max_rd_atomic = 255;
    wrong[2].retries = 8;
    wrong[3].address.service_level = 16;
    for connect in &wrong {
        assert_eq!(lab.rnic.connect_qp(qp, connect), Err(VerbsError::InvalidArgument), "{connect:?}");
    }
    lab.rnic.connect_qp(qp, &good).unwrap();
    assert_eq!(lab.rnic.connect_qp(qp, &good), Err(VerbsError::InvalidState), "connected twice");
    lab.rnic.destroy_qp(qp).unwrap();
    assert_eq!(lab.rnic.destroy_qp(qp), Err(VerbsError::NotFound), "destroyed twice");
    assert_eq!(lab.rnic.connect_qp(qp, &good), Err(VerbsError::NotFound));
    assert_eq!(lab.rnic.post_send(qp, &[work]), Err((0, VerbsError::NotFound)));
    let options = QpOptions { send_cq: CqId(60_000), recv_cq: cq, send_depth: 1, recv_depth: 1 };
    assert_eq!(lab.rnic.create_qp(options), Err(VerbsError::NotFound));
    let options = QpOptions { send_cq: cq, send_depth: 0, ..options };
    assert_eq!(lab.rnic.create_qp(options), Err(VerbsError::InvalidArgument));
    // This address does not exist: the kernel's queries for it get no answer.
    let qp = lab.qp(cq, cq);
    let mut connect = lab.connect(QpNum::new(99), 1, 1);
    if connect.address.peer.gid.ipv4().is_some() {
        connect.address.peer.gid.0[15] ^= 0x80;
        assert_eq!(lab.rnic.connect_qp(qp, &connect), Err(VerbsError::Unreachable));
        // It can still be connected afterwards.
        lab.rnic.connect_qp(qp, &lab.connect(qp, 1, 1)).unwrap();
    }
    lab.rnic.destroy_qp(qp).unwrap();
}

pub(crate) fn local_protection(lab: &Lab) {
    let pair = lab.pair();
    let (base, len) = lab.arena.range();
    let list = [Sge { addr: IoAddr(base.0 + len - 4), len: 8 }];
    let data = Payload::Gather(&list);
    assert_eq!(pair.send(1, SendOp::Send { data, imm: None }), Err(VerbsError::LocalProtection));
    assert_eq!(pair.recv(1, &list), Err(VerbsError::LocalProtection));
    let op = SendOp::FetchAdd { result: IoAddr(8), remote: lab.remote(base), add: 0 };
    assert_eq!(pair.send(1, op), Err(VerbsError::LocalProtection));
    // In the middle of a batch: the requests before it are posted, and none after.
    let good = [Sge { addr: base, len: 0 }];
    let work = [&good, &list, &good].map(|list| SendWr {
        id: WrId(1),
        op: SendOp::Write { data: Payload::Gather(list), remote: lab.remote(base), imm: None },
        signaled: true,
        solicited: false,
        fence: false,
    });
    assert_eq!(lab.rnic.post_send(pair.qps[0], &work), Err((1, VerbsError::LocalProtection)));
    assert_eq!(pair.sent(1), [(1, WorkKind::Write, Status::Success)]);
    // The queue pair continues.
    pair.send(2, SendOp::Write { data: Payload::Gather(&good), remote: lab.remote(base), imm: None })
        .unwrap();
    assert_eq!(pair.sent(1), [(2, WorkKind::Write, Status::Success)]);
}

/// The first failure reports the reason. Later work, the receives of both sides, and work posted afterwards
/// are flushed.
pub(crate) fn wrong_key(lab: &Lab) {
    let pair = lab.pair();
    let far = lab.alloc(4096);
    let list = [Sge { addr: far, len: 8 }];
    for qp in pair.qps {
        let recvs = [RecvWr { id: WrId(50), scatter: &list }; 2];
        lab.rnic.post_recv(qp, &recvs).unwrap();
    }
    let key = RemoteKey(lab.rnic.memory_key().rkey.0 ^ 0x55);
    let wrong = RemoteAddr { addr: far, key };
    let good = lab.remote(far);
    let op = |remote| SendOp::Write { data: Payload::Inline(&[0xab; 8]), remote, imm: None };
    let work = |id, op| SendWr { id: WrId(id), op, signaled: true, solicited: false, fence: false };
    let swap = SendOp::CompareSwap { result: far, remote: good, compare: 0, swap: 1 };
    let unsignaled = SendWr { signaled: false, ..work(4, op(good)) };
    let all = [work(1, op(good)), work(2, op(wrong)), work(3, swap), unsignaled];
    lab.rnic.post_send(pair.qps[0], &all).unwrap();
    assert_eq!(
        pair.sent(4),
        [
            (1, WorkKind::Write, Status::Success),
            (2, WorkKind::Write, Status::RemoteAccessError),
            (3, WorkKind::CompareSwap, FLUSHED),
            (4, WorkKind::Write, FLUSHED),
        ]
    );
    assert_eq!(lab.word(far), u64::from_ne_bytes([0xab; 8]), "only what came before the wrong one");
    assert_eq!(pair.received(4), [(50, WorkKind::Recv, FLUSHED); 4]);
    for qp in pair.qps {
        lab.rnic.post_recv(qp, &[RecvWr { id: WrId(51), scatter: &list }]).unwrap();
    }
    lab.rnic.post_send(pair.qps[0], &[work(5, op(good))]).unwrap();
    assert_eq!(pair.sent(1), [(5, WorkKind::Write, FLUSHED)]);
    assert_eq!(pair.received(2), [(51, WorkKind::Recv, FLUSHED); 2]);
    lab.arena.free(far, 4096);
}

pub(crate) fn remote_range(lab: &Lab) {
    let (base, len) = lab.arena.range();
    let near = lab.alloc(4096);
    for addr in [IoAddr(base.0 + len - 4), IoAddr(base.0 - 4), IoAddr(base.0 + len), IoAddr(u64::MAX - 3)] {
        for read in [false, true] {
            let pair = lab.pair();
            let list = [Sge { addr: near, len: 8 }];
            let remote = RemoteAddr { addr, ..lab.remote(near) };
            let op = if read {
                SendOp::Read { into: &list, remote }
            } else {
                SendOp::Write { data: Payload::Gather(&list), remote, imm: None }
            };
            pair.send(1, op).unwrap();
            let kind = if read { WorkKind::Read } else { WorkKind::Write };
            assert_eq!(pair.sent(1), [(1, kind, Status::RemoteAccessError)], "{addr:?}");
        }
    }
    lab.arena.free(near, 4096);
}

pub(crate) fn too_long(lab: &Lab) {
    let pair = lab.pair();
    let (near, far) = (lab.alloc(4096), lab.alloc(4096));
    lab.arena.fill(far, 4096, 0xee).unwrap();
    pair.recv(1, &[Sge { addr: far, len: 99 }]).unwrap();
    let list = [Sge { addr: near, len: 100 }];
    pair.send(2, SendOp::Send { data: Payload::Gather(&list), imm: None }).unwrap();
    let [(id, kind, status)] = pair.sent(1)[..] else { panic!("one completion") };
    // The specification requires the former; rdma_rxe reports the latter.
    assert!(matches!(status, Status::RemoteInvalidRequest | Status::RemoteOperationError), "{status:?}");
    assert_eq!((id, kind), (2, WorkKind::Send));
    let [(id, kind, status)] = pair.received(1)[..] else { panic!("one completion") };
    assert_eq!((id, kind), (1, WorkKind::Recv));
    // The specification requires the former here too.
    assert!(matches!(status, Status::LocalLengthError | Status::LocalQpOperationError), "{status:?}");
    assert_eq!(lab.get(IoAddr(far.0 + 99), 1), [0xee], "nothing past its end");
    lab.arena.free(near, 4096);
    lab.arena.free(far, 4096);
}

pub(crate) fn no_receive(lab: &Lab) {
    // With a limit the sender gives up; without one it waits for the receive.
    let pair = lab.pair_with(|connect| connect.rnr_retries = 1);
    pair.send(1, SendOp::Send { data: Payload::Inline(&[1]), imm: None }).unwrap();
    assert_eq!(pair.sent(1), [(1, WorkKind::Send, Status::RnrRetryExceeded)]);
    drop(pair);
    let pair = lab.pair();
    let far = lab.alloc(8);
    pair.send(1, SendOp::Send { data: Payload::Inline(&[1]), imm: None }).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(lab.poll(pair.send_cq).is_empty());
    pair.recv(2, &[Sge { addr: far, len: 8 }]).unwrap();
    assert_eq!(pair.sent(1), [(1, WorkKind::Send, Status::Success)]);
    assert_eq!(pair.received(1), [(2, WorkKind::Recv, Status::Success)]);
    lab.arena.free(far, 8);
}

pub(crate) fn no_peer(lab: &Lab) {
    let pair = lab.pair_with(|connect| {
        (connect.ack_timeout, connect.retries) = (Duration::from_millis(1), 2);
    });
    lab.rnic.destroy_qp(pair.qps[1]).unwrap();
    let far = lab.alloc(8);
    let op = || SendOp::Write { data: Payload::Inline(&[1]), remote: lab.remote(far), imm: None };
    pair.send(1, op()).unwrap();
    pair.send(2, op()).unwrap();
    assert_eq!(pair.sent(2), [(1, WorkKind::Write, Status::RetryExceeded), (2, WorkKind::Write, FLUSHED)]);
    assert_eq!(lab.get(far, 1), [0]);
    lab.arena.free(far, 8);
}

/// After the return of `destroy_qp`, all work has completed and nothing changes memory. The work here cannot
/// have completed before: it is behind a SEND without a receive.
pub(crate) fn destroyed_waiting(lab: &Lab) {
    let far = lab.alloc(4096);
    for side in [0, 1] {
        let pair = pair_that_loses(lab, side);
        let recvs = [7, 8, 9].map(|id| RecvWr { id: WrId(id), scatter: &[] });
        lab.rnic.post_recv(pair.qps[0], &recvs).unwrap();
        let send = SendOp::Send { data: Payload::Inline(&[1]), imm: None };
        let write = SendOp::Write { data: Payload::Inline(&[1; 8]), remote: lab.remote(far), imm: None };
        let work = |id, op, signaled| SendWr { id: WrId(id), op, signaled, solicited: false, fence: false };
        let all = [work(1, send, true), work(2, write, false), work(3, write, true)];
        lab.rnic.post_send(pair.qps[0], &all).unwrap();
        lab.rnic.destroy_qp(pair.qps[side]).unwrap();
        // The sender's work completes at once. If the receiver has gone, the sender finds out.
        let first = if side == 0 { FLUSHED } else { Status::RetryExceeded };
        assert_eq!(
            if side == 0 { ended(&lab.poll(pair.send_cq)) } else { pair.sent(3) },
            [(1, WorkKind::Send, first), (2, WorkKind::Write, FLUSHED), (3, WorkKind::Write, FLUSHED)]
        );
        let received = if side == 0 { ended(&lab.poll(pair.recv_cq)) } else { pair.received(3) };
        assert_eq!(received, [7, 8, 9].map(|id| (id, WorkKind::Recv, FLUSHED)));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(lab.word(far), 0);
        assert!(lab.poll(pair.send_cq).is_empty() && lab.poll(pair.recv_cq).is_empty());
    }
    lab.arena.free(far, 4096);
}

/// Destroys a queue pair in the middle of a stream of large writes, at any point of it.
pub(crate) fn destroyed_streaming(lab: &Lab) {
    const LEN: usize = 256 << 10;
    const COUNT: u64 = 20;
    let (near, far) = (lab.alloc(LEN as u64), lab.alloc(LEN as u64));
    let list = [Sge { addr: near, len: LEN as u32 }];
    for side in [0, 1] {
        lab.arena.fill(far, LEN as u64, 0).unwrap();
        let data = pattern(LEN, 77);
        lab.put(near, &data);
        let pair = pair_that_loses(lab, side);
        let op = SendOp::Write { data: Payload::Gather(&list), remote: lab.remote(far), imm: None };
        let work: Vec<SendWr<'_>> = (0..COUNT)
            .map(|n| SendWr { id: WrId(n), op, signaled: true, solicited: false, fence: false })
            .collect();
        lab.rnic.post_send(pair.qps[0], &work).unwrap();
        lab.rnic.destroy_qp(pair.qps[side]).unwrap();
        let target = lab.get(far, LEN);
        // The sender's source belongs to its owner again, and so does the receiver's target.
        lab.arena.fill(near, LEN as u64, 0x11).unwrap();
        let ended = pair.sent(COUNT as usize);
        assert!(ended.iter().map(|e| e.0).eq(0..COUNT), "{ended:?}");
        let failed: Vec<Status> = ended.iter().map(|e| e.2).skip_while(|s| *s == Status::Success).collect();
        let rest = if side == 0 { failed.get(..) } else { failed.get(1..) };
        assert!(rest.unwrap_or_default().iter().all(|s| *s == FLUSHED), "{ended:?}");
        std::thread::sleep(Duration::from_millis(30));
        if side == 0 {
            // Data in flight may still arrive, but only data that was sent.
            let now = lab.get(far, LEN);
            assert!(
                now.iter().zip(&data).all(|(byte, sent)| byte == sent || *byte == 0),
                "read after the end"
            );
        } else {
            assert!(lab.get(far, LEN) == target, "written after the end");
        }
        assert!(lab.poll(pair.send_cq).is_empty());
    }
    lab.arena.free(near, LEN as u64);
    lab.arena.free(far, LEN as u64);
}

/// Makes a pair whose side `side` will be destroyed. Only a sender that loses its receiver gives up soon: on
/// a slow machine a sender that is itself destroyed would do so before.
fn pair_that_loses(lab: &Lab, side: usize) -> Pair<'_> {
    if side == 0 { lab.pair() } else { lab.pair_with(quick) }
}

/// Makes the sender give up soon if the peer has gone.
fn quick(connect: &mut QpConnect) {
    (connect.ack_timeout, connect.retries) = (Duration::from_millis(10), 1);
}

fn ended(completions: &[Completion]) -> Vec<(u64, WorkKind, Status)> {
    completions.iter().map(|c| (c.id.0, c.kind, c.status)).collect()
}
