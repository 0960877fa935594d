//! Nodes whose peers may reach a part of memory only: the card refuses the rest.

use crate::common::nodes::Nodes;
use crate::common::pair::every_verb;
use crate::common::wire::exchange;
use crate::common::{DATA, Machine};
use connectx3::device::Profile;
use mlx4::{Config, Error, Remote};
use platform::{Arena, IoAddr, Memory};
use std::sync::Arc;
use verbs::{LinkKind, MacAddr, MemoryKey, Payload, RemoteAddr, Rnic, SendOp, Sge, Status};

/// The part of the memory of node `number`, which has 8 MiB.
fn part(number: u8) -> Remote {
    Remote::Part { base: IoAddr(DATA * u64::from(number) + 0x3000), len: 0x20_0800 }
}

#[test]
fn the_card_refuses_what_is_outside_of_the_part() {
    for (profile, link) in [("pro", LinkKind::RoceV2), ("cx3", LinkKind::RoceV1), ("vf", LinkKind::RoceV1)] {
        let nodes = Nodes::with(profile, |number| Config { remote: part(number), ..Config::default() });
        let MemoryKey { rkey, base, len } = nodes.drivers[1].memory_key();
        assert_eq!((base, len), (IoAddr(2 * DATA + 0x3000), 0x20_0800));
        let result = nodes.machines[0].bus.data.alloc(64).unwrap();
        let memory = nodes.machines[1].bus.data.clone();
        let end = base.checked_add(len).unwrap();
        for (at, bytes, allowed) in [
            (base, 64, true),
            (IoAddr(end.0 - 64), 64, true),
            (IoAddr(base.0 - 8), 64, false),
            (IoAddr(end.0 - 56), 64, false),
            (end, 8, false),
            (IoAddr(2 * DATA), 8, false),
            (IoAddr(2 * DATA + 0x70_0000), 64, false),
            (base, len as u32 + 1, false),
        ] {
            let remote = RemoteAddr { addr: at, key: rkey };
            let list = [Sge { addr: IoAddr(DATA), len: bytes }];
            let into = [Sge { addr: IoAddr(DATA + 0x10_0000), len: bytes }];
            let write = SendOp::Write { data: Payload::Gather(&list), remote, imm: None };
            for op in
                [write, SendOp::Read { into: &into, remote }, SendOp::FetchAdd { result, remote, add: 1 }]
            {
                let bytes = if let SendOp::FetchAdd { .. } = op { 8 } else { bytes };
                let inside = at >= base && at.0 + u64::from(bytes) <= end.0;
                // A queue pair ends with what is refused.
                let [a, b] = nodes.connect(link);
                memory.fill(IoAddr(2 * DATA), 0x3000, 7).unwrap();
                a.post(1, op);
                exchange(&nodes.stations());
                let status = if inside { Status::Success } else { Status::RemoteAccessError };
                assert_eq!(a.one().status, status, "{profile} {op:?}");
                assert!(inside || !allowed);
                let mut below = [0; 0x3000];
                memory.read(IoAddr(2 * DATA), &mut below).unwrap();
                assert!(below.iter().all(|byte| *byte == 7), "memory before the part is as it was");
                for (driver, qp) in nodes.drivers.iter().zip([a.qp, b.qp]) {
                    driver.destroy_qp(qp).unwrap();
                }
            }
        }
        // Work of this side may still name all of its memory.
        let [a, b] = nodes.connect(link);
        let list = [Sge { addr: IoAddr(DATA + 0x60_0000), len: 64 }];
        let remote = RemoteAddr { addr: base, key: rkey };
        a.post(1, SendOp::Write { data: Payload::Gather(&list), remote, imm: None });
        b.receive(2, &[Sge { addr: IoAddr(2 * DATA + 0x60_0000), len: 64 }]);
        a.post(3, SendOp::Send { data: Payload::Gather(&list), imm: None });
        exchange(&nodes.stations());
        assert!(a.poll().iter().chain(&b.poll()).all(|c| c.status == Status::Success));
    }
}

#[test]
fn a_part_that_is_all_of_memory_takes_every_verb() {
    for profile in ["pro", "vf"] {
        let all = |number: u8| Remote::Part { base: IoAddr(DATA * u64::from(number)), len: 8 << 20 };
        let nodes = Nodes::with(profile, |number| Config { remote: all(number), ..Config::default() });
        let [a, b] = nodes.connect(LinkKind::RoceV1);
        every_verb(&a, &b, &nodes.stations());
        every_verb(&b, &a, &nodes.stations());
    }
}

#[test]
fn a_part_that_no_key_can_have_is_an_error() {
    for (base, len) in [(DATA + 1, 4096), (DATA, 0), (u64::MAX - 0xfff, 0x2000)] {
        let profile = Profile::named("pro", MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
        let machine = Machine::new(profile, Arc::new(Arena::new(IoAddr(DATA), 1 << 20)));
        let remote = Remote::Part { base: IoAddr(base), len };
        let refused = machine.start(&Config { remote, ..Config::default() }).err();
        assert_eq!(refused, Some(Error::Lacks("a part of memory that begins with a page")));
        assert_eq!(machine.bus.shared.in_use(), 0);
    }
}
