//! Two drivers over two emulated cards in one process: every verb, and every way in which one can end.

use crate::common::node;
use crate::common::nodes::{Nodes, on_every_card};
use crate::common::pair::{DEPTH, End, datagrams, every_verb, gather, to};
use crate::common::wire::{Station, exchange, exchange_lossy};
use platform::IoAddr;
use std::time::Duration;
use verbs::{
    Completion, LinkKind, Payload, RecvWr, RemoteAddr, RemoteKey, Rnic, SendOp, SendWr, Sge, Status,
    VerbsError, WorkKind, WrId,
};

/// Calls `test` with two connected ends.
fn connected(profile: &str, link: LinkKind, test: impl FnOnce(&End<'_>, &End<'_>, [&dyn Station; 2])) {
    let nodes = Nodes::new(profile);
    let [a, b] = nodes.connect(link);
    test(&a, &b, nodes.stations());
}

#[test]
fn every_verb_moves_its_data() {
    on_every_card(|_, link, nodes| {
        let [a, b] = nodes.connect(link);
        every_verb(&a, &b, &nodes.stations());
        every_verb(&b, &a, &nodes.stations());
    });
}

#[test]
fn datagrams_reach_who_has_their_key() {
    on_every_card(|_, link, nodes| {
        let [a, b] = nodes.posts();
        datagrams(&a, &b, link, &nodes.stations());
        datagrams(&b, &a, link, &nodes.stations());
        a.rnic.destroy_qp(a.qp.number()).unwrap();
    });
}

#[test]
fn a_queue_pair_talks_to_itself() {
    let (machine, driver) = node("pro", 1);
    let end = End::new(&driver, &machine.bus.data);
    end.connect(&end, LinkKind::RoceV2);
    let (here, there) = (end.put(b"to myself"), end.put(&[0; 16]));
    let list = [Sge { addr: here, len: 9 }];
    end.post(1, SendOp::Write { data: gather(&list), remote: end.remote(there), imm: None });
    exchange(&[&machine]);
    assert_eq!((end.one().status, end.bytes(there, 9)), (Status::Success, b"to myself".to_vec()));
}

#[test]
fn errors_end_work_as_they_should() {
    type Wrong = (fn(&End<'_>, IoAddr) -> RemoteAddr, Status);
    let wrongs: [Wrong; 2] = [
        (
            |b, at| RemoteAddr { key: RemoteKey(b.remote(at).key.0 ^ 1), ..b.remote(at) },
            Status::RemoteAccessError,
        ),
        (|b, _| b.remote(IoAddr(1)), Status::RemoteAccessError),
    ];
    for (wrong, status) in wrongs {
        connected("pro", LinkKind::RoceV2, |a, b, stations| {
            let there = b.put(&[7; 64]);
            let write = |remote| SendOp::Write { data: Payload::Inline(b"hello"), remote, imm: None };
            b.receive(50, &[]);
            a.post(1, write(wrong(b, there)));
            a.post(2, write(b.remote(there)));
            exchange(&stations);
            let ended: Vec<_> = a.poll().iter().map(|c| (c.id.0, c.status, c.kind)).collect();
            assert_eq!(
                ended,
                [(1, status, WorkKind::Write), (2, Status::WorkRequestFlushed, WorkKind::Write)]
            );
            assert_eq!(b.bytes(there, 64), [7; 64]);
            // The responder's queue pair is in error too, and its receive completes as flushed.
            assert_eq!(b.one().status, Status::WorkRequestFlushed);
        });
    }
}

#[test]
fn a_peer_that_is_not_there_or_not_ready_ends_in_time() {
    let wait = |a: &End<'_>, nodes: &Nodes, dead: bool| {
        for _ in 0..10_000 {
            exchange_lossy(&nodes.stations(), |_| dead);
            if let [done] = a.poll()[..] {
                return done;
            }
            nodes.machines.iter().for_each(|machine| machine.advance(Duration::from_millis(10)));
        }
        panic!("no end");
    };
    for (dead, status) in [(true, Status::RetryExceeded), (false, Status::RnrRetryExceeded)] {
        let nodes = Nodes::new("pro");
        let [a, _b] = nodes.connect(LinkKind::RoceV2);
        a.post(1, SendOp::Send { data: Payload::Inline(b"anybody?"), imm: None });
        assert_eq!(wait(&a, &nodes, dead).status, status);
    }
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    connected("pro", LinkKind::RoceV2, |a, b, _| {
        let there = b.put(&[0; 64]);
        let remote = b.remote(there);
        let post = |op| {
            let wr = SendWr { id: WrId(1), op, signaled: true, solicited: false, fence: false };
            a.rnic.post_send(a.qp, &[wr])
        };
        let outside = [Sge { addr: IoAddr(4096), len: 8 }];
        let write = |data| SendOp::Write { data, remote, imm: None };
        assert_eq!(post(write(gather(&outside))), Err((0, VerbsError::LocalProtection)));
        assert_eq!(post(SendOp::Read { into: &outside, remote }), Err((0, VerbsError::LocalProtection)));
        assert_eq!(post(write(Payload::Inline(&[0; 181]))), Err((0, VerbsError::InvalidArgument)));
        let here = Sge { addr: a.put(&[0; 64]), len: 8 };
        let many = [here; 5];
        assert_eq!(post(write(gather(&many))), Err((0, VerbsError::InvalidArgument)));
        let odd = RemoteAddr { addr: IoAddr(there.0 + 4), ..remote };
        let atomic = SendOp::FetchAdd { result: here.addr, remote: odd, add: 1 };
        assert_eq!(post(atomic), Err((0, VerbsError::InvalidArgument)));
        let receive = RecvWr { id: WrId(1), scatter: &outside };
        assert_eq!(a.rnic.post_recv(a.qp, &[receive]), Err((0, VerbsError::LocalProtection)));
        // A queue pair is connected only once.
        let again = to(b, a.qp, LinkKind::RoceV2);
        assert_eq!(a.rnic.connect_qp(a.qp, &again), Err(VerbsError::InvalidState));
        assert_eq!(a.rnic.connect_qp(b.qp, &again), Err(VerbsError::NotFound));
        assert!(a.poll().is_empty());
    });
}

#[test]
fn rings_go_round_and_take_no_more_than_they_hold() {
    connected("pro", LinkKind::RoceV2, |a, b, stations| {
        let there = b.put(&[0; 4096]);
        let mut next = 0u64;
        for lap in 0..60u8 {
            // Only the last request of a batch asks for a completion.
            let bytes = [lap; 100];
            let data = Payload::Inline(&bytes[..usize::from(lap) + 20]);
            let work: Vec<_> = (0..DEPTH)
                .map(|n| {
                    let remote = b.remote(there.checked_add(u64::from(n) * 128).unwrap());
                    let op = SendOp::Write { data, remote, imm: None };
                    let signaled = n == DEPTH - 1;
                    SendWr { id: WrId(next + u64::from(n)), op, signaled, solicited: false, fence: false }
                })
                .collect();
            next += u64::from(DEPTH);
            a.rnic.post_send(a.qp, &work).unwrap();
            assert_eq!(a.rnic.post_send(a.qp, &work), Err((0, VerbsError::NoResources)));
            exchange(&stations);
            assert_eq!(a.one().id, WrId(next - 1));
            for n in 0..u64::from(DEPTH) {
                let got = b.bytes(there.checked_add(n * 128).unwrap(), usize::from(lap) + 20);
                assert_eq!(got, bytes[..usize::from(lap) + 20]);
            }
        }
        let mut counters = Vec::new();
        a.rnic.counters(&mut |counter| counters.push(counter));
        assert!(counters.contains(&("tx_requests", 60 * u64::from(DEPTH))));
        assert!(counters.contains(&("tx_doorbells", 60)), "one for a batch: {counters:?}");
        assert!(counters.contains(&("stray_completions", 0)));
    });
}

#[test]
fn a_lone_request_goes_to_the_card_with_its_doorbell() {
    for (profile, flames) in [("blueflame", true), ("pro", false)] {
        connected(profile, LinkKind::RoceV2, |a, b, stations| {
            every_verb(a, b, &stations);
            let mut counters = Vec::new();
            a.rnic.counters(&mut |counter| counters.push(counter));
            let of = |name| counters.iter().find(|(n, _)| *n == name).unwrap().1;
            assert_eq!(of("tx_blue_flames") > 0, flames, "{profile}: {counters:?}");
            assert_eq!(of("stray_completions"), 0);
        });
    }
}

#[test]
fn a_destroyed_queue_pair_completes_all_its_work_and_gives_everything_back() {
    for (profile, link) in [("pro", LinkKind::RoceV2), ("vf", LinkKind::RoceV1)] {
        let nodes = Nodes::new(profile);
        let memory = nodes.machines[0].bus.shared.clone();
        let before = memory.in_use();
        let mut peak = 0;
        for round in 0..40u64 {
            let [a, b] = nodes.connect(link);
            let there = b.put(&[0; 64]);
            let write = SendOp::Write { data: Payload::Inline(b"x"), remote: b.remote(there), imm: None };
            a.receive(1, &[]);
            a.receive(2, &[]);
            a.post(3, write);
            if round % 2 == 0 {
                // Written by the card, but not polled before the queue pair is destroyed.
                exchange(&nodes.stations());
            }
            a.post(4, write);
            a.rnic.destroy_qp(a.qp).unwrap();
            b.rnic.destroy_qp(b.qp).unwrap();
            let ended: Vec<_> = a.poll().iter().map(|c: &Completion| (c.id.0, c.status)).collect();
            let flushed = Status::WorkRequestFlushed;
            let first = if round % 2 == 0 { Status::Success } else { flushed };
            assert_eq!(ended, [(3, first), (4, flushed), (1, flushed), (2, flushed)]);
            assert_eq!(a.rnic.destroy_qp(a.qp), Err(VerbsError::NotFound));
            let late = [SendWr { id: WrId(5), op: write, signaled: true, solicited: false, fence: false }];
            assert_eq!(a.rnic.post_send(a.qp, &late), Err((0, VerbsError::NotFound)));
            if round == 0 {
                peak = memory.in_use();
            }
            b.memory.free(there, 64);
        }
        // Completion queues stay allocated: two pages each, and their entries in tables. Everything else was
        // freed.
        let (queues, tables) = (39 * 2 * 4096, 4 * 4096);
        assert!(memory.in_use() <= peak + queues + tables, "{profile}: {} {peak}", memory.in_use());
        drop(nodes);
        assert_eq!(memory.in_use(), 0, "{profile}: of {before}");
    }
}

#[test]
fn interrupts_come_for_what_was_armed() {
    let ((ma, da), (mb, db)) = (node("pro", 1), node("pro", 2));
    let (a, b) = (End::new(&da, &ma.bus.data), End::new(&db, &mb.bus.data));
    a.connect(&b, LinkKind::RoceV2);
    b.connect(&a, LinkKind::RoceV2);
    let there = b.put(&[0; 64]);
    let write = SendOp::Write { data: Payload::Inline(b"x"), remote: b.remote(there), imm: None };
    while da.progress(platform::Instant::ZERO, 64) {}
    ma.bus.interrupts.lock().unwrap().clear();
    for round in 1..6 {
        assert!(!da.arm(), "nothing waits");
        a.post(1, write);
        exchange(&[&ma, &mb]);
        assert_eq!(ma.bus.interrupts.lock().unwrap().len(), round);
        assert!(da.arm(), "a completion waits");
        assert!(da.progress(platform::Instant::ZERO, 64));
        assert_eq!(a.one().status, Status::Success);
    }
}
