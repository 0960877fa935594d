//! The data path allocates nothing, neither in `softroce` nor in the transport of `roce`, from posting to the
//! completion, also when packets are lost and repeated.

#[path = "common/back_to_back.rs"]
mod back_to_back;

use back_to_back::{Node, Pair};
use platform::{Instant, IoAddr, Memory};
use std::time::Duration;
use verbs::{Completion, PathMtu, Payload, Psn, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, WrId};

/// Does work of each kind, small and large, `rounds` times, and returns the number of completions.
fn work(nodes: &[Node; 2], now: &mut u64, rounds: u64) -> usize {
    let [a, b] = nodes;
    let (base, key) = (a.memory.range().0, b.rnic.memory_key().rkey);
    let at = |offset: u64| IoAddr(base.0 + offset);
    let remote = |offset| RemoteAddr { addr: at(offset), key };
    let small = [Sge { addr: base, len: 64 }];
    let large = [Sge { addr: base, len: 20_000 }, Sge { addr: at(40_000), len: 7_777 }];
    let into = [Sge { addr: at(100_000), len: 20_000 }];
    let mut ended = 0;
    for round in 0..rounds {
        let scatter = [Sge { addr: at(200_000), len: 40_000 }];
        let receives = [RecvWr { id: WrId(round), scatter: &scatter }; 3];
        // Sometimes the receives are posted only after the message has arrived.
        let late = round % 4 == 3;
        if !late {
            b.rnic.post_recv(b.qp, &receives).unwrap();
        }
        let gather = |data| SendOp::Write { data, remote: remote(300_000), imm: None };
        let ops = [
            gather(Payload::Gather(&small)),
            gather(Payload::Gather(&large)),
            gather(Payload::Inline(&[7; 100])),
            SendOp::Write { data: Payload::Gather(&small), remote: remote(300_000), imm: Some(1) },
            SendOp::Send { data: Payload::Gather(&small), imm: None },
            SendOp::Send { data: Payload::Gather(&large), imm: Some(2) },
            SendOp::Read { into: &into, remote: remote(500_000) },
            SendOp::FetchAdd { result: at(600_000), remote: remote(700_000), add: 1 },
            SendOp::CompareSwap { result: at(600_000), remote: remote(700_000), compare: 0, swap: 1 },
        ];
        let wanted = ended + ops.len() + receives.len();
        for op in ops {
            let wr = SendWr { id: WrId(round), op, signaled: true, solicited: false, fence: false };
            a.rnic.post_send(a.qp, &[wr]).unwrap();
        }
        let (mut calls, mut posted_late) = (0, !late);
        while ended < wanted {
            *now += 20_000;
            for node in nodes {
                node.rnic.progress(Instant::from_nanos(*now), 64);
                let mut out = [Completion::BLANK; 16];
                let n = node.rnic.poll_cq(node.cq, &mut out);
                assert!(out[..n].iter().all(|c| c.status == Status::Success));
                ended += n;
            }
            calls += 1;
            if calls > 20 && !posted_late {
                b.rnic.post_recv(b.qp, &receives).unwrap();
                posted_late = true;
            }
            assert!(calls < 100_000, "it never ends");
        }
    }
    ended
}

#[test]
fn the_data_path_allocates_nothing() {
    for lose_every in [0, 7] {
        let pair = Pair {
            lose_every,
            depth: 64,
            mtu: PathMtu::B1024,
            first_psn: Psn::new(0xff_fff0),
            ack_timeout: Duration::from_millis(1),
            rnr_delay: Duration::from_micros(100),
        };
        let nodes = pair.nodes();
        let (mut now, mut ended) = (1_000, 0);
        let allocated = allocation_counter::measure(|| ended = work(&nodes, &mut now, 40));
        assert_eq!(ended, 40 * 12);
        assert_eq!(allocated.count_total, 0, "{allocated:?}, losing every {lose_every}");
        // Packets were lost and repeated.
        let count = |wanted| {
            let mut count = 0;
            nodes[0].rnic.counters(&mut |(name, n)| count += if name == wanted { n } else { 0 });
            count
        };
        if lose_every == 0 {
            assert!(count("rx_rnr_naks") > 0 && count("rx_naks") == 0);
        } else {
            assert!(count("rx_naks") > 0 && count("timeouts") > 0);
        }
    }
    // The counter does count allocations.
    assert_eq!(allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 10]))).count_total, 1);
}
