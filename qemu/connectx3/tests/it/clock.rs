//! The card's clock, and completion queues whose entries contain timestamps.

use connectx3::device::{Card, Profile};
use connectx3_testdriver::driver::{KEY, Node, Setup, Sizes, data, exchange, remote};
use verbs::MacAddr;

const WRITE: u32 = 0x08;
const MS: u64 = 1_000_000;
/// The clock's frequency, in cycles per microsecond.
const MHZ: u64 = 427;
/// The flag for timestamps in a completion queue's context.
const STAMPED: u32 = 1 << 19;

/// Reads the clock at the offset that QUERY_FW reports.
fn clock(node: &mut Node) -> u64 {
    node.command(0x004, 0, 0, &[]);
    assert_eq!(node.output(0x58) >> 30, 0, "in BAR 0");
    let offset = u64::from(node.output(0x50)) << 32 | u64::from(node.output(0x54));
    let mut bytes = [0; 8];
    node.card.read_bar0(offset, &mut bytes, &node.machine);
    u64::from_be_bytes(bytes)
}

/// Returns the timestamp of an entry as rdma-core reads it, and as mlx4_en does.
fn stamp(entry: &[u8]) -> [u64; 2] {
    let high = u64::from(u32::from_be_bytes(entry[0x0c..0x10].try_into().unwrap()));
    let low = u64::from(u16::from_be_bytes([entry[0x1d], entry[0x1e]]));
    [high << 16 | low, (high + u64::from(low == 0)) << 16 | low]
}

#[test]
fn the_clock_counts_as_fast_as_query_hca_says() {
    let mut node = Node::new(1);
    node.command(0x00b, 0, 0, &[]);
    assert_eq!(u64::from(node.output(0x0c) >> 16), MHZ);
    let before = clock(&mut node);
    node.machine.advance(MS);
    assert_eq!(clock(&mut node) - before, 1000 * MHZ);
}

#[test]
fn the_clock_is_alone_on_its_page() {
    let mut node = Node::new(1);
    node.machine.advance(MS);
    node.command(0x004, 0, 0, &[]);
    let page = u64::from(node.output(0x54)) & !0xfff;
    let mut bytes = [0; 4096];
    node.card.read_bar0(page, &mut bytes, &node.machine);
    // Programs map the page, so it must contain nothing else.
    assert!(bytes[8..].iter().all(|&byte| byte == 0) && bytes[..8] != [0; 8]);
}

#[test]
fn entries_have_the_time_if_the_queue_was_made_so() {
    for profile in ["pro", "large-entries"] {
        for stamped in [false, true] {
            let card = Card::new(Profile::named(profile, MacAddr([2, 0, 0, 0, 0, 1])).unwrap());
            let (mut a, mut b) = (Node::with(card, Sizes::default(), 1), Node::new(2));
            let setup = Setup { stamps: stamped, ..Setup::default() };
            let mut qa = a.connect_as(0x51, 0x81, &b, 0x62, setup);
            b.connect(0x62, 0x92, &a, 0x51);
            let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
            let mut before = clock(&mut a);
            for round in 0..20u64 {
                a.machine.advance(MS + 77 * round);
                a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY), data(here, 8)].concat());
                exchange(&mut a, &mut b, |_| false);
                let entry = a.raw_completion(&mut qa).unwrap();
                let [ours, linux] = stamp(&entry);
                let now = clock(&mut a);
                if stamped {
                    assert!(before < ours && ours <= now, "{before} < {ours} <= {now}");
                    assert_eq!(ours, linux);
                } else {
                    assert_eq!(ours, 0);
                }
                before = now;
            }
            a.command(0x018, 0, 0x81, &[]);
            assert_eq!(a.output(0) & STAMPED != 0, stamped);
        }
    }
}

#[test]
fn an_error_has_the_time_too() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let mut qa = a.connect_as(0x51, 0x81, &b, 0x62, Setup { stamps: true, ..Setup::default() });
    b.connect(0x62, 0x92, &a, 0x51);
    let (here, there) = (a.alloc(0x1000), b.alloc(0x1000));
    a.machine.advance(MS);
    a.post_send(&mut qa, WRITE, 0, &[remote(there, KEY ^ 1), data(here, 8)].concat());
    exchange(&mut a, &mut b, |_| false);
    let entry = a.raw_completion(&mut qa).unwrap();
    assert_eq!((entry[0x1b], entry[0x1f] & 0x1f), (0x13, 0x1e));
    assert!(stamp(&entry)[0] >= 1000 * MHZ);
}

#[test]
fn a_virtual_function_is_told_of_no_clock() {
    let mut node = Node::slave(1);
    node.command(0x003, 0, 0, &[]);
    assert_eq!(node.output(0x3c) >> 15 & 1, 0, "timestamps");
    node.command(0x004, 0, 0, &[]);
    assert_eq!((node.output(0x50), node.output(0x54)), (0, 0));
}
