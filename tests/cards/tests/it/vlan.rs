//! Cards in VLANs: every frame has the tag, and frames of other VLANs do not arrive.

use crate::common::nodes::{CARDS, Nodes};
use crate::common::pair::{datagrams, every_verb, gather};
use crate::common::wire::{Station, exchange};
use mlx4::{Config, FramePort, Vlan};
use verbs::{LinkKind, SendOp, Sge};

/// VLAN 5 with priority 3: the bytes of the tag.
const TAG: [u8; 4] = [0x81, 0x00, 0x60, 0x05];

fn nodes(profile: &str, vlan: impl Fn(u8) -> Option<Vlan>) -> Nodes {
    Nodes::with(profile, |number| Config { frames: true, vlan: vlan(number), ..Config::default() })
}

/// A station whose frames must have the tag.
struct Tagged<'a>(&'a dyn Station);

impl Station for Tagged<'_> {
    fn progress(&self) {
        self.0.progress();
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        let frames = self.0.sent();
        for frame in &frames {
            assert_eq!(frame.get(12..16), Some(&TAG[..]), "{frame:02x?}");
        }
        frames
    }

    fn receive(&self, frame: &[u8]) {
        self.0.receive(frame);
    }
}

/// Sends a frame from the first node to the second. Returns the frames that the second receives.
fn frames(nodes: &Nodes, stations: &[&dyn Station], len: usize) -> Vec<Vec<u8>> {
    let [a, b] = &nodes.drivers;
    let mut frame = [&[2, 0, 0, 0, 0, 2][..], &[2, 0, 0, 0, 0, 1], &[0x08, 0x00]].concat();
    frame.resize(14 + len, 7);
    assert!(a.transmit_frame(FramePort::Rdma, frame.len(), &mut |place| {
        place.copy_from_slice(&frame);
        frame.len()
    }));
    exchange(stations);
    let mut received = Vec::new();
    b.receive_frames(FramePort::Rdma, 10, &mut |frame| received.push(frame.to_vec()));
    for received in &received {
        assert_eq!(received.get(..frame.len()), Some(&frame[..]));
    }
    received
}

#[test]
fn everything_is_tagged_in_a_vlan() {
    for (profile, links) in CARDS.iter().filter(|(profile, _)| !["ib", "vf"].contains(profile)) {
        for link in *links {
            println!("{profile} {link:?}");
            let nodes = nodes(profile, |_| Vlan::new(5, 3));
            let [a, b] = nodes.stations().map(Tagged);
            let stations: [&dyn Station; 2] = [&a, &b];
            let [here, there] = nodes.connect(*link);
            every_verb(&here, &there, &stations);
            every_verb(&there, &here, &stations);
            let [here, there] = nodes.posts();
            datagrams(&here, &there, *link, &stations);
            for len in [0, 46, 300, 1500] {
                assert_eq!(frames(&nodes, &stations, len).len(), 1, "{profile} {len}");
            }
        }
    }
}

/// A packet of RDMA in another VLAN, or without a tag, reaches no queue pair. Another priority is no
/// obstacle.
#[test]
fn rdma_of_another_vlan_does_not_arrive() {
    let (five, high) = (Vlan::new(5, 0), Vlan::new(5, 7));
    for (from, to, is_one) in [
        (five, high, true),
        (None, None, true),
        (five, Vlan::new(6, 0), false),
        (None, five, false),
        (five, None, false),
    ] {
        for link in [LinkKind::RoceV2, LinkKind::RoceV1] {
            let nodes = nodes("pro", |number| if number == 1 { from } else { to });
            let [here, there] = nodes.connect(link);
            let (place, filled) = (there.put(&[0; 8]), here.put(b"8 bytes."));
            let list = [Sge { addr: filled, len: 8 }];
            here.post(1, SendOp::Write { data: gather(&list), remote: there.remote(place), imm: None });
            exchange(&nodes.stations());
            let arrived = there.bytes(place, 8) == b"8 bytes.";
            assert_eq!(arrived, is_one, "{from:?} {to:?} {link:?}");
        }
    }
}

/// A frame of another VLAN, or without a tag, does not arrive.
#[test]
fn frames_of_another_vlan_do_not_arrive() {
    let five = Vlan::new(5, 0);
    for (from, to) in [(five, Vlan::new(6, 0)), (five, Vlan::new(37, 0)), (None, five), (five, None)] {
        let nodes = nodes("pro", |number| if number == 1 { from } else { to });
        let arrived = frames(&nodes, &nodes.stations(), 100).len();
        // Without a VLAN the card removes tags, and looks at none.
        assert_eq!(arrived, usize::from(to.is_none()), "{from:?} {to:?}");
    }
}

#[test]
fn numbers_and_priorities_have_bounds() {
    for (id, priority, is_one) in
        [(1, 0, true), (4094, 7, true), (0, 0, false), (4095, 0, false), (5, 8, false)]
    {
        assert_eq!(Vlan::new(id, priority).is_some(), is_one, "{id} {priority}");
    }
}
