//! The time until lost packets are repeated, and the number of repetitions.

use crate::common::{Options, Pair, pattern};
use platform::Instant;
use std::time::Duration;
use verbs::{PathMtu, Payload, SendOp, Sge, Status};

const MS: u64 = 1_000_000;

fn patient() -> Pair {
    let ack_timeout = Duration::from_millis(30);
    Pair::new(&Options { ack_timeout, mtu: PathMtu::B4096, ..Options::default() })
}

fn write(pair: &Pair, id: u64) {
    let remote = pair.nodes[1].remote(8 * id);
    pair.nodes[0].send(id, SendOp::Write { data: Payload::Inline(&id.to_ne_bytes()), remote, imm: None });
}

/// Returns the time until the work in flight completes successfully, in nanoseconds.
fn time_to_complete(pair: &Pair) -> u64 {
    let start = pair.now();
    let ended = pair.finish(0);
    assert!(!ended.is_empty() && ended.iter().all(|c| c.status == Status::Success), "{ended:?}");
    pair.now() - start
}

#[test]
fn a_lost_last_packet_costs_a_probe_and_no_timeout() {
    let pair = patient();
    let [a, b] = &pair.nodes;
    // The first time the round trip is unknown, later it is known.
    for (id, within) in [(1, 3 * MS), (2, MS)] {
        write(&pair, 10 + id);
        pair.wire.lock().unwrap().cut = id == 1;
        pair.settle();
        if id == 2 {
            assert_eq!(time_to_complete(&pair), 4_000, "a round trip");
            write(&pair, 20);
            pair.wire.lock().unwrap().cut = true;
            pair.settle();
        }
        pair.wire.lock().unwrap().cut = false;
        let took = time_to_complete(&pair);
        assert!(took < within, "{took} ns");
        assert_eq!((a.counter("probes"), a.counter("timeouts"), a.counter("retransmits")), (id, 0, id));
        assert_eq!(b.word(8 * (10 + id)), 10 + id);
    }
}

#[test]
fn a_lost_acknowledgement_costs_a_packet() {
    let pair = patient();
    let [a, b] = &pair.nodes;
    for id in 0..10 {
        write(&pair, id);
    }
    a.rnic.progress(Instant::from_nanos(pair.now()), 64);
    pair.advance();
    pair.wire.lock().unwrap().cut = true;
    pair.settle();
    pair.wire.lock().unwrap().cut = false;
    assert!(time_to_complete(&pair) < 3 * MS);
    assert_eq!((a.counter("probes"), a.counter("retransmits"), a.counter("timeouts")), (1, 1, 0));
    assert_eq!(b.counter("rx_duplicates"), 1);
}

/// The probe reveals that everything is missing: the rest follows a round trip later, not after another wait.
#[test]
fn a_lost_flight_follows_its_probe() {
    let pair = patient();
    let [a, b] = &pair.nodes;
    write(&pair, 0);
    assert_eq!(time_to_complete(&pair), 4_000);
    let data = pattern(12 * 4096, 3);
    a.put(0x10_0000, &data);
    let list = [Sge { addr: a.at(0x10_0000), len: 12 * 4096 }];
    pair.wire.lock().unwrap().cut = true;
    a.send(1, SendOp::Write { data: Payload::Gather(&list), remote: b.remote(0x20_0000), imm: None });
    pair.settle();
    pair.wire.lock().unwrap().cut = false;
    assert!(time_to_complete(&pair) < MS);
    assert_eq!((a.counter("probes"), a.counter("retransmits"), a.counter("timeouts")), (1, 12, 0));
    assert!(b.get(0x20_0000, 12 * 4096) == data);
}

#[test]
fn a_lost_answer_to_a_read_is_asked_for_again_from_where_it_stopped() {
    let data = pattern(64 << 10, 9);
    for lost in [1, 7, 16] {
        let pair = patient();
        let [a, b] = &pair.nodes;
        b.put(0, &data);
        let into = [Sge { addr: a.at(0), len: 64 << 10 }];
        a.send(1, SendOp::Read { into: &into, remote: b.remote(0) });
        let now = || Instant::from_nanos(pair.now());
        a.rnic.progress(now(), 64);
        pair.advance();
        // The responder sends one packet per call; one of them is lost.
        for packet in 1..=16 {
            pair.wire.lock().unwrap().cut = packet == lost;
            b.rnic.progress(now(), 1);
        }
        pair.wire.lock().unwrap().cut = false;
        assert!(time_to_complete(&pair) < 3 * MS);
        assert!(a.get(0, 64 << 10) == data);
        assert_eq!(a.counter("probes"), u64::from(lost == 16), "of {lost}: nothing follows the last");
        assert_eq!(a.counter("timeouts"), 0);
        assert!(a.counter("retransmits") <= 4, "the requests from the gap on");
    }
}

/// A repeated packet is lost again: the packets after it reveal that, without a timer.
#[test]
fn a_packet_lost_twice_is_reported_twice() {
    let pair = patient();
    let [a, b] = &pair.nodes;
    write(&pair, 0);
    assert_eq!(time_to_complete(&pair), 4_000);
    let data = pattern(12 * 4096, 3);
    a.put(0x10_0000, &data);
    let list = [Sge { addr: a.at(0x10_0000), len: 12 * 4096 }];
    a.send(1, SendOp::Write { data: Payload::Gather(&list), remote: b.remote(0x20_0000), imm: None });
    for _ in 0..3 {
        // One packet is lost; then the rest, the report, and the repetition.
        pair.wire.lock().unwrap().cut = true;
        a.rnic.progress(Instant::from_nanos(pair.now()), 1);
        pair.wire.lock().unwrap().cut = false;
        pair.settle();
        assert!(pair.advance());
        let reports = b.counter("tx_naks");
        while b.counter("tx_naks") == reports {
            b.rnic.progress(Instant::from_nanos(pair.now()), 64);
        }
        assert!(pair.advance());
    }
    assert!(time_to_complete(&pair) < MS / 10);
    assert_eq!((a.counter("probes"), a.counter("timeouts"), a.counter("rx_naks")), (0, 0, 3));
    assert_eq!((a.counter("retransmits"), b.counter("tx_naks")), (36, 3));
    assert!(b.get(0x20_0000, 12 * 4096) == data);
}
