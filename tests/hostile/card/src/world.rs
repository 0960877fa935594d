//! Two guests, their cards and the network between them, with the invariants.

use connectx3_testdriver::driver::{self, Node, PD, Queue, Setup, Sizes, data_of, remote};
use connectx3_testdriver::keys::{PAGE, READ, WRITE, region};
use std::ops::Range;

/// The maximum number of a card's memory accesses for one action of a guest.
pub(crate) const MAX_ACCESSES: u64 = 300_000;
/// The maximum number of bytes of frames that may leave for one action.
pub(crate) const MAX_BYTES: usize = 32 << 20;

/// The region that the honest guest has opened: its first address, its length in bytes, its key.
pub(crate) const OPEN: u64 = 0x7f00_0000_0000;
pub(crate) const OPEN_LEN: u64 = 2 * PAGE;
pub(crate) const OPEN_KEY: u32 = 0x1_2000;
/// The honest guest's protection domain, which contains only the open region.
const GOOD_PD: u32 = PD + 4;
/// The length of the honest guest's memory for queues and data, in bytes. All its memory is compared after
/// each run.
const GOOD_HEAP: u64 = 256 << 10;
/// The honest guest's queue pair, and the hostile guest's queue pair connected to it.
pub(crate) const GOOD_QP: u32 = 0x62;
pub(crate) const BAD_QP: u32 = 0x51;
/// The hostile guest's queue pair if it has a virtual function: the first number that its master allocates.
pub(crate) const SLAVE_QP: u32 = 0x848;

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Actions of the guest.
    pub actions: u64,
    /// Commands that succeeded.
    pub commands: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Frames from the hostile guest to the honest one.
    pub frames: u64,
    /// Requests that the honest guest's card refused.
    pub denied: u64,
    /// Bytes of the open region that were changed.
    pub written: u64,
}

/// The two guests.
pub(crate) struct World {
    pub bad: Node,
    pub good: Node,
    /// The hostile guest's queue pairs.
    pub queues: Vec<Queue>,
    pub report: Report,
    good_queue: Queue,
    /// The honest guest's memory at the start.
    before: Vec<u8>,
    /// The ranges of the honest guest's memory that may change, in order of address.
    may_change: Vec<Range<usize>>,
    open: u64,
    accesses: [u64; 2],
    bytes: usize,
}

impl World {
    /// Creates two cards that are up and connected.
    pub(crate) fn new() -> Self {
        Self::of(Node::new(1), good_node())
    }

    /// Creates two cards, of which the hostile guest's is a virtual function, which uses RoCE v1.
    pub(crate) fn with_slave() -> Self {
        let mut good = good_node();
        good.set_roce_v1();
        Self::of(Node::slave(1), good)
    }

    fn of(mut bad: Node, mut good: Node) -> Self {
        let setup = Setup { pd: GOOD_PD, kernel: false, ..Setup::default() };
        let queues = good.alloc(0);
        let (bad_qpn, bad_cqn) = numbers(&mut bad, BAD_QP, 0x81);
        let mut good_queue = good.connect_as(GOOD_QP, 0x92, &bad, bad_qpn, setup);
        let bad_queue = bad.connect(bad_qpn, bad_cqn, &good, GOOD_QP);
        let (open, receives) = (good.alloc(OPEN_LEN), good.alloc(4 * PAGE));
        let mut given = region(OPEN_KEY >> 8, OPEN, OPEN_LEN);
        given.pd = GOOD_PD;
        good.register(given, open);
        given.index += 1;
        let key = good.register(given, receives);
        for n in 0..16 {
            good.post_receive_of(&mut good_queue, key, OPEN + 256 * n, 256);
        }
        let end = good.alloc(0);
        let before = good.machine.snapshot();
        let entry = |node: &Node, index| {
            let at = node.region_entry(index) as usize;
            at..at + 64
        };
        let may_change = vec![
            // A SEND may invalidate these keys.
            entry(&good, OPEN_KEY >> 8),
            entry(&good, (OPEN_KEY >> 8) + 1),
            queues as usize..end as usize,
        ];
        let accesses = [bad.machine.accesses(), good.machine.accesses()];
        let report = Report::default();
        let queues = vec![bad_queue];
        Self { bad, good, queues, report, good_queue, before, may_change, open, accesses, bytes: 0 }
    }

    /// Connects the hostile guest again, without the honest guest's knowledge. Its earlier queue pairs are
    /// forgotten.
    pub(crate) fn connect_bad(&mut self) {
        let (qpn, cqn) = numbers(&mut self.bad, BAD_QP, 0x81);
        self.queues = vec![self.bad.connect(qpn, cqn, &self.good, GOOD_QP)];
    }

    /// Carries frames in both directions a few times.
    pub(crate) fn exchange(&mut self) {
        for _ in 0..4 {
            self.bad.card.progress(&self.bad.machine);
            for (port, frame) in self.bad.card.take_outbox() {
                self.bytes += frame.len();
                self.report.frames += 1;
                self.good.card.receive(port, &frame, &self.good.machine);
            }
            self.good.card.progress(&self.good.machine);
            for (port, frame) in self.good.card.take_outbox() {
                self.bad.card.receive(port, &frame, &self.bad.machine);
            }
            self.check();
        }
    }

    /// Checks the invariants after an action of the guest.
    pub(crate) fn check(&mut self) {
        self.report.actions += 1;
        for (node, accesses) in [&self.bad, &self.good].into_iter().zip(&mut self.accesses) {
            let now = node.machine.accesses();
            assert!(now - *accesses <= MAX_ACCESSES, "{} accesses to memory at once", now - *accesses);
            *accesses = now;
        }
        assert!(self.bytes <= MAX_BYTES, "{} bytes of frames at once", self.bytes);
        self.bytes = 0;
    }

    /// Checks that the honest guest's memory is unchanged, except for the ranges that may change.
    fn check_memory(&mut self) {
        let open = self.open as usize..(self.open + OPEN_LEN) as usize;
        let (before, may_change) = (&self.before, &self.may_change);
        self.report.written = self.good.machine.look(|now| {
            // Whole ranges are compared: a loop over bytes costs an instrumented build most of its time.
            let mut from = 0;
            for range in may_change.iter().chain([&(now.len()..now.len())]) {
                let fixed = from..range.start;
                if now[fixed.clone()] != before[fixed.clone()] {
                    let at = fixed.clone().find(|&at| now[at] != before[at]);
                    panic!("the honest guest's memory has changed at {at:#x?}");
                }
                from = range.end;
            }
            let differ = now[open.clone()].iter().zip(&before[open]).filter(|(a, b)| a != b);
            differ.count() as u64
        });
    }

    /// Checks the invariants at the end.
    pub(crate) fn end(mut self) -> Report {
        self.exchange();
        self.check_memory();
        self.report.denied = self.good.card.transport_counters().access_errors;
        // The hostile guest resets its card, and both connect again.
        let Self { mut bad, mut good, .. } = self;
        bad.card.reset(&bad.machine);
        bad.forget();
        bad.come_up();
        let (bad_qpn, bad_cqn) = numbers(&mut bad, BAD_QP, 0x81);
        let mut from = bad.connect(bad_qpn, bad_cqn, &good, GOOD_QP);
        assert_eq!(good.raw_command(0x021, 2, GOOD_QP, 0).0, 0, "the honest card takes commands");
        self.good_queue = good.connect(GOOD_QP, 0x93, &bad, bad_qpn);
        let (here, there) = (bad.alloc(PAGE), good.alloc(PAGE));
        bad.machine.put(here, b"still alive");
        for (opcode, at) in [(WRITE, here), (READ, here + 64)] {
            let words = [remote(there, driver::KEY), data_of(driver::KEY, at, 11)].concat();
            bad.post_send(&mut from, opcode, 0, &words);
        }
        driver::exchange(&mut bad, &mut good, |_| false);
        for _ in 0..2 {
            assert_eq!(bad.poll(&mut from).map(|done| done.syndrome), Some(0), "both cards still work");
        }
        assert_eq!(bad.machine.bytes(here + 64, 11), b"still alive");
        self.report
    }
}

fn good_node() -> Node {
    Node::sized(Sizes { heap: GOOD_HEAP, ..Sizes::default() }, 2)
}

/// Returns numbers for a queue pair and its completion queue: a master allocates them, other drivers choose
/// them.
pub(crate) fn numbers(node: &mut Node, qpn: u32, cqn: u32) -> (u32, u32) {
    if node.is_slave() { node.numbers() } else { (qpn, cqn) }
}
