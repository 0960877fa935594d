//! Nodes that let peers reach only ranges of memory: the card refuses other addresses, whatever a peer
//! forges.

use crate::common::nodes::Nodes;
use crate::common::pair::every_verb;
use crate::common::wire::exchange;
use crate::common::{DATA, Machine, REGISTERS, SHARED};
use connectx3::device::Profile;
use mlx4::{Config, Error, Remote};
use platform::{Arena, IoAddr, Memory};
use std::sync::Arc;
use verbs::{LinkKind, MacAddr, MemoryKey, Payload, RemoteAddr, Rnic, SendOp, Sge, Status};

/// The part of the memory of node `number` that peers may reach. The node has 8 MiB.
fn part(number: u8) -> Remote {
    Remote::part(IoAddr(DATA * u64::from(number) + 0x3000), 0x20_0800)
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
                // A refused request ends the queue pair.
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
        // Local work requests may still name all memory.
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
        let all = |number: u8| Remote::part(IoAddr(DATA * u64::from(number)), 8 << 20);
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
        let remote = Remote::part(IoAddr(base), len);
        let refused = machine.start(&Config { remote, ..Config::default() }).err();
        assert_eq!(refused, Some(Error::Lacks("keys for memory that does not begin and end with a page")));
        assert_eq!(machine.bus.shared.in_use(), 0);
    }
}

/// Memory and registers of a node outside of the ranges that its peers may reach. Each place is filled with a
/// byte of its own.
struct Canaries {
    data: Arc<Arena>,
    machine: Arc<Machine>,
    /// The first address of the node's memory.
    base: u64,
}

impl Canaries {
    const IMAGE: u8 = 0x11;
    const TABLES: u8 = 0x22;
    const REGISTERS: u8 = 0x33;
    /// Two ranges of 2 MiB. A kernel image lies before the first, and page tables lie between them.
    const RANGES: [(u64, u64); 2] = [(2 << 20, 4 << 20), (6 << 20, 8 << 20)];
    /// The hidden places: start and end as offsets in the node's memory, and the byte that fills each.
    const HIDDEN: [(u64, u64, u8); 2] = [(0, 2 << 20, Self::IMAGE), (4 << 20, 6 << 20, Self::TABLES)];

    fn ranges(base: u64) -> Remote {
        Remote::Ranges(Self::RANGES.map(|(start, end)| base + start..base + end).into())
    }

    /// Writes a pattern to each kind of memory of the machine.
    fn of(machine: &Arc<Machine>) -> Self {
        let data = machine.bus.data.clone();
        let base = data.range().0.0;
        for (start, end, byte) in Self::HIDDEN {
            data.fill(IoAddr(base + start), end - start, byte).unwrap();
        }
        machine.bus.registers.fill(IoAddr(REGISTERS), 4096, Self::REGISTERS).unwrap();
        Self { data, machine: machine.clone(), base }
    }

    /// Returns the names of the places that were changed.
    fn changed(&self) -> Vec<&'static str> {
        let is_filled = |memory: &dyn Memory, at: u64, len: u64, byte: u8| {
            let mut bytes = vec![0; len as usize];
            memory.read(IoAddr(at), &mut bytes).unwrap();
            bytes.iter().all(|b| *b == byte)
        };
        let mut changed = Vec::new();
        for ((start, end, byte), name) in Self::HIDDEN.into_iter().zip(["image", "page tables"]) {
            if !is_filled(&*self.data, self.base + start, end - start, byte) {
                changed.push(name);
            }
        }
        if !is_filled(&*self.machine.bus.registers, REGISTERS, 4096, Self::REGISTERS) {
            changed.push("registers");
        }
        changed
    }
}

/// The indices of the atomics among the requests of [`forge`].
const ATOMICS: [usize; 2] = [1, 2];

/// Sends a WRITE, a READ and two atomics to an address of the second node, as a peer that has its key, and
/// returns status and result of each.
fn forge(nodes: &Nodes, link: LinkKind, at: u64, len: u32) -> Vec<(Status, Vec<u8>)> {
    let remote = RemoteAddr { addr: IoAddr(at), key: nodes.drivers[1].memory_key().rkey };
    let mine = &nodes.machines[0].bus.data;
    let (from, into) = (IoAddr(DATA), IoAddr(DATA + 0x10_0000));
    let (list, to) = ([Sge { addr: from, len }], [Sge { addr: into, len }]);
    let ops = [
        SendOp::Read { into: &to, remote },
        SendOp::FetchAdd { result: into, remote, add: 1 },
        SendOp::CompareSwap { result: into, remote, compare: 0x3333_3333_3333_3333, swap: 1 },
        SendOp::Write { data: Payload::Gather(&list), remote, imm: None },
    ];
    let mut results = Vec::new();
    for op in ops {
        mine.fill(from, len.into(), 0xee).unwrap();
        mine.fill(into, len.into(), 0).unwrap();
        let [a, b] = nodes.connect(link);
        a.post(1, op);
        exchange(&nodes.stations());
        let mut got = vec![0; len as usize];
        mine.read(into, &mut got).unwrap();
        results.push((a.one().status, got));
        for (driver, qp) in nodes.drivers.iter().zip([a.qp, b.qp]) {
            driver.destroy_qp(qp).unwrap();
        }
    }
    results
}

#[test]
fn forged_requests_reach_nothing_between_the_ranges_of_the_key() {
    for (profile, link) in [("pro", LinkKind::RoceV2), ("cx3", LinkKind::RoceV1), ("vf", LinkKind::RoceV1)] {
        let remote = |number: u8| Canaries::ranges(DATA * u64::from(number));
        let nodes = Nodes::with(profile, |number| Config { remote: remote(number), ..Config::default() });
        let canaries = Canaries::of(&nodes.machines[1]);
        let base = canaries.base;
        let MemoryKey { base: first, len: key_len, .. } = nodes.drivers[1].memory_key();
        assert_eq!((first.0, key_len), (base + (2 << 20), 6 << 20), "a hole is within the key's bounds");
        let refused = [
            ("the image", base, 64),
            ("the end of the image", base + (2 << 20) - 64, 64),
            ("across the start of the first range", base + (2 << 20) - 8, 64),
            ("across the end of the first range", base + (4 << 20) - 8, 64),
            ("the first page table", base + (4 << 20), 64),
            ("the last page table", base + (6 << 20) - 64, 64),
            ("across the start of the second range", base + (6 << 20) - 8, 64),
            ("across the end of all memory", base + (8 << 20) - 8, 64),
            ("registers of a device", REGISTERS, 64),
            ("the tables of the card itself", SHARED, 64),
            ("the first MiB", 0x1000, 64),
            ("the last address", u64::MAX - 63, 64),
        ];
        for (place, at, len) in refused {
            for (n, (status, got)) in forge(&nodes, link, at, len).into_iter().enumerate() {
                // An atomic covers 8 bytes, which may end where a range does.
                let bytes = if ATOMICS.contains(&n) { 8 } else { u64::from(len) };
                let inside = at.checked_add(bytes).is_some_and(|end| {
                    Canaries::RANGES.iter().any(|range| base + range.0 <= at && end <= base + range.1)
                });
                // A master marks all page entries of its slaves as present. That of a hole is the first page
                // of the first range, so such a request is carried out there.
                let in_bounds =
                    at >= first.0 && at.checked_add(bytes).is_some_and(|end| end <= first.0 + key_len);
                let done = inside || profile == "vf" && in_bounds;
                let expected = if done { Status::Success } else { Status::RemoteAccessError };
                assert_eq!(status, expected, "{profile} {place}, request {n}");
                let hidden = [Canaries::IMAGE, Canaries::TABLES, Canaries::REGISTERS];
                assert!(!got.iter().any(|byte| hidden.contains(byte)), "{profile} {place} was read");
            }
            assert_eq!(canaries.changed(), [""; 0], "{profile} {place}");
        }
        for (start, end) in Canaries::RANGES {
            for at in [base + start, base + end - 64] {
                let results = forge(&nodes, link, at, 64);
                assert!(results.iter().all(|(status, _)| *status == Status::Success), "{profile} {at:#x}");
            }
        }
        assert_eq!(canaries.changed(), [""; 0]);
    }
}

/// With the physical key, which an operator must choose, peers reach all that the card can address. The test
/// also shows that the canaries work.
#[test]
fn the_physical_key_reaches_everything_that_the_card_can_address() {
    let nodes = Nodes::new("pro");
    let canaries = Canaries::of(&nodes.machines[1]);
    for at in [canaries.base, canaries.base + (4 << 20), REGISTERS] {
        let results = forge(&nodes, LinkKind::RoceV2, at, 64);
        assert!(results.iter().all(|(status, _)| *status == Status::Success), "{at:#x}: {results:?}");
    }
    assert_eq!(canaries.changed(), ["image", "page tables", "registers"]);
}

/// A key with entries for 1 TB in pages of 2 MiB, which takes 4 MB of the card's tables, works.
#[test]
fn a_key_of_half_a_million_pages_is_made() {
    const TIB: u64 = 1 << 40;
    let nodes = Nodes::with("pro", |number| {
        let base = DATA * u64::from(number);
        // One page of 2 MiB, and another 1 TB further on, where the emulated machine has no memory.
        let ranges = [base + (2 << 20)..base + (4 << 20), base + TIB..base + TIB + (2 << 20)];
        Config { remote: Remote::Ranges(ranges.into()), ..Config::default() }
    });
    let tables = nodes.drivers[1].table_bytes();
    assert!((4 << 20..5 << 20).contains(&tables), "{tables} bytes of tables");
    let reach = |at| {
        forge(&nodes, LinkKind::RoceV2, at, 64).into_iter().map(|(status, _)| status).collect::<Vec<_>>()
    };
    assert_eq!(reach(2 * DATA + (2 << 20)), [Status::Success; 4]);
    assert_eq!(reach(2 * DATA + (4 << 20)), [Status::RemoteAccessError; 4]);
}
