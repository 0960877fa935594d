//! Refusals by keys, bounds, rights and protection domains. For each operation on each side the tests check
//! the card's status, and that no byte changes on either side.

use connectx3_testdriver::driver::{Entry, KEY, Node, PD, Queue, Setup, data, data_of, exchange, remote};
use connectx3_testdriver::keys::{
    ALL, ATOMIC, BIND, COMPARE_SWAP, FETCH_ADD, LOCAL_READ, LOCAL_WRITE, PAGE, READ, REMOTE_READ,
    REMOTE_WRITE, Region, SEND, WRITE, WRITE_IMM, WindowBind, region,
};

/// The first address and the length of a region in the tests; neither end is at a page boundary.
const START: u64 = 0x7f00_0000_1008;
const LEN: u64 = 0x1ff0;
const INDEX: u32 = 0x120;

/// A syndrome, and the vendor code.
type Failure = (u8, u8);
const LOCAL_PROTECTION: Failure = (0x04, 0);
const FLUSHED: Failure = (0x05, 0xf9);
const INVALID_REQUEST: Failure = (0x12, 0x8a);
const REMOTE_ACCESS: Failure = (0x13, 0x88);
const REMOTE_OPERATION: Failure = (0x14, 0);

/// Types of events.
const ACCESS_ERROR: u8 = 0x11;
const REQUEST_ERROR: u8 = 0x10;

/// The reason why an access must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// No fault: the access succeeds.
    Nothing,
    VariableBits,
    UnknownIndex,
    IndexBeyondTable,
    /// The index was reused for another region.
    Stale,
    /// LOCAL_INV invalidated the key.
    Invalidated,
    NeverGiven,
    Below,
    Above,
    /// The address plus the length overflows.
    Overflow,
    OtherDomain,
    NoRight,
    /// The queue pair does not grant the right to its peer.
    NoRightOfQueuePair,
    Misaligned,
    /// The key is of a window that ends before the region does.
    BeyondWindow,
    /// The window is of type 2 and bound to another queue pair.
    OtherQueuePairsWindow,
    /// A page of the region is not present.
    MissingPage,
    /// A page of the region is not memory of the machine.
    OutsideMemory,
}

impl Wrong {
    /// Returns whether the fault is only found when the memory is accessed, at which time earlier and later
    /// requests are in flight.
    fn shows_late(self) -> bool {
        matches!(self, Self::MissingPage | Self::OutsideMemory)
    }
}

const EVERYWHERE: [Wrong; 14] = [
    Wrong::Nothing,
    Wrong::VariableBits,
    Wrong::UnknownIndex,
    Wrong::IndexBeyondTable,
    Wrong::Stale,
    Wrong::Invalidated,
    Wrong::NeverGiven,
    Wrong::Below,
    Wrong::Above,
    Wrong::Overflow,
    Wrong::OtherDomain,
    Wrong::NoRight,
    Wrong::MissingPage,
    Wrong::OutsideMemory,
];
const OF_PEERS: [Wrong; 3] = [Wrong::NoRightOfQueuePair, Wrong::BeyondWindow, Wrong::OtherQueuePairsWindow];

/// Creates memory of `node` with a fault. Returns key and address for an access of `len` bytes that needs
/// `right`.
fn memory(node: &mut Node, own: &mut Queue, peer: &Node, wrong: Wrong, len: u64, right: u32) -> (u32, u64) {
    let at = node.alloc(4 * PAGE);
    node.machine.put(at, &[0x77; 4 * PAGE as usize]);
    let mut given = region(INDEX, START, LEN);
    let middle = START + 0x1000 - 8;
    match wrong {
        Wrong::Nothing | Wrong::NoRightOfQueuePair => (node.register(given, at), middle),
        Wrong::VariableBits => (node.register(given, at) ^ 1, middle),
        Wrong::UnknownIndex => (node.register(given, at) + 0x100, middle),
        Wrong::IndexBeyondTable => (node.register(given, at) | 0x80_0000 << 8, middle),
        Wrong::Stale => {
            let stale = node.register(given, at);
            assert_eq!(node.deregister(stale), 0);
            // Linux uses the same index again, with a count above the table's size.
            given.index += 0x400;
            node.register(given, at);
            (stale, middle)
        }
        Wrong::Invalidated => {
            let key = node.register(given, at);
            let mut other = node.connect(0x77, 0xa7, peer, 0x99);
            node.local_invalidate(&mut other, key);
            assert_eq!(node.poll(&mut other).unwrap().syndrome, 0);
            (key, middle)
        }
        Wrong::NeverGiven => (node.fast_region(INDEX, PD, 4), middle),
        Wrong::Below => (node.register(given, at), START - 8),
        Wrong::Above => (node.register(given, at), START + LEN - len + 8),
        Wrong::Overflow => {
            given.start = 0u64.wrapping_sub(0x1000);
            given.len = 0x1000;
            (node.register(given, at), 0u64.wrapping_sub(8) & !7)
        }
        Wrong::OtherDomain => {
            given.pd = PD + 1;
            (node.register(given, at), middle)
        }
        Wrong::NoRight => {
            given.rights = ALL & !right;
            (node.register(given, at), middle)
        }
        Wrong::Misaligned => (node.register(given, at), middle + 4),
        Wrong::BeyondWindow | Wrong::OtherQueuePairsWindow => {
            given.rights |= BIND;
            let lkey = node.register(given, at);
            let window = node.window(INDEX + 1, PD, wrong == Wrong::OtherQueuePairsWindow);
            let bind = WindowBind {
                key: window | 5,
                lkey,
                rights: REMOTE_READ | REMOTE_WRITE | ATOMIC,
                start: START + 8,
                len: 0x800,
                type2: wrong == Wrong::OtherQueuePairsWindow,
                zero_based: false,
            };
            if wrong == Wrong::BeyondWindow {
                node.bind(own, &bind);
                assert_eq!(node.poll(own).unwrap().syndrome, 0);
                return (window | 5, START + 8 + 0x800 - len + 8);
            }
            let mut other = node.connect(0x77, 0xa7, peer, 0x99);
            node.bind(&mut other, &bind);
            assert_eq!(node.poll(&mut other).unwrap().syndrome, 0);
            (window | 5, START + 0x100)
        }
        Wrong::MissingPage | Wrong::OutsideMemory => {
            let key = node.register(given, at);
            let mtt = node.machine.be32(node.region_entry(INDEX) + 0x30);
            let page = if wrong == Wrong::MissingPage { at + PAGE } else { 0x7fff_ffff_f001 };
            let entry = node.page_entry(mtt + 8);
            node.machine.put(entry, &page.to_be_bytes());
            (key, START + 0x1000)
        }
    }
}

/// A pair of nodes whose queue pairs have all rights, with an event queue for failures on B.
struct Pair {
    a: Node,
    b: Node,
    qa: Queue,
    qb: Queue,
    events: u64,
}

fn pair(rights_of_peer: u32) -> Pair {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let events = b.create_eq(1, 4);
    b.raw_command(0x012, 0, 1, u64::MAX);
    let qa = a.connect(0x51, 0x81, &b, 0x62);
    let qb = b.connect_as(0x62, 0x92, &a, 0x51, Setup { rights: rights_of_peer, ..Setup::default() });
    Pair { a, b, qa, qb, events }
}

impl Pair {
    fn event(&self) -> (u8, u32) {
        (self.b.machine.bytes(self.events + 1, 1)[0], self.b.machine.be32(self.events + 4))
    }
}

fn failure(done: Entry) -> Failure {
    assert_eq!(done.opcode, 0x1e, "{done:?}");
    (done.syndrome, done.vendor)
}

/// Returns the memory of both machines from address `from` on, behind the queues of A and B, which
/// completions change.
fn data_of_both(pair: &Pair, from: u64) -> [Vec<u8>; 2] {
    [&pair.a, &pair.b].map(|node| {
        let all = node.machine.snapshot();
        all[from as usize..].to_vec()
    })
}

/// An operation on memory of the peer: opcode, words between the peer's address and the data, length in
/// bytes, required right.
const REMOTE: [(&str, u32, &[u32], u32, u32); 5] = [
    ("WRITE", WRITE, &[], 64, REMOTE_WRITE),
    ("WRITE with immediate", WRITE_IMM, &[], 64, REMOTE_WRITE),
    ("READ", READ, &[], 64, REMOTE_READ),
    ("compare and swap", COMPARE_SWAP, &[0, 9, 0x7777_7777, 0x7777_7777], 8, ATOMIC),
    ("fetch and add", FETCH_ADD, &[0, 9, 0, 0], 8, ATOMIC),
];

#[test]
fn what_a_peer_may_not_reach() {
    for (name, opcode, extra, len, right) in REMOTE {
        let misaligned = right == ATOMIC;
        let wrongs = EVERYWHERE.iter().chain(&OF_PEERS).chain(misaligned.then_some(&Wrong::Misaligned));
        for &wrong in wrongs {
            let what = format!("{name}, {wrong:?}");
            let without = match right {
                REMOTE_READ => 3,
                REMOTE_WRITE => 5,
                _ => 6,
            };
            let mut pair = pair(if wrong == Wrong::NoRightOfQueuePair { without } else { 7 });
            let (key, at) = memory(&mut pair.b, &mut pair.qb, &pair.a, wrong, u64::from(len), right);
            let (spare, here) = (pair.b.alloc(PAGE), pair.a.alloc(PAGE));
            pair.a.machine.put(here, &[0x11; PAGE as usize]);
            pair.b.post_receive(&mut pair.qb, spare, 100);
            // Queues and rings were created before this memory.
            let from = pair.a.alloc(PAGE).min(here) & !(PAGE - 1);
            let before = data_of_both(&pair, from);
            let words = [&remote(at, key)[..], extra, &data(here, len)].concat();
            pair.a.post_send(&mut pair.qa, opcode, 0, &words);
            // A missing page is found only when a READ is answered; by then the following request has been
            // executed.
            if !wrong.shows_late() {
                pair.a.post_send(&mut pair.qa, SEND, 0, &data(here, 8));
            }
            exchange(&mut pair.a, &mut pair.b, |_| false);
            if wrong == Wrong::Nothing {
                assert_eq!(pair.a.poll(&mut pair.qa).unwrap().opcode, opcode as u8, "{what}");
                assert!(data_of_both(&pair, from) != before, "{what}: nothing has changed");
                continue;
            }
            let expected = if wrong == Wrong::Misaligned { INVALID_REQUEST } else { REMOTE_ACCESS };
            assert_eq!(failure(pair.a.poll(&mut pair.qa).unwrap()), expected, "{what}");
            if !wrong.shows_late() {
                assert_eq!(failure(pair.a.poll(&mut pair.qa).unwrap()), FLUSHED, "{what}");
            }
            assert_eq!(failure(pair.b.poll(&mut pair.qb).unwrap()), FLUSHED, "{what}: the receive");
            let event = if wrong == Wrong::Misaligned { REQUEST_ERROR } else { ACCESS_ERROR };
            assert_eq!(pair.event(), (event, 0x62), "{what}");
            assert!(data_of_both(&pair, from) == before, "{what}: memory has changed");
        }
    }
}

/// An operation on own memory: opcode, whether it names memory of the peer, length in bytes, required right.
const LOCAL: [(&str, u32, bool, u32, u32); 4] = [
    ("gather of SEND", SEND, false, 64, LOCAL_READ),
    ("gather of WRITE", WRITE, true, 64, LOCAL_READ),
    ("scatter of READ", READ, true, 64, LOCAL_WRITE),
    ("result of fetch and add", FETCH_ADD, true, 8, LOCAL_WRITE),
];

#[test]
fn what_a_request_may_not_reach_of_its_own_memory() {
    for (name, opcode, names_remote, len, right) in LOCAL {
        for wrong in EVERYWHERE {
            let what = format!("{name}, {wrong:?}");
            let mut pair = pair(7);
            let (key, at) = memory(&mut pair.a, &mut pair.qa, &pair.b, wrong, u64::from(len), right);
            let there = pair.b.alloc(PAGE);
            pair.b.machine.put(there, &[0x22; PAGE as usize]);
            pair.b.post_receive(&mut pair.qb, there + 0x800, 100);
            let from = there.min(pair.a.alloc(PAGE) - 4 * PAGE);
            let before = data_of_both(&pair, from);
            let mut words = Vec::new();
            if names_remote {
                words.extend(remote(there, KEY));
            }
            if opcode == FETCH_ADD {
                words.extend([0, 0, 0, 0]);
            }
            words.extend(data_of(key, at, len));
            // The earlier request succeeds, unless it was sent together with this one.
            if !wrong.shows_late() {
                let nothing = [remote(there, KEY), data(0, 0x8000_0000)].concat();
                pair.a.post_send(&mut pair.qa, WRITE, 0, &nothing);
            }
            pair.a.post_send(&mut pair.qa, opcode, 0, &words);
            if !wrong.shows_late() {
                pair.a.post_send(&mut pair.qa, SEND, 0, &data(0, 8));
            }
            exchange(&mut pair.a, &mut pair.b, |_| false);
            if !wrong.shows_late() {
                assert_eq!(pair.a.poll(&mut pair.qa).unwrap().opcode, WRITE as u8, "{what}");
            }
            let done = pair.a.poll(&mut pair.qa).unwrap();
            if wrong == Wrong::Nothing {
                assert_eq!(done.opcode, opcode as u8, "{what}");
                continue;
            }
            assert_eq!(failure(done), LOCAL_PROTECTION, "{what}");
            if !wrong.shows_late() {
                assert_eq!(failure(pair.a.poll(&mut pair.qa).unwrap()), FLUSHED, "{what}");
            }
            assert!(data_of_both(&pair, from) == before, "{what}: memory has changed");
        }
    }
}

#[test]
fn what_a_receive_may_not_reach() {
    for wrong in EVERYWHERE {
        let what = format!("{wrong:?}");
        let mut pair = pair(7);
        let (key, at) = memory(&mut pair.b, &mut pair.qb, &pair.a, wrong, 64, LOCAL_WRITE);
        let here = pair.a.alloc(PAGE);
        pair.a.machine.put(here, &[0x11; PAGE as usize]);
        let from = (pair.b.alloc(PAGE) - 4 * PAGE).min(here);
        pair.b.post_receive_of(&mut pair.qb, key, at, 64);
        pair.b.post_receive_of(&mut pair.qb, KEY, 0, 64);
        let before = data_of_both(&pair, from);
        pair.a.post_send(&mut pair.qa, SEND, 0, &data(here, 64));
        exchange(&mut pair.a, &mut pair.b, |_| false);
        let (sent, received) = (pair.a.poll(&mut pair.qa).unwrap(), pair.b.poll(&mut pair.qb).unwrap());
        if wrong == Wrong::Nothing {
            assert_eq!((sent.opcode, received.opcode), (SEND as u8, 1), "{what}");
            continue;
        }
        assert_eq!(failure(sent), REMOTE_OPERATION, "{what}");
        assert_eq!(failure(received), LOCAL_PROTECTION, "{what}");
        assert_eq!(failure(pair.b.poll(&mut pair.qb).unwrap()), FLUSHED, "{what}");
        assert!(data_of_both(&pair, from) == before, "{what}: memory has changed");
    }
}

/// A WRITE with immediate succeeds with a receive whose memory is refused, because it does not access it.
#[test]
fn a_receive_that_only_takes_an_immediate_needs_no_memory() {
    let mut pair = pair(7);
    let (key, at) = memory(&mut pair.b, &mut pair.qb, &pair.a, Wrong::Invalidated, 64, LOCAL_WRITE);
    let there = pair.b.alloc(PAGE);
    pair.b.post_receive_of(&mut pair.qb, key, at, 64);
    pair.a.post_send(&mut pair.qa, WRITE_IMM, 7, &[remote(there, KEY), data(0x1000, 8)].concat());
    exchange(&mut pair.a, &mut pair.b, |_| false);
    assert_eq!(pair.a.poll(&mut pair.qa).unwrap().opcode, WRITE_IMM as u8);
    let received = pair.b.poll(&mut pair.qb).unwrap();
    assert_eq!((received.opcode, received.imm), (0, 7));
}

/// Elements are refused individually, but the earlier ones are not written either.
#[test]
fn one_bad_element_spoils_a_list() {
    let mut pair = pair(7);
    let (here, there) = (pair.a.alloc(PAGE), pair.b.alloc(PAGE));
    let bad = pair.a.register(Region { rights: LOCAL_READ, ..region(INDEX, 0x1000, PAGE) }, here);
    let words = [remote(there, KEY), data(here, 8), data_of(bad, 0x1000, 8)].concat();
    pair.a.post_send(&mut pair.qa, READ, 0, &words);
    exchange(&mut pair.a, &mut pair.b, |_| false);
    assert_eq!(failure(pair.a.poll(&mut pair.qa).unwrap()), LOCAL_PROTECTION);
    assert_eq!(pair.a.machine.bytes(here, 8), [0; 8]);
}
