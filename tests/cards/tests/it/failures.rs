//! Cards that die or report false values: every wait ends, and the driver returns an error.

use crate::common::node;
use crate::common::pair::End;
use crate::common::wire::exchange;
use crate::common::{DATA, Machine};
use connectx3::device::{Host, Profile};
use mlx4::{Config, Error};
use platform::{Arena, Instant, IoAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use verbs::{
    CqOptions, LinkKind, MacAddr, Payload, PortState, QpOptions, Rnic, SendOp, SendWr, Status, VerbsError,
    WrId,
};

fn machine() -> Arc<Machine> {
    Machine::new(Profile::pro(MacAddr([2, 0, 0, 0, 0, 1])), Arc::new(Arena::new(IoAddr(DATA), 1 << 20)))
}

#[test]
fn a_card_that_is_not_there_or_taken_is_named() {
    let gone = machine();
    gone.broken.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(gone.start(&Config::default()).err(), Some(Error::Gone));
    let taken = machine();
    taken.broken.store(1, Ordering::Relaxed);
    assert_eq!(taken.start(&Config::default()).err(), Some(Error::Owned));
    let other = machine();
    assert_eq!(
        other.start(&Config { port: 2, ..Config::default() }).err(),
        Some(Error::NoPort { asked: 2, has: 1 })
    );
    // The failed start has released the card and all memory.
    assert_eq!(other.bus.shared.in_use(), 0);
    assert!(other.start(&Config::default()).is_ok());
}

/// If a card stops to respond at its n-th register access, for any n, the driver returns an error within the
/// deadlines.
#[test]
fn a_card_may_die_at_any_moment() {
    let mut came_up = false;
    for at in (1u64..).step_by(7) {
        let machine = machine();
        machine.die_at(at);
        let begun = machine.bus.now();
        match machine.start(&Config::default()) {
            Ok(_) => came_up = true,
            Err(error) => {
                assert!(matches!(error, Error::Gone | Error::ResetTimeout | Error::Owned), "{error}");
            }
        }
        assert!(machine.bus.now() - begun < Duration::from_secs(30), "dies at {at}");
        if came_up {
            break;
        }
    }
}

/// A command that never completes fails at its deadline, and ends the driver alone.
#[test]
fn a_command_that_does_not_end_ends_the_driver_only() {
    let (machine, driver) = node("pro", 1);
    // GO stays set.
    machine.broken.store(1 << 23, Ordering::Relaxed);
    let begun = machine.bus.now();
    assert_eq!(driver.create_cq(CqOptions { depth: 10 }), Err(VerbsError::DeviceFailed));
    let waited = machine.bus.now() - begun;
    assert!(waited >= Duration::from_secs(10) && waited < Duration::from_secs(11), "{waited:?}");
    // From then on no call waits.
    let begun = machine.bus.now();
    assert_eq!(driver.create_cq(CqOptions { depth: 10 }), Err(VerbsError::DeviceFailed));
    assert_eq!(driver.attributes().port_state, PortState::Down);
    assert!(machine.bus.now() - begun < Duration::from_millis(1));
}

/// A card that does not complete a command cannot reach memory any more when the driver frees the memory of
/// the object.
#[test]
fn a_card_that_does_not_complete_a_command_is_cut_off_before_its_memory_is_freed() {
    let (machine, driver) = node("pro", 1);
    let before = machine.bus.shared.in_use();
    machine.deaf.store(true, Ordering::Relaxed);
    assert_eq!(driver.create_cq(CqOptions { depth: 1000 }), Err(VerbsError::DeviceFailed));
    assert!(machine.bus.in_use_at_cut_off.load(Ordering::Relaxed) > before);
    assert_eq!(machine.bus.shared.in_use(), before);
}

#[test]
fn a_card_that_says_it_has_failed_is_used_no_more() {
    let ((ma, da), (mb, db)) = (node("pro", 1), node("pro", 2));
    let (a, b) = (End::new(&da, &ma.bus.data), End::new(&db, &mb.bus.data));
    a.connect(&b, LinkKind::RoceV2);
    b.connect(&a, LinkKind::RoceV2);
    let write = SendOp::Write { data: Payload::Inline(b"x"), remote: b.remote(IoAddr(2 * DATA)), imm: None };
    a.post(1, write);
    // The error buffer, which is polled periodically, is not zero.
    ma.broken.store(0xdead, Ordering::Relaxed);
    da.progress(Instant::from_nanos(u64::MAX / 2), 64);
    let work = [SendWr { id: WrId(2), op: write, signaled: true, solicited: false, fence: false }];
    assert_eq!(da.post_send(a.qp, &work), Err((0, VerbsError::DeviceFailed)));
    // The work in flight completes when the queue pair is destroyed. Its memory is not reused.
    assert_eq!(da.destroy_qp(a.qp), Err(VerbsError::DeviceFailed));
    assert_eq!(a.one().status, Status::WorkRequestFlushed);
}

/// Whatever a completion queue contains, polling ends, and returns no completion of work that was not posted.
#[test]
fn any_bytes_in_a_completion_queue_are_survived() {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed ^ seed >> 31
    };
    let mut found = 0;
    for round in 0..40u64 {
        let ((ma, da), (mb, db)) = (node("pro", 1), node("pro", 2));
        let (a, b) = (End::new(&da, &ma.bus.data), End::new(&db, &mb.bus.data));
        a.connect(&b, LinkKind::RoceV2);
        b.connect(&a, LinkKind::RoceV2);
        a.receive(100, &[]);
        let write =
            SendOp::Write { data: Payload::Inline(b"x"), remote: b.remote(IoAddr(2 * DATA)), imm: None };
        a.post(0, write);
        exchange(&[&ma, &mb]);
        assert_eq!(a.one().id, WrId(0));
        let ring = ma.bus.published.load(Ordering::Relaxed) - 24;
        (1..4).for_each(|id| a.post(id, write));
        // Random bytes in the card's entries, with owner bits that mark them as new. Most of them name the
        // queue pair.
        for entry in 1..64u64 {
            let mut bytes: Vec<u8> = (0..4).flat_map(|_| random().to_be_bytes()).collect();
            if round % 2 == 0 {
                bytes[..4].copy_from_slice(&a.qp.get().to_be_bytes());
            }
            if round % 4 == 0 {
                bytes[0x18..0x1a].copy_from_slice(&(random() as u16 & 7).to_be_bytes());
            }
            bytes[31] &= 0x7f;
            ma.bus.write(ring + 32 * entry, &bytes).unwrap();
        }
        let completions = a.poll();
        found += completions.len();
        let sends: Vec<_> = completions.iter().filter(|c| c.id.0 < 100).map(|c| c.id.0).collect();
        assert!(
            sends.is_sorted() && sends.len() <= 3 && sends.iter().all(|id| *id > 0) && completions.len() <= 4,
            "{completions:?}"
        );
    }
    // Some of the random entries matched the work in flight.
    assert!(found > 10, "{found}");
}

/// Whatever a card reports about itself, bring-up succeeds or fails in time, and frees all memory.
#[test]
fn a_card_that_lies_comes_up_or_is_refused() {
    let (mut up, mut refused) = (0, 0);
    for seed in 1..=120u64 {
        let machine = machine();
        machine.bus.lies.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
        let begun = machine.bus.now();
        match machine.start(&Config::default()) {
            Ok(driver) => {
                up += 1;
                if let Ok(cq) = driver.create_cq(CqOptions { depth: 10 }) {
                    let options = QpOptions { send_cq: cq, recv_cq: cq, send_depth: 4, recv_depth: 4 };
                    let _ = driver.create_qp(options);
                }
            }
            Err(_) => refused += 1,
        }
        assert!(machine.bus.now() - begun < Duration::from_secs(30), "{seed}");
        assert_eq!(machine.bus.shared.in_use(), 0, "{seed}");
    }
    println!("up {up}, refused {refused}");
    assert!(up > 5 && refused > 5, "up {up}, refused {refused}");
}
