//! Every operation over an unreliable network, with verification of all data.

use connectx3_testdriver::driver::{KEY, Node, Queue, data_of, remote};
use connectx3_testdriver::keys::{COMPARE_SWAP, FETCH_ADD, READ, SEND, WRITE, WRITE_IMM, region};
use fastrand::Rng;
use netfault::{FaultQueue, Faults};
use std::iter;

/// The length of a region in bytes. Operations use its parts one after another.
const AREA: u64 = 0x2_0000;
const PART: u64 = 0x4000;
const VA: u64 = 0x7f12_3456_0123;
/// The time of a step, in nanoseconds.
const STEP: u64 = 100_000;

struct Net {
    nodes: [Node; 2],
    /// The frames in flight to each node.
    to: [FaultQueue<()>; 2],
    now: u64,
}

impl Net {
    fn step(&mut self) {
        self.now += STEP;
        for side in 0..2 {
            self.nodes[side].machine.advance(STEP);
            while let Some(((), frame)) = self.to[side].pop(self.now) {
                let node = &mut self.nodes[side];
                node.card.receive(0, &frame, &node.machine);
            }
        }
        for side in 0..2 {
            let node = &mut self.nodes[side];
            node.card.progress(&node.machine);
            for (_, frame) in node.card.take_outbox() {
                self.to[1 - side].push((), frame, self.now);
            }
        }
    }
}

/// A work request in flight, and the condition that must hold at its end.
enum Expected {
    /// The peer's memory contains the bytes at the bus address.
    There(u64, Vec<u8>),
    /// The poster's own memory contains the bytes at the bus address.
    Here(u64, Vec<u8>),
    /// The peer has received the bytes.
    Received(Vec<u8>),
}

/// Returns the bus address of a byte of the region whose memory begins at `at`.
fn bus(at: u64, offset: u64) -> u64 {
    at + VA % 4096 + offset
}

fn run(faults: &str, seed: u64) -> u64 {
    let faults = Faults::parse(faults).unwrap();
    let mut random = Rng::with_seed(seed);
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let mut qa: Queue = a.connect(0x51, 0x81, &b, 0x62);
    let mut qb: Queue = b.connect(0x62, 0x92, &a, 0x51);
    let [here, there] = [&mut a, &mut b].map(|node| node.alloc(AREA + 4096));
    let [lkey, rkey] =
        [(&mut a, here), (&mut b, there)].map(|(n, at)| n.register(region(0x120, VA, AREA), at));
    let receive = b.alloc(PART);
    let to = [1, 2].map(|n| FaultQueue::new(faults, seed * 2 + n));
    let mut net = Net { nodes: [a, b], to, now: 1 };
    let mut counter = 0u64;
    for round in 0..120 {
        let offset = round % (AREA / PART) * PART + random.u64(..64);
        let len = 1 + random.u64(..PART - 200);
        let content = iter::repeat_with(|| random.u8(..)).take(len as usize).collect::<Vec<u8>>();
        let [a, b] = &mut net.nodes;
        let words =
            |len: u64| [&remote(VA + offset, rkey)[..], &data_of(lkey, VA + offset, len as u32)].concat();
        let expected = match random.u64(..6) {
            0 | 1 => {
                a.machine.put(bus(here, offset), &content);
                a.post_send(&mut qa, WRITE, 0, &words(len));
                Expected::There(bus(there, offset), content)
            }
            2 => {
                b.machine.put(bus(there, offset), &content);
                a.post_send(&mut qa, READ, 0, &words(len));
                Expected::Here(bus(here, offset), content)
            }
            3 => {
                b.post_receive(&mut qb, receive, PART as u32);
                a.machine.put(bus(here, offset), &content);
                a.post_send(&mut qa, SEND, 0, &data_of(lkey, VA + offset, len as u32));
                Expected::Received(content)
            }
            4 => {
                b.post_receive(&mut qb, receive, PART as u32);
                a.machine.put(bus(here, offset), &content);
                a.post_send(&mut qa, WRITE_IMM, round as u32, &words(len));
                Expected::There(bus(there, offset), content)
            }
            _ => {
                // A separate word in physical memory, which only atomics change.
                let word = receive + PART - 8;
                b.machine.put(word, &counter.to_ne_bytes());
                let (before, swap) = (counter, random.bool());
                counter = if swap { round } else { counter.wrapping_add(round) };
                let (opcode, compare) = if swap { (COMPARE_SWAP, before) } else { (FETCH_ADD, 0) };
                let operands = [0, round as u32, (compare >> 32) as u32, compare as u32];
                let result = data_of(lkey, VA + offset, 8);
                a.post_send(&mut qa, opcode, 0, &[remote(word, KEY), operands, result].concat());
                Expected::Here(bus(here, offset), before.to_ne_bytes().to_vec())
            }
        };
        let done = (0..2_000_000_000 / STEP).find_map(|_| {
            net.step();
            net.nodes[0].poll(&mut qa)
        });
        let done = done.unwrap_or_else(|| panic!("seed {seed}, round {round}: nothing in two seconds"));
        assert_eq!(done.syndrome, 0, "seed {seed}, round {round}: {done:?}");
        match expected {
            Expected::There(at, bytes) => {
                assert!(net.nodes[1].machine.bytes(at, bytes.len()) == bytes, "seed {seed}, round {round}");
            }
            Expected::Here(at, bytes) => {
                assert!(net.nodes[0].machine.bytes(at, bytes.len()) == bytes, "seed {seed}, round {round}");
            }
            Expected::Received(bytes) => {
                let received = net.nodes[1].machine.bytes(receive, bytes.len());
                assert!(received == bytes, "seed {seed}, round {round}");
            }
        }
        while let Some(entry) = net.nodes[1].poll(&mut qb) {
            assert_eq!(entry.syndrome, 0, "seed {seed}, round {round}");
        }
    }
    net.nodes[0].card.transport_counters().retransmits
}

#[test]
fn one_percent_of_loss() {
    let repeated: u64 = (1..=6).map(|seed| run("loss=0.01", seed)).sum();
    assert!(repeated > 20, "{repeated}: nothing was lost");
}

#[test]
fn loss_duplication_reordering_and_corruption() {
    for seed in 1..=6 {
        run("loss=0.02,dup=0.02,reorder=0.05,corrupt=0.01,delay_us=100", seed);
    }
}
