//! A virtual function: its synchronisation with the master, the master's events, and the end of the function.

use crate::common;
use crate::common::nodes::Nodes;
use crate::common::pair::{End, every_verb};
use crate::common::wire::exchange;
use crate::common::{DATA, Machine, node};
use connectx3::device::{Host, Profile};
use mlx4::{Config, Error, Function, Hardware};
use platform::{Arena, Instant, IoAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use verbs::{CqOptions, LinkKind, MacAddr, Payload, PortState, QpOptions, Rnic, SendOp, Status, VerbsError};

/// Registers of the channel: the slave's request, the master's reply, and flags.
const SLAVE_WRITE: u64 = 0;
const SLAVE_READ: u64 = 4;
const FLAGS: u64 = 0xc;

fn machine() -> Arc<Machine> {
    let profile = Profile::named("vf", MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
    Machine::new(profile, Arc::new(Arena::new(IoAddr(DATA), 1 << 20)))
}

#[test]
fn it_says_what_it_is() {
    let (_machine, driver) = node("vf", 1);
    let is = driver.attributes();
    assert_eq!((driver.identity().function, is.links), (Function::Virtual, &[LinkKind::RoceV1][..]));
    assert_eq!((is.max_qps, is.port.mac), (2048, MacAddr([2, 0, 0, 0, 0, 1])));
    assert_eq!(driver.table_bytes(), 0, "the tables are the master's");
    assert_eq!(driver.identity().firmware.to_string(), "2.42.5000");
}

#[test]
fn it_gets_into_step_with_a_master_wherever_that_is() {
    for (said, answer) in [(0, 0), (1 << 31, 1 << 31), (1 << 31, 0), (0, 1 << 31)] {
        let machine = machine();
        let plug = machine.plug();
        // The reply first: the card acts on a request with a new toggle.
        plug.ring(SLAVE_READ, said);
        plug.ring(SLAVE_WRITE, said);
        plug.ring(SLAVE_READ, answer);
        let begun = machine.bus.now();
        let driver = machine.start(&Config::default()).unwrap();
        let limit = Duration::from_secs(if said == answer { 1 } else { 6 });
        assert!(machine.bus.now() - begun < limit);
        drop(driver);
        // The first start has ended properly.
        assert_eq!(machine.bus.shared.in_use(), 0);
        drop(machine.start(&Config::default()).unwrap());
    }
}

#[test]
fn a_slave_that_was_given_up_begins_anew() {
    let (machine, driver) = node("vf", 1);
    // A request out of order makes the master release everything.
    let said = machine.plug().doorbell(SLAVE_WRITE);
    machine.plug().ring(SLAVE_WRITE, (said ^ 1 << 31) & 1 << 31 | 2 << 16);
    assert_ne!(machine.plug().doorbell(SLAVE_READ) & 1 << 17, 0);
    driver.progress(Instant::from_nanos(u64::MAX / 2), 64);
    assert_eq!(driver.attributes().port_state, PortState::Down);
    assert_eq!(driver.create_cq(CqOptions { depth: 4 }), Err(VerbsError::DeviceFailed));
    drop(driver);
    assert_eq!(machine.bus.shared.in_use(), 0);
    let flags = machine.plug().doorbell(FLAGS);
    assert_eq!((flags >> 16 & 1, flags >> 8 & 1), (1, 1), "it was reset by the flag");
    let again = machine.start(&Config::default()).unwrap();
    again.create_cq(CqOptions { depth: 4 }).unwrap();
}

#[test]
fn events_of_its_port_come_to_it() {
    let (machine, driver) = node("vf", 1);
    for (connected, state) in [(false, PortState::Down), (true, PortState::Active)] {
        machine.card.lock().unwrap().set_cable(0, connected, &machine.bus);
        machine.advance(Duration::from_secs(3));
        machine.card.lock().unwrap().progress(&machine.bus);
        driver.progress(machine.bus.now(), 64);
        assert_eq!(driver.attributes().port_state, state);
    }
}

#[test]
fn a_master_that_is_not_there_is_named_in_time() {
    let gone = machine();
    gone.broken.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(gone.start(&Config::default()).err(), Some(Error::Gone));
    // The master never replies: its toggle bit always differs.
    let silent = machine();
    silent.broken.store(1 << 31, Ordering::Relaxed);
    let begun = silent.bus.now();
    assert_eq!(silent.start(&Config::default()).err(), Some(Error::NoMaster));
    assert!(silent.bus.now() - begun < Duration::from_secs(30));
    // The master is offline.
    let offline = machine();
    offline.broken.store(1 << 9, Ordering::Relaxed);
    assert_eq!(offline.start(&Config::default()).err(), Some(Error::NoMaster));
    for machine in [gone, silent, offline] {
        assert_eq!(machine.bus.shared.in_use(), 0);
    }
}

/// If the card disappears at its n-th access, for any n, the driver returns an error within the deadlines;
/// the same holds for false values.
#[test]
fn its_card_may_die_or_lie_at_any_moment() {
    let mut came_up = false;
    for at in (1u64..).step_by(5) {
        let machine = machine();
        machine.die_at(at);
        let begun = machine.bus.now();
        match machine.start(&Config::default()) {
            Ok(_) => came_up = true,
            Err(error) => assert_eq!(error, Error::Gone),
        }
        assert!(machine.bus.now() - begun < Duration::from_secs(40), "dies at {at}");
        assert_eq!(machine.bus.shared.in_use(), 0, "{at}");
        if came_up {
            break;
        }
    }
    let (mut up, mut refused) = (0, 0);
    for seed in 1..=100u64 {
        let machine = machine();
        machine.bus.lies.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
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
        assert_eq!(machine.bus.shared.in_use(), 0, "{seed}");
    }
    assert!(up > 5 && refused > 5, "up {up}, refused {refused}");
}

/// The master releases everything that a destroyed function had, so that no late packet changes memory.
#[test]
fn nothing_reaches_a_function_that_has_ended() {
    let Nodes { machines: [ma, mb], drivers: [da, db] } = Nodes::new("vf");
    let a = End::new(&da, &ma.bus.data);
    let there = {
        let b = End::new(&db, &mb.bus.data);
        a.connect(&b, LinkKind::RoceV1);
        b.connect(&a, LinkKind::RoceV1);
        b.remote(b.put(&[7; 64]))
    };
    drop(db);
    a.post(1, SendOp::Write { data: Payload::Inline(b"too late"), remote: there, imm: None });
    let writes = mb.bus.writes.load(Ordering::Relaxed);
    let mut ended = Vec::new();
    for _ in 0..10_000 {
        exchange(&[&ma, &mb]);
        ma.advance(Duration::from_millis(10));
        ended.extend(a.poll());
        if !ended.is_empty() {
            break;
        }
    }
    assert_eq!(mb.bus.writes.load(Ordering::Relaxed), writes);
    assert_eq!(ended.iter().map(|c| c.status).collect::<Vec<_>>(), [Status::RetryExceeded]);
}

/// Linux's master refuses settings that the port's other functions would notice, so a virtual function
/// supports RoCE v1 only. A physical function that supports both versions uses v1 with it.
#[test]
fn it_speaks_the_first_roce_with_a_physical_function() {
    let ((ma, da), (mb, db)) = (node("vf", 1), node("pro", 2));
    let (a, b) = (End::new(&da, &ma.bus.data), End::new(&db, &mb.bus.data));
    a.connect(&b, LinkKind::RoceV1);
    b.connect(&a, LinkKind::RoceV1);
    every_verb(&a, &b, &[&ma, &mb]);
    every_verb(&b, &a, &[&ma, &mb]);
    // RoCE v2 is refused.
    let c = End::new(&da, &ma.bus.data);
    let second = common::pair::to(&b, c.qp, LinkKind::RoceV2);
    assert_eq!(da.connect_qp(c.qp, &second), Err(VerbsError::Unsupported));
}
