//! Raw Ethernet frames between queue pairs of one port, and rules for groups that the driver has not joined.

use connectx3::device::{Card, Profile};
use connectx3_testdriver::driver::{Node, Queue, Sizes};
use connectx3_testdriver::ethernet::tcp;
use verbs::MacAddr;

const UNICAST: [u8; 6] = [2, 0, 0, 0, 0, 0x50];
const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 7];
/// Flag in the control block of a rule: the queue pair receives its own frames.
const RECEIVES_OWN_FRAMES: u32 = 1 << 3;

/// Creates a card with two raw queue pairs that have receive buffers, and with steering by rules if asked.
fn node(profile: &str, by_rules: bool) -> (Node, Queue, Queue) {
    let card = Card::new(Profile::named(profile, MacAddr([2, 0, 0, 0, 0, 1])).unwrap());
    let mut node = Node::with(card, Sizes::default(), 1);
    if by_rules {
        node.steer_by_rules();
    }
    let (mut first, mut second) = (node.raw(0x48, 0x90, &[]), node.raw(0x50, 0x91, &[]));
    node.post_buffers(&mut first, 8);
    node.post_buffers(&mut second, 8);
    (node, first, second)
}

fn frame(to: [u8; 6]) -> Vec<u8> {
    tcp(to, "10.0.0.1", "10.0.0.2", [1, 2], &[7; 30])
}

/// Sends a frame from the first queue pair. Returns whether the first received it, whether the second
/// received it, and the number of copies on the cable.
fn heard(node: &mut Node, first: &mut Queue, second: &mut Queue, to: [u8; 6]) -> (bool, bool, usize) {
    node.send_looped(first, &frame(to));
    node.card.progress(&node.machine);
    assert_eq!(node.raw_completion(first).unwrap()[0x1f] & 0x5f, 0x4a, "it is sent");
    let came = [first, second].map(|queue| node.raw_completion(queue).is_some());
    (came[0], came[1], node.card.take_outbox().len())
}

#[test]
fn a_frame_comes_back_to_a_queue_pair_of_the_port_that_an_entry_names() {
    let (mut node, mut first, mut second) = node("pro", false);
    assert_eq!(
        heard(&mut node, &mut first, &mut second, UNICAST),
        (false, false, 1),
        "no queue pair is named"
    );
    node.steer(true, UNICAST, &[0x50]);
    assert_eq!(heard(&mut node, &mut first, &mut second, UNICAST), (false, true, 0));
    node.steer(false, GROUP, &[0x48 | 1 << 30, 0x50]);
    assert_eq!(heard(&mut node, &mut first, &mut second, GROUP), (false, true, 1), "both ways");
    node.steer(false, GROUP, &[0x48, 0x50]);
    assert_eq!(heard(&mut node, &mut first, &mut second, GROUP), (true, true, 1));
    // mlx4_en sends in this way without virtual functions: only to the cable.
    node.send_frame(&mut first, &frame(UNICAST), true, 0);
    node.card.progress(&node.machine);
    assert_eq!((node.raw_completion(&mut second), node.card.take_outbox().len()), (None, 1));
}

#[test]
fn a_promiscuous_queue_pair_takes_nothing_from_the_cable() {
    let (mut node, mut first, mut second) = node("pro", false);
    node.command(0x026, 1, 1 << 16 | 1 << 1, &[(0x04, 1 << 30 | 1), (0x20, 0x50)]);
    assert_eq!(heard(&mut node, &mut first, &mut second, UNICAST), (false, false, 1));
}

#[test]
fn a_frame_that_is_forced_inside_never_goes_to_the_cable() {
    const FORCED: u32 = 0x0c | 1;
    let (mut node, mut first, mut second) = node("pro", false);
    node.steer(true, UNICAST, &[0x50]);
    let at = node.alloc(4096);
    node.machine.put(at, &frame(UNICAST));
    node.write_request(&mut first, 0x0a, 0, FORCED, &connectx3_testdriver::ethernet::segment(at, 84));
    node.ring(&first);
    node.card.progress(&node.machine);
    assert!(node.raw_completion(&mut second).is_some());
    assert_eq!(node.card.take_outbox().len(), 0);
}

#[test]
fn a_frame_comes_back_as_the_address_table_says() {
    let (mut node, mut first, mut second) = node("a0", false);
    // The address is in row 0 of the table, whose queue pair is the second.
    node.command(0x00c, 1, 0x201, &[(0x00, 0x8000_0200), (0x04, 0x50)]);
    node.command(0x00c, 1, 0x101, &[(0x00, 0x50), (0x18, 2 << 30 | 0x50)]);
    assert_eq!(heard(&mut node, &mut first, &mut second, UNICAST), (false, true, 0));
    assert_eq!(heard(&mut node, &mut first, &mut second, [2, 0, 0, 0, 0, 9]), (false, false, 1));
    assert_eq!(heard(&mut node, &mut first, &mut second, GROUP), (false, true, 1));
}

#[test]
fn a_frame_comes_back_as_rules_say_and_not_to_its_sender_unless_its_rule_says_so() {
    let (mut node, mut first, mut second) = node("pro", true);
    node.add_rule(0x48, UNICAST, 0);
    assert_eq!(heard(&mut node, &mut first, &mut second, UNICAST), (false, false, 1), "its own rule");
    node.add_rule(0x50, UNICAST, 0);
    assert_eq!(heard(&mut node, &mut first, &mut second, UNICAST), (false, true, 0));
    node.add_rule(0x48, GROUP, 0);
    node.add_rule(0x50, GROUP, 0);
    assert_eq!(heard(&mut node, &mut first, &mut second, GROUP), (false, true, 1));
    node.add_rule(0x48, GROUP, RECEIVES_OWN_FRAMES);
    assert_eq!(heard(&mut node, &mut first, &mut second, GROUP), (true, true, 1));
}

#[test]
fn a_queue_pair_may_refuse_frames_of_its_own_counter() {
    /// Flags in the path: multicast is checked by counter.
    const CHECKS: u32 = 1 << 25 | 1 << 23;
    for (counter, hears) in [(3, false), (4, true)] {
        let card = Card::new(Profile::named("pro", MacAddr([2, 0, 0, 0, 0, 1])).unwrap());
        let mut node = Node::with(card, Sizes::default(), 1);
        let mut first = node.raw(0x48, 0x90, &[(0x1c, 3 << 24)]);
        let mut second = node.raw(0x50, 0x91, &[(0x18, CHECKS), (0x1c, counter << 24)]);
        node.post_buffers(&mut second, 2);
        node.steer(false, GROUP, &[0x50]);
        assert_eq!(heard(&mut node, &mut first, &mut second, GROUP), (false, hears, 1));
        node.steer(true, UNICAST, &[0x50]);
        assert_eq!(heard(&mut node, &mut first, &mut second, UNICAST), (false, true, 0));
    }
}

#[test]
fn a_rule_for_a_group_fires_though_the_driver_has_not_joined_it() {
    let (mut node, _, mut second) = node("pro", true);
    // The driver's filter is on, with only the broadcast group.
    assert_eq!(node.raw_command(0x048, 0, 1, 1 << 63 | 0xffff_ffff_ffff).0, 0);
    assert_eq!(node.raw_command(0x048, 2, 1, 0).0, 0);
    node.card.receive(0, &frame(GROUP), &node.machine);
    assert_eq!(node.raw_completion(&mut second), None, "no rule");
    node.add_rule(0x50, GROUP, 0);
    node.card.receive(0, &frame(GROUP), &node.machine);
    assert!(node.raw_completion(&mut second).is_some());
    let other = [1, 0, 0x5e, 0, 0, 8];
    node.card.receive(0, &frame(other), &node.machine);
    assert_eq!(node.raw_completion(&mut second), None, "another group");
}
