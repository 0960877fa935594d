//! Partitions on InfiniBand: a port waits for its own, and its packets have that P_Key.

use crate::common::nodes::{MTU_4096, Nodes};
use crate::common::pair::{datagrams, every_verb, gather};
use crate::common::subnet::{ask, configure, train};
use crate::common::wire::{Station, exchange};
use connectx3_testdriver::smp::SET;
use mlx4::Config;
use roce::wire::Frame;
use verbs::{LinkKind, PortState, Rnic, SendOp, Sge};

const P_KEY_TABLE: u16 = 0x16;
/// The number of the partition, and the P_Key of a full member.
const NUMBER: u16 = 0x12;
const KEY: u16 = 0x8012;

/// A station whose packets must have the P_Key of the partition.
struct InPartition<'a>(&'a dyn Station);

impl Station for InPartition<'_> {
    fn progress(&self) {
        self.0.progress();
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        let frames = self.0.sent();
        for frame in &frames {
            let frame = Frame::parse(frame).unwrap();
            assert!(frame.icrc_ok());
            assert_eq!(frame.packet.bth.pkey, KEY);
        }
        frames
    }

    fn receive(&self, frame: &[u8]) {
        self.0.receive(frame);
    }
}

/// Makes two nodes whose ports are active except for their partitions.
fn nodes(partition: impl Fn(u8) -> Option<u16>) -> Nodes {
    let nodes = Nodes::cold_with("ib", |number| Config { partition: partition(number), ..Config::default() });
    train(&nodes.machines);
    for (lid, (machine, driver)) in (1..).zip(nodes.machines.iter().zip(&nodes.drivers)) {
        configure(machine, driver, lid, MTU_4096);
    }
    nodes
}

/// Writes P_Keys into the second block of the table of a node's port.
fn join(nodes: &Nodes, node: usize, keys: &[u16]) {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_be_bytes()).collect();
    let (machine, driver) = (&nodes.machines[node], &nodes.drivers[node]);
    assert_eq!(ask(machine, driver, [SET, 1], P_KEY_TABLE, &data).0, 0);
    driver.progress(machine.bus.clock(), 64);
}

#[test]
fn a_port_waits_for_its_partition_and_is_in_it() {
    let nodes = nodes(|_| Some(NUMBER));
    for node in 0..2 {
        let state = || nodes.drivers[node].attributes().port_state;
        assert_eq!(state(), PortState::Initializing);
        join(&nodes, node, &[0x8011]);
        assert_eq!(state(), PortState::Initializing);
        join(&nodes, node, &[0x8011, KEY]);
        assert_eq!(state(), PortState::Active);
    }
    let [a, b] = nodes.stations().map(InPartition);
    let stations: [&dyn Station; 2] = [&a, &b];
    let [here, there] = nodes.connect(LinkKind::InfiniBand);
    every_verb(&here, &there, &stations);
    every_verb(&there, &here, &stations);
    let [here, there] = nodes.posts();
    datagrams(&here, &there, LinkKind::InfiniBand, &stations);
}

/// Returns whether a write from the first node reaches the second.
fn writes(nodes: &Nodes) -> bool {
    let [here, there] = nodes.connect(LinkKind::InfiniBand);
    let (place, filled) = (there.put(&[0; 8]), here.put(b"8 bytes."));
    let list = [Sge { addr: filled, len: 8 }];
    here.post(1, SendOp::Write { data: gather(&list), remote: there.remote(place), imm: None });
    exchange(&nodes.stations());
    there.bytes(place, 8) == b"8 bytes."
}

/// The members of two partitions do not speak, nor two limited members of one.
#[test]
fn packets_of_another_partition_do_not_arrive() {
    for (first, second, arrives) in [
        (Some([KEY, 0]), Some([KEY, 0]), true),
        // The index of a P_Key is the port's own matter.
        (Some([KEY, 0]), Some([0x8013, KEY]), true),
        (Some([KEY, 0]), Some([NUMBER, 0]), true),
        (Some([NUMBER, 0]), Some([NUMBER, 0]), false),
        (Some([KEY, 0]), None, false),
        (None, Some([KEY, 0]), false),
    ] {
        let is_member = |number| if number == 1 { first.is_some() } else { second.is_some() };
        let nodes = nodes(|number| is_member(number).then_some(NUMBER));
        for (node, keys) in [first, second].into_iter().enumerate() {
            // A node in the default partition alone is a member of the other one too.
            join(&nodes, node, &keys.unwrap_or([KEY, 0]));
        }
        assert_eq!(writes(&nodes), arrives, "{first:x?} {second:x?}");
    }
}
