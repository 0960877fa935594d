//! Repeated requests are answered again, and never executed again (specification 9.7.5.1.5).

use crate::responder::{ALL, MTU, Response, Server, ack, atomic, nak, pattern, psn, reth, reth_imm, rnr};
use proptest::prelude::*;
use roce::transport::State;
use roce::wire::{Ext, NakCode, Operation as O, Syndrome};
use verbs::{RemoteKey, Status};

/// Returns the response to a READ of `data` at packet `n`. With `begun`, an earlier packet was part of the
/// original request.
fn read_answer(n: u32, msn: u32, data: &[u8], begun: bool) -> Vec<Response> {
    let count = data.len().div_ceil(MTU).max(1);
    let response = |i: usize| {
        let operation = match (i == 0 && !begun, i + 1 == count) {
            (true, true) => O::ReadResponseOnly,
            (true, false) => O::ReadResponseFirst,
            (false, false) => O::ReadResponseMiddle,
            (false, true) => O::ReadResponseLast,
        };
        let aeth = operation != O::ReadResponseMiddle;
        let payload = data[i * MTU..data.len().min((i + 1) * MTU)].to_vec();
        let (syndrome, msn) = (aeth.then_some(Syndrome::ACK), aeth.then_some(msn));
        Response { operation, psn: psn(n + i as u32), syndrome, msn, before: None, payload }
    };
    (0..count).map(response).collect()
}

fn atomic_answer(n: u32, msn: u32, before: u64) -> Response {
    let (syndrome, msn, payload) = (Some(Syndrome::ACK), Some(msn), Vec::new());
    Response { operation: O::AtomicAcknowledge, psn: psn(n), syndrome, msn, before: Some(before), payload }
}

#[test]
fn a_send_or_write_is_acknowledged() {
    let mut server = Server::new(4);
    server.recv(1, 1024, 2048);
    server.recv(2, 4096, 512);
    let data = pattern(3 * MTU, 1);
    let asks = [
        (O::SendFirst, Ext::None, &data[..MTU]),
        (O::SendMiddle, Ext::None, &data[MTU..2 * MTU]),
        (O::SendLastImm, Ext::Imm(7), &data[2 * MTU..]),
        (O::WriteOnlyImm, reth_imm(ALL, 0, 4, 1), b"once"),
    ];
    let ask = |server: &mut Server, n: usize| {
        let (operation, ext, payload) = asks[n];
        server.request(n as u32, operation, ext, payload);
    };
    ask(&mut server, 0);
    ask(&mut server, 1);
    // In the middle of a message, everything so far is acknowledged.
    ask(&mut server, 0);
    assert_eq!(server.answers(), [ack(1, 0)]);
    ask(&mut server, 2);
    ask(&mut server, 3);
    assert_eq!(server.answers(), [ack(3, 2)]);
    server.put(0, b"then");
    for n in [0, 2, 1, 3, 3] {
        ask(&mut server, n);
        assert_eq!(server.answers(), [ack(3, 2)], "{n}");
    }
    assert_eq!((server.get(0, 4), server.get(1024, 3 * MTU)), (b"then".to_vec(), data.clone()));
    assert_eq!(server.ended(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!((server.counters.rx_duplicates, server.counters.rx_stale_requests), (6, 0));
    // A request that was not executed because of a missing receive does not count as repeated.
    for _ in 0..2 {
        server.request(4, O::SendOnly, Ext::None, b"wait");
        assert_eq!(server.answers(), [rnr(4, 2)]);
    }
    assert_eq!(server.counters.rx_duplicates, 6);
}

#[test]
fn a_read_is_answered_again_whole_or_in_part() {
    for len in [0, 1, MTU, MTU + 1, 5 * MTU, 5 * MTU + 3] {
        let mut server = Server::new(4);
        let data = pattern(len, 9);
        server.put(512, &data);
        server.request(0, O::ReadRequest, reth(ALL, 512, len as u32), &[]);
        assert_eq!(server.answers(), read_answer(0, 1, &data, false), "{len}");
        let packets = len.div_ceil(MTU).max(1);
        // Ranges from each packet to the end, as a peer requests that has lost the rest, and to each packet
        // before the end.
        for from in 0..packets {
            for to in from..packets {
                let part = &data[from * MTU..len.min((to + 1) * MTU)];
                let ext = reth(ALL, (512 + from * MTU) as u64, part.len() as u32);
                server.request(from as u32, O::ReadRequest, ext, &[]);
                assert_eq!(server.answers(), read_answer(from as u32, 1, part, from > 0), "{from} {to}");
            }
        }
        if len > 0 {
            // The memory is read again.
            server.put(512, b"!");
            server.request(0, O::ReadRequest, reth(ALL, 512, len as u32), &[]);
            assert_eq!(server.answers()[0].payload[0], b'!');
        }
        // The connection continues.
        server.request(packets as u32, O::WriteOnly, reth(ALL, 0, 4), b"next");
        assert_eq!(server.answers(), [ack(packets as u32, 2)]);
        assert_eq!(server.counters.rx_stale_requests, 0);
    }
}

#[test]
fn a_read_of_something_else_is_dropped() {
    let mut server = Server::new(4);
    let whole = 4 * MTU as u32;
    server.request(0, O::ReadRequest, reth(ALL, 0, whole), &[]);
    assert_eq!(server.answers().len(), 4);
    // The key is invalid.
    server.keys.table.borrow_mut()[0].key = RemoteKey(5);
    server.request(0, O::ReadRequest, reth(ALL, 0, whole), &[]);
    server.keys.table.borrow_mut()[0].key = ALL;
    for (n, ext) in [
        (0, reth(ALL, 0, whole + 1)),
        (0, reth(ALL, 1, whole)),
        (0, reth(RemoteKey(5), 0, whole)),
        (1, reth(ALL, 0, whole - 256)),
        (1, reth(ALL, 256, whole)),
        (0, reth(ALL, 0, u32::MAX)),
        (0xff_ffff, reth(ALL, 0, 1)),
    ] {
        server.request(n, O::ReadRequest, ext, &[]);
    }
    // A repeated READ cannot be an atomic, and there was no atomic before.
    server.request(0, O::FetchAdd, atomic(ALL, 0, 1, 0), &[]);
    server.request(0xff_ffff, O::FetchAdd, atomic(ALL, 0, 1, 0), &[]);
    assert!(server.answers().is_empty());
    assert_eq!((server.counters.rx_stale_requests, server.counters.rx_duplicates), (10, 10));
    assert_eq!((server.qp.state(), server.word(0)), (State::ReadyToSend, 0));
}

#[test]
fn an_atomic_is_executed_once() {
    let mut server = Server::new(4);
    server.put(8, &100u64.to_ne_bytes());
    let add = (O::FetchAdd, atomic(ALL, 8, 10, 0));
    let swap = (O::CompareSwap, atomic(ALL, 8, 7, 110));
    let first = [atomic_answer(0, 1, 100), atomic_answer(1, 2, 110)];
    for _ in 0..4 {
        server.request(0, add.0, add.1, &[]);
        server.request(1, swap.0, swap.1, &[]);
        assert_eq!(server.answers(), first);
    }
    assert_eq!((server.word(8), server.counters.rx_duplicates), (7, 6));
    // No key is necessary, because nothing is executed.
    server.keys.table.borrow_mut().clear();
    server.request(1, swap.0, swap.1, &[]);
    assert_eq!(server.answers(), first[1..]);
}

#[test]
fn as_many_are_remembered_as_were_promised() {
    for limit in [1u32, 4, 16] {
        let mut server = Server::new(limit as u8);
        let add = atomic(ALL, 0, 1, 0);
        // A WRITE between them needs no resource.
        for n in 0..3 * limit {
            server.request(2 * n, O::FetchAdd, add, &[]);
            server.request(2 * n + 1, O::WriteOnly, reth(ALL, 64, 1), b"x");
            assert_eq!(
                server.answers(),
                [atomic_answer(2 * n, 2 * n + 1, n.into()), ack(2 * n + 1, 2 * n + 2)]
            );
        }
        for n in 0..3 * limit {
            server.request(2 * n, O::FetchAdd, add, &[]);
            let known = [atomic_answer(2 * n, 2 * n + 1, n.into())];
            assert_eq!(server.answers(), known[usize::from(n < 2 * limit)..], "{n} of {limit}");
        }
        assert_eq!(server.counters.rx_stale_requests, u64::from(2 * limit));
        assert_eq!((server.word(0), server.qp.state()), (u64::from(3 * limit), State::ReadyToSend));
    }
}

#[test]
fn an_answer_in_progress_continues_or_restarts() {
    let mut server = Server::new(2);
    let data = pattern(4 * MTU, 2);
    server.put(0, &data);
    let whole = reth(ALL, 0, data.len() as u32);
    server.request(0, O::ReadRequest, whole, &[]);
    let expected = read_answer(0, 1, &data, false);
    assert_eq!(server.answer(), Some(expected[0].clone()));
    // A request ahead of the response in progress changes nothing.
    server.request(2, O::ReadRequest, reth(ALL, 512, 512), &[]);
    assert_eq!(server.answer(), Some(expected[1].clone()));
    // A request behind it restarts the response.
    server.request(0, O::ReadRequest, whole, &[]);
    assert_eq!(server.answers(), expected);
    // Late repetitions of answered requests need no resource.
    server.request(0, O::ReadRequest, whole, &[]);
    server.request(4, O::ReadRequest, reth(ALL, 0, 4), &[]);
    server.request(0, O::ReadRequest, whole, &[]);
    server.request(5, O::ReadRequest, reth(ALL, 4, 4), &[]);
    let answers = server.answers();
    let last_two = [read_answer(4, 2, &data[..4], false), read_answer(5, 3, &data[4..8], false)].concat();
    assert_eq!(answers[answers.len() - 2..], last_two);
    assert_eq!(server.qp.state(), State::ReadyToSend);
}

#[test]
fn a_refusal_is_repeated() {
    let mut server = Server::new(4);
    server.recv(1, 0, 8);
    let ask = (O::ReadRequest, reth(RemoteKey(1), 0, 4), &[][..]);
    let ended = [(1, Status::WorkRequestFlushed)];
    server.refuses(0, ask, &nak(0, 0, NakCode::RemoteAccessError), &ended);
}

/// The next action of a peer.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        value: u64,
    },
    Add {
        offset: u64,
        add: u64,
    },
    /// Repeats an earlier request, at this distance from the last one.
    Again(usize),
    /// Waits for responses.
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = || (0u64..16).prop_map(|n| n * 8);
    let step = prop_oneof![
        (offset(), 0u32..600).prop_map(|(offset, len)| Step::Read { offset, len }),
        (offset(), any::<u64>()).prop_map(|(offset, value)| Step::Write { offset, value }),
        (offset(), any::<u64>()).prop_map(|(offset, add)| Step::Add { offset, add }),
        (0usize..20).prop_map(Step::Again),
        Just(Step::Wait),
    ];
    proptest::collection::vec(step, 1..120)
}

/// A request that was sent, and the required result of an atomic.
struct Sent {
    n: u32,
    ask: (O, Ext, Vec<u8>),
    before: Option<u64>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is repeated, memory is as if each request had arrived once, and the result of an atomic never
    /// changes.
    #[test]
    fn repeating_changes_nothing(steps in steps()) {
        let mut server = Server::new(4);
        let mut model = vec![0u8; 1024];
        let mut sent: Vec<Sent> = Vec::new();
        let (mut n, mut unanswered) = (0, 0);
        for step in steps {
            let (ask, packets, before) = match step {
                Step::Read { offset, len } if unanswered < 4 => {
                    unanswered += 1;
                    let packets = len.div_ceil(MTU as u32).max(1);
                    ((O::ReadRequest, reth(ALL, offset, len), Vec::new()), packets, None)
                }
                Step::Add { offset, add } if unanswered < 4 => {
                    unanswered += 1;
                    let word = &mut model[offset as usize..][..8];
                    let before = u64::from_ne_bytes((&*word).try_into().unwrap());
                    word.copy_from_slice(&before.wrapping_add(add).to_ne_bytes());
                    ((O::FetchAdd, atomic(ALL, offset, add, 0), Vec::new()), 1, Some(before))
                }
                Step::Write { offset, value } => {
                    let bytes = value.to_ne_bytes();
                    model[offset as usize..][..8].copy_from_slice(&bytes);
                    ((O::WriteOnly, reth(ALL, offset, 8), bytes.to_vec()), 1, None)
                }
                Step::Again(back) => {
                    if let Some(Sent { n, ask: (operation, ext, payload), .. }) = sent.iter().rev().nth(back) {
                        server.request(*n, *operation, *ext, payload);
                    }
                    continue;
                }
                Step::Read { .. } | Step::Add { .. } | Step::Wait => {
                    unanswered = 0;
                    for answer in server.answers() {
                        if answer.operation == O::AtomicAcknowledge {
                            let asked = sent.iter().find(|s| psn(s.n) == answer.psn).unwrap();
                            prop_assert_eq!(answer.before, asked.before);
                        }
                    }
                    continue;
                }
            };
            server.request(n, ask.0, ask.1, &ask.2);
            sent.push(Sent { n, ask, before });
            n += packets;
            prop_assert_eq!(server.qp.state(), State::ReadyToSend);
        }
        prop_assert!(server.get(0, 1024) == model);
    }
}
