//! Faults and their results: every failure is bounded, typed, and leaves no byte out of place.

use crate::common::{ACK_TIMEOUT, Faults, MEMORY, Options, Pair, Random, pattern, wr};
use platform::{Instant, IoAddr};
use std::collections::BTreeSet;
use verbs::{PathMtu, Payload, RemoteAddr, RemoteKey, SendOp, Sge, Status, VerbsError, WorkKind};

fn write<'a>(sge: &'a [Sge], remote: RemoteAddr) -> SendOp<'a> {
    SendOp::Write { data: Payload::Gather(sge), remote, imm: None }
}

#[test]
fn sequence_numbers_wrap() {
    for mtu in [PathMtu::B256, PathMtu::B4096] {
        for seed in 0..4 {
            let faults = if seed == 0 { Faults::NONE } else { Faults { loss: 20_000, ..Faults::NONE } };
            let pair =
                Pair::new(&Options { mtu, faults, seed, psn: [0xff_fffa, 0xff_ffff], ..Options::default() });
            let [a, b] = &pair.nodes;
            let data = pattern(20_000, seed as u8);
            a.put(0, &data);
            b.put(0x10_0000, &data);
            let list = [Sge { addr: a.at(0), len: 20_000 }];
            let into = [Sge { addr: a.at(0x20_0000), len: 20_000 }];
            for id in 0..10 {
                a.send(2 * id, write(&list, b.remote(id * 20_000)));
                a.send(2 * id + 1, SendOp::Read { into: &into, remote: b.remote(0x10_0000) });
            }
            assert!(pair.finish(0).iter().all(|c| c.status == Status::Success));
            for id in 0..10 {
                assert!(b.get(id * 20_000, 20_000) == data);
            }
            assert!(a.get(0x20_0000, 20_000) == data);
        }
    }
}

#[test]
fn a_send_waits_until_a_receive_is_posted() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    let data = pattern(3000, 1);
    a.put(0, &data);
    let list = [Sge { addr: a.at(0), len: 3000 }];
    a.send(1, SendOp::Send { data: Payload::Gather(&list), imm: None });
    a.send(2, SendOp::Write { data: Payload::Gather(&list), remote: b.remote(0x10_0000), imm: Some(5) });
    for _ in 0..200 {
        pair.settle();
        pair.advance();
    }
    assert!(pair.sends(0).is_empty());
    assert!(b.counter("tx_rnr_naks") > 3 && a.counter("rx_rnr_naks") > 3);
    b.recv(10, 0, 4000);
    b.recv(11, 0, 0);
    let sent: Vec<_> = pair.finish(0).iter().map(|c| (c.id.0, c.status)).collect();
    assert_eq!(sent, [(1, Status::Success), (2, Status::Success)]);
    let received: Vec<_> = pair.recvs(1).iter().map(|c| (c.id.0, c.kind, c.byte_len)).collect();
    assert_eq!(received, [(10, WorkKind::Recv, 3000), (11, WorkKind::RecvWriteImm, 3000)]);
    assert!(b.get(0, 3000) == data && b.get(0x10_0000, 3000) == data);
}

#[test]
fn without_a_receive_the_rnr_retries_end() {
    let pair = Pair::new(&Options { rnr_retries: 3, ..Options::default() });
    let a = &pair.nodes[0];
    a.send(1, SendOp::Send { data: Payload::Inline(b"hello"), imm: None });
    a.send(2, SendOp::Send { data: Payload::Inline(b"again"), imm: None });
    let ended: Vec<_> = pair.finish(0).iter().map(|c| (c.id.0, c.status)).collect();
    assert_eq!(ended, [(1, Status::RnrRetryExceeded), (2, Status::WorkRequestFlushed)]);
    assert_eq!(pair.nodes[1].counter("tx_rnr_naks"), 4);
    assert!(pair.now() < 1_000_000, "three waits of 100 us");
}

#[test]
fn a_dead_peer_ends_the_work_in_bounded_time() {
    let pair = Pair::new(&Options { retries: 5, ..Options::default() });
    let [a, b] = &pair.nodes;
    pair.wire.lock().unwrap().cut = true;
    let start = pair.now();
    let list = [Sge { addr: a.at(0), len: 100_000 }];
    a.rnic.post_send(a.qp, &[verbs::SendWr { signaled: false, ..wr(1, write(&list, b.remote(0))) }]).unwrap();
    a.send(2, SendOp::Read { into: &list, remote: b.remote(0) });
    a.recv(3, 0, 10);
    let ended: Vec<_> = pair.finish(0).iter().map(|c| (c.id.0, c.status)).collect();
    assert_eq!(ended, [(1, Status::RetryExceeded), (2, Status::WorkRequestFlushed)]);
    assert_eq!(pair.recvs(0)[0].status, Status::WorkRequestFlushed);
    // Each wait is twice as long as the one before.
    assert_eq!(u128::from(pair.now() - start), (1 + 2 + 4 + 8 + 16 + 32) * ACK_TIMEOUT.as_nanos());
    assert_eq!(a.counter("timeouts"), 6);
    // Work posted later completes too.
    a.send(4, SendOp::Send { data: Payload::Inline(b"x"), imm: None });
    a.recv(5, 0, 10);
    assert_eq!(pair.sends(0)[0].status, Status::WorkRequestFlushed);
    assert_eq!(pair.recvs(0)[0].status, Status::WorkRequestFlushed);
    assert_eq!(a.rnic.next_deadline(), None);
}

/// A peer whose processor is away for 240 times the acknowledgement timeout is slow, not dead.
#[test]
fn a_slow_peer_is_waited_for() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    let back = pair.now() + 240 * ACK_TIMEOUT.as_nanos() as u64;
    a.send(1, SendOp::Write { data: Payload::Inline(b"patience"), remote: b.remote(0), imm: None });
    while pair.now() < back {
        while a.rnic.progress(Instant::from_nanos(pair.now()), 64) {}
        let due = a.rnic.next_deadline().map_or(back, Instant::as_nanos);
        pair.advance_to(due.min(back));
    }
    assert_eq!(a.counter("timeouts"), 7);
    assert_eq!(pair.finish(0)[0].status, Status::Success);
    assert_eq!(b.get(0, 8), *b"patience");
}

/// Progress restarts the timeouts.
#[test]
fn progress_makes_the_timeout_short_again() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    for round in 0..2 {
        pair.wire.lock().unwrap().cut = true;
        let start = pair.now();
        let data = [round; 4];
        a.send(1, SendOp::Write { data: Payload::Inline(&data), remote: b.remote(0), imm: None });
        pair.settle();
        let before = a.counter("timeouts");
        while a.counter("timeouts") < before + 2 {
            assert!(pair.advance());
            pair.settle();
        }
        assert_eq!(u128::from(pair.now() - start), 3 * ACK_TIMEOUT.as_nanos());
        pair.wire.lock().unwrap().cut = false;
        assert_eq!(pair.finish(0)[0].status, Status::Success);
        assert_eq!(b.get(0, 4), data);
    }
}

/// A node that was not scheduled handles acknowledgements that arrived in time before its own timers.
#[test]
fn a_node_that_slept_misses_no_acknowledgement() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    a.send(1, SendOp::Write { data: Payload::Inline(b"early"), remote: b.remote(0), imm: None });
    a.rnic.progress(Instant::from_nanos(pair.now()), 64);
    pair.advance_to(pair.now() + 10_000);
    while b.rnic.progress(Instant::from_nanos(pair.now()), 64) {}
    pair.advance_to(pair.now() + 100 * ACK_TIMEOUT.as_nanos() as u64);
    assert_eq!(pair.finish(0)[0].status, Status::Success);
    assert_eq!((a.counter("timeouts"), a.counter("retransmits")), (0, 0));
}

#[test]
fn a_queue_pair_in_error_executes_nothing() {
    let pair = Pair::new(&Options { retries: 1, ..Options::default() });
    let [a, b] = &pair.nodes;
    pair.wire.lock().unwrap().cut = true;
    a.send(1, SendOp::Send { data: Payload::Inline(b"unheard"), imm: None });
    assert_eq!(pair.finish(0)[0].status, Status::RetryExceeded);
    pair.wire.lock().unwrap().cut = false;
    b.send(1, SendOp::Write { data: Payload::Inline(b"late"), remote: a.remote(0), imm: None });
    assert_eq!(pair.finish(1)[0].status, Status::RetryExceeded);
    assert_eq!(a.get(0, 4), [0; 4]);
    assert_eq!((a.counter("qp_errors"), b.counter("qp_errors")), (1, 1));
}

#[test]
fn an_access_outside_of_memory_is_refused_and_changes_nothing() {
    let (good, end) = (0u64, MEMORY);
    let base = 0x2000_0000u64;
    let places = [
        (base + end - 100, true, "straddles the end"),
        (base - 1, true, "straddles the beginning"),
        (base + end, true, "begins at the end"),
        (u64::MAX - 10, true, "wraps around"),
        (0, true, "zero"),
        (base + good, false, "wrong key"),
    ];
    for lossy in [false, true] {
        for (addr, right_key, why) in places {
            for verb in 0..4 {
                let faults = if lossy { Faults { loss: 200_000, ..Faults::NONE } } else { Faults::NONE };
                let seed = addr ^ verb;
                let pair = Pair::new(&Options { faults, seed, retries: 20, ..Options::default() });
                let [a, b] = &pair.nodes;
                assert_eq!(b.base, base);
                let before = pattern(MEMORY as usize, 3);
                b.put(0, &before);
                a.put(0, &[0xee; 4096]);
                let key = b.remote(0).key;
                let key = if right_key { key } else { RemoteKey(key.0 ^ 1) };
                let remote = RemoteAddr { addr: IoAddr(addr), key };
                let list = [Sge { addr: a.at(0), len: 3000 }];
                let aligned = RemoteAddr { addr: IoAddr(addr.wrapping_add(100) & !7), key };
                let aligned = if right_key && addr == base + end - 100 {
                    RemoteAddr { addr: IoAddr(base + end), key }
                } else {
                    aligned
                };
                let aligned =
                    if addr == base - 1 { RemoteAddr { addr: IoAddr(base - 8), key } } else { aligned };
                let op = match verb {
                    0 => write(&list, remote),
                    1 => SendOp::Read { into: &list, remote },
                    2 => SendOp::FetchAdd { result: a.at(0), remote: aligned, add: 1 },
                    _ => SendOp::CompareSwap { result: a.at(0), remote: aligned, compare: 0, swap: 1 },
                };
                a.send(1, op);
                a.send(2, SendOp::Send { data: Payload::Inline(b"later"), imm: None });
                b.recv(9, 0x1000, 100);
                let ended: Vec<_> = pair.finish(0).iter().map(|c| (c.id.0, c.status)).collect();
                let expected = [(1, Status::RemoteAccessError), (2, Status::WorkRequestFlushed)];
                assert_eq!(ended, expected, "{why}, verb {verb}, lossy {lossy}");
                assert!(b.get(0, MEMORY as usize) == before, "{why}, verb {verb}");
                assert_eq!(a.get(0, 8), [0xee; 8]);
                assert_eq!(b.counter("access_errors"), 1);
                assert_eq!(pair.recvs(1)[0].status, Status::WorkRequestFlushed);
            }
        }
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    a.send(1, SendOp::FetchAdd { result: a.at(0), remote: b.remote(4), add: 1 });
    assert_eq!(pair.finish(0)[0].status, Status::RemoteInvalidRequest);
    assert_eq!(b.counter("invalid_requests"), 1);
}

#[test]
fn a_receive_that_is_too_short_ends_with_a_length_error() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    a.put(0, &[7; 3000]);
    b.recv(9, 0x1000, 2999);
    let list = [Sge { addr: a.at(0), len: 3000 }];
    a.send(1, SendOp::Send { data: Payload::Gather(&list), imm: None });
    assert_eq!(pair.finish(0)[0].status, Status::RemoteInvalidRequest);
    assert_eq!(pair.recvs(1)[0].status, Status::LocalLengthError);
    assert_eq!(b.get(0x1000 + 2999, 1), [0]);
}

#[test]
fn destroying_a_queue_pair_flushes_it_and_ends_its_reach() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    a.put(0, &[9; 100_000]);
    let list = [Sge { addr: a.at(0), len: 100_000 }];
    a.send(1, write(&list, b.remote(0)));
    b.recv(5, 0, 10);
    b.send(6, SendOp::Send { data: Payload::Inline(b"never"), imm: None });
    pair.settle();
    // Frames are on the wire now.
    b.rnic.destroy_qp(b.qp).unwrap();
    assert_eq!(pair.recvs(1)[0].status, Status::WorkRequestFlushed);
    assert_eq!(pair.sends(1)[0].status, Status::WorkRequestFlushed);
    assert_eq!(b.rnic.destroy_qp(b.qp), Err(VerbsError::NotFound));
    let next = b.rnic.create_qp(verbs::QpOptions {
        send_cq: b.cq,
        recv_cq: b.recv_cq,
        send_depth: 4,
        recv_depth: 4,
    });
    assert_ne!(next.unwrap(), b.qp, "the number is not used again at once");
    assert_eq!(pair.finish(0)[0].status, Status::RetryExceeded);
    assert!(b.get(0, 100_000).iter().all(|&byte| byte == 0));
    assert!(b.counter("rx_unknown_qp") > 0);
}

#[test]
fn an_atomic_is_executed_once_however_bad_the_wire() {
    for seed in 0..20 {
        let faults = Faults { loss: 50_000, duplicate: 50_000, reorder: 50_000, corrupt: 20_000 };
        let max_rd_atomic = [1, 4, 16][seed as usize % 3];
        let pair = Pair::new(&Options { faults, seed, max_rd_atomic, retries: 50, ..Options::default() });
        for id in 0..200u64 {
            for side in 0..2 {
                let (node, peer) = (&pair.nodes[side], &pair.nodes[1 - side]);
                let remote = peer.remote(0);
                node.send(id, SendOp::FetchAdd { result: node.at(64 + 8 * id), remote, add: 1 });
            }
        }
        pair.run();
        for side in 0..2 {
            let node = &pair.nodes[side];
            assert!(pair.sends(side).iter().all(|c| c.status == Status::Success));
            let seen: BTreeSet<u64> = (0..200).map(|id| node.word(64 + 8 * id)).collect();
            assert!(seen.iter().copied().eq(0..200), "seed {seed}");
            assert_eq!(node.word(0), 200);
            assert!(node.counter("rx_duplicates") > 0);
        }
    }
}

#[test]
fn a_long_message_never_floods_the_receive_ring() {
    for mtu in PathMtu::ALL {
        let pair = Pair::new(&Options { mtu, ring: 64, ..Options::default() });
        let [a, b] = &pair.nodes;
        let len = 4 << 20;
        let list = [Sge { addr: a.at(0), len }];
        a.send(1, write(&list, b.remote(0)));
        a.send(2, SendOp::Read { into: &list, remote: b.remote(0) });
        assert!(pair.finish(0).iter().all(|c| c.status == Status::Success));
        assert_eq!(pair.wire.lock().unwrap().ring_lost, 0, "{mtu:?}");
        assert_eq!(a.counter("retransmits") + a.counter("timeouts"), 0);
    }
}

#[test]
fn a_ring_that_is_too_small_only_slows_down() {
    let pair = Pair::new(&Options { ring: 12, retries: 20, ..Options::default() });
    let [a, b] = &pair.nodes;
    let data = pattern(1 << 20, 5);
    a.put(0, &data);
    let list = [Sge { addr: a.at(0), len: 1 << 20 }];
    a.send(1, write(&list, b.remote(0)));
    assert_eq!(pair.finish(0)[0].status, Status::Success);
    assert!(b.get(0, 1 << 20) == data);
    assert!(pair.wire.lock().unwrap().ring_lost > 0);
}

#[test]
fn a_gap_is_reported_once() {
    let pair = Pair::new(&Options::default());
    let [a, b] = &pair.nodes;
    let list = [Sge { addr: a.at(0), len: 12 * 1024 }];
    // The first packet is lost, the other twelve arrive.
    pair.wire.lock().unwrap().cut = true;
    a.send(1, SendOp::Send { data: Payload::Inline(b"lost"), imm: None });
    b.recv(1, 0, 100);
    pair.settle();
    pair.wire.lock().unwrap().cut = false;
    a.send(2, write(&list, b.remote(0)));
    assert!(pair.finish(0).iter().all(|c| c.status == Status::Success));
    assert_eq!((b.counter("tx_naks"), b.counter("rx_out_of_sequence")), (1, 12));
    assert_eq!((a.counter("retransmits"), a.counter("timeouts")), (13, 0));
}

#[test]
fn queues_that_are_full_say_so() {
    let pair = Pair::new(&Options { depth: 4, ..Options::default() });
    let a = &pair.nodes[0];
    let send = SendOp::Send { data: Payload::Inline(b"x"), imm: None };
    let five = [1, 2, 3, 4, 5].map(|id| wr(id, send));
    assert_eq!(a.rnic.post_send(a.qp, &five), Err((4, VerbsError::NoResources)));
    let bad = [Sge { addr: IoAddr(3), len: 4 }];
    let b = &pair.nodes[1];
    let send = |op| b.rnic.post_send(b.qp, &[wr(1, op)]).unwrap_err().1;
    assert_eq!(send(write(&bad, a.remote(0))), VerbsError::LocalProtection);
    let many = [Sge { addr: b.at(0), len: 1 }; 5];
    assert_eq!(send(write(&many, a.remote(0))), VerbsError::InvalidArgument);
    let long = [0; 129];
    let op = SendOp::Send { data: Payload::Inline(&long), imm: None };
    assert_eq!(send(op), VerbsError::InvalidArgument);
    // Nothing of the refused work was queued, and its room in the completion queue was released.
    for id in 0..4 {
        b.recv(id, 0x100, 8);
        b.send(id, SendOp::FetchAdd { result: b.at(0), remote: a.remote(0), add: 1 });
    }
    assert_eq!(pair.finish(1).len(), 4);
}

/// Random work on both sides over a random wire, compared with a model of the final contents of both
/// memories.
#[test]
fn random_work_over_random_wires() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut rate = |max| random.below(max) as u32;
        let faults = Faults {
            loss: rate(30_000),
            duplicate: rate(30_000),
            reorder: rate(100_000),
            corrupt: rate(10_000),
        };
        let mtu = PathMtu::ALL[rate(5) as usize];
        let max_rd_atomic = [1, 2, 16][rate(3) as usize];
        let pair =
            Pair::new(&Options { faults, seed, mtu, max_rd_atomic, retries: 50, ..Options::default() });
        let mut model = [vec![0u8; MEMORY as usize], vec![0u8; MEMORY as usize]];
        let mut expected = [Vec::new(), Vec::new()];
        for (node, model) in pair.nodes.iter().zip(&mut model) {
            let data = pattern(1 << 20, seed as u8 + node.base.trailing_zeros() as u8);
            node.put(0, &data);
            model[..1 << 20].copy_from_slice(&data);
        }
        // The first MB is the source; the second is written by this side's READs, the third by the peer's
        // WRITEs, the fourth by the peer's SENDs, each byte once.
        for side in 0..2 {
            let (node, peer) = (&pair.nodes[side], &pair.nodes[1 - side]);
            let mut at = 0u64;
            for id in 0..60 {
                let len = match random.below(4) {
                    0 => random.below(3),
                    1 => mtu.bytes() as u64,
                    2 => random.below(3 * mtu.bytes() as u64),
                    _ => random.below(16_000),
                };
                let from = random.below((1 << 20) - len);
                let source = [Sge { addr: node.at(from), len: len as u32 }];
                let (range, data) = (from as usize..(from + len) as usize, Payload::Gather(&source));
                let (start, end) = (at as usize, (at + len) as usize);
                let kind = match random.below(4) {
                    0 => {
                        let into = [Sge { addr: node.at((1 << 20) + at), len: len as u32 }];
                        node.send(id, SendOp::Read { into: &into, remote: peer.remote(from) });
                        let bytes = model[1 - side][range].to_vec();
                        model[side][(1 << 20) + start..(1 << 20) + end].copy_from_slice(&bytes);
                        WorkKind::Read
                    }
                    1 => {
                        peer.recv(id, (3 << 20) + at, len as u32 + 1);
                        node.send(id, SendOp::Send { data, imm: None });
                        let bytes = model[side][range].to_vec();
                        model[1 - side][(3 << 20) + start..(3 << 20) + end].copy_from_slice(&bytes);
                        WorkKind::Send
                    }
                    _ => {
                        node.send(id, SendOp::Write { data, remote: peer.remote((2 << 20) + at), imm: None });
                        let bytes = model[side][range].to_vec();
                        model[1 - side][(2 << 20) + start..(2 << 20) + end].copy_from_slice(&bytes);
                        WorkKind::Write
                    }
                };
                expected[side].push((id, kind, Status::Success));
                at += len;
            }
        }
        pair.run();
        for side in 0..2 {
            let ended: Vec<_> = pair.sends(side).iter().map(|c| (c.id.0, c.kind, c.status)).collect();
            assert_eq!(ended, expected[side], "seed {seed}");
            assert!(pair.nodes[side].get(0, MEMORY as usize) == model[side], "seed {seed} side {side}");
            assert_eq!(pair.nodes[side].counter("qp_errors"), 0);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    let trace = || {
        let faults = Faults { loss: 20_000, duplicate: 10_000, reorder: 20_000, corrupt: 5_000 };
        let pair = Pair::new(&Options { faults, seed: 7, retries: 20, ..Options::default() });
        pair.wire.lock().unwrap().log = Some(Vec::new());
        let [a, b] = &pair.nodes;
        let list = [Sge { addr: a.at(0), len: 200_000 }];
        a.send(1, write(&list, b.remote(0)));
        a.send(2, SendOp::Read { into: &list, remote: b.remote(0) });
        assert_eq!(pair.finish(0).len(), 2);
        let log = pair.wire.lock().unwrap().log.take();
        (log, pair.now())
    };
    assert!(trace() == trace());
}

#[test]
fn a_transmit_ring_that_is_full_only_delays() {
    let pair = Pair::new(&Options { transmit_ring: 3, retries: 20, ..Options::default() });
    let [a, b] = &pair.nodes;
    let data = pattern(200_000, 5);
    a.put(0, &data);
    let list = [Sge { addr: a.at(0), len: 200_000 }];
    let into = [Sge { addr: a.at(0x20_0000), len: 200_000 }];
    a.send(1, write(&list, b.remote(0)));
    a.send(2, SendOp::Read { into: &into, remote: b.remote(0) });
    assert!(pair.finish(0).iter().all(|c| c.status == Status::Success));
    assert!(b.get(0, 200_000) == data && a.get(0x20_0000, 200_000) == data);
    assert_eq!((a.rnic.next_deadline(), b.rnic.next_deadline()), (None, None));
}
