//! The driver's queue pairs connected to those of the software RNIC: every verb, in both directions, with
//! both frame formats.

use crate::common::node;
use crate::common::pair::{End, Post, datagrams, every_verb};
use crate::common::soft::Soft;
use platform::{Arena, IoAddr};
use std::sync::Arc;
use verbs::{Gid, LinkKind};

#[test]
fn every_verb_between_a_card_and_software() {
    for (profile, link) in [
        ("pro", LinkKind::RoceV2),
        ("pro", LinkKind::RoceV1),
        ("cx3", LinkKind::RoceV1),
        ("vf", LinkKind::RoceV1),
    ] {
        let (machine, driver) = node(profile, 1);
        let memory = Arc::new(Arena::new(IoAddr(0x77_0000_0000), 8 << 20));
        let soft = Soft::new(2, Gid::from_ipv4([10, 9, 0, 2]), memory.clone());
        let (card, software) = (End::new(&driver, &machine.bus.data), End::new(&*soft.rnic, &memory));
        card.connect(&software, link);
        software.connect(&card, link);
        every_verb(&card, &software, &[&machine, &soft]);
        every_verb(&software, &card, &[&machine, &soft]);
        let (card, software) = (Post::new(&driver, &machine.bus.data), Post::new(&*soft.rnic, &memory));
        datagrams(&card, &software, link, &[&machine, &soft]);
        datagrams(&software, &card, link, &[&machine, &soft]);
    }
}
