//! Two transports over a network that a byte string controls.

use crate::forge::{Lie, forge, names};
use crate::input::Input;
use crate::model::{Model, Work};
use crate::node::{MAX_LEN, MAX_WORK, Node, SOURCE_LEN, SlotUse, WORDS, result_at, slot_at};
use crate::wire::{Faults, Shared, Wire};
use platform::Instant;
use verbs::{PathMtu, Payload, RecvWr, SendOp, SendWr, Sge, WorkKind, WrId};

/// The maximum number of calls of `progress` without time passing.
const MAX_CALLS: u32 = 10_000;
/// The maximum number of points in time at which something happens.
const MAX_MOMENTS: u32 = 1_000_000;
/// The virtual time after which all work must have ended, in nanoseconds: far more than all retries together
/// take.
const MAX_TIME: u64 = 600 * 1_000_000_000;

/// Counters of frames that reach no queue pair.
const REFUSALS: [&str; 7] = [
    "rx_icrc_errors",
    "rx_malformed",
    "rx_not_ours",
    "rx_unknown_qp",
    "rx_wrong_service",
    "rx_wrong_peer",
    "rx_bad_pkey",
];

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// The number of SENDs posted.
    pub posted: usize,
    /// The number of SENDs that succeeded.
    pub succeeded: usize,
    /// Receives that got a message.
    pub received: usize,
    /// Frames that the network dropped, duplicated, delayed, corrupted.
    pub faults: [u32; 4],
    /// Forged frames that the receiver can detect, and that it cannot.
    pub lies: [u32; 2],
    /// Frames that reached no queue pair.
    pub refused: u64,
    /// Requests that arrived again.
    pub duplicates: u64,
    /// Requests refused because of their key, range or right.
    pub access_errors: u64,
    /// Times that a receiver was not ready.
    pub not_ready: u64,
}

/// Drives two software RNICs with one queue pair each under the control of `bytes`: the work that they post,
/// the order in which they run, the progress of time, the network's treatment of each frame, and forged
/// frames. After the last byte the network is reliable again, unless the bytes have cut it permanently, and
/// both RNICs run until nothing more can happen.
///
/// # Panics
/// Panics if one of these invariants is violated:
/// - Nothing panics, and everything comes to rest within a bounded time.
/// - All work ends, in order, once, and undisturbed work succeeds.
/// - Only bytes of memory change that an operation has named, including forged operations with a valid key.
/// - Unless a forger acted as the peer: successful work was done, bytes are those requested, each message is
///   received once, each atomic runs once.
/// - Frames for no queue pair or from elsewhere are counted and reach no queue pair.
pub fn two_transports(bytes: &[u8]) -> Report {
    let mut run = Run::new(bytes);
    while run.act() {}
    run.finish()
}

struct Run {
    wire: Shared,
    nodes: [Node; 2],
    model: Model,
    heals: bool,
    /// True if a receive was deliberately too short.
    short: bool,
    cut_ever: bool,
    lies: [u32; 2],
    /// The numbers of forged frames that name no queue pair, and of those from an address other than the
    /// peer's.
    strange: [u64; 2],
}

impl Run {
    fn new(bytes: &[u8]) -> Self {
        let mut input = Input::new(bytes);
        let mtu = [PathMtu::B256, PathMtu::B1024][input.below(2)];
        let psn = [[0x0a_0b0c, 0x5a_0b0c], [0xff_fffa, 0xff_fffe], [0x7f_fffe, 0]][input.below(3)];
        let retries = 7 - input.below(7) as u8;
        let heals = input.below(4) != 3;
        let seed = input.byte();
        let wire = Shared::new(Wire::new(input));
        let nodes = [0, 1].map(|side| Node::new(side, &wire, seed));
        nodes[0].connect(&nodes[1], psn, mtu, retries);
        nodes[1].connect(&nodes[0], [psn[1], psn[0]], mtu, retries);
        let model = Model::new(&nodes);
        Self { wire, nodes, model, heals, short: false, cut_ever: false, lies: [0; 2], strange: [0; 2] }
    }

    /// Performs the action of the next byte. Returns `false` at the end of the bytes.
    fn act(&mut self) -> bool {
        let Some(byte) = self.wire.lock().input.next() else { return false };
        let side = usize::from(byte >> 7);
        match byte & 0x0f {
            0..=4 => self.post_send(side),
            5 | 6 => self.post_receive(side, None),
            7 | 8 => drop(self.progress(side, 1 + usize::from(byte >> 4 & 7))),
            9 | 10 => self.settle(),
            11 | 12 => drop(self.advance()),
            13 | 14 => self.lie(),
            _ => {
                let mut wire = self.wire.lock();
                wire.cut[side] = !wire.cut[side];
                self.cut_ever = true;
            }
        }
        self.model.take_completions(&self.nodes);
        true
    }

    fn post_send(&mut self, side: usize) {
        let id = self.model.sides[side].sends.len();
        if id == MAX_WORK {
            return;
        }
        let (work, kind, signal, numbers) = {
            let input = &mut self.wire.lock().input;
            let kind = input.below(6);
            let len = [0, 1, 3, 4, 64, 255, 256, 257, 1024, MAX_LEN][input.below(10)];
            let from = input.below(SOURCE_LEN - MAX_LEN);
            let flags = input.byte();
            let imm = (kind % 2 == 1 && kind < 4).then(|| u32::from(flags) << 8 | id as u32);
            let kind = [
                WorkKind::Write,
                WorkKind::Write,
                WorkKind::Send,
                WorkKind::Send,
                WorkKind::Read,
                if flags & 1 == 0 { WorkKind::FetchAdd } else { WorkKind::CompareSwap },
            ][kind];
            let finds = self.model.sides[side].word(kind);
            let atomic = matches!(kind, WorkKind::FetchAdd | WorkKind::CompareSwap);
            let len = if atomic { 8 } else { len };
            (Work { kind, imm, from, len, finds }, kind, flags & 2 != 0, u64::from(flags) << 24 | 7)
        };
        let (here, there) = (&self.nodes[side], &self.nodes[1 - side]);
        let list = |at: usize| {
            let first = work.len / 3;
            let sge = |at, len: usize| Sge { addr: here.at(at), len: len as u32 };
            [sge(at, first), sge(at + first, work.len - first)]
        };
        let source = list(work.from);
        let into = list(slot_at(SlotUse::Read, id));
        let inline = work.len <= 64 && signal;
        let data = if inline {
            Payload::Inline(&here.initial[work.from..work.from + work.len])
        } else {
            Payload::Gather(&source)
        };
        let result = here.at(result_at(id));
        let (op, leaves) = match kind {
            WorkKind::Send => (SendOp::Send { data, imm: work.imm }, 0),
            WorkKind::Read => (SendOp::Read { into: &into, remote: there.remote(work.from) }, 0),
            WorkKind::FetchAdd => {
                let op = SendOp::FetchAdd { result, remote: there.remote(WORDS[0]), add: numbers };
                (op, work.finds.wrapping_add(numbers))
            }
            WorkKind::CompareSwap => {
                // One that finds the value with which it compares, or one that does not.
                let (hits, swap) = (numbers & 4 << 24 != 0, numbers ^ id as u64);
                let compare = if hits { work.finds } else { !work.finds };
                let op = SendOp::CompareSwap { result, remote: there.remote(WORDS[1]), compare, swap };
                (op, if hits { swap } else { work.finds })
            }
            _ => {
                let remote = there.remote(slot_at(SlotUse::WrittenByPeer, id));
                (SendOp::Write { data, remote, imm: work.imm }, 0)
            }
        };
        let fence = numbers & 8 << 24 != 0;
        let wr = SendWr { id: WrId(id as u64), op, signaled: true, solicited: signal, fence };
        here.rnic.post_send(here.qp, &[wr]).expect("room for the work");
        self.model.sides[side].send(work, leaves);
    }

    /// Posts a receive of `capacity` bytes, or of a capacity from the input.
    fn post_receive(&mut self, side: usize, capacity: Option<usize>) {
        let id = self.model.sides[side].receives.len();
        if id == MAX_WORK {
            return;
        }
        let capacity = capacity.unwrap_or_else(|| {
            let short = self.wire.lock().input.below(32) == 31;
            self.short |= short;
            if short { 100 } else { MAX_LEN }
        });
        let node = &self.nodes[side];
        let scatter = [Sge { addr: node.at(slot_at(SlotUse::Received, id)), len: capacity as u32 }];
        let work = RecvWr { id: WrId(id as u64), scatter: &scatter };
        node.rnic.post_recv(node.qp, &[work]).expect("room for the receive");
        self.model.sides[side].receives.push(capacity);
    }

    /// Puts a forged frame on the network.
    fn lie(&mut self) {
        let wire = &mut *self.wire.lock();
        let lie = Lie::ALL[wire.input.below(Lie::ALL.len())];
        let pick = wire.input.below(wire.kept.len().max(1));
        let Some((side, frame)) = wire.kept.iter().rev().nth(pick).cloned() else { return };
        let Some(forged) = forge(&frame, lie, &mut wire.input) else { return };
        self.lies[usize::from(!lie.can_be_told())] += 1;
        self.strange[0] += u64::from(lie == Lie::QueuePair);
        self.strange[1] += u64::from(lie == Lie::Source);
        let target = &self.nodes[1 - side];
        if !lie.can_be_told() {
            self.model.loose = true;
            if let Some((key, addr, len)) = names(&forged)
                && key == target.rnic.memory_key().rkey
                && let Some(at) = target.offset(addr, len)
                && len > 0
            {
                self.model.named[1 - side].push(at..at + len as usize);
            }
        }
        wire.put(side, 0, forged);
    }

    fn progress(&self, side: usize, budget: usize) -> bool {
        let now = Instant::from_nanos(self.wire.lock().now);
        self.nodes[side].rnic.progress(now, budget)
    }

    /// Runs both sides until neither has work at this time.
    fn settle(&self) {
        let mut calls = 0;
        while self.progress(0, 64) | self.progress(1, 64) {
            calls += 1;
            assert!(calls < MAX_CALLS, "progress never ends");
        }
    }

    /// Advances time to the next event. Returns `false` if there is none.
    fn advance(&self) -> bool {
        let deadlines = self.nodes.iter().filter_map(|node| node.rnic.next_deadline());
        let deadline = deadlines.min().map(Instant::as_nanos);
        let mut wire = self.wire.lock();
        let Some(next) = wire.next_arrival().into_iter().chain(deadline).min() else { return false };
        wire.now = wire.now.max(next);
        true
    }

    fn finish(mut self) -> Report {
        for side in [0, 1] {
            // All sends get a receive, so that no side waits for long.
            while self.model.sides[side].receives.len() < self.model.sides[1 - side].messages() {
                self.post_receive(side, Some(MAX_LEN));
            }
        }
        if self.heals {
            self.wire.lock().cut = [false; 2];
        }
        let mut moments = 0;
        loop {
            self.settle();
            self.model.take_completions(&self.nodes);
            if !self.advance() {
                break;
            }
            moments += 1;
            assert!(
                moments < MAX_MOMENTS && self.wire.lock().now < MAX_TIME,
                "the network does not come to rest"
            );
        }
        self.model.all_ended();
        self.model.check_memory(&self.nodes);
        self.report()
    }

    fn report(&self) -> Report {
        let count = |name| self.nodes.iter().map(|node| node.counter(name)).sum::<u64>();
        let Faults { dropped, duplicated, delayed, corrupted } = self.wire.lock().faults;
        let sides = &self.model.sides;
        let report = Report {
            posted: sides.iter().map(|side| side.sends.len()).sum(),
            succeeded: sides.iter().map(|side| side.succeeded).sum(),
            received: sides.iter().map(|side| side.received).sum(),
            faults: [dropped, duplicated, delayed, corrupted],
            lies: self.lies,
            refused: REFUSALS.map(count).iter().sum(),
            duplicates: count("rx_duplicates"),
            access_errors: count("access_errors"),
            not_ready: count("tx_rnr_naks"),
        };
        let [no_queue_pair, elsewhere] = self.strange;
        assert!(count("rx_unknown_qp") >= no_queue_pair, "frames for no queue pair are counted");
        assert!(count("rx_wrong_peer") >= elsewhere, "frames from elsewhere are counted");
        let disturbed = report.faults != [0; 4] || report.lies != [0; 2] || report.not_ready > 0;
        if !disturbed && !self.short && !self.cut_ever {
            assert_eq!(report.succeeded, report.posted, "undisturbed work succeeds");
        }
        report
    }
}
