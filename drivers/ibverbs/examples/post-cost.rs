//! Posts inline WRITEs of 64 bytes to itself, one at a time, and polls their completions, so that another
//! tool can count the instructions: `cargo xtask bench post` runs it in a Linux guest under callgrind.
//!
//! The arguments are the address of the port, and the number of WRITEs.
#![allow(clippy::unwrap_used, reason = "a test program may fail")]

use ibverbs::Options;
use platform::Memory as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use verbs::{
    AddressVector, Completion, CqOptions, LinkKind, Payload, Psn, QpConnect, QpOptions, RemoteAddr,
    Rnic as _, SendOp, SendWr, Status, WrId,
};

/// The maximum number of WRITEs in flight.
const ROUND: usize = 16;
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(count)) =
        (args.next().and_then(|a| a.parse().ok()), args.next().and_then(|n| n.parse::<usize>().ok()))
    else {
        eprintln!("usage: post-cost ADDRESS COUNT");
        return ExitCode::from(2);
    };
    let opened = match ibverbs::open(&Options { address: Some(address), ..Options::new(1 << 20) }) {
        Ok(opened) => opened,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (rnic, arena) = (opened.rnic, opened.arena);
    let cq = rnic.create_cq(CqOptions { depth: 2 * ROUND as u32 }).unwrap();
    let depth = ROUND as u32;
    let qp =
        rnic.create_qp(QpOptions { send_cq: cq, recv_cq: cq, send_depth: depth, recv_depth: depth }).unwrap();
    let attributes = rnic.attributes();
    let address = AddressVector {
        link: LinkKind::RoceV2,
        peer: attributes.port,
        traffic_class: 0,
        hop_limit: 64,
        service_level: 0,
    };
    let connect = QpConnect {
        address,
        remote_qp: qp,
        send_psn: Psn::new(0),
        recv_psn: Psn::new(0),
        mtu: attributes.max_mtu,
        max_rd_atomic: 1,
        ack_timeout: Duration::from_secs(1),
        retries: 7,
        rnr_retries: 7,
        min_rnr_delay: Duration::from_millis(1),
    };
    rnic.connect_qp(qp, &connect).unwrap();
    let remote = RemoteAddr { addr: arena.range().0, key: rnic.memory_key().rkey };
    let op = SendOp::Write { data: Payload::Inline(&[7; 64]), remote, imm: None };
    let started = Instant::now();
    for n in 0..count / ROUND {
        for i in 0..ROUND {
            let id = WrId((n * ROUND + i) as u64);
            let wr = SendWr { id, op, signaled: true, solicited: false, fence: false };
            rnic.post_send(qp, &[wr]).unwrap();
        }
        // All of them have completed when it polls.
        std::thread::sleep(Duration::from_millis(20));
        let (mut out, mut taken) = ([Completion::BLANK; ROUND], 0);
        while taken < ROUND {
            let more = rnic.poll_cq(cq, &mut out);
            assert!(out.iter().take(more).all(|c| c.status == Status::Success), "{out:?}");
            assert!(started.elapsed() < LIMIT, "{taken} of {ROUND} completions have come");
            taken += more;
            if more == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    println!("{} WRITEs", count / ROUND * ROUND);
    ExitCode::SUCCESS
}
