//! The cost of single operations between two software RNICs back to back in one thread: both ends together,
//! from posting to the polled completion, with whole frames and their ICRC.
//!
//! `cargo bench -p softroce --bench operations` prints nanoseconds, the best of many short runs.
//! `-- --count OPERATION COUNT` does that many operations, under a tool that counts instructions, and prints
//! the number of frames and doorbells of both ends: `cargo xtask bench instructions` and `cargo xtask bench
//! guard` compare the counts with those of their tables.
//!
//! The time of the RNICs is a counter, so that the instructions do not depend on the machine's speed.
#![allow(clippy::unwrap_used, reason = "a benchmark may fail")]

#[path = "../tests/it/common/back_to_back.rs"]
mod back_to_back;

use back_to_back::{Node, Pair};
use platform::{Instant, Memory};
use std::process::ExitCode;
use std::time::{self, Duration};
use verbs::{Completion, PathMtu, Payload, Psn, RecvWr, RemoteAddr, Rnic, SendOp, SendWr, Sge, Status, WrId};

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Send,
    FetchAdd,
}

/// An operation that is measured.
struct Operation {
    name: &'static str,
    kind: Kind,
    bytes: u32,
    mtu: PathMtu,
    /// The number of operations that are posted together.
    at_once: u32,
}

const OPERATIONS: [Operation; 8] = [
    Operation { name: "write-8", kind: Kind::Write, bytes: 8, mtu: PathMtu::B4096, at_once: 1 },
    Operation { name: "write-8-by-16", kind: Kind::Write, bytes: 8, mtu: PathMtu::B4096, at_once: 16 },
    Operation { name: "write-64k", kind: Kind::Write, bytes: 1 << 16, mtu: PathMtu::B4096, at_once: 1 },
    Operation {
        name: "write-64k-mtu-1024",
        kind: Kind::Write,
        bytes: 1 << 16,
        mtu: PathMtu::B1024,
        at_once: 1,
    },
    Operation { name: "read-8", kind: Kind::Read, bytes: 8, mtu: PathMtu::B4096, at_once: 1 },
    Operation { name: "read-64k", kind: Kind::Read, bytes: 1 << 16, mtu: PathMtu::B4096, at_once: 1 },
    Operation { name: "send-8", kind: Kind::Send, bytes: 8, mtu: PathMtu::B4096, at_once: 1 },
    Operation { name: "fetch-add", kind: Kind::FetchAdd, bytes: 8, mtu: PathMtu::B4096, at_once: 1 },
];

/// Two connected nodes.
struct Lab {
    nodes: [Node; 2],
    /// The time of their RNICs.
    nanoseconds: u64,
    /// Room for polled completions.
    polled: [Completion; 16],
}

impl Lab {
    fn new(mtu: PathMtu) -> Self {
        let pair = Pair {
            lose_every: 0,
            depth: 128,
            mtu,
            first_psn: Psn::new(0),
            ack_timeout: Duration::from_millis(100),
            rnr_delay: Duration::from_millis(1),
        };
        Self { nodes: pair.nodes(), nanoseconds: 0, polled: [Completion::BLANK; 16] }
    }

    /// Does `count` operations, as many at once as the operation says, and returns when all are complete.
    fn run(&mut self, operation: &Operation, count: u32) {
        let [a, b] = &self.nodes;
        let here = [Sge { addr: a.memory.range().0, len: operation.bytes }];
        let there = [Sge { addr: b.memory.range().0, len: operation.bytes }];
        let remote = RemoteAddr { addr: there[0].addr, key: b.rnic.memory_key().rkey };
        let data = Payload::Gather(&here);
        let op = match operation.kind {
            Kind::Write => SendOp::Write { data, remote, imm: None },
            Kind::Read => SendOp::Read { into: &here, remote },
            Kind::Send => SendOp::Send { data, imm: None },
            Kind::FetchAdd => SendOp::FetchAdd { result: here[0].addr, remote, add: 1 },
        };
        let wr = SendWr { id: WrId(0), op, signaled: true, solicited: false, fence: false };
        let recv = RecvWr { id: WrId(0), scatter: &there };
        let mut left = count;
        while left > 0 {
            let now = left.min(operation.at_once);
            let [a, b] = &self.nodes;
            for _ in 0..now {
                if operation.kind == Kind::Send {
                    b.rnic.post_recv(b.qp, &[recv]).unwrap();
                }
                a.rnic.post_send(a.qp, &[wr]).unwrap();
            }
            self.progress(0);
            let received = if operation.kind == Kind::Send { now } else { 0 };
            let mut waiting = [now, received];
            while waiting != [0, 0] {
                // The peer acknowledges in the call after that in which it receives.
                for side in [1, 1, 0] {
                    waiting[side] -= self.progress(side);
                }
            }
            left -= now;
        }
    }

    /// Lets a node work, and returns the number of completions that it has polled.
    fn progress(&mut self, side: usize) -> u32 {
        let node = &self.nodes[side];
        self.nanoseconds += 1000;
        node.rnic.progress(Instant::from_nanos(self.nanoseconds), 64);
        let n = node.rnic.poll_cq(node.cq, &mut self.polled);
        assert!(self.polled[..n].iter().all(|completion| completion.status == Status::Success));
        n as u32
    }
}

/// Prints the nanoseconds of each operation.
fn time_all() {
    const RUNS: u32 = 200;
    println!("{:<20} {:>10}", "both ends, one thread", "ns each");
    for operation in &OPERATIONS {
        let mut lab = Lab::new(operation.mtu);
        let count = if operation.bytes > 8 { 64 } else { 1024 };
        let mut best = u128::MAX;
        for _ in 0..RUNS {
            let begun = time::Instant::now();
            lab.run(operation, count);
            best = best.min(begun.elapsed().as_nanos());
        }
        println!("{:<20} {:>10.1}", operation.name, best as f64 / f64::from(count));
    }
}

fn run() -> Result<(), String> {
    // Cargo passes `--bench` to every benchmark.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => time_all(),
        ["--count", name, count] => {
            let operation = OPERATIONS.iter().find(|operation| operation.name == name);
            let operation = operation.ok_or_else(|| format!("there is no operation {name}"))?;
            let count = count.parse().map_err(|_| format!("`{count}` is not a number"))?;
            let mut lab = Lab::new(operation.mtu);
            lab.run(operation, count);
            let [here, there] = lab.nodes.each_ref().map(Node::sent);
            println!("wire: {} frames, {} doorbells", here.0 + there.0, here.1 + there.1);
        }
        _ => return Err("there is only --count OPERATION COUNT".to_owned()),
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
