//! Two ports of a card in use: RDMA and frames on one, frames alone on the other.

use crate::common::nodes::Nodes;
use crate::common::pair::gather;
use crate::common::{Driver, Machine};
use mlx4::{Config, Error, FramePort, Health};
use std::sync::Arc;
use std::time::Duration;
use verbs::{LinkKind, MacAddr, Rnic, SendOp, Sge};

const GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

fn nodes(profile: &str, rdma: u8) -> Nodes {
    let config = |_| Config { port: rdma, second: Some(3 - rdma), frames: true, ..Config::default() };
    Nodes::with(profile, config)
}

/// Carries frames between the ports of equal numbers until there are none. Returns the number of frames of
/// each port.
fn exchange(machines: &[Arc<Machine>; 2]) -> [usize; 2] {
    let mut counts = [0; 2];
    loop {
        let before = counts;
        for (from, to) in [(0, 1), (1, 0)] {
            machines[from].card.lock().unwrap().progress(&machines[from].bus);
            for (port, frame) in machines[from].card.lock().unwrap().take_outbox() {
                counts[port] += 1;
                machines[to].card.lock().unwrap().receive(port, &frame, &machines[to].bus);
            }
        }
        if counts == before {
            return counts;
        }
    }
}

fn send(driver: &Driver, port: FramePort, to: [u8; 6]) {
    let (from, _) = driver.frame_port(port).unwrap();
    let frame = [&to[..], &from.0, &[0x08, 0x00], &[7; 60]].concat();
    assert!(driver.transmit_frame(port, frame.len(), &mut |place| {
        place.copy_from_slice(&frame);
        frame.len()
    }));
}

/// Returns the numbers of frames that each port has received.
fn received(driver: &Driver) -> [usize; 2] {
    [FramePort::Rdma, FramePort::Second].map(|port| driver.receive_frames(port, 100, &mut |_| ()))
}

/// Checks that frames to a port's address, to all and to a group arrive at the port through which they leave.
fn check(nodes: &Nodes, rdma: u8) {
    let [a, b] = &nodes.drivers;
    for (index, port) in [FramePort::Rdma, FramePort::Second].into_iter().enumerate() {
        let (mac, _) = b.frame_port(port).unwrap();
        for to in [mac.0, [0xff; 6], GROUP] {
            send(a, port, to);
            let mut counts = [0; 2];
            counts[usize::from(if index == 0 { rdma } else { 3 - rdma }) - 1] = 1;
            assert_eq!(exchange(&nodes.machines), counts, "{port:?} {to:02x?}");
            let mut arrived = [0; 2];
            arrived[index] = 1;
            assert_eq!(received(b), arrived, "{port:?} {to:02x?}");
        }
    }
}

#[test]
fn each_port_has_its_frames_and_one_has_rdma() {
    for profile in ["pro-2port", "vpi-2port"] {
        for rdma in [1, 2] {
            println!("{profile} {rdma}");
            let nodes = nodes(profile, rdma);
            for port in [FramePort::Rdma, FramePort::Second] {
                nodes.drivers[1].join_group(port, MacAddr(GROUP)).unwrap();
            }
            check(&nodes, rdma);
            let [here, there] = nodes.connect(LinkKind::RoceV2);
            let (place, filled) = (there.put(&[0; 8]), here.put(b"8 bytes."));
            let list = [Sge { addr: filled, len: 8 }];
            here.post(1, SendOp::Write { data: gather(&list), remote: there.remote(place), imm: None });
            let counts = exchange(&nodes.machines);
            assert!(counts[usize::from(rdma) - 1] == 2 && counts.iter().sum::<usize>() == 2, "{counts:?}");
            assert_eq!(there.bytes(place, 8), b"8 bytes.");
        }
    }
}

#[test]
fn both_ports_go_on_after_a_reset() {
    let nodes = nodes("pro-2port", 1);
    let ([_, b], [_, machine]) = (&nodes.drivers, &nodes.machines);
    for port in [FramePort::Rdma, FramePort::Second] {
        b.join_group(port, MacAddr(GROUP)).unwrap();
    }
    machine.fail_until_reset(0xdead);
    machine.advance(Duration::from_secs(6));
    b.progress(machine.bus.clock(), 64);
    while let Health::Recovering { next } = b.recover(machine.bus.clock()) {
        machine.advance(next - machine.bus.clock());
    }
    check(&nodes, 1);
}

#[test]
fn a_second_port_that_cannot_be_is_refused() {
    let start = |profile: &str, second| {
        let profile = connectx3::device::Profile::named(profile, MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
        let arena = Arc::new(platform::Arena::new(platform::IoAddr(crate::common::DATA), 8 << 20));
        let config = Config { second: Some(second), ..Config::default() };
        Machine::new(profile, arena).start(&config).err()
    };
    assert_eq!(start("pro-2port", 3), Some(Error::NoPort { asked: 3, has: 2 }));
    assert_eq!(start("pro", 2), Some(Error::NoPort { asked: 2, has: 1 }));
    assert_eq!(start("vf", 2), Some(Error::Lacks("a second port for a virtual function")));
    assert_eq!(start("pro-2port", 1), None, "the port of RDMA is no second one");
}
