//! Failing, draining and querying queue pairs: completions, events, states.

use connectx3_testdriver::driver::{KEY, Node, Queue, Setup, data, exchange, remote};
use connectx3_testdriver::keys::{PAGE, SEND, WRITE, WRITE_IMM};

const QP_A: u32 = 0x51;
const QP_B: u32 = 0x62;
const EQ_ENTRIES: u32 = 16;

struct Pair {
    a: Node,
    b: Node,
    qa: Queue,
    qb: Queue,
    /// The address of node B's event queue.
    events: u64,
    seen: u32,
    here: u64,
    there: u64,
}

impl Pair {
    fn new() -> Self {
        let (mut a, mut b) = (Node::new(1), Node::new(2));
        let events = b.create_eq(1, EQ_ENTRIES.ilog2());
        b.raw_command(0x012, 0, 1, u64::MAX);
        let qa = a.connect(QP_A, 0x81, &b, QP_B);
        let qb = b.connect(QP_B, 0x92, &a, QP_A);
        let (here, there) = (a.alloc(0x4000), b.alloc(0x4000));
        Self { a, b, qa, qb, events, seen: 0, here, there }
    }

    fn run(&mut self) {
        exchange(&mut self.a, &mut self.b, |_| false);
    }

    /// Advances time in steps in which timers run.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.a.machine.advance(1_000_000);
            self.b.machine.advance(1_000_000);
            self.run();
        }
    }

    /// Returns B's next event: type and number.
    fn event(&mut self) -> Option<(u8, u32)> {
        let at = self.events + u64::from(self.seen % EQ_ENTRIES) * 32;
        let owner = self.b.machine.bytes(at + 31, 1)[0] >> 7;
        if u32::from(owner) != self.seen / EQ_ENTRIES % 2 {
            return None;
        }
        self.seen += 1;
        let event = (self.b.machine.bytes(at + 1, 1)[0], self.b.machine.be32(at + 4));
        self.b.card.write_bar2(0x808, &self.seen.to_be_bytes(), &self.b.machine);
        Some(event)
    }

    fn write(&mut self) {
        let words = [remote(self.there, KEY), data(self.here, 64)].concat();
        self.a.post_send(&mut self.qa, WRITE, 0, &words);
    }

    /// Returns the output of QUERY_QP: state, next PSN to send, acknowledged PSN, expected PSN.
    fn query(node: &mut Node, qpn: u32) -> (u32, u32, u32, u32) {
        node.command(0x022, 0, qpn, &[]);
        let word = |offset: u64| node.output(8 + offset);
        (word(0) >> 28, word(0x78) & 0xff_ffff, word(0x88) & 0xff_ffff, word(0x94) & 0xff_ffff)
    }
}

/// Returns index and syndrome of all waiting completions.
fn drain(node: &mut Node, queue: &mut Queue) -> Vec<(u16, u8)> {
    std::iter::from_fn(|| node.poll(queue)).map(|entry| (entry.wqe, entry.syndrome)).collect()
}

#[test]
fn in_the_error_state_all_work_ends_as_flushed_before_and_after() {
    let mut pair = Pair::new();
    for n in 0..3 {
        pair.b.post_receive(&mut pair.qb, pair.there + 100 * n, 100);
    }
    // The request is in flight and is never acknowledged.
    pair.b.post_send(&mut pair.qb, WRITE, 0, &[remote(pair.here, KEY), data(pair.there, 8)].concat());
    pair.b.command(0x01e, 0, QP_B, &[]);
    let ended = drain(&mut pair.b, &mut pair.qb);
    assert_eq!(ended, [(0, 5), (0, 5), (1, 5), (2, 5)]);
    assert_eq!(Pair::query(&mut pair.b, QP_B).0, 6);
    // A send with a doorbell; a receive without one, as when a driver drains the queue.
    pair.b.post_send(&mut pair.qb, SEND, 0, &data(pair.there, 8));
    assert_eq!(drain(&mut pair.b, &mut pair.qb), [(1, 5)]);
    for lap in 0..3 {
        pair.b.post_receive(&mut pair.qb, pair.there, 100);
        pair.pass(if lap == 0 { 3 } else { 200 });
        assert_eq!(drain(&mut pair.b, &mut pair.qb), [(3 + lap, 5)]);
    }
    pair.b.command(0x021, 2, QP_B, &[]);
    pair.b.post_receive(&mut pair.qb, pair.there, 100);
    pair.pass(200);
    assert_eq!(drain(&mut pair.b, &mut pair.qb), [], "a reset queue pair completes nothing");
}

#[test]
fn a_peer_that_does_not_answer_ends_the_work_after_its_retries() {
    let mut pair = Pair::new();
    pair.write();
    pair.write();
    for _ in 0..200 {
        pair.a.machine.advance(100_000_000);
        exchange(&mut pair.a, &mut pair.b, |_| true);
    }
    let done = pair.a.poll(&mut pair.qa).unwrap();
    assert_eq!((done.syndrome, done.vendor), (0x15, 0x81));
    assert_eq!(drain(&mut pair.a, &mut pair.qa), [(1, 5)]);
}

#[test]
fn a_message_longer_than_its_receive_ends_both() {
    let mut pair = Pair::new();
    pair.b.post_receive(&mut pair.qb, pair.there, 63);
    pair.a.post_send(&mut pair.qa, SEND, 0, &data(pair.here, 64));
    pair.run();
    assert_eq!(drain(&mut pair.a, &mut pair.qa), [(0, 0x12)]);
    assert_eq!(drain(&mut pair.b, &mut pair.qb), [(0, 0x01)]);
    assert_eq!(pair.event(), None, "the completion reports it");
}

#[test]
fn a_receiver_that_is_not_ready_ends_the_work_after_its_retries() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let setup = Setup { rnr_retries: 2, ..Default::default() };
    let mut qa = a.connect_as(QP_A, 0x81, &b, QP_B, setup);
    b.connect(QP_B, 0x92, &a, QP_A);
    a.post_send(&mut qa, WRITE_IMM, 0, &[remote(0x1000, KEY), data(0x1000, 8)].concat());
    for _ in 0..20 {
        exchange(&mut a, &mut b, |_| false);
        a.machine.advance(700_000_000);
        b.machine.advance(700_000_000);
    }
    assert_eq!(a.poll(&mut qa).unwrap().syndrome, 0x16);
}

#[test]
fn an_opcode_or_a_size_that_there_is_not_ends_with_local_operation() {
    for (opcode, words) in [(0x07, vec![0; 4]), (0x1f, vec![0; 8]), (WRITE, vec![]), (0x12, vec![0; 4])] {
        let mut pair = Pair::new();
        pair.write();
        pair.a.post_send(&mut pair.qa, opcode, 0, &words);
        pair.write();
        pair.run();
        assert_eq!(drain(&mut pair.a, &mut pair.qa), [(0, 0), (1, 2), (2, 5)], "opcode {opcode:#x}");
    }
}

#[test]
fn a_queue_pair_on_its_way_hears_its_first_packet_and_says_so_once() {
    let mut pair = Pair::new();
    // B is set up again, but only until ready to receive.
    pair.b.command(0x021, 2, QP_B, &[]);
    pair.qb = pair.b.ready_to_receive(QP_B, 0x93, &pair.a, QP_A, Setup::default());
    pair.write();
    pair.write();
    pair.run();
    assert_eq!(pair.event(), Some((0x02, QP_B)));
    assert_eq!(pair.event(), None);
    assert_eq!(drain(&mut pair.a, &mut pair.qa), [(0, 0), (1, 0)]);
}

#[test]
fn a_completion_queue_that_overflows_fails_and_its_queue_pair_with_it() {
    let mut pair = Pair::new();
    let mut posted = 0;
    // Nobody polls B's queue of 256 entries.
    while posted < 300 {
        for _ in 0..30 {
            pair.b.post_receive(&mut pair.qb, pair.there, 100);
            pair.a.post_send(&mut pair.qa, SEND, 0, &data(pair.here, 8));
            posted += 1;
        }
        pair.run();
        drain(&mut pair.a, &mut pair.qa);
    }
    assert_eq!(pair.event(), Some((0x04, 0x92)), "the completion queue");
    assert_eq!(pair.b.machine.be32(pair.events + 0x0c), 1, "overrun");
    assert_eq!(pair.event(), Some((0x05, QP_B)), "the queue pair");
    pair.b.command(0x018, 0, 0x92, &[]);
    assert_eq!(pair.b.output(0) >> 28, 9);
    assert_eq!(Pair::query(&mut pair.b, QP_B).0, 6);
}

#[test]
fn a_ring_that_cannot_be_read_is_told_by_an_event() {
    let mut pair = Pair::new();
    // The ring's pages are looked up at creation, so a new ring is created outside of memory.
    let mtt = pair.b.map_pages(0x7fff_0000_0000, 2 * PAGE);
    let size = 6 << 3 | 2;
    let context = [(0x0c, 5), (0x10, size << 16 | size << 8), (0x84, 0x92), (0xa4, 0x92), (0xd4, mtt)];
    pair.b.command(0x019, 0, 0x70, &context);
    pair.b.command(0x01a, 0, 0x70, &pair.b.path_to(&pair.a, 0x70, QP_A));
    pair.b.command(0x01b, 0, 0x70, &[(0x80, 100)]);
    pair.b.card.write_bar2(0x80_014, &(0x70u32 << 8).to_be_bytes(), &pair.b.machine);
    assert_eq!(pair.event(), Some((0x05, 0x70)));
    assert_eq!(Pair::query(&mut pair.b, 0x70).0, 6);
}

#[test]
fn a_send_queue_drains_says_so_and_goes_on() {
    let mut pair = Pair::new();
    let write = |pair: &mut Pair| {
        let words = [remote(pair.here, KEY), data(pair.there, 64)].concat();
        pair.b.post_send(&mut pair.qb, WRITE, 0, &words);
    };
    write(&mut pair);
    assert_eq!(pair.b.raw_command(0x01f, 0, 1 << 31 | QP_B, 0).0, 0);
    assert_eq!(Pair::query(&mut pair.b, QP_B).0, 7, "it drains");
    assert_eq!(pair.event(), None);
    // A request posted while the queue drains must wait.
    write(&mut pair);
    pair.run();
    assert_eq!(drain(&mut pair.b, &mut pair.qb), [(0, 0)]);
    assert_eq!(pair.event(), Some((0x03, QP_B)));
    assert_eq!(pair.event(), None);
    assert_eq!(Pair::query(&mut pair.b, QP_B).0, 5);
    // The queue pair still answers.
    pair.write();
    pair.run();
    assert_eq!(drain(&mut pair.a, &mut pair.qa), [(0, 0)]);
    pair.b.command(0x020, 0, QP_B, &[]);
    pair.run();
    assert_eq!(drain(&mut pair.b, &mut pair.qb), [(1, 0)]);
    // With nothing to drain, the event comes at once, and only on request.
    assert_eq!(pair.b.raw_command(0x01f, 0, QP_B, 0).0, 0);
    assert_eq!((Pair::query(&mut pair.b, QP_B).0, pair.event()), (5, None));
}

#[test]
fn a_query_gives_what_the_card_counts() {
    let mut pair = Pair::new();
    assert_eq!(Pair::query(&mut pair.a, QP_A), (3, 100 + QP_B, 99 + QP_B, 100 + QP_A));
    pair.write();
    pair.a.card.progress(&pair.a.machine);
    assert_eq!(Pair::query(&mut pair.a, QP_A), (3, 101 + QP_B, 99 + QP_B, 100 + QP_A));
    pair.run();
    assert_eq!(Pair::query(&mut pair.a, QP_A), (3, 101 + QP_B, 100 + QP_B, 100 + QP_A));
    assert_eq!(Pair::query(&mut pair.b, QP_B), (3, 100 + QP_A, 99 + QP_A, 101 + QP_B));
}
