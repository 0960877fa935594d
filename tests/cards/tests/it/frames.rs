//! Plain Ethernet frames over a card that also does RDMA.

use crate::common::Driver;
use crate::common::nodes::{CARDS, Nodes};
use crate::common::pair::every_verb;
use crate::common::wire::{Station, exchange};
use mlx4::{Config, Error, FramePort, Health};
use std::time::Duration;
use verbs::{LinkKind, MacAddr, Rnic};

const ALL: [u8; 6] = [0xff; 6];
const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

fn nodes(profile: &str) -> Nodes {
    Nodes::with(profile, |_| Config { frames: true, ..Config::default() })
}

const fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x08, 0x00]].concat();
    frame.extend((0..len).map(|i| (i % 251) as u8));
    frame
}

fn send(driver: &Driver, frame: &[u8]) -> bool {
    driver.transmit_frame(FramePort::Rdma, frame.len(), &mut |place| {
        place.copy_from_slice(frame);
        frame.len()
    })
}

fn received(driver: &Driver) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let count = driver.receive_frames(FramePort::Rdma, 1000, &mut |frame| frames.push(frame.to_vec()));
    assert_eq!(count, frames.len());
    frames
}

/// Pads a frame to the minimum length, as it arrives.
fn padded(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.resize(frame.len().max(60), 0);
    frame
}

#[test]
fn frames_go_to_whom_they_name_beside_rdma() {
    for (profile, links) in CARDS.iter().filter(|(profile, _)| *profile != "ib") {
        println!("{profile}");
        let nodes = nodes(profile);
        let [a, b] = &nodes.drivers;
        let [ends_a, ends_b] = nodes.connect(links[0]);
        b.join_group(FramePort::Rdma, MacAddr(GROUP)).unwrap();
        b.join_group(FramePort::Rdma, MacAddr(GROUP)).unwrap();
        for (to, arrives) in [
            (mac(2), true),
            (ALL, true),
            (GROUP, true),
            (mac(3), false),
            ([0x33, 0x33, 0, 0, 0, 2], false),
            ([1, 0, 0x5e, 0, 0, 1], false),
            (mac(1), false),
        ] {
            for len in [0, 1, 46, 100, 1500] {
                let sent = frame(to, mac(1), len);
                assert!(send(a, &sent));
                exchange(&nodes.stations());
                let expected = if arrives { vec![padded(&sent)] } else { vec![] };
                assert_eq!(received(b), expected, "{profile} {to:02x?} {len}");
                assert!(received(a).is_empty(), "its own frames do not come back");
            }
        }
        // A frame in the other direction, while RDMA continues.
        let answer = frame(mac(1), mac(2), 300);
        assert!(send(b, &answer));
        exchange(&nodes.stations());
        assert_eq!(received(a), [answer]);
        every_verb(&ends_a, &ends_b, &nodes.stations());
        assert!(received(a).is_empty() && received(b).is_empty());
    }
}

#[test]
fn rings_of_frames_go_round_and_say_when_they_are_full() {
    let nodes = nodes("pro");
    let [a, b] = &nodes.drivers;
    for round in 0..10u32 {
        let mut sent = Vec::new();
        for n in 0..256u32 {
            let mut one = frame(mac(2), mac(1), 64);
            one.extend((round * 256 + n).to_be_bytes());
            assert!(send(a, &one), "{round} {n}");
            sent.push(one);
        }
        exchange(&nodes.stations());
        assert_eq!(received(b), sent, "{round}");
    }
    // More frames than the receiver has buffers for: the excess is lost, and later frames arrive.
    for _ in 0..3 {
        for _ in 0..256 {
            assert!(send(a, &frame(mac(2), mac(1), 64)));
        }
        exchange(&nodes.stations());
    }
    assert_eq!(received(b).len(), 256);
    assert!(send(a, &frame(mac(2), mac(1), 99)));
    exchange(&nodes.stations());
    assert_eq!(received(b), [frame(mac(2), mac(1), 99)]);
    // The next frame raises an interrupt.
    let machine = &nodes.machines[1];
    while b.progress(machine.bus.clock(), 64) {}
    machine.bus.interrupts.lock().unwrap().clear();
    for count in 1..4 {
        assert!(!b.arm(), "nothing waits");
        assert!(send(a, &frame(mac(2), mac(1), 70)));
        exchange(&nodes.stations());
        assert_eq!(machine.bus.interrupts.lock().unwrap().len(), count);
        assert!(b.arm(), "a frame waits");
        b.progress(machine.bus.clock(), 64);
        assert_eq!(received(b).len(), 1);
    }
    // A frame longer than this network allows.
    assert!(!a.transmit_frame(FramePort::Rdma, 4000, &mut |_| panic!("there is no room")));
}

#[test]
fn a_port_without_frames_has_none_and_groups_have_an_end() {
    let nodes_without = Nodes::new("pro");
    let [a, _] = &nodes_without.drivers;
    assert!(!send(a, &frame(ALL, mac(1), 10)));
    assert!(received(a).is_empty());
    assert_eq!(a.join_group(FramePort::Rdma, MacAddr(GROUP)), Err(Error::Lacks("a queue for frames")));
    // Frames to each of many groups arrive, even if some have the same hash.
    let nodes = nodes("pro");
    let [a, b] = &nodes.drivers;
    let group = |n: u8| [0x01, 0, 0x5e, 1, 2, n];
    for n in 0..32 {
        b.join_group(FramePort::Rdma, MacAddr(group(n))).unwrap();
    }
    assert_eq!(b.join_group(FramePort::Rdma, MacAddr(group(99))), Err(Error::Exhausted("groups")));
    for n in 0..32 {
        assert!(send(a, &frame(group(n), mac(1), 50)));
    }
    exchange(&nodes.stations());
    assert_eq!(received(b).len(), 32);
}

#[test]
fn frames_go_on_after_a_reset() {
    let nodes = nodes("pro");
    let ([a, b], [ma, _]) = (&nodes.drivers, &nodes.machines);
    a.join_group(FramePort::Rdma, MacAddr(GROUP)).unwrap();
    let [end, _b] = nodes.connect(LinkKind::RoceV2);
    ma.fail_until_reset(0xdead);
    ma.advance(Duration::from_secs(6));
    a.progress(ma.bus.clock(), 64);
    assert!(!send(a, &frame(mac(2), mac(1), 10)));
    while let Health::Recovering { next } = a.recover(ma.bus.clock()) {
        ma.advance(next - ma.bus.clock());
    }
    ma.progress();
    for to in [mac(1), ALL, GROUP] {
        assert!(send(b, &frame(to, mac(2), 70)));
        exchange(&nodes.stations());
        assert_eq!(received(a), [frame(to, mac(2), 70)]);
    }
    assert!(send(a, &frame(mac(2), mac(1), 70)));
    exchange(&nodes.stations());
    assert_eq!(received(b).len(), 1);
    a.destroy_qp(end.qp).unwrap();
}
