//! Cards that fail are reset and work again: all work completes, completion queues stay, and users make new
//! queue pairs.

use crate::common;
use crate::common::nodes::Nodes;
use crate::common::pair::{DEPTH, End, every_verb};
use crate::common::subnet::{configure, train};
use crate::common::wire::{Station, exchange};
use crate::common::{Driver, Machine};
use mlx4::{Error, Hardware, Health};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use verbs::{
    LinkKind, Payload, PortState, QpOptions, RecvWr, Rnic, SendOp, SendWr, Status, VerbsError, WrId,
};

/// Lets the driver detect the failure, and recovers the card until it works or is lost. Returns the time that
/// this took.
fn recover(machine: &Arc<Machine>, driver: &Driver) -> (Health, Duration) {
    machine.advance(Duration::from_secs(6));
    driver.progress(machine.bus.clock(), 64);
    let begun = machine.bus.clock();
    for _ in 0..100_000 {
        match driver.recover(machine.bus.clock()) {
            Health::Recovering { next } => {
                let now = machine.bus.clock();
                assert!(next > now, "it does not ask for the past");
                machine.advance(next - now);
                machine.progress();
            }
            end => return (end, machine.bus.clock() - begun),
        }
    }
    panic!("no end");
}

/// Makes the card of `machine` fail in a given way.
fn fail(machine: &Arc<Machine>, driver: &Driver, way: &str) {
    const GO: u32 = 1 << 23;
    match way {
        "error buffer" => machine.fail_until_reset(0xdead),
        "gone" => machine.fail_until_reset(u32::MAX),
        "commands" => {
            machine.fail_until_reset(GO);
            let qp =
                QpOptions { send_cq: verbs::CqId(1), recv_cq: verbs::CqId(1), send_depth: 1, recv_depth: 1 };
            driver.create_qp(qp).unwrap_err();
            assert!(driver.create_cq(verbs::CqOptions { depth: 1 }).is_err());
        }
        "given up" => {
            let said = machine.plug().doorbell(0);
            machine.plug().ring(0, (said ^ 1 << 31) & 1 << 31 | 2 << 16);
        }
        _ => panic!("{way}"),
    }
}

#[test]
fn a_card_that_fails_is_reset_and_goes_on() {
    for (profile, link, way) in [
        ("pro", LinkKind::RoceV2, "error buffer"),
        ("pro", LinkKind::RoceV2, "gone"),
        ("pro", LinkKind::RoceV2, "commands"),
        ("slow", LinkKind::RoceV2, "error buffer"),
        ("large-entries", LinkKind::RoceV2, "error buffer"),
        ("cx3", LinkKind::RoceV1, "error buffer"),
        ("ib", LinkKind::InfiniBand, "error buffer"),
        ("vf", LinkKind::RoceV1, "given up"),
    ] {
        println!("{profile} {way}");
        let nodes = Nodes::new(profile);
        let ([ma, _], [da, db]) = (&nodes.machines, &nodes.drivers);
        let before = da.attributes();
        let key = da.memory_key();
        for round in 0..3 {
            let [a, b] = nodes.connect(link);
            every_verb(&a, &b, &nodes.stations());
            // Work is in flight, which the card has partly done.
            let there = b.put(&[0; 64]);
            let write = SendOp::Write { data: Payload::Inline(b"x"), remote: b.remote(there), imm: None };
            a.receive(1, &[]);
            a.post(2, write);
            exchange(&nodes.stations());
            a.post(3, write);
            fail(ma, da, way);
            let (health, took) = recover(ma, da);
            assert_eq!(health, Health::Ok, "{profile} {way} {round}");
            assert!(took < Duration::from_secs(6), "{took:?}");
            let ended: Vec<_> = a.poll().iter().map(|c| (c.id.0, c.status == Status::Success)).collect();
            assert_eq!(ended, [(2, true), (3, false), (1, false)]);
            // The queue pair is unusable, and can only be destroyed.
            let wr = SendWr { id: WrId(4), op: write, signaled: true, solicited: false, fence: false };
            assert_eq!(da.post_send(a.qp, &[wr]), Err((0, VerbsError::InvalidState)));
            let receive = RecvWr { id: WrId(5), scatter: &[] };
            assert_eq!(da.post_recv(a.qp, &[receive]), Err((0, VerbsError::InvalidState)));
            let again = common::pair::to(&b, a.qp, link);
            assert_eq!(da.connect_qp(a.qp, &again), Err(VerbsError::InvalidState));
            // Its completion queue can serve another queue pair.
            if profile == "ib" {
                train(&nodes.machines);
                // The other port has lost its link for a while.
                while db.progress(nodes.machines[1].bus.clock(), 64) {}
                configure(ma, da, 1, 5);
                configure(&nodes.machines[1], db, 2, 5);
            } else {
                ma.advance(Duration::from_secs(3));
                ma.progress();
                da.progress(ma.bus.clock(), 64);
            }
            assert_eq!(da.attributes().port_state, PortState::Active);
            let options = QpOptions { send_cq: a.cq, recv_cq: a.cq, send_depth: DEPTH, recv_depth: DEPTH };
            let new = End { qp: da.create_qp(options).unwrap(), memory: a.memory.clone(), ..a };
            assert_eq!(da.destroy_qp(a.qp), Ok(()));
            let c = End::new(db, &nodes.machines[1].bus.data);
            new.connect(&c, link);
            c.connect(&new, link);
            every_verb(&new, &c, &nodes.stations());
            every_verb(&c, &new, &nodes.stations());
            for (driver, qp) in [(da, new.qp), (db, c.qp), (db, b.qp)] {
                driver.destroy_qp(qp).unwrap();
            }
        }
        let after = da.attributes();
        assert_eq!((after.port, after.links, after.max_mtu), (before.port, before.links, before.max_mtu));
        assert_eq!(da.memory_key(), key, "peers go on with the key");
        let mut resets = 0;
        da.counters(&mut |(name, count)| resets = if name == "card_resets" { count } else { resets });
        assert_eq!(resets, 3);
        let memory = ma.bus.shared.clone();
        drop(nodes);
        assert_eq!(memory.in_use(), 0);
    }
}

/// Makes a card unable to release a queue pair: it ignores commands, or reports the completion of one too
/// late.
fn keep(machine: &Machine, way: &str) {
    match way {
        "deaf" => machine.deaf.store(true, Ordering::Relaxed),
        "late" => machine.fail_until_reset(1 << 23),
        _ => panic!("{way}"),
    }
}

/// After a queue pair is destroyed, no packet for it changes memory, even if the card continues.
#[test]
fn a_destroyed_queue_pair_changes_nothing_whatever_the_card_does() {
    for way in ["deaf", "late"] {
        let nodes = Nodes::new("pro");
        let ([ma, _], [da, _]) = (&nodes.machines, &nodes.drivers);
        let [a, b] = nodes.connect(LinkKind::RoceV2);
        let there = a.put(&[1; 64]);
        a.receive(1, &[]);
        let write = |byte: &[u8; 64], id| {
            b.post(id, SendOp::Write { data: Payload::Inline(byte), remote: a.remote(there), imm: None });
            exchange(&nodes.stations());
        };
        write(&[2; 64], 1);
        assert_eq!(a.bytes(there, 64), [2; 64]);
        keep(ma, way);
        assert_eq!(da.destroy_qp(a.qp), Err(VerbsError::DeviceFailed), "{way}");
        write(&[3; 64], 2);
        assert_eq!(a.bytes(there, 64), [2; 64], "{way}: the memory has a new owner");
        assert_eq!(a.one().status, Status::WorkRequestFlushed);
        assert_eq!(da.destroy_qp(a.qp), Err(VerbsError::NotFound));
        // A reset repairs the card, which can then reach memory again.
        assert_eq!(recover(ma, da).0, Health::Ok);
        ma.advance(Duration::from_secs(3));
        ma.progress();
        da.progress(ma.bus.clock(), 64);
        let [a, b] = nodes.connect(LinkKind::RoceV2);
        every_verb(&a, &b, &nodes.stations());
    }
}

/// A card that cannot be kept from reaching memory: its queue pair does not count as destroyed before a
/// reset.
#[test]
fn a_queue_pair_that_is_still_served_is_said_to_be_until_a_reset() {
    let nodes = Nodes::new("pro");
    let ([ma, _], [da, _]) = (&nodes.machines, &nodes.drivers);
    let [a, b] = nodes.connect(LinkKind::RoceV2);
    let there = a.put(&[1; 64]);
    a.receive(1, &[]);
    keep(ma, "deaf");
    ma.stubborn.store(true, Ordering::Relaxed);
    assert_eq!(da.destroy_qp(a.qp), Err(VerbsError::StillServed));
    b.post(1, SendOp::Write { data: Payload::Inline(&[2; 64]), remote: a.remote(there), imm: None });
    exchange(&nodes.stations());
    assert_eq!(a.bytes(there, 64), [2; 64], "it is");
    assert_eq!(da.destroy_qp(a.qp), Err(VerbsError::StillServed));
    assert!(a.poll().is_empty(), "its memory is not given back");
    let receive = RecvWr { id: WrId(2), scatter: &[] };
    assert_eq!(da.post_recv(a.qp, &[receive]), Err((0, VerbsError::DeviceFailed)));
    assert_eq!(recover(ma, da).0, Health::Ok);
    assert_eq!(a.one().status, Status::WorkRequestFlushed);
    assert_eq!(da.destroy_qp(a.qp), Ok(()));
    assert_eq!(da.destroy_qp(a.qp), Err(VerbsError::NotFound));
}

/// A card that never comes back is restarted a bounded number of times, at growing intervals. Its work has
/// completed.
#[test]
fn a_card_that_does_not_come_back_is_given_up() {
    for registers in [u32::MAX, 1 << 23, 1] {
        let nodes = Nodes::new("pro");
        let ([ma, mb], [da, _]) = (&nodes.machines, &nodes.drivers);
        let [a, b] = nodes.connect(LinkKind::RoceV2);
        let there = b.put(&[0; 64]);
        let write = SendOp::Write { data: Payload::Inline(b"x"), remote: b.remote(there), imm: None };
        a.post(1, write);
        ma.broken.store(registers, Ordering::Relaxed);
        let (health, took) = recover(ma, da);
        assert!(matches!(health, Health::Lost { error: Error::Gone | Error::ResetLocked | Error::Failed }));
        assert!(took > Duration::from_secs(14) && took < Duration::from_secs(120), "{took:?}");
        assert_eq!(a.one().status, Status::WorkRequestFlushed);
        assert_eq!(da.recover(ma.bus.clock()), health, "it stays so");
        assert_eq!(da.destroy_qp(a.qp), Ok(()));
        assert_eq!(da.create_cq(verbs::CqOptions { depth: 1 }), Err(VerbsError::DeviceFailed));
        let _ = mb;
    }
}

/// A restart during which the card dies is repeated.
#[test]
fn a_card_may_die_during_recovery() {
    let mut well = 0;
    for at in (1u64..2000).step_by(37) {
        let nodes = Nodes::new("pro");
        let ([ma, _], [da, _]) = (&nodes.machines, &nodes.drivers);
        let [a, _b] = nodes.connect(LinkKind::RoceV2);
        fail(ma, da, "error buffer");
        ma.advance(Duration::from_secs(6));
        da.progress(ma.bus.clock(), 64);
        ma.die_at(at);
        for _ in 0..50_000 {
            match da.recover(ma.bus.clock()) {
                Health::Recovering { next } => ma.advance(next - ma.bus.clock()),
                Health::Ok => {
                    well += 1;
                    break;
                }
                Health::Lost { .. } => panic!("a reset heals it"),
            }
            if ma.broken.load(Ordering::Relaxed) == u32::MAX {
                ma.fail_until_reset(u32::MAX);
            }
        }
        assert_eq!(da.destroy_qp(a.qp), Ok(()));
    }
    assert!(well > 40, "{well}");
}

/// A card that is shut down changes no memory any more, and another driver can start it.
#[test]
fn a_card_that_is_shut_down_can_be_started_again() {
    for (profile, link) in [("pro", LinkKind::RoceV2), ("cx3", LinkKind::RoceV1), ("vf", LinkKind::RoceV1)] {
        println!("{profile}");
        let nodes = Nodes::new(profile);
        let ([a, b], [machine, _]) = (&nodes.drivers, &nodes.machines);
        let [here, there] = nodes.connect(link);
        every_verb(&there, &here, &nodes.stations());
        let place = here.put(&[0; 8]);
        a.shut_down();
        a.shut_down();
        let write =
            SendOp::Write { data: Payload::Inline(b"8 bytes."), remote: here.remote(place), imm: None };
        there.post(1, write);
        exchange(&nodes.stations());
        assert_eq!(here.bytes(place, 8), [0; 8], "the write arrives at a card that is shut down");
        let wr = SendWr {
            id: WrId(2),
            op: SendOp::Send { data: Payload::Inline(b"x"), imm: None },
            signaled: true,
            solicited: false,
            fence: false,
        };
        let _ = a.post_send(here.qp, &[wr]);
        exchange(&nodes.stations());
        let again = machine.start(&mlx4::Config::default()).expect("another driver");
        assert_eq!(again.identity().firmware, b.identity().firmware);
        exchange(&nodes.stations());
    }
}
