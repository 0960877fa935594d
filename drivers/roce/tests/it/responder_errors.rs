//! Every class of error to which a responder responds: the table in `transport/responder.rs`, row by row.

use crate::responder;
use crate::responder::{
    ALL, BASE, Key, MEMORY, MTU, Server, ack, atomic, nak, pattern, psn, reth, reth_imm, rnr,
};
use platform::{Arena, IoAddr};
use roce::transport::{Right, State};
use roce::wire::{Aeth, Error, Ext, NakCode, Opcode, Operation as O, Packet, Syndrome};
use std::sync::Arc;
use verbs::{RemoteKey, Status};

const FULL: &[u8] = &[7; MTU];
const WHOLE: u32 = MTU as u32;
const FLUSHED: Status = Status::WorkRequestFlushed;

/// Makes a server with the receives 1 and 2.
fn server() -> Server {
    let mut server = Server::new(4);
    server.recv(1, 4096, 4096);
    server.recv(2, 4096, 4096);
    server
}

/// Makes a server that has received the first packet of a SEND, or of a WRITE of `len` bytes.
fn within(write: Option<u32>) -> Server {
    let mut server = server();
    let (operation, ext) = match write {
        Some(len) => (O::WriteFirst, reth(ALL, 1024, len)),
        None => (O::SendFirst, Ext::None),
    };
    server.request(0, operation, ext, FULL);
    assert_eq!(server.answers(), [ack(0, 0)]);
    server
}

fn invalid(n: u32) -> responder::Response {
    nak(n, 0, NakCode::InvalidRequest)
}

const NONE_IN_USE: [(u64, Status); 2] = [(1, FLUSHED), (2, FLUSHED)];
const IN_USE: [(u64, Status); 2] = [(1, Status::RemoteInvalidRequest), (2, FLUSHED)];

#[test]
fn a_gap_is_reported_once() {
    let mut server = Server::new(4);
    server.request(0, O::WriteOnly, reth(ALL, 0, 4), b"one.");
    assert_eq!(server.answers(), [ack(0, 1)]);
    for n in [2, 3, 5, 2] {
        server.request(n, O::WriteOnly, reth(ALL, 100, 4), b"lost");
    }
    assert_eq!(server.answers(), [nak(1, 1, NakCode::PsnSequenceError)]);
    server.request(7, O::WriteOnly, reth(ALL, 100, 4), b"lost");
    assert!(server.answers().is_empty());
    // The missing packets are still acknowledged.
    server.request(0, O::WriteOnly, reth(ALL, 0, 4), b"one.");
    assert_eq!(server.answers(), [ack(0, 1)]);
    server.request(1, O::WriteOnly, reth(ALL, 4, 4), b"two.");
    assert_eq!(server.answers(), [ack(1, 2)]);
    // The next gap is another one.
    server.request(4, O::WriteOnly, reth(ALL, 100, 4), b"lost");
    assert_eq!(server.answers(), [nak(2, 2, NakCode::PsnSequenceError)]);
    assert_eq!((server.get(0, 8), server.get(100, 4)), (b"one.two.".to_vec(), vec![0; 4]));
    // The first gap counts twice: its second packet arrived again, so the peer had gone back.
    assert_eq!((server.counters.tx_naks, server.counters.rx_out_of_sequence), (3, 6));
    assert_eq!(server.qp.state(), State::ReadyToSend);
}

#[test]
fn no_receive() {
    let mut server = Server::new(4);
    let asks = [
        (O::SendOnly, Ext::None),
        (O::SendOnlyImm, Ext::Imm(9)),
        (O::SendOnlyInvalidate, Ext::Invalidate(ALL)),
        (O::WriteOnlyImm, reth_imm(ALL, 0, 4, 9)),
    ];
    for (operation, ext) in asks {
        server.request(0, operation, ext, b"data");
        // The next packets wait as well.
        server.request(1, O::WriteOnly, reth(ALL, 100, 4), b"next");
        assert_eq!(server.answers(), [rnr(0, 0)], "{operation:?}");
    }
    assert_eq!(server.get(0, 200), [0; 200]);
    server.recv(1, 64, 4);
    server.request(0, O::SendOnlyImm, Ext::Imm(9), b"data");
    assert_eq!(server.answers(), [ack(0, 1)]);
    assert_eq!((server.get(64, 4), server.log.recvs[0].imm), (b"data".to_vec(), Some(9)));
    assert_eq!((server.counters.tx_rnr_naks, server.qp.state()), (4, State::ReadyToSend));
    // The immediate data of a longer WRITE needs a receive only at its end.
    server.request(1, O::WriteFirst, reth(ALL, 1024, WHOLE + 1), FULL);
    server.request(2, O::WriteLastImm, Ext::Imm(5), b"x");
    assert_eq!(server.answers(), [rnr(2, 1)]);
    server.recv(2, 0, 0);
    server.request(2, O::WriteLastImm, Ext::Imm(5), b"x");
    assert_eq!(server.answers(), [ack(2, 2)]);
    assert_eq!((server.log.recvs[1].byte_len, server.log.recvs[1].imm), (WHOLE + 1, Some(5)));
}

#[test]
fn operations_out_of_sequence() {
    let sends = [
        (O::SendMiddle, Ext::None, FULL),
        (O::SendLast, Ext::None, FULL),
        (O::SendLastImm, Ext::Imm(1), FULL),
        (O::SendLastInvalidate, Ext::Invalidate(ALL), FULL),
    ];
    let writes = [
        (O::WriteMiddle, Ext::None, FULL),
        (O::WriteLast, Ext::None, FULL),
        (O::WriteLastImm, Ext::Imm(1), FULL),
    ];
    for ask in sends.into_iter().chain(writes) {
        server().refuses(0, ask, &invalid(0), &NONE_IN_USE);
    }
    let starts = [
        (O::SendFirst, Ext::None, FULL),
        (O::SendOnly, Ext::None, FULL),
        (O::SendOnlyImm, Ext::Imm(1), FULL),
        (O::SendOnlyInvalidate, Ext::Invalidate(ALL), FULL),
        (O::WriteFirst, reth(ALL, 0, 2 * WHOLE), FULL),
        (O::WriteOnly, reth(ALL, 0, WHOLE), FULL),
        (O::WriteOnlyImm, reth_imm(ALL, 0, WHOLE, 1), FULL),
        (O::ReadRequest, reth(ALL, 0, WHOLE), &[]),
        (O::FetchAdd, atomic(ALL, 0, 1, 0), &[]),
        (O::CompareSwap, atomic(ALL, 0, 1, 0), &[]),
    ];
    // A SEND has a receive in use, a WRITE has not.
    for ask in starts.into_iter().chain(writes) {
        within(None).refuses(1, ask, &invalid(1), &IN_USE);
    }
    for ask in starts.into_iter().chain(sends) {
        within(Some(3 * WHOLE)).refuses(1, ask, &invalid(1), &NONE_IN_USE);
    }
}

#[test]
fn operations_that_are_no_requests() {
    // Reserved operations do not reach the responder.
    for byte in [21u8, 24, 31] {
        let mut bytes = [0; 64];
        bytes[0] = byte;
        assert_eq!((Opcode::from_byte(byte), Packet::parse(&bytes)), (None, Err(Error::Opcode(byte))));
    }
    // Responses go to the requester, which has requested nothing.
    let mut server = server();
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0 };
    for operation in [O::ReadResponseOnly, O::ReadResponseFirst, O::Acknowledge] {
        server.request(0, operation, Ext::Aeth(aeth), FULL);
    }
    server.request(0, O::ReadResponseMiddle, Ext::None, FULL);
    server.request(0, O::AtomicAcknowledge, Ext::AtomicAck(aeth, 1), &[]);
    assert!(server.answers().is_empty() && server.log.recvs.is_empty());
    assert_eq!((server.counters.rx_stale_responses, server.qp.state()), (5, State::ReadyToSend));
}

#[test]
fn lengths_of_packets() {
    let long = &[1; MTU + 1][..];
    // A first or middle packet is full.
    for payload in [&[][..], &FULL[1..], long] {
        server().refuses(0, (O::SendFirst, Ext::None, payload), &invalid(0), &NONE_IN_USE);
        let first = (O::WriteFirst, reth(ALL, 0, 3 * WHOLE), payload);
        server().refuses(0, first, &invalid(0), &NONE_IN_USE);
        within(None).refuses(1, (O::SendMiddle, Ext::None, payload), &invalid(1), &IN_USE);
        within(Some(3 * WHOLE)).refuses(1, (O::WriteMiddle, Ext::None, payload), &invalid(1), &NONE_IN_USE);
    }
    // A last packet is not empty.
    for payload in [&[][..], long] {
        let invalidate = (O::SendLastInvalidate, Ext::Invalidate(ALL), payload);
        for ask in [(O::SendLast, Ext::None, payload), (O::SendLastImm, Ext::Imm(1), payload), invalidate] {
            within(None).refuses(1, ask, &invalid(1), &IN_USE);
        }
        for ask in [(O::WriteLast, Ext::None, payload), (O::WriteLastImm, Ext::Imm(1), payload)] {
            within(Some(2 * WHOLE + 1)).refuses(1, ask, &invalid(1), &NONE_IN_USE);
        }
    }
    // An only packet is not longer than the MTU.
    for (operation, ext) in [
        (O::SendOnly, Ext::None),
        (O::SendOnlyImm, Ext::Imm(1)),
        (O::SendOnlyInvalidate, Ext::Invalidate(ALL)),
        (O::WriteOnly, reth(ALL, 0, WHOLE + 1)),
        (O::WriteOnlyImm, reth_imm(ALL, 0, WHOLE + 1, 1)),
    ] {
        server().refuses(0, (operation, ext, long), &invalid(0), &NONE_IN_USE);
    }
}

#[test]
fn a_write_keeps_to_its_length() {
    for len in [0, 3, 5, WHOLE] {
        server().refuses(0, (O::WriteOnly, reth(ALL, 0, len), b"four"), &invalid(0), &NONE_IN_USE);
    }
    // The first packet already contains the whole message, or more.
    for len in [0, 1, WHOLE] {
        server().refuses(0, (O::WriteFirst, reth(ALL, 0, len), FULL), &invalid(0), &NONE_IN_USE);
    }
    // A message that ends early or late, or continues after its end.
    for (operation, len, payload) in [
        (O::WriteLast, 3 * WHOLE, FULL),
        (O::WriteLast, WHOLE + 5, &FULL[..4]),
        (O::WriteLast, WHOLE + 5, &FULL[..6]),
        (O::WriteMiddle, 2 * WHOLE, FULL),
        (O::WriteMiddle, WHOLE + 1, FULL),
    ] {
        within(Some(len)).refuses(1, (operation, Ext::None, payload), &invalid(1), &NONE_IN_USE);
    }
}

#[test]
fn lengths_of_messages() {
    for len in [(1 << 31) + 1, u32::MAX] {
        server().refuses(0, (O::ReadRequest, reth(ALL, 0, len), &[]), &invalid(0), &NONE_IN_USE);
        server().refuses(0, (O::WriteFirst, reth(ALL, 0, len), FULL), &invalid(0), &NONE_IN_USE);
    }
}

#[test]
fn a_send_too_long() {
    let ended = [(1, Status::LocalLengthError), (2, FLUSHED)];
    for (first, len) in [(false, 3), (true, WHOLE + 3)] {
        let mut server = Server::new(4);
        server.recv(1, 4096, len);
        server.recv(2, 4096, 4096);
        if first {
            server.request(0, O::SendFirst, Ext::None, FULL);
            assert_eq!(server.answers(), [ack(0, 0)]);
        }
        let operation = if first { O::SendLast } else { O::SendOnly };
        let n = u32::from(first);
        server.refuses(n, (operation, Ext::None, b"four"), &invalid(n), &ended);
        assert_eq!(server.counters.invalid_requests, 1);
    }
}

#[test]
fn a_misaligned_atomic() {
    for offset in 1..8 {
        for operation in [O::FetchAdd, O::CompareSwap] {
            let ask = (operation, atomic(ALL, offset, 1, 0), &[][..]);
            server().refuses(0, ask, &invalid(0), &NONE_IN_USE);
        }
    }
}

#[test]
fn too_many_reads() {
    let read = reth(ALL, 0, 4);
    for limit in [0u8, 1, 4, 16] {
        let mut server = Server::new(limit);
        let n = u32::from(limit);
        // As many as it holds, none answered, and one more.
        for i in 0..n {
            let (operation, ext) =
                if i % 2 == 0 { (O::ReadRequest, read) } else { (O::FetchAdd, atomic(ALL, 0, 1, 0)) };
            server.request(i, operation, ext, &[]);
        }
        server.request(n, O::ReadRequest, read, &[]);
        let answers = server.answers();
        assert_eq!(answers.len(), usize::from(limit) + 1, "what was accepted is answered");
        assert_eq!(answers.last(), Some(&nak(n, n, NakCode::InvalidRequest)));
        assert_eq!((server.qp.state(), server.counters.invalid_requests), (State::Error, 1));
        if limit > 0 {
            // If they are answered in time, any number is allowed.
            let mut server = Server::new(limit);
            for i in 0..100 {
                server.request(i, O::ReadRequest, read, &[]);
                assert_eq!(server.answers().len(), 1);
            }
        }
    }
}

/// Adds keys to 1024 bytes from 1024: key 1 to read, 2 to write, 3 for atomics.
fn add_keys(server: &Server) {
    let add = |key, right| {
        let (key, rights) = (RemoteKey(key), vec![right]);
        let key = Key { key, addr: BASE + 1024, len: 1024, rights, can_go: true };
        server.keys.table.borrow_mut().push(key);
    };
    add(1, Right::Read);
    add(2, Right::Write);
    add(3, Right::Atomic);
}

#[test]
fn access() {
    let (mut allowed, mut refused) = (0, 0);
    for (key, right) in [(1, Some(Right::Read)), (2, Some(Right::Write)), (3, Some(Right::Atomic)), (4, None)]
    {
        let key = RemoteKey(key);
        // Inside; across each end; elsewhere; across the end of the address space.
        for offset in [1024, 2048 - 256, 2048, 1016, MEMORY, 0, 0u64.wrapping_sub(BASE + 8)] {
            let asks = [
                (Right::Read, O::ReadRequest, reth(key, offset, 264), &[][..]),
                (Right::Write, O::WriteOnly, reth(key, offset, 8), &FULL[..8]),
                (Right::Write, O::WriteOnlyImm, reth_imm(key, offset, 8, 1), &FULL[..8]),
                (Right::Write, O::WriteFirst, reth(key, offset, WHOLE + 8), FULL),
                (Right::Atomic, O::FetchAdd, atomic(key, offset, 1, 0), &[]),
                (Right::Atomic, O::CompareSwap, atomic(key, offset, 1, 0), &[]),
            ];
            for (wanted, operation, ext, payload) in asks {
                let len = match ext {
                    Ext::Reth(reth) | Ext::RethImm(reth, _) => u64::from(reth.len),
                    _ => 8,
                };
                let inside = (1024..=2048 - len).contains(&offset);
                let mut server = server();
                add_keys(&server);
                if right == Some(wanted) && inside {
                    server.request(0, operation, ext, payload);
                    assert_eq!(server.qp.state(), State::ReadyToSend, "{operation:?} {ext:?}");
                    assert!(!server.answers().is_empty());
                    allowed += 1;
                } else {
                    let answer = nak(0, 0, NakCode::RemoteAccessError);
                    server.refuses(0, (operation, ext, payload), &answer, &NONE_IN_USE);
                    assert_eq!(server.counters.access_errors, 1);
                    refused += 1;
                }
            }
        }
    }
    assert!(allowed == 10 && refused > 100, "{allowed} {refused}");
    // A length of zero needs no key.
    for operation in [O::ReadRequest, O::WriteOnly] {
        let mut server = server();
        server.request(0, operation, reth(RemoteKey(9), MEMORY, 0), &[]);
        assert_eq!((server.answers().len(), server.qp.state()), (1, State::ReadyToSend));
    }
}

fn lose(server: &Server, key: u32) {
    server.keys.table.borrow_mut().retain(|k| k.key != RemoteKey(key));
}

#[test]
fn a_key_lost_in_mid_write() {
    let mut server = server();
    add_keys(&server);
    server.request(0, O::WriteFirst, reth(RemoteKey(2), 1024, 3 * WHOLE), FULL);
    assert_eq!(server.answers(), [ack(0, 0)]);
    lose(&server, 2);
    let answer = nak(1, 0, NakCode::RemoteAccessError);
    server.refuses(1, (O::WriteMiddle, Ext::None, FULL), &answer, &NONE_IN_USE);
}

#[test]
fn a_key_lost_in_mid_read() {
    let mut server = server();
    add_keys(&server);
    server.put(1024, &pattern(1024, 3));
    server.request(0, O::ReadRequest, reth(RemoteKey(1), 1024, 1024), &[]);
    server.request(4, O::ReadRequest, reth(RemoteKey(1), 1024, 4), &[]);
    let first = server.answer().unwrap();
    assert_eq!((first.operation, first.payload), (O::ReadResponseFirst, pattern(1024, 3)[..MTU].to_vec()));
    lose(&server, 1);
    // The refusal replaces the second packet.
    let refusal = nak(1, 2, NakCode::RemoteAccessError);
    assert_eq!(server.answers(), std::slice::from_ref(&refusal));
    assert_eq!((server.qp.state(), server.counters.access_errors), (State::Error, 1));
    assert_eq!(server.ended(), NONE_IN_USE);
    // The peer repeats its whole request, the missing part, or the other request.
    for (n, times) in [(0, 1), (1, 1), (2, 0), (4, 0)] {
        server.request(n, O::ReadRequest, reth(RemoteKey(1), 1024 + 256 * u64::from(n), 4), &[]);
        assert_eq!(server.answers(), vec![refusal.clone(); times], "{n}");
    }
}

#[test]
fn invalidate_refused() {
    for named in [ALL, RemoteKey(77)] {
        let mut server = server();
        server.request(0, O::SendOnlyInvalidate, Ext::Invalidate(named), b"go away");
        assert_eq!(server.answers(), [nak(0, 0, NakCode::RemoteAccessError)]);
        assert_eq!(server.ended(), IN_USE);
        assert_eq!(server.log.recvs[0].invalidated, None);
        assert_eq!((server.qp.state(), server.counters.access_errors), (State::Error, 1));
        assert_eq!(server.keys.table.borrow().len(), 1, "the key is as good as before");
    }
}

#[test]
fn invalidate() {
    let mut server = server();
    add_keys(&server);
    server.request(0, O::SendOnlyInvalidate, Ext::Invalidate(RemoteKey(1)), b"go away");
    assert_eq!(server.answers(), [ack(0, 1)]);
    server.request(1, O::SendFirst, Ext::None, FULL);
    // Repetitions are acknowledged, and need no key.
    for _ in 0..3 {
        server.request(2, O::SendLastInvalidate, Ext::Invalidate(RemoteKey(2)), b"and you");
        assert_eq!(server.answers(), [ack(2, 2)]);
    }
    let got: Vec<_> = server.log.recvs.iter().map(|c| (c.status, c.byte_len, c.invalidated, c.imm)).collect();
    let first = (Status::Success, 7, Some(RemoteKey(1)), None);
    let second = (Status::Success, WHOLE + 7, Some(RemoteKey(2)), None);
    assert_eq!(got, [first, second]);
    assert_eq!(server.get(4096 + 256, 7), b"and you");
    server.log.recvs.clear();
    let ask = (O::ReadRequest, reth(RemoteKey(1), 1024, 4), &[][..]);
    server.refuses(3, ask, &nak(3, 2, NakCode::RemoteAccessError), &[]);
}

#[test]
fn a_receive_without_memory() {
    let mut server = server();
    server.memory = Arc::new(Arena::new(IoAddr(BASE + (1 << 30)), 4096));
    server.request(0, O::SendOnly, Ext::None, b"four");
    assert_eq!(server.answers(), [nak(0, 0, NakCode::RemoteOperationalError)]);
    assert_eq!(server.ended(), [(1, Status::LocalProtectionError), (2, FLUSHED)]);
    assert_eq!((server.qp.state(), server.counters.operation_errors), (State::Error, 1));
}

#[test]
fn what_was_done_before_a_refusal_is_answered_before_it() {
    let mut server = Server::new(4);
    server.put(0, &9u64.to_ne_bytes());
    server.request(0, O::FetchAdd, atomic(ALL, 0, 1, 0), &[]);
    server.request(1, O::WriteOnly, reth(ALL, 64, 4), b"done");
    server.request(2, O::WriteOnly, reth(RemoteKey(5), 64, 4), b"evil");
    let answers = server.answers();
    assert_eq!((answers[0].before, answers[0].psn), (Some(9), psn(0)));
    assert_eq!(answers[1..], [nak(2, 2, NakCode::RemoteAccessError)]);
    assert_eq!((server.word(0), server.get(64, 4)), (10, b"done".to_vec()));
}
