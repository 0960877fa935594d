//! The replay of one side of a captured connection against the frames of the other side.

use super::capture::{Capture, Event, Message, SERVER};
use super::end::{End, with_id_of};
use platform::{Instant, IoAddr, Memory};
use roce::transport::State;
use roce::wire::{Aeth, Bth, Ext, Frame, NakCode, Opcode, Operation, Packet, Reth, Syndrome};
use std::collections::BTreeSet;
use verbs::{Completion, Payload, RemoteAddr, SendOp, SendWr, Sge, Status, WorkKind, WrId};

/// The required equality of the requester's requests with Linux's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Requests {
    /// All requests are equal, byte for byte.
    Same,
    /// All requests are equal except for the bit that requests an acknowledgement. The requester also sets
    /// it in the middle of a long message, and waits for the response when its window is full. The test
    /// responds in place of Linux.
    SameButAckRequest,
    /// Each request equals one of Linux's requests, except for the bit that requests an acknowledgement.
    /// The sender is free to choose its repetitions after a loss.
    OneOfTheirs,
}

/// The particularities of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    pub requests: Requests,
    /// The client loses one frame in this number after the capture point; `None` for no loss.
    pub lost_every: Option<usize>,
    /// True if the programs changed their memory in between, so that read data exists only at the time of the
    /// READ.
    pub memory_changes: bool,
    /// The status of the client's first work request, if the server refuses it.
    pub refusal: Option<Status>,
    /// True if the server refuses because of the key, false if because of the address.
    pub refused_key: bool,
}

impl Rules {
    pub(super) const PLAIN: Self = Self {
        requests: Requests::Same,
        lost_every: None,
        memory_changes: false,
        refusal: None,
        refused_key: false,
    };
}

/// The numbers of frames of a side that were compared with ours. A repeated request counts once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Compared {
    pub requests: usize,
    pub responses: usize,
}

/// Plays `side` with our queue pair. It receives the frames that the other side sent in the capture, posts
/// the work for the captured requests, and must send what that side sent.
pub(super) fn play(name: &str, capture: &Capture, rules: &Rules, side: usize) -> Compared {
    let events = capture.connection();
    let mut player = Player {
        about: format!("{name}, side {side}"),
        rules: *rules,
        side,
        mtu: capture.mtu.bytes(),
        own: Message::of(&events, side),
        peer: Message::of(&events, 1 - side),
        end: End::new(
            capture,
            &events,
            side,
            side == SERVER && rules.refusal.is_some() && !rules.refused_key,
        ),
        compared: Compared::default(),
        sent: BTreeSet::new(),
        answered: Vec::new(),
    };
    if rules.refused_key && side == SERVER {
        player.end.keys.valid.borrow_mut().clear();
    }
    if !rules.memory_changes {
        player.peer_reads(&events, |_| true);
    }
    let mut from_client = 0;
    for (at, event) in events.iter().enumerate() {
        player.end.advance_to(event.time);
        from_client += usize::from(event.side != SERVER);
        if event.side == side {
            player.sent_by_linux(event, &events);
        } else if event.side == SERVER || rules.lost_every.is_none_or(|n| !from_client.is_multiple_of(n)) {
            player.deliver(event, &events[at + 1..], &events);
        }
    }
    player.finish(&events);
    player.compared
}

struct Player<'a> {
    about: String,
    rules: Rules,
    side: usize,
    mtu: usize,
    /// The messages of the replayed side.
    own: Vec<Message<'a>>,
    peer: Vec<Message<'a>>,
    end: End,
    compared: Compared,
    /// The PSNs of the requests that we sent.
    sent: BTreeSet<u32>,
    /// The headers of our responses.
    answered: Vec<Ext>,
}

impl Player<'_> {
    /// Checks a frame that Linux sent: ours must have been sent, or must be sent now.
    fn sent_by_linux(&mut self, event: &Event<'_>, events: &[Event<'_>]) {
        if event.is_request() {
            let next = self.end.next_send() as usize;
            if self.own.get(next).is_some_and(|message| message.first().psn() == event.psn()) {
                self.post(next);
            }
        }
        self.end.send();
        if !event.is_request() {
            self.skip_extra_answers(Some(event));
            let ours = self.end.responses.pop_front();
            let ours =
                ours.unwrap_or_else(|| panic!("{}: no answer as {:?}", self.about, event.packet().bth));
            self.answered.push(Frame::parse(&ours).unwrap().packet.ext);
            self.same(&ours, event, false);
            self.compared.responses += 1;
        } else if self.rules.requests == Requests::OneOfTheirs {
            self.ours_are_theirs(events);
        } else {
            self.skip_repeats(Some(event), events);
            if self.end.requests.is_empty() && self.rules.requests == Requests::SameButAckRequest {
                self.acknowledge_before(event);
                self.skip_repeats(Some(event), events);
            }
            let ours = self.end.requests.pop_front();
            let ours =
                ours.unwrap_or_else(|| panic!("{}: no request as {:?}", self.about, event.packet().bth));
            self.sent.insert(event.psn().get());
            self.same(&ours, event, self.rules.requests == Requests::SameButAckRequest);
            self.compared.requests += 1;
        }
    }

    /// Returns true if a request is for a part of one of Linux's READs: ours requests as much as its window
    /// allows.
    fn is_part_of_read(&mut self, frame: &Frame<'_>) -> bool {
        let Ext::Reth(ours) = frame.packet.ext else { return false };
        let reads = self.own.iter().filter(|m| m.first().operation() == Operation::ReadRequest);
        for read in reads.filter(|_| frame.packet.bth.opcode.operation == Operation::ReadRequest) {
            let (addr, key, len) = read.first().remote().unwrap();
            let packets = frame.packet.bth.psn.distance_from(read.first().psn());
            let offset = i64::from(packets) * self.mtu as i64;
            let within = offset >= 0 && offset + i64::from(ours.len) <= i64::from(len);
            if within && ours.len < len && (ours.addr.0, ours.key) == (addr + offset as u64, key) {
                self.sent.insert(read.first().psn().get());
                return true;
            }
        }
        false
    }

    /// Skips requests that ours has repeated because Linux was slow: the sender is free to choose the time.
    /// Linux must have sent them too.
    fn skip_repeats(&mut self, but: Option<&Event<'_>>, events: &[Event<'_>]) {
        while let Some(ours) = self.end.requests.front() {
            let psn = Frame::parse(ours).unwrap().packet.bth.psn;
            if but.is_some_and(|event| event.psn() == psn) || !self.sent.contains(&psn.get()) {
                break;
            }
            let own = events.iter().filter(|e| e.side == self.side && e.is_request());
            let theirs = own.into_iter().find(|e| e.psn() == psn).unwrap();
            self.same(ours, theirs, true);
            self.end.requests.pop_front();
        }
    }

    /// Skips additional responses after a loss: ours may acknowledge without a request, and report a gap
    /// again. Linux's responses must follow all the same.
    fn skip_extra_answers(&mut self, but: Option<&Event<'_>>) {
        while self.rules.lost_every.is_some()
            && let Some(ours) = self.end.responses.front()
        {
            let packet = Frame::parse(ours).unwrap().packet;
            if but.is_some_and(|event| *event.packet() == packet) {
                break;
            }
            let Ext::Aeth(aeth) = packet.ext else { break };
            let acknowledges = packet.bth.opcode.operation == Operation::Acknowledge
                && (aeth.syndrome == Syndrome::ACK || self.answered.contains(&packet.ext));
            if !acknowledges {
                break;
            }
            self.end.responses.pop_front();
        }
    }

    /// Delivers the acknowledgement that Linux was not asked for, but that we need before we send `event`.
    fn acknowledge_before(&mut self, event: &Event<'_>) {
        let to = self.end.qp.number();
        let psn = event.psn().add(0xff_ffff);
        let bth = Bth::new(Opcode::rc(Operation::Acknowledge), to, psn);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.end.log.sends.len() as u32 };
        self.end.receive(&Packet { bth, ext: Ext::Aeth(aeth), payload: &[] });
    }

    /// Checks that our frame equals Linux's: headers, fields, payload, padding and ICRC.
    fn same(&self, ours: &[u8], event: &Event<'_>, but_ack_request: bool) {
        let mut theirs = vec![0; ours.len()];
        let mut frame = event.frame;
        if but_ack_request {
            frame.packet.bth.ack_request = Frame::parse(ours).unwrap().packet.bth.ack_request;
        }
        let len = frame.emit(&mut theirs);
        let ours = with_id_of(ours, &event.frame.headers);
        if len != Some(ours.len()) || ours != theirs {
            let ours = Frame::parse(&ours).unwrap();
            assert_eq!(ours.packet.bth, frame.packet.bth, "{}", self.about);
            assert_eq!(ours.packet, frame.packet, "{}", self.about);
            panic!("{}: {:?} for {:?}", self.about, ours.headers, frame.headers);
        }
    }

    /// Checks that each request that our queue pair sends equals one that Linux sent.
    fn ours_are_theirs(&mut self, events: &[Event<'_>]) {
        while let Some(ours) = self.end.requests.pop_front() {
            let frame = Frame::parse(&ours).unwrap();
            if self.is_part_of_read(&frame) {
                continue;
            }
            let own = events.iter().filter(|e| e.side == self.side && e.is_request());
            let theirs = own.into_iter().find(|e| e.psn() == frame.packet.bth.psn);
            let theirs = theirs.unwrap_or_else(|| panic!("{}: not sent: {frame:?}", self.about));
            self.same(&ours, theirs, true);
            self.sent.insert(theirs.psn().get());
        }
        self.compared.requests = self.sent.len();
    }

    /// Delivers a captured frame of the other side.
    fn deliver(&mut self, event: &Event<'_>, later: &[Event<'_>], events: &[Event<'_>]) {
        if event.needs_receive() {
            // Where Linux reports that no receive was posted, none is posted here.
            let answer =
                later.iter().find(|e| e.side == self.side && !e.is_request() && e.psn() == event.psn());
            let refused = answer.and_then(syndrome).is_some_and(|s| matches!(s, Syndrome::RnrNak(_)));
            if !refused {
                self.end.post_receive();
            }
        }
        if self.rules.memory_changes && event.operation() == Operation::ReadRequest {
            self.peer_reads(events, |psn| psn == event.psn().get());
        }
        if self.rules.requests == Requests::OneOfTheirs {
            self.ours_are_theirs(events);
        }
        self.skip_repeats(None, events);
        let before = self.end.counters;
        self.end.receive(event.packet());
        if event.is_write() && self.end.qp.state() == State::ReadyToSend {
            let (now, then) = (self.end.counters, before);
            let executed = (now.rx_out_of_sequence, now.rx_duplicates, now.tx_rnr_naks)
                == (then.rx_out_of_sequence, then.rx_duplicates, then.tx_rnr_naks);
            if executed {
                self.written(event);
            }
        }
        match syndrome(event) {
            Some(Syndrome::Nak(NakCode::PsnSequenceError)) => self.went_back_to(event),
            Some(Syndrome::RnrNak(timer)) => {
                assert!(self.end.requests.is_empty(), "{}: waits", self.about);
                let until = Instant::from_nanos(event.time) + timer.delay();
                assert_eq!(self.end.qp.deadline(), Some(until), "{}", self.about);
            }
            _ => {}
        }
    }

    /// Checks that the next packet after a NAK for a missing packet is that packet.
    fn went_back_to(&self, nak: &Event<'_>) {
        let next = self.end.requests.front().expect("it goes back at once");
        assert_eq!(Frame::parse(next).unwrap().packet.bth.psn, nak.psn(), "{}", self.about);
    }

    /// Checks that the bytes of a captured WRITE packet are in memory at the packet's address.
    fn written(&self, event: &Event<'_>) {
        let of = |m: &&Message<'_>| m.packets.iter().any(|p| p.psn() == event.psn());
        let message = self.peer.iter().find(of).unwrap();
        let (addr, ..) = message.first().remote().unwrap();
        let offset = event.psn().distance_from(message.first().psn()) as usize * self.mtu;
        let payload = event.packet().payload;
        let found = if payload.is_empty() {
            Vec::new()
        } else {
            self.end.bytes(IoAddr(addr + offset as u64), payload.len())
        };
        assert!(found == payload, "{}: written bytes", self.about);
    }

    /// Puts the data of Linux's responses to the other side's READs and atomics, with these first PSNs, into
    /// memory.
    fn peer_reads(&self, events: &[Event<'_>], which: impl Fn(u32) -> bool) {
        let mut atomics = BTreeSet::new();
        for message in &self.peer {
            let first = message.first();
            if !which(first.psn().get()) || self.rules.refusal.is_some() {
                continue;
            }
            let answers = |n: i32| {
                let own = events.iter().filter(|e| e.side == self.side && !e.is_request());
                own.into_iter().find(move |e| {
                    e.psn().distance_from(first.psn()) == n && e.operation() != Operation::Acknowledge
                })
            };
            match (first.operation(), first.remote()) {
                (Operation::ReadRequest, Some((addr, _, len))) => {
                    for n in 0..(len as usize).div_ceil(self.mtu).max(1) {
                        let answer = answers(n as i32).expect("Linux answered");
                        let to = IoAddr(addr + (n * self.mtu) as u64);
                        self.end.keys.memory.write(to, answer.packet().payload).unwrap();
                    }
                }
                (Operation::FetchAdd | Operation::CompareSwap, Some((addr, ..))) if atomics.insert(addr) => {
                    let Some(Ext::AtomicAck(_, before)) = answers(0).map(|a| a.packet().ext) else {
                        panic!("Linux answered")
                    };
                    self.end.keys.memory.write(IoAddr(addr), &before.to_ne_bytes()).unwrap();
                }
                _ => {}
            }
        }
    }

    /// Posts the work for message `n` of this side.
    fn post(&mut self, n: usize) {
        let message = &self.own[n];
        let (first, bytes, imm) = (message.first(), message.bytes(), message.imm());
        let id = n as u64;
        let (source, landing) = (self.end.source(id), self.end.landing(id));
        self.end.keys.memory.write(source, &bytes).unwrap();
        let list = [Sge { addr: source, len: bytes.len() as u32 }];
        let data = Payload::Gather(&list);
        let into;
        let op = match (first.operation(), first.packet().ext) {
            (Operation::ReadRequest, Ext::Reth(Reth { addr, key, len })) => {
                into = [Sge { addr: landing, len }];
                SendOp::Read { into: &into, remote: RemoteAddr { addr, key } }
            }
            (operation, Ext::Atomic(atomic)) => {
                let remote = RemoteAddr { addr: atomic.addr, key: atomic.key };
                if operation == Operation::FetchAdd {
                    SendOp::FetchAdd { result: landing, remote, add: atomic.swap_add }
                } else {
                    let (compare, swap) = (atomic.compare, atomic.swap_add);
                    SendOp::CompareSwap { result: landing, remote, compare, swap }
                }
            }
            (_, Ext::Reth(reth) | Ext::RethImm(reth, _)) => {
                SendOp::Write { data, remote: RemoteAddr { addr: reth.addr, key: reth.key }, imm }
            }
            _ => match message.invalidates() {
                Some(key) => SendOp::SendInvalidate { data, key },
                None => SendOp::Send { data, imm },
            },
        };
        let solicited = message.packets.iter().any(|p| p.packet().bth.solicited);
        self.end.post_send(&SendWr { id: WrId(id), op, signaled: true, solicited, fence: false });
    }

    /// Checks that everything completed as with Linux.
    fn finish(&mut self, events: &[Event<'_>]) {
        if self.rules.requests == Requests::OneOfTheirs {
            self.ours_are_theirs(events);
        }
        self.skip_repeats(None, events);
        self.skip_extra_answers(None);
        let (requests, responses) = (&self.end.requests, &self.end.responses);
        assert!(requests.is_empty() && responses.is_empty(), "{}: sent more than Linux", self.about);
        self.sends_ended(events);
        self.receives_ended();
    }

    fn sends_ended(&self, events: &[Event<'_>]) {
        let ended = &self.end.log.sends;
        assert_eq!(ended.len(), self.own.len(), "{}: all sends end", self.about);
        for (n, (completion, message)) in ended.iter().zip(&self.own).enumerate() {
            let status = self.rules.refusal.unwrap_or(Status::Success);
            assert_eq!((completion.id, completion.status), (WrId(n as u64), status), "{}", self.about);
            if status == Status::Success {
                self.brought(n as u64, message, completion, events);
            }
        }
        let state = if self.rules.refusal.is_some() { State::Error } else { State::ReadyToSend };
        assert_eq!(self.end.qp.state(), state, "{}", self.about);
    }

    /// Checks that the result of a READ or atomic is the data of the other side's response.
    fn brought(&self, id: u64, message: &Message<'_>, completion: &Completion, events: &[Event<'_>]) {
        let first = message.first();
        let answers = || events.iter().filter(|e| e.side != self.side && !e.is_request());
        let expected: Vec<u8> = match completion.kind {
            WorkKind::Read => {
                let len = first.remote().unwrap().2 as usize;
                let packets = len.div_ceil(self.mtu).max(1) as i32;
                let mut bytes = Vec::new();
                for n in 0..packets {
                    let of = |e: &&Event<'_>| {
                        e.psn().distance_from(first.psn()) == n && e.operation() != Operation::Acknowledge
                    };
                    bytes.extend_from_slice(answers().find(of).unwrap().packet().payload);
                }
                bytes
            }
            WorkKind::FetchAdd | WorkKind::CompareSwap => {
                let answer = answers().find(|e| e.psn() == first.psn()).unwrap();
                let Ext::AtomicAck(_, before) = answer.packet().ext else { panic!("an atomic's answer") };
                before.to_ne_bytes().to_vec()
            }
            _ => return,
        };
        assert!(self.end.bytes(self.end.landing(id), expected.len()) == expected, "{}: {id}", self.about);
    }

    fn receives_ended(&self) {
        let expected: Vec<_> = self.peer.iter().filter(|m| m.takes_receive()).collect();
        let ended = &self.end.log.recvs;
        assert_eq!(ended.len(), expected.len(), "{}: all messages are received", self.about);
        for (completion, message) in ended.iter().zip(expected) {
            assert_eq!(completion.status, Status::Success, "{}", self.about);
            let bytes = message.bytes();
            let found = (completion.byte_len as usize, completion.imm, completion.invalidated);
            assert_eq!(found, (bytes.len(), message.imm(), message.invalidates()), "{}", self.about);
            if message.first().is_send() {
                let received = self.end.received(completion.id.0, bytes.len());
                assert!(received == bytes, "{}: received bytes", self.about);
            }
        }
    }
}

/// Returns the syndrome of an acknowledgement.
fn syndrome(event: &Event<'_>) -> Option<Syndrome> {
    match event.packet().ext {
        Ext::Aeth(aeth) if event.operation() == Operation::Acknowledge => Some(aeth.syndrome),
        _ => None,
    }
}
