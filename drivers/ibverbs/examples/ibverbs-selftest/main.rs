//! Tests every verb with a real device, by queue pairs of this process that are connected to each other. Run
//! it where there is an RDMA device, as `cargo xtask test` does in a Linux guest with `rdma_rxe`.
//!
//! Prints a line per check and exits with status 0 if all succeed. `--address IP` or `--device NAME` chooses
//! the port.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test program may fail")]

mod checks;
mod failures;
mod lab;

use ibverbs::Options;
use lab::Lab;
use std::process::ExitCode;

const ARENA_BYTES: u64 = 16 << 20;

type Check = (&'static str, fn(&Lab));

const CHECKS: [Check; 18] = [
    ("attributes are those of the port", checks::attributes),
    ("all verbs, all sizes", checks::all_verbs),
    ("a queue pair connected to itself", checks::self_connected),
    ("gathered and scattered lists", checks::lists),
    ("inline payloads up to the limit", checks::inline),
    ("unsignaled work, long batches", checks::unsignaled),
    ("full queues", checks::full_queues),
    ("event descriptors", checks::events),
    ("counters", checks::counters),
    ("calls in the wrong state", failures::wrong_state),
    ("local addresses outside the arena", failures::local_protection),
    ("a wrong key, and what follows", failures::wrong_key),
    ("remote addresses outside the arena", failures::remote_range),
    ("a message longer than the receive", failures::too_long),
    ("no receive posted", failures::no_receive),
    ("no such peer", failures::no_peer),
    ("destroyed while work waits", failures::destroyed_waiting),
    ("destroyed in a stream", failures::destroyed_streaming),
];

fn main() -> ExitCode {
    let mut options = Options::new(ARENA_BYTES);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next();
        match (&*arg, value) {
            ("--device", Some(name)) => options.device = Some(name),
            ("--address", Some(ip)) if ip.parse::<std::net::IpAddr>().is_ok() => {
                options.address = ip.parse().ok();
            }
            _ => {
                eprintln!("usage: ibverbs-selftest [--device NAME] [--address IP]");
                return ExitCode::from(2);
            }
        }
    }
    let lab = match Lab::open(&options) {
        Ok(lab) => lab,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::FAILURE;
        }
    };
    for (name, check) in CHECKS {
        // A check that fails panics with the reason.
        print!("{name} ... ");
        check(&lab);
        println!("ok");
    }
    println!("{} checks hold on {}", CHECKS.len(), lab.rnic.device());
    ExitCode::SUCCESS
}
