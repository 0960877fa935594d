//! Two ports with one IPv6 address, under a clock of the test's own.

use crate::frame::checksum;
use crate::{FRAME_MAX, Resolution, Resolver, Traffic, classify};
use core::net::Ipv6Addr;
use platform::Instant;
use verbs::MacAddr;
extern crate std;
use std::vec::Vec;

const A: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xb]);
const C: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xc]);
const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xab);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// Makes `to` hear all frames that `from` sends now. Returns them.
fn pass(from: &mut Resolver, to: &mut Resolver, now: Instant) -> Vec<Vec<u8>> {
    let (mut frames, mut out) = (Vec::new(), [0; FRAME_MAX]);
    while let Some(len) = from.poll(now, &mut out) {
        to.input(now, &out[..len]);
        frames.push(out[..len].to_vec());
    }
    frames
}

#[test]
fn a_probe_is_these_bytes() {
    let (mut a, mut nobody) = (Resolver::new(A), Resolver::new(B));
    assert!(a.add_probed(ADDRESS));
    assert_eq!(a.next_deadline(), Some(Instant::ZERO));
    let frames = pass(&mut a, &mut nobody, at(0));
    #[rustfmt::skip]
    let golden = [
        0x33, 0x33, 0xff, 0, 0, 0xab, 0x52, 0x54, 0, 0, 0, 0xa, 0x86, 0xdd,
        0x60, 0, 0, 0, 0, 24, 58, 255,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0xab, 135, 0,
    ];
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0][..56], golden);
    assert_eq!(frames[0][58..62], [0; 4]);
    assert_eq!(frames[0][62..], ADDRESS.octets());
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0xab);
    assert_eq!(checksum(Ipv6Addr::UNSPECIFIED, group, &frames[0][54..]), 0);
    assert_eq!(classify(&frames[0]), Traffic::Neighbour);
    assert_eq!((nobody.take_duplicate(), a.take_duplicate()), (None, None));
}

#[test]
fn a_node_that_has_the_address_keeps_it() {
    let (mut old, mut new) = (Resolver::new(A), Resolver::new(B));
    old.add_probed(ADDRESS);
    pass(&mut old, &mut new, at(0));
    pass(&mut old, &mut new, at(1000));
    new.add_probed(ADDRESS);
    pass(&mut new, &mut old, at(2000));
    assert_eq!(new.take_duplicate(), None);
    pass(&mut old, &mut new, at(2001));
    assert_eq!(new.take_duplicate(), Some((ADDRESS, A)));
    assert_eq!((new.take_duplicate(), old.take_duplicate()), (None, None));
    // Only the older node answers.
    let mut asker = Resolver::new(C);
    asker.add_own(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xc).into());
    asker.resolve(at(2002), ADDRESS.into(), at(5000));
    for query in pass(&mut asker, &mut old, at(2002)) {
        new.input(at(2002), &query);
    }
    assert!(pass(&mut new, &mut asker, at(2003)).is_empty());
    pass(&mut old, &mut asker, at(2003));
    assert_eq!(asker.lookup(at(2003), ADDRESS.into()), Resolution::Known(A));
}

#[test]
fn two_nodes_that_begin_at_once_both_let_go() {
    let (mut a, mut b) = (Resolver::new(A), Resolver::new(B));
    a.add_probed(ADDRESS);
    b.add_probed(ADDRESS);
    let mut out = [0; FRAME_MAX];
    let len = a.poll(at(0), &mut out).expect("a probe");
    pass(&mut b, &mut a, at(0));
    b.input(at(0), &out[..len]);
    assert_eq!(a.take_duplicate(), Some((ADDRESS, B)));
    assert_eq!(b.take_duplicate(), Some((ADDRESS, A)));
}

#[test]
fn late_objections_own_echoes_and_queries_are_none() {
    let (mut a, mut b) = (Resolver::new(A), Resolver::new(B));
    a.add_probed(ADDRESS);
    let echo = pass(&mut a, &mut b, at(0));
    a.input(at(1), &echo[0]);
    assert_eq!(a.take_duplicate(), None);
    // A node that asks for the address does not have it.
    b.add_own(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xb).into());
    b.resolve(at(2), ADDRESS.into(), at(500));
    pass(&mut b, &mut a, at(2));
    assert_eq!(a.take_duplicate(), None);
    // After a second nobody takes the address away.
    b.add_probed(ADDRESS);
    pass(&mut b, &mut a, at(1000));
    assert_eq!(a.take_duplicate(), None);
    pass(&mut a, &mut b, at(1001));
    assert_eq!(b.take_duplicate(), Some((ADDRESS, A)));
}
