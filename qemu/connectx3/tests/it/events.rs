//! The time of a card's notifications: moderation, interrupts, links, resets; also entries of 64 bytes, and
//! BlueFlame.

use connectx3::device::{Card, Profile};
use connectx3_testdriver::driver::{Node, Queue, Sizes, data, exchange, remote};
use connectx3_testdriver::ethernet::tcp;
use std::sync::atomic::Ordering;
use verbs::MacAddr;

const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
const EQN: u32 = 12;

fn node(number: u8, profile: &str) -> Node {
    let card = Card::new(Profile::named(profile, MacAddr([2, 0, 0, 0, 0, number])).unwrap());
    Node::with(card, Sizes::default(), number)
}

/// Returns the number of interrupts since the last call.
fn interrupts(node: &Node) -> usize {
    std::mem::take(&mut *node.machine.interrupts.lock().unwrap()).len()
}

/// Rings the event queue's doorbell.
fn take_events(node: &mut Node, consumer: u32) {
    let at = u64::from(EQN / 4) * 4096 + 0x800 + u64::from(EQN % 4) * 8;
    node.card.write_bar2(at, &(1 << 31 | consumer).to_be_bytes(), &node.machine);
}

/// Arms a completion queue for any completion past `consumer`.
fn arm(node: &mut Node, queue: &Queue, consumer: u32) {
    let words = [2 << 24 | queue.cqn, consumer];
    let bytes: Vec<_> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    node.card.write_bar2(0x80_000 + 0x20, &bytes, &node.machine);
}

/// Creates a card with an event queue, and a receiver whose completions post events there.
fn receiver(profile: &str) -> (Node, Queue, Node, Queue) {
    let (mut a, mut b) = (node(1, profile), node(2, profile));
    let qa = a.raw(0x48, 0x90, &[]);
    b.create_eq(EQN, 6);
    b.eqn = EQN;
    let mut qb = b.raw(0x50, 0x91, &[]);
    b.steer(true, TO, &[0x50]);
    b.post_buffers(&mut qb, 32);
    take_events(&mut b, 0);
    interrupts(&b);
    (a, qa, b, qb)
}

fn send(a: &mut Node, qa: &mut Queue, b: &mut Node, count: usize) {
    for _ in 0..count {
        a.send_frame(qa, &tcp(TO, "10.0.0.1", "10.0.0.2", [1, 2], &[]), true, 0);
    }
    exchange(a, b, |_| false);
}

#[test]
fn completions_are_moderated_by_count_and_by_time() {
    let (mut a, mut qa, mut b, qb) = receiver("pro");
    arm(&mut b, &qb, 0);
    send(&mut a, &mut qa, &mut b, 1);
    assert_eq!(interrupts(&b), 1, "at once without moderation");
    take_events(&mut b, 1);
    // 16 us or 3 completions.
    b.command(0x02c, 1, qb.cqn, &[(0x10, 16 << 16 | 3)]);
    arm(&mut b, &qb, 1);
    send(&mut a, &mut qa, &mut b, 2);
    assert_eq!(interrupts(&b), 0);
    send(&mut a, &mut qa, &mut b, 1);
    assert_eq!(interrupts(&b), 1, "the third");
    take_events(&mut b, 2);
    arm(&mut b, &qb, 4);
    send(&mut a, &mut qa, &mut b, 1);
    let due = b.card.next_deadline().unwrap();
    b.machine.advance(15_000);
    b.card.progress(&b.machine);
    assert_eq!(interrupts(&b), 0);
    b.machine.advance(1_000);
    assert!(connectx3::device::Host::now(&b.machine) >= due);
    b.card.progress(&b.machine);
    assert_eq!((interrupts(&b), b.card.next_deadline()), (1, None));
    take_events(&mut b, 3);
    send(&mut a, &mut qa, &mut b, 5);
    assert_eq!(interrupts(&b), 0, "not armed");
    // Entries that are there when the queue is armed also cause an event, and so does the end of moderation.
    arm(&mut b, &qb, 5);
    assert_eq!(interrupts(&b), 0);
    b.command(0x02c, 1, qb.cqn, &[]);
    assert_eq!(interrupts(&b), 1);
}

#[test]
fn intx_stays_until_it_is_cleared() {
    let (mut a, mut qa, mut b, qb) = receiver("pro");
    b.machine.msix.store(false, Ordering::Relaxed);
    arm(&mut b, &qb, 0);
    send(&mut a, &mut qa, &mut b, 1);
    assert!(b.machine.intx.load(Ordering::Relaxed) && interrupts(&b) == 0);
    b.command(0x004, 0, 0, &[]);
    let clear = u64::from(b.output(0x24)) + 4;
    b.card.write_bar0(clear, &1u32.to_be_bytes(), &b.machine);
    assert!(!b.machine.intx.load(Ordering::Relaxed));
    take_events(&mut b, 1);
    assert!(!b.machine.intx.load(Ordering::Relaxed));
    // An event that is waiting when the queue is armed raises the interrupt again.
    take_events(&mut b, 0);
    assert!(b.machine.intx.load(Ordering::Relaxed));
}

#[test]
fn entries_of_64_bytes_are_in_the_second_half() {
    let (mut a, mut qa, mut b, mut qb) = receiver("large-entries");
    arm(&mut b, &qb, 0);
    send(&mut a, &mut qa, &mut b, 300);
    for index in 0..32 {
        assert_eq!(b.raw_completion(&mut qb).unwrap()[0x19], index);
    }
    assert_eq!(b.raw_completion(&mut qb), None, "there were 32 buffers");
    // The event is of type completion and names this queue.
    let entry = b.machine.bytes(b.eq + 32, 32);
    assert_eq!((entry[1], entry[7], entry[31] >> 7), (0, 0x91, 0));
    assert_eq!(b.machine.bytes(b.eq, 32), [0; 32]);
}

#[test]
fn a_work_request_written_to_blueflame_is_executed_once() {
    let (mut a, mut b) = (node(1, "blueflame"), node(2, "pro"));
    let mut qa = a.connect(0x48, 0x90, &b, 0x50);
    let _qb = b.connect(0x50, 0x91, &a, 0x48);
    let (from, to) = (a.alloc(64), b.alloc(64));
    a.machine.put(from, &[9; 64]);
    let words = [remote(to, connectx3_testdriver::driver::KEY), data(from, 64)].concat();
    a.write_send(&mut qa, 0x08, 0, &words);
    // First the neighbour of the register's second word, then that word, then the rest.
    let bar = a.card.bar2_len() / 2 + 0x80_000 + 256;
    assert_eq!(a.card.bar2_len(), 16 << 20);
    a.card.write_bar2(bar, &[0, 0, 0, 8, 0, 0, 0x48, 3], &a.machine);
    a.card.write_bar2(bar + 8, &[0; 8], &a.machine);
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(b.machine.bytes(to, 64), [9; 64]);
    assert_eq!(a.poll(&mut qa).map(|entry| entry.syndrome), Some(0));
    assert_eq!(a.poll(&mut qa), None);
}

#[test]
fn a_slow_link_comes_up_later_and_a_cable_can_be_pulled() {
    const PORT_CHANGE: u64 = 1 << 9;
    let mut card = node(1, "slow");
    card.create_eq(EQN, 6);
    assert_eq!(card.raw_command(0x012, 0, EQN, PORT_CHANGE).0, 0);
    take_events(&mut card, 0);
    assert!(!card.card.link(0), "opened, but not up yet");
    card.machine.advance(2_000_000_000);
    card.card.progress(&card.machine);
    assert!(card.card.link(0));
    assert_eq!(interrupts(&card), 1);
    let event = |card: &Node, index: u64| {
        let entry = card.machine.bytes(card.eq + 32 * index, 32);
        (entry[1], entry[3], entry[12] >> 4)
    };
    assert_eq!(event(&card, 0), (9, 4, 1));
    card.card.set_cable(0, false, &card.machine);
    assert_eq!((event(&card, 1), card.card.link(0)), ((9, 1, 1), false));
    card.command(0x043, 0, 1, &[]);
    assert_eq!(card.output(0) >> 31, 0);
    card.card.set_cable(0, true, &card.machine);
    assert!(!card.card.link(0));
    card.machine.advance(2_000_000_000);
    card.card.progress(&card.machine);
    assert_eq!((event(&card, 2), card.card.link(0)), ((9, 4, 1), true));
}

#[test]
fn a_reset_may_take_its_time() {
    use connectx3::device::Host;
    let mut slow = node(1, "slow");
    slow.card.write_bar0(0xf0010, &1u32.to_be_bytes(), &slow.machine);
    assert!(slow.card.in_reset(slow.machine.now()));
    slow.machine.advance(1_000_000_000);
    assert!(!slow.card.in_reset(slow.machine.now()));
}
