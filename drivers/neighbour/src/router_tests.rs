//! Advertisements of routers, as bytes of RFC 4861, under a clock of the test's own.

use crate::frame::{ICMPV6, checksum};
use crate::{Advertised, FRAME_MAX, Resolver, Traffic, advertisement, classify, groups, link_local};
use core::net::Ipv6Addr;
use platform::Instant;
use proptest::prelude::*;
use verbs::MacAddr;
extern crate std;
use std::vec::Vec;

const PORT: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xa]);
const OTHER: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 0xb]);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const PREFIX: [u16; 4] = [0xfd00, 0, 0, 7];
const NOTHING: Advertised = Advertised { address: None, prefix: 64, router: None };

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

/// The address of the port with a prefix: the bit for a universal identifier is inverted.
fn address(prefix: [u16; 4]) -> Ipv6Addr {
    let [a, b, c, d] = prefix;
    Ipv6Addr::new(a, b, c, d, 0x5054, 0x00ff, 0xfe00, 0x000a)
}

/// Returns an advertisement of a router with that lifetime, in seconds, and options.
fn frame(from: Ipv6Addr, hops: u8, lifetime: u16, options: &[u8]) -> Vec<u8> {
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut body = [&[134, 0, 0, 0, 64, 0], &lifetime.to_be_bytes()[..], &[0; 8], options].concat();
    let sum = checksum(from, all, &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = [0x60, 0, 0, 0, 0, body.len() as u8, ICMPV6, hops];
    let ethernet = [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
    [&ethernet[..], &header, &from.octets(), &all.octets(), &body].concat()
}

/// Returns the option of a prefix with lifetimes in seconds.
fn prefix(words: [u16; 4], flags: u8, valid: u32, preferred: u32) -> Vec<u8> {
    let [a, b, c, d] = words;
    let prefix = Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).octets();
    [&[3, 4, 64, flags][..], &valid.to_be_bytes(), &preferred.to_be_bytes(), &[0; 4], &prefix].concat()
}

fn resolver() -> Resolver {
    let mut resolver = Resolver::new(PORT);
    resolver.autoconfigure(at(0));
    resolver
}

/// Returns the frame that is due.
fn sent(resolver: &mut Resolver, now: Instant) -> Option<Vec<u8>> {
    let mut out = [0; FRAME_MAX];
    let len = resolver.poll(now, &mut out)?;
    Some(out[..len].to_vec())
}

#[test]
fn a_router_solicitation_is_these_bytes() {
    let mut resolver = resolver();
    #[rustfmt::skip]
    let golden = [
        0x33, 0x33, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 0xa, 0x86, 0xdd,
        0x60, 0, 0, 0, 0, 16, 58, 255,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0, 0, 0xa,
        0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    ];
    let frame = sent(&mut resolver, at(0)).expect("a solicitation");
    assert_eq!(frame[..54], golden);
    assert_eq!(frame[54..56], [133, 0]);
    assert_eq!(frame[58..], [0, 0, 0, 0, 1, 1, 0x52, 0x54, 0, 0, 0, 0xa]);
    let ip = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).expect("16 bytes"));
    assert_eq!(checksum(ip(22), ip(38), &frame[54..]), 0);
}

#[test]
fn silence_makes_solicitations_rare() {
    let mut resolver = resolver();
    let mut times = Vec::new();
    for second in 0..200 {
        while sent(&mut resolver, at(second)).is_some() {
            times.push(second);
        }
        assert!(resolver.next_deadline().is_some_and(|next| next > at(second)));
    }
    assert_eq!(times, [0, 4, 12, 28, 60, 124, 188]);
}

#[test]
fn a_port_takes_prefix_and_router_until_they_end() {
    let mut resolver = resolver();
    assert_eq!(resolver.advertised(), Some(NOTHING));
    let advertisement = frame(ROUTER, 255, 1800, &prefix(PREFIX, 0xc0, 3600, 600));
    assert_eq!(classify(&advertisement), Traffic::Neighbour);
    resolver.input(at(1), &advertisement);
    let all = Advertised { address: Some(address(PREFIX)), prefix: 64, router: Some(ROUTER) };
    assert_eq!(resolver.advertised(), Some(all));
    assert_eq!(sent(&mut resolver, at(1800)), None);
    assert_eq!(resolver.advertised(), Some(all));
    assert_eq!(sent(&mut resolver, at(1801)), None);
    assert_eq!(resolver.advertised(), Some(Advertised { router: None, ..all }));
    // The end of everything makes the port ask again.
    assert!(sent(&mut resolver, at(3601)).is_some());
    assert_eq!(resolver.advertised(), Some(NOTHING));
}

#[test]
fn an_address_of_another_node_is_not_taken_again() {
    let mut resolver = resolver();
    let advertisement = frame(ROUTER, 255, 1800, &prefix(PREFIX, 0xc0, 3600, 600));
    resolver.input(at(1), &advertisement);
    resolver.add_probed(address(PREFIX));
    while sent(&mut resolver, at(1)).is_some() {}
    let mut out = [0; FRAME_MAX];
    let len = crate::advertisement(&mut out, address(PREFIX), OTHER);
    resolver.input(at(1), &out[..len]);
    assert_eq!(resolver.take_duplicate(), Some((address(PREFIX), OTHER)));
    resolver.input(at(2), &advertisement);
    let left = Advertised { address: None, prefix: 64, router: Some(ROUTER) };
    assert_eq!(resolver.advertised(), Some(left));
}

#[test]
fn a_router_that_leaves_is_forgotten_and_its_prefix_is_protected() {
    let mut resolver = resolver();
    resolver.input(at(0), &frame(ROUTER, 255, 1800, &prefix(PREFIX, 0x40, 86400, 86400)));
    resolver.input(at(1), &frame(ROUTER, 255, 0, &prefix(PREFIX, 0x40, 0, 0)));
    let left = Advertised { address: Some(address(PREFIX)), prefix: 128, router: None };
    assert_eq!(resolver.advertised(), Some(left));
    sent(&mut resolver, at(7200));
    assert_eq!(resolver.advertised(), Some(left));
    sent(&mut resolver, at(7201));
    assert_eq!(resolver.advertised().and_then(|advertised| advertised.address), None);
}

#[test]
fn wrong_advertisements_are_ignored() {
    let good = prefix(PREFIX, 0xc0, 3600, 600);
    let mut flipped = frame(ROUTER, 255, 1800, &good);
    flipped[60] ^= 1;
    let global = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    let wrong = [
        // From another network, from an address that is not of the link, with a wrong checksum.
        frame(ROUTER, 254, 1800, &good),
        frame(global, 255, 1800, &good),
        flipped,
        // No router, and no prefix for addresses: not for hosts, inconsistent, of links, or of groups.
        frame(ROUTER, 255, 0, &prefix(PREFIX, 0x80, 3600, 600)),
        frame(ROUTER, 255, 0, &prefix(PREFIX, 0xc0, 600, 3600)),
        frame(ROUTER, 255, 0, &prefix([0xfe80, 0, 0, 0], 0xc0, 3600, 600)),
        frame(ROUTER, 255, 0, &prefix([0xff02, 0, 0, 0], 0xc0, 3600, 600)),
        // Options whose lengths are 0, or go beyond the end.
        frame(ROUTER, 255, 1800, &[3, 0]),
        frame(ROUTER, 255, 1800, &good[..24]),
    ];
    for frame in wrong {
        let mut resolver = resolver();
        resolver.input(at(0), &frame);
        assert_eq!(resolver.advertised(), Some(NOTHING), "{frame:x?}");
    }
    let mut deaf = Resolver::new(PORT);
    deaf.input(at(0), &frame(ROUTER, 255, 1800, &good));
    assert_eq!((deaf.advertised(), deaf.next_deadline()), (None, None));
}

#[test]
fn the_addresses_and_groups_of_a_port() {
    assert_eq!(link_local(PORT), address([0xfe80, 0, 0, 0]));
    let macs = groups(address(PREFIX)).map(|mac| mac.0);
    assert_eq!(macs, [[0x33, 0x33, 0, 0, 0, 1], [0x33, 0x33, 0xff, 0, 0, 0xa]]);
}

#[test]
fn an_advertisement_of_a_neighbour_is_read_by_others() {
    let mut out = [0; FRAME_MAX];
    let len = advertisement(&mut out, ROUTER, PORT);
    let heard = crate::Neighbour::parse(&out[..len]).expect("an advertisement");
    assert_eq!((heard.request, heard.target, heard.mac), (false, ROUTER.into(), Some(PORT)));
}

proptest! {
    /// Any options behind a right header are read without a panic. No router outlives its lifetime.
    #[test]
    fn any_options(options in proptest::collection::vec(any::<u8>(), 0..200), seconds in 0_u64..100) {
        let mut resolver = resolver();
        resolver.input(at(seconds), &frame(ROUTER, 255, 7, &options));
        sent(&mut resolver, at(seconds + 7));
        prop_assert_eq!(resolver.advertised().and_then(|advertised| advertised.router), None);
    }
}
