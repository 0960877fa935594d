//! Runs of `cargo xtask run`: their results, disturbed runs, and wrong options.

pub(crate) mod capture;
pub(crate) mod disturbed;
pub(crate) mod graph;
pub(crate) mod inputs;
pub(crate) mod limits;
pub(crate) mod log;
pub(crate) mod misuse;
pub(crate) mod on_the_wire;
pub(crate) mod priorities;
pub(crate) mod standing;
pub(crate) mod word_count;

use std::process::Command;

/// Returns a command that runs this program again, so that its whole behaviour is tested: exit status, files,
/// cleaning up.
pub(crate) fn xtask() -> Command {
    // The path is in /proc, because cargo may have replaced the file meanwhile.
    Command::new("/proc/self/exe")
}
