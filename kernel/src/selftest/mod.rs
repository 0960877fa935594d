//! Self-tests, run by `selftest=NAME` on the command line; each ends the machine.

use crate::power::{self, Code};

/// Runs the test `name` and ends the machine with its result.
pub async fn run(name: &str) {
    crate::boot::chart::print();
    match name {
        "boot" => {
            crate::println!("selftest boot: ok");
            power::exit(Code::Success)
        }
        "panic" => panic!("asked for by selftest=panic"),
        _ => {
            log::error!("command line: unknown selftest `{name}`");
            power::exit(Code::Refused)
        }
    }
}
