//! Measures the software RNIC at native speed: two of them back to back in one thread, so that a figure is
//! the cost of both ends together, including the ICRC on both sides. Run with
//! `cargo run --release -p softroce --example native_speed`.

#[path = "../tests/it/common/back_to_back.rs"]
mod back_to_back;

use back_to_back::{Node, Pair};
use platform::{Instant, Memory};
use std::time::{self, Duration};
use verbs::{Completion, PathMtu, Payload, Psn, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, WrId};

fn main() {
    let pair = Pair {
        lose_every: 0,
        depth: 128,
        mtu: PathMtu::B4096,
        first_psn: Psn::new(0),
        ack_timeout: Duration::from_millis(100),
        rnr_delay: Duration::from_millis(1),
    };
    let nodes = pair.nodes();
    let (here, there) = (nodes[0].memory.range().0, nodes[1].memory.range().0);
    let remote = RemoteAddr { addr: there, key: nodes[1].rnic.memory_key().rkey };
    println!("{:<34} {:>10} {:>8}", "both ends, one thread", "ns each", "GB/s");
    for (name, len, depth) in [
        ("WRITE, one at a time", 8, 1),
        ("WRITE, one at a time", 64, 1),
        ("WRITE, 64 in flight", 64, 64),
        ("WRITE, 64 in flight", 1024, 64),
        ("WRITE, 64 in flight", 4096, 64),
        ("WRITE, 16 in flight", 65536, 16),
    ] {
        let list = [Sge { addr: here, len }];
        let op = SendOp::Write { data: Payload::Gather(&list), remote, imm: None };
        report(name, len, run(&nodes, op, depth));
    }
    for (name, len, depth) in
        [("READ, one at a time", 64, 1), ("READ, 16 in flight", 4096, 16), ("READ, 16 in flight", 65536, 16)]
    {
        let list = [Sge { addr: here, len }];
        report(name, len, run(&nodes, SendOp::Read { into: &list, remote }, depth));
    }
    let add = SendOp::FetchAdd { result: here, remote, add: 1 };
    report("FETCH_ADD, one at a time", 8, run(&nodes, add, 1));
}

fn report(name: &str, len: u32, each: f64) {
    println!("{name:<26} {len:>5} B {each:>10.1} {:>8.2}", f64::from(len) / each);
}

/// Returns nanoseconds per operation, with `depth` in flight: the best of 60 runs of 2 ms, so that other load
/// on the host has less effect.
fn run(nodes: &[Node; 2], op: SendOp<'_>, depth: usize) -> f64 {
    let [Node { rnic: a, cq, qp, .. }, Node { rnic: b, .. }] = nodes;
    let wr = SendWr { id: WrId(0), op, signaled: true, solicited: false, fence: false };
    let start = time::Instant::now();
    let mut best = f64::MAX;
    for _ in 0..60 {
        let (mut done, mut posted, began) = (0usize, 0usize, time::Instant::now());
        let elapsed = loop {
            for _ in 0..16 {
                while posted - done < depth {
                    a.post_send(*qp, &[wr]).expect("room for the work");
                    posted += 1;
                }
                let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
                a.progress(now, 64);
                b.progress(now, 64);
                let mut out = [Completion::BLANK; 64];
                let n = a.poll_cq(*cq, &mut out);
                assert!(out[..n].iter().all(|c| c.status == Status::Success), "{:?}", out[0]);
                done += n;
            }
            let elapsed = began.elapsed();
            if elapsed > Duration::from_millis(2) {
                break elapsed;
            }
        };
        best = best.min(elapsed.as_nanos() as f64 / done as f64);
        // Everything in flight completes before the next run.
        while posted > done {
            let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
            a.progress(now, 64);
            b.progress(now, 64);
            done += a.poll_cq(*cq, &mut [Completion::BLANK; 64]);
        }
    }
    best
}
