//! The requested work, and its possible effects.

use crate::node::{MEMORY, Node, SOURCE_LEN, SlotUse, WORDS, result_at, slot_at, word};
use std::ops::Range;
use verbs::{Completion, Status, WorkKind};

/// A send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    pub kind: WorkKind,
    pub imm: Option<u32>,
    /// The offset of its data in the source (for a READ, in the peer's source), and their length.
    pub from: usize,
    pub len: usize,
    /// For an atomic: the value that the operation must find.
    pub finds: u64,
}

impl Work {
    const fn takes_receive(&self) -> bool {
        matches!(self.kind, WorkKind::Send) || matches!(self.kind, WorkKind::Write) && self.imm.is_some()
    }

    const fn source(&self) -> Range<usize> {
        self.from..self.from + self.len
    }
}

/// Returns the index of the peer's word on which an atomic works.
const fn word_of(kind: WorkKind) -> Option<usize> {
    match kind {
        WorkKind::FetchAdd => Some(0),
        WorkKind::CompareSwap => Some(1),
        _ => None,
    }
}

/// The work that one side has posted, and the part of it that has ended.
pub(crate) struct Posted {
    pub sends: Vec<Work>,
    /// The capacities of receives, in bytes.
    pub receives: Vec<usize>,
    /// The numbers of the sends that use a receive of the peer.
    messages: Vec<usize>,
    /// The values of the peer's words after each atomic of this side.
    words: [Vec<u64>; 2],
    sends_ended: usize,
    receives_ended: usize,
    /// The number of sends that succeeded.
    pub succeeded: usize,
    pub received: usize,
    atomics_succeeded: [usize; 2],
}

impl Posted {
    fn new(peer: &Node) -> Self {
        Self {
            sends: Vec::new(),
            receives: Vec::new(),
            messages: Vec::new(),
            words: WORDS.map(|at| vec![peer.word(at)]),
            sends_ended: 0,
            receives_ended: 0,
            succeeded: 0,
            received: 0,
            atomics_succeeded: [0; 2],
        }
    }

    /// Returns the value of the peer's word that the next atomic must find.
    pub(crate) fn word(&self, kind: WorkKind) -> u64 {
        word_of(kind).and_then(|n| self.words[n].last().copied()).unwrap_or(0)
    }

    /// Records a send. `leaves` is the value that an atomic leaves in the peer's word.
    pub(crate) fn send(&mut self, work: Work, leaves: u64) {
        if work.takes_receive() {
            self.messages.push(self.sends.len());
        }
        if let Some(n) = word_of(work.kind) {
            self.words[n].push(leaves);
        }
        self.sends.push(work);
    }

    /// Returns the number of messages that need a receive of the peer.
    pub(crate) fn messages(&self) -> usize {
        self.messages.len()
    }
}

/// The model of both nodes: the work that each has posted, and what may have happened to it.
pub(crate) struct Model {
    pub sides: [Posted; 2],
    /// True after a forged frame that is indistinguishable from the peer's: then the effect of work on the
    /// memory that it names is uncertain.
    pub loose: bool,
    /// The memory that forged requests named, by side.
    pub named: [Vec<Range<usize>>; 2],
}

impl Model {
    pub(crate) fn new(nodes: &[Node; 2]) -> Self {
        Self {
            sides: [Posted::new(&nodes[1]), Posted::new(&nodes[0])],
            loose: false,
            named: Default::default(),
        }
    }

    /// Polls completions and checks them: they come in the order of posting, each once, none succeeds after a
    /// failure, and the work was done as requested.
    pub(crate) fn take_completions(&mut self, nodes: &[Node; 2]) {
        let taken = [nodes[0].completions(), nodes[1].completions()];
        // Receives come first: a message that one side reports as sent must have been received by the other.
        for (side, [_, receives]) in taken.iter().enumerate() {
            receives.iter().for_each(|completion| self.on_receive(side, completion, nodes));
        }
        for (side, [sends, _]) in taken.iter().enumerate() {
            sends.iter().for_each(|completion| self.on_send(side, completion, nodes));
        }
    }

    fn on_send(&mut self, side: usize, completion: &Completion, nodes: &[Node; 2]) {
        let own = &mut self.sides[side];
        let id = own.sends_ended;
        own.sends_ended += 1;
        assert_eq!(completion.id.0, id as u64, "sends complete in order, each once");
        let work = *own.sends.get(id).expect("a completed request was posted");
        assert_eq!(completion.kind, work.kind);
        if completion.status != Status::Success {
            return;
        }
        assert_eq!(own.succeeded, id, "nothing succeeds after a failure");
        own.succeeded += 1;
        if let Some(n) = word_of(work.kind) {
            own.atomics_succeeded[n] += 1;
        }
        if self.loose {
            return;
        }
        let (here, there) = (&nodes[side], &nodes[1 - side]);
        match work.kind {
            WorkKind::Write => {
                let written = there.bytes(slot_at(SlotUse::WrittenByPeer, id), work.len);
                assert!(written == here.initial[work.source()], "WRITE {id} of side {side} is in place");
            }
            WorkKind::Read => {
                let read = here.bytes(slot_at(SlotUse::Read, id), work.len);
                assert!(read == there.initial[work.source()], "READ {id} of side {side} is in place");
            }
            WorkKind::FetchAdd | WorkKind::CompareSwap => {
                assert_eq!(
                    here.word(result_at(id)),
                    work.finds,
                    "atomic {id} of side {side} ran once, in order"
                );
            }
            _ => {}
        }
        if work.takes_receive() {
            let own = &self.sides[side];
            let number = own.messages.iter().position(|&m| m == id).expect("it was counted");
            assert!(self.sides[1 - side].received > number, "message {number} of side {side} was received");
        }
    }

    fn on_receive(&mut self, side: usize, completion: &Completion, nodes: &[Node; 2]) {
        let own = &mut self.sides[side];
        let id = own.receives_ended;
        own.receives_ended += 1;
        assert_eq!(completion.id.0, id as u64, "receives complete in order, each once");
        assert!(id < own.receives.len(), "a completed request was posted");
        if completion.status != Status::Success {
            return;
        }
        assert_eq!(own.received, id, "nothing succeeds after a failure");
        own.received += 1;
        if self.loose {
            return;
        }
        // The n-th receive gets the peer's n-th message: none is lost and none comes twice.
        let peer = &self.sides[1 - side];
        let message = *peer.messages.get(id).expect("a received message was sent");
        let work = &peer.sends[message];
        let is_send = work.kind == WorkKind::Send;
        let kind = if is_send { WorkKind::Recv } else { WorkKind::RecvWriteImm };
        assert_eq!(
            (completion.kind, completion.byte_len as usize, completion.imm),
            (kind, work.len, work.imm),
            "message {id} to side {side}"
        );
        let at =
            if is_send { slot_at(SlotUse::Received, id) } else { slot_at(SlotUse::WrittenByPeer, message) };
        let got = nodes[side].bytes(at, work.len);
        assert!(got == nodes[1 - side].initial[work.source()], "message {id} to side {side} is whole");
    }

    /// Checks that all sends have ended.
    pub(crate) fn all_ended(&self) {
        for (side, posted) in self.sides.iter().enumerate() {
            assert_eq!(posted.sends_ended, posted.sends.len(), "all work of side {side} has ended");
        }
    }

    /// Checks all memory: bytes that no request named are unchanged, named bytes are unchanged or have their
    /// requested value, and each atomic ran once or not at all.
    pub(crate) fn check_memory(&self, nodes: &[Node; 2]) {
        for (side, node) in nodes.iter().enumerate() {
            let found = node.bytes(0, MEMORY);
            // A copy in which bytes that may have changed are set back to their initial value.
            let mut rest = found.clone();
            for (at, may) in self.named(side, nodes) {
                for ((rest, initial), may) in rest[at..].iter_mut().zip(&node.initial[at..]).zip(may) {
                    if may.is_none_or(|may| may == *rest) {
                        *rest = *initial;
                    }
                }
            }
            if rest != node.initial {
                let at = rest.iter().zip(node.initial).position(|(rest, initial)| rest != initial);
                panic!("bytes of side {side} from {at:x?} on are neither unchanged nor as requested");
            }
            self.check_words(side, &found);
        }
    }

    fn check_words(&self, side: usize, memory: &[u8]) {
        if self.loose {
            return;
        }
        let peer = &self.sides[1 - side];
        for (n, at) in WORDS.into_iter().enumerate() {
            let found = word(&memory[at..at + 8]);
            let (states, least) = (&peer.words[n], peer.atomics_succeeded[n]);
            assert!(
                states[least..].contains(&found),
                "word {n} of side {side} is {found:#x} after {least} or more of {states:x?}"
            );
        }
    }

    /// Returns the named memory of a side: the offset, and for each byte its possible new value; `None` is
    /// any value.
    fn named(&self, side: usize, nodes: &[Node; 2]) -> Vec<(usize, Vec<Option<u8>>)> {
        let (own, peer) = (&self.sides[side], &self.sides[1 - side]);
        let mut named = Vec::new();
        let mut put = |at: usize, bytes: &[u8]| {
            named.push((at, bytes.iter().map(|&byte| (!self.loose).then_some(byte)).collect()));
        };
        let sent = |work: &Work| &nodes[1 - side].initial[work.source()];
        for (id, work) in peer.sends.iter().enumerate() {
            if work.kind == WorkKind::Write {
                put(slot_at(SlotUse::WrittenByPeer, id), sent(work));
            }
        }
        for (id, work) in own.sends.iter().enumerate() {
            match work.kind {
                WorkKind::Read => put(slot_at(SlotUse::Read, id), sent(work)),
                WorkKind::FetchAdd | WorkKind::CompareSwap => put(result_at(id), &work.finds.to_ne_bytes()),
                _ => {}
            }
        }
        for (id, &capacity) in own.receives.iter().enumerate() {
            let at = slot_at(SlotUse::Received, id);
            let message = peer.messages.get(id).and_then(|&m| peer.sends.get(m));
            if self.loose {
                put(at, &vec![0; capacity]);
            } else if let Some(work) = message.filter(|work| work.kind == WorkKind::Send) {
                put(at, &sent(work)[..work.len.min(capacity)]);
            }
        }
        // Words that atomics change are checked separately.
        let words = WORDS.into_iter().zip(&peer.words).filter(|(_, states)| states.len() > 1);
        named.extend(words.map(|(at, _)| (at, vec![None; 8])));
        named.extend(self.named[side].iter().map(|range| (range.start, vec![None; range.len()])));
        if self.named[side].is_empty() {
            assert!(named.iter().all(|(at, _)| *at >= SOURCE_LEN), "no request names the source");
        }
        named
    }
}
