//! InfiniBand ports: a subnet manager communicates with the driver's agent, and packets are addressed by LID.

use crate::common;
use crate::common::nodes::Nodes;
use crate::common::pair::{End, Post, datagrams, every_verb, to};
use crate::common::subnet::{ask, configure, train};
use crate::common::wire::{Station, exchange};
use crate::common::{DATA, Machine};
use connectx3::device::Profile;
use connectx3_testdriver::smp;
use mlx4::{Config, Error, Layer};
use platform::{Arena, IoAddr};
use roce::wire::{Frame, Net};
use std::sync::Arc;
use verbs::{
    Gid, LinkKind, MacAddr, PathMtu, Payload, PortAddress, PortState, Psn, QpConnect, Rnic, SendOp, Status,
    VerbsError,
};

const MTU_2048: u8 = 4;

#[test]
fn a_manager_brings_a_port_up_and_says_what_it_is() {
    let nodes = Nodes::cold("ib");
    let [machine, _] = &nodes.machines;
    let [driver, _] = &nodes.drivers;
    let is = driver.attributes();
    assert_eq!((is.links, is.port_state, is.port.lid), (&[LinkKind::InfiniBand][..], PortState::Down, 0));
    train(&nodes.machines);
    driver.refresh().unwrap();
    assert_eq!(driver.attributes().port_state, PortState::Initializing);
    configure(machine, driver, 5, MTU_2048);
    let is = driver.attributes();
    let gid = Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1]);
    assert_eq!(is.port, PortAddress { mac: MacAddr([0; 6]), gid, lid: 5 });
    assert_eq!((is.port_state, is.max_mtu), (PortState::Active, PathMtu::B2048));
    // The GID that the manager assigns for Ethernet is not used here.
    driver.set_gid(Gid::from_ipv4([10, 9, 0, 1])).unwrap();
    assert_eq!(driver.attributes().port.gid, gid);
    // The port gets another LID, and the link goes down.
    configure(machine, driver, 9, MTU_2048);
    assert_eq!(driver.attributes().port.lid, 9);
    machine.card.lock().unwrap().set_cable(0, false, &machine.bus);
    driver.progress(machine.bus.clock(), 64);
    assert_eq!(driver.attributes().port_state, PortState::Down);
}

/// A datagram that is not a request for the port's agent is not answered and does no harm.
#[test]
fn what_is_not_for_the_agent_is_not_answered() {
    let nodes = Nodes::cold("ib");
    train(&nodes.machines);
    let ([machine, _], [driver, _]) = (&nodes.machines, &nodes.drivers);
    let mut seed = 1u64;
    for round in 0..400 {
        let mut mad = smp::request(0x81, smp::GET, smp::NODE_INFO, 0, &[]);
        for byte in &mut mad {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if (seed >> 40).is_multiple_of(40) {
                *byte = (seed >> 32) as u8;
            }
        }
        if round % 3 == 0 {
            (mad[1], mad[3]) = ([1, 3, 4, 0x81][round / 3 % 4], 0x81);
        }
        let permissive = roce::wire::Lrh::PERMISSIVE_LID;
        let lrh = roce::wire::Lrh { lane: 15, service_level: 0, dlid: permissive, slid: permissive };
        machine.receive(&smp::datagram(lrh, 0, &mad));
        driver.progress(machine.bus.clock(), 64);
        let answers = machine.sent();
        assert!(answers.len() <= 1 && (round % 3 != 0 || answers.is_empty()), "{mad:02x?}: {answers:02x?}");
    }
    assert_eq!(ask(machine, driver, [smp::GET, 1], smp::NODE_INFO, &[]).0, 0, "it still answers");
}

#[test]
fn every_verb_and_datagrams_go_by_lid() {
    let nodes = Nodes::new("ib");
    let [a, b] = nodes.connect(LinkKind::InfiniBand);
    every_verb(&a, &b, &nodes.stations());
    every_verb(&b, &a, &nodes.stations());
    let [a, b] = nodes.posts();
    datagrams(&a, &b, LinkKind::InfiniBand, &nodes.stations());
    datagrams(&b, &a, LinkKind::InfiniBand, &nodes.stations());
}

/// Packets carry the service level, a global header if the peer has an InfiniBand GID, and as much payload as
/// the path allows.
#[test]
fn packets_are_as_their_address_says() {
    let nodes = Nodes::new("ib");
    let [da, db] = &nodes.drivers;
    for (global, level, mtu) in
        [(false, 0, PathMtu::B256), (true, 7, PathMtu::B4096), (false, 15, PathMtu::B512)]
    {
        let [a, b] = [0, 1].map(|n| End::new(&nodes.drivers[n], &nodes.machines[n].bus.data));
        for (end, peer) in [(&a, &b), (&b, &a)] {
            let mut way = to(peer, end.qp, LinkKind::InfiniBand);
            way.mtu = mtu;
            way.address.service_level = level;
            if global {
                way.address.peer = peer.rnic.attributes().port;
            }
            end.rnic.connect_qp(end.qp, &way).unwrap();
        }
        let here = a.put(&[3; 5000]);
        let there = b.remote(b.put(&[0; 5000]));
        let list = [verbs::Sge { addr: here, len: 5000 }];
        a.post(1, SendOp::Write { data: Payload::Gather(&list), remote: there, imm: None });
        let mut longest = 0;
        common::wire::exchange_lossy(&nodes.stations(), |frame| {
            let parsed = Frame::parse(frame).unwrap();
            let Net::InfiniBand(lrh, grh) = &parsed.headers.net else { panic!("not InfiniBand") };
            assert_eq!((lrh.service_level, grh.is_some()), (level, global));
            longest = longest.max(parsed.packet.payload.len());
            false
        });
        assert_eq!((a.one().status, longest), (Status::Success, mtu.bytes()));
        assert_eq!(b.bytes(there.addr, 5000), [3; 5000]);
        da.destroy_qp(a.qp).unwrap();
        db.destroy_qp(b.qp).unwrap();
    }
}

#[test]
fn a_peer_without_a_common_link_or_a_lid_is_refused() {
    let nodes = Nodes::new("ib");
    let a = End::new(&nodes.drivers[0], &nodes.machines[0].bus.data);
    let b = End::new(&nodes.drivers[1], &nodes.machines[1].bus.data);
    let good = to(&b, a.qp, LinkKind::InfiniBand);
    let with = |change: fn(&mut QpConnect)| {
        let mut way = good;
        change(&mut way);
        a.rnic.connect_qp(a.qp, &way)
    };
    assert_eq!(with(|way| way.address.link = LinkKind::RoceV2), Err(VerbsError::Unsupported));
    assert_eq!(with(|way| way.address.peer.lid = 0), Err(VerbsError::Unreachable));
    assert_eq!(with(|way| way.address.peer.lid = 0xc001), Err(VerbsError::Unreachable));
    assert_eq!(with(|way| way.address.service_level = 16), Err(VerbsError::InvalidArgument));
    assert_eq!(with(|way| way.send_psn = Psn::new(0)), Ok(()));
    // An Ethernet port has no LIDs.
    let ethernet = Nodes::new("pro");
    let c = End::new(&ethernet.drivers[0], &ethernet.machines[0].bus.data);
    assert_eq!(c.rnic.connect_qp(c.qp, &good), Err(VerbsError::Unsupported));
}

#[test]
fn a_port_is_of_the_layer_that_is_asked_for() {
    let card = |profile: &str| {
        let profile = Profile::named(profile, MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
        Machine::new(profile, Arc::new(Arena::new(IoAddr(DATA), 1 << 20)))
    };
    for (profile, layer, gets) in [
        ("vpi", None, Ok(LinkKind::RoceV2)),
        ("vpi", Some(Layer::Ethernet), Ok(LinkKind::RoceV2)),
        ("vpi", Some(Layer::InfiniBand), Ok(LinkKind::InfiniBand)),
        ("ib", None, Ok(LinkKind::InfiniBand)),
        ("ib", Some(Layer::Ethernet), Err(Error::Lacks("an Ethernet link at its port"))),
        ("pro", Some(Layer::InfiniBand), Err(Error::Lacks("an InfiniBand link at its port"))),
    ] {
        let machine = card(profile);
        let started = machine.start(&Config { layer, ..Config::default() });
        assert_eq!(started.map(|driver| driver.attributes().links[0]), gets, "{profile} {layer:?}");
    }
}

/// The path MTU on Ethernet follows from the frame size of the network.
#[test]
fn long_frames_carry_long_paths() {
    for (mtu, path) in
        [(1500, PathMtu::B1024), (4200, PathMtu::B4096), (9000, PathMtu::B4096), (600, PathMtu::B512)]
    {
        let profile = Profile::named("pro", MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
        let machine = Machine::new(profile, Arc::new(Arena::new(IoAddr(DATA), 1 << 20)));
        let driver = machine.start(&Config { mtu, ..Config::default() }).unwrap();
        driver.set_gid(Gid::from_ipv4([10, 9, 0, 1])).unwrap();
        assert_eq!(driver.attributes().max_mtu, path);
        let end = End::new(&driver, &machine.bus.data);
        let mut way = to(&end, end.qp, LinkKind::RoceV2);
        way.mtu = path;
        driver.connect_qp(end.qp, &way).unwrap();
        let (here, there) = (end.put(&[5; 9000]), end.put(&[0; 9000]));
        let list = [verbs::Sge { addr: here, len: 9000 }];
        end.post(1, SendOp::Write { data: Payload::Gather(&list), remote: end.remote(there), imm: None });
        exchange(&[&machine]);
        assert_eq!((end.one().status, end.bytes(there, 9000)), (Status::Success, vec![5; 9000]));
    }
}

/// Datagrams to a peer with an InfiniBand GID contain the sender's GID.
#[test]
fn a_datagram_with_a_global_header_brings_it_along() {
    let nodes = Nodes::new("ib");
    let [a, b]: [Post<'_>; 2] = nodes.posts();
    datagrams(&a, &b, LinkKind::InfiniBand, &nodes.stations());
    let sender = a.rnic.attributes().port.gid;
    assert_eq!(b.last_header()[8..24], sender.0);
}
