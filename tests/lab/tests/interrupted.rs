//! An interrupt ends a program that is waited for.
//!
//! There is only one test, because an interrupt applies to the whole process.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use lab::{interrupt, tool};
use std::process::Command;
use std::time::Duration;

#[test]
fn an_interrupt_ends_a_program_that_is_waited_for() {
    interrupt::watch().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
    let program = tool::run(Command::new("sleep").arg("1000000"), log.path(), Duration::from_secs(600));
    assert_eq!(program.err().map(|e| e.to_string()).as_deref(), Some("interrupted"));
}
