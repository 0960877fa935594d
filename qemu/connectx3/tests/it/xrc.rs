//! Extended reliable connections: receives come from the shared receive queue that the sender names, complete
//! in the completion queue of that queue, and access memory of its protection domain. Queues that the sender
//! may not name are refused.

use connectx3_testdriver::driver::{Entry, KEY, Node, PD, Queue, Setup, SharedQueue, data, exchange, remote};

const WRITE: u32 = 0x08;
const WRITE_IMM: u32 = 0x09;
const SEND: u32 = 0x0a;
const READ: u32 = 0x10;
const FETCH_ADD: u32 = 0x12;

/// log2 of the number of entries in a ring, and of the length of each in bytes.
const LOG_ENTRIES: u32 = 6;
const LOG_STRIDE: u32 = 7;

const INITIATOR: u32 = 0x51;
/// Linux sets the top bit in the number of a target.
const TARGET: u32 = 0x80_0062;
const DOMAIN: u32 = 7;
/// The numbers of four shared receive queues: two of the domain, one of another domain, one that is not for
/// XRC.
const FIRST: u32 = 0x71;
const SECOND: u32 = 0x72;
const FOREIGN: u32 = 0x73;
const PLAIN: u32 = 0x74;

/// An initiator, and a target with shared receive queues.
struct Pair {
    a: Node,
    b: Node,
    initiator: Queue,
    /// The queue pair whose completion queue serves the first shared queue.
    first_done: Queue,
    second_done: Queue,
    first: SharedQueue,
    second: SharedQueue,
}

impl Pair {
    /// Creates a pair. `pd` is the protection domain of the second shared queue. The queue pairs have a
    /// protection domain other than that of the memory.
    fn new(pd: u32) -> Self {
        let (mut a, mut b) = (Node::new(1), Node::new(2));
        let setup = Setup { service: 6, ..Setup::default() };
        let initiator = a.connect_as(INITIATOR, 0x81, &b, TARGET, setup);
        let target = Setup { pd: PD + 20, domain: DOMAIN, ..setup };
        let queue = b.ready_to_receive(TARGET, 0x92, &a, INITIATOR, target);
        // Linux makes the target ready to send too, but leaves zeros in its send ring, which are not work
        // requests.
        b.machine.put(queue.send, &[0; 1 << (LOG_ENTRIES + LOG_STRIDE)]);
        b.ready_to_send(&queue, INITIATOR, target);
        // Queue pairs that are never used, created for their completion queues.
        let first_done = b.ready_to_receive(0x101, 0xa1, &a, 0x201, Setup::default());
        let second_done = b.ready_to_receive(0x102, 0xa2, &a, 0x202, Setup::default());
        let first = b.create_xrc_srq(FIRST, DOMAIN, 0xa1, PD);
        let second = b.create_xrc_srq(SECOND, DOMAIN, 0xa2, pd);
        b.create_xrc_srq(FOREIGN, DOMAIN + 1, 0xa2, PD);
        b.create_srq(PLAIN);
        Self { a, b, initiator, first_done, second_done, first, second }
    }

    /// Posts a work request for a shared receive queue of the peer, and carries all frames.
    fn send(&mut self, opcode: u32, srqn: u32, words: &[u32]) {
        self.a.write_flagged(&mut self.initiator, opcode, srqn << 8, 0xabcd, words);
        self.a.ring(&self.initiator);
        exchange(&mut self.a, &mut self.b, |_| false);
    }

    /// Returns the syndrome with which the last work request has ended; 0 means success.
    fn ended(&mut self) -> Option<u8> {
        self.a.poll(&mut self.initiator).map(|done| done.syndrome)
    }
}

#[test]
fn the_sender_chooses_the_shared_receive_queue() {
    let mut pair = Pair::new(PD);
    let (here, there) = (pair.a.alloc(0x8000), pair.b.alloc(0x8000));
    let bytes: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
    pair.a.machine.put(here, &bytes);
    pair.b.post_shared(&mut pair.first, there, 0x2000);
    pair.b.post_shared(&mut pair.first, there + 0x2000, 0x1000);
    pair.b.post_shared(&mut pair.second, there + 0x4000, 0x1000);
    // A message of several packets, and one to the other queue.
    pair.send(SEND, FIRST, &data(here, 5000));
    pair.send(SEND, SECOND, &data(here, 77));
    pair.send(WRITE_IMM, FIRST, &[remote(there + 0x6000, KEY), data(here, 16)].concat());
    for _ in 0..3 {
        assert_eq!(pair.ended(), Some(0));
    }
    let received =
        Entry { qpn: TARGET, wqe: 0, send: false, opcode: 1, len: 5000, imm: 0, syndrome: 0, vendor: 0 };
    assert_eq!(pair.b.poll(&mut pair.first_done), Some(received));
    // rdma-core reads the shared queue's number here.
    assert_eq!(pair.b.last_entry(&pair.first_done)[8..12], FIRST.to_be_bytes());
    assert_eq!(pair.b.poll(&mut pair.second_done), Some(Entry { len: 77, ..received }));
    assert_eq!(pair.b.last_entry(&pair.second_done)[8..12], SECOND.to_be_bytes());
    let with_imm = pair.b.poll(&mut pair.first_done).unwrap();
    assert_eq!((with_imm.wqe, with_imm.opcode, with_imm.imm, with_imm.len), (1, 0, 0xabcd, 16));
    assert_eq!(pair.b.machine.bytes(there, 5000), bytes);
    assert_eq!(pair.b.machine.bytes(there + 0x4000, 77), bytes[..77]);
    assert!(pair.b.poll(&mut pair.first_done).is_none() && pair.b.poll(&mut pair.second_done).is_none());
}

#[test]
fn every_request_of_the_wire_names_the_queue() {
    let mut pair = Pair::new(PD);
    let (here, there) = (pair.a.alloc(0x1000), pair.b.alloc(0x1000));
    let words = [remote(there, KEY), data(here, 16)].concat();
    pair.a.write_flagged(&mut pair.initiator, READ, FIRST << 8, 0, &words);
    pair.a.ring(&pair.initiator);
    pair.a.card.progress(&pair.a.machine);
    let [(_, frame)] = &pair.a.card.take_outbox()[..] else { panic!("one request") };
    // Ethernet, IPv4, UDP, then the base header of an XRC READ request, and the extended one.
    let bth = &frame[14 + 20 + 8..];
    assert_eq!((bth[0], &bth[5..8]), (5 << 5 | 12, &TARGET.to_be_bytes()[1..]));
    assert_eq!((&bth[12..16], &bth[16 + 8..16 + 12]), (&FIRST.to_be_bytes()[..], &KEY.to_be_bytes()[..]));
    pair.b.card.receive(0, frame, &pair.b.machine);
    pair.b.card.progress(&pair.b.machine);
    let [(_, answer)] = &pair.b.card.take_outbox()[..] else { panic!("one answer") };
    let bth = &answer[14 + 20 + 8..];
    assert_eq!((bth[0], &bth[5..8]), (5 << 5 | 16, &INITIATOR.to_be_bytes()[1..]));
    assert_eq!(answer.len(), 14 + 20 + 8 + 12 + 4 + 16 + 4, "an answer names no queue");
}

#[test]
fn keys_are_of_the_shared_queues_protection_domain() {
    for (srqn, syndrome) in [(FIRST, 0), (SECOND, 0x13)] {
        for opcode in [WRITE, READ, FETCH_ADD] {
            // No region has the second queue's protection domain.
            let mut pair = Pair::new(PD + 1);
            let (here, there) = (pair.a.alloc(0x1000), pair.b.alloc(0x1000));
            pair.b.machine.put(there, &[9; 64]);
            pair.a.machine.put(here, &[1; 64]);
            let atomic = if opcode == FETCH_ADD { &[0, 1, 0, 0][..] } else { &[] };
            let words = [&remote(there, KEY)[..], atomic, &data(here, 8)].concat();
            pair.send(opcode, srqn, &words);
            assert_eq!(pair.ended(), Some(syndrome), "opcode {opcode:#x} to {srqn:#x}");
            assert_eq!(pair.b.machine.bytes(there, 8) == [9; 8], syndrome != 0 || opcode == READ);
        }
    }
}

#[test]
fn reads_in_the_name_of_two_queues_are_answered_in_the_domain_of_each() {
    let mut pair = Pair::new(PD + 1);
    let (here, there) = (pair.a.alloc(0x4000), pair.b.alloc(0x4000));
    pair.b.machine.put(there, &[7; 0x3000]);
    // The second READ is refused before the first is answered. The answer to the first still uses the first
    // queue's domain.
    for srqn in [FIRST, SECOND] {
        let words = [remote(there, KEY), data(here, 0x3000)].concat();
        pair.a.write_flagged(&mut pair.initiator, READ, srqn << 8, 0, &words);
    }
    pair.a.ring(&pair.initiator);
    exchange(&mut pair.a, &mut pair.b, |_| false);
    assert_eq!((pair.ended(), pair.ended()), (Some(0), Some(0x13)));
    assert_eq!(pair.a.machine.bytes(here, 0x3000), [7; 0x3000]);
}

#[test]
fn queues_of_other_domains_cannot_be_named() {
    for srqn in [FOREIGN, PLAIN, 0x75] {
        for opcode in [SEND, WRITE] {
            let mut pair = Pair::new(PD);
            let (here, there) = (pair.a.alloc(0x1000), pair.b.alloc(0x1000));
            let before = pair.b.machine.bytes(there, 64);
            let remote = if opcode == WRITE { &remote(there, KEY)[..] } else { &[] };
            pair.send(opcode, srqn, &[remote, &data(here, 8)].concat());
            assert_eq!(pair.ended(), Some(0x13), "opcode {opcode:#x} to {srqn:#x}: remote access");
            assert_eq!(pair.b.machine.bytes(there, 64), before);
        }
    }
}

#[test]
fn an_initiator_takes_no_requests() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let setup = Setup { service: 6, domain: DOMAIN, ..Setup::default() };
    let mut qa = a.connect_as(0x51, 0x81, &b, 0x62, setup);
    // Without the top bit in its number the queue pair is an initiator, whatever its context says.
    b.connect_as(0x62, 0x92, &a, 0x51, setup);
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    let mut queue = b.create_xrc_srq(FIRST, DOMAIN, 0x92, PD);
    b.post_shared(&mut queue, there, 64);
    a.write_flagged(&mut qa, SEND, FIRST << 8, 0, &data(here, 8));
    a.ring(&qa);
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(a.poll(&mut qa).unwrap().syndrome, 0x13);
}

#[test]
fn a_target_without_receives_makes_the_sender_wait_for_its_queue_only() {
    let mut pair = Pair::new(PD);
    let (here, there) = (pair.a.alloc(0x1000), pair.b.alloc(0x1000));
    // A receive posted to the other queue is not for this one.
    pair.b.post_shared(&mut pair.second, there, 64);
    pair.send(SEND, FIRST, &data(here, 8));
    assert_eq!(pair.ended(), None, "not ready");
    pair.b.post_shared(&mut pair.first, there + 64, 64);
    for _ in 0..100 {
        pair.a.machine.advance(10_000_000);
        exchange(&mut pair.a, &mut pair.b, |_| false);
    }
    assert_eq!(pair.ended(), Some(0));
    assert_eq!(pair.b.poll(&mut pair.first_done).unwrap().len, 8);
    assert!(pair.b.poll(&mut pair.second_done).is_none());
}

#[test]
fn a_queue_taken_back_in_mid_message_completes_nowhere() {
    let mut pair = Pair::new(PD);
    let (here, there) = (pair.a.alloc(0x2000), pair.b.alloc(0x2000));
    pair.b.post_shared(&mut pair.first, there, 0x2000);
    pair.a.write_flagged(&mut pair.initiator, SEND, FIRST << 8, 0, &data(here, 3000));
    pair.a.ring(&pair.initiator);
    pair.a.card.progress(&pair.a.machine);
    for (index, (_, frame)) in pair.a.card.take_outbox().into_iter().enumerate() {
        if index == 1 {
            pair.b.command(0x036, 1, FIRST, &[]);
        }
        pair.b.card.receive(0, &frame, &pair.b.machine);
    }
    exchange(&mut pair.a, &mut pair.b, |_| false);
    assert_eq!(pair.ended(), Some(0x13));
    assert!(pair.b.poll(&mut pair.first_done).is_none());
}
