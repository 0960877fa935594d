//! Runs a program beside a cluster of two nodes, `node0` and `node1`, which the program can join as a third:
//! `local-cluster COMMAND [ARGUMENT...]`. The examples in C and Python run in it.
//!
//! The program finds in its environment
//! - `FERROLITE_MANAGER`, the address of the manager,
//! - `FERROLITE_KEY`, the file with the cluster's key,
//! - `FERROLITE_FABRIC`, the socket by which its software RNIC reaches the switch,
//! - `FERROLITE_LIBRARY`, `LD_LIBRARY_PATH` and `PYTHONPATH`, by which it loads the library and the module.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use examples::LocalCluster;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The shared library, which cargo builds with this program as its dependency.
const LIBRARY: &str = "libferrolite.so";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: local-cluster COMMAND [ARGUMENT...]");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(words);
    run(&mut command).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs the program to its end, and returns its exit code.
fn run(command: &mut Command) -> Result<ExitCode> {
    let cluster = LocalCluster::start(2)?;
    let library = library()?;
    command.env("FERROLITE_MANAGER", cluster.manager());
    command.env("FERROLITE_KEY", cluster.key_file());
    command.env("FERROLITE_FABRIC", cluster.free_port());
    command.env("FERROLITE_LIBRARY", &library);
    command.env("LD_LIBRARY_PATH", library.parent().unwrap_or(Path::new(".")));
    command.env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/capi/python"));
    let status = command.status().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the file of the shared library: beside this program, or in the directory of its dependencies.
fn library() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir = program.parent().context("this program is in no directory")?;
    let candidates = [dir.join("deps").join(LIBRARY), dir.join(LIBRARY)];
    let found = candidates.into_iter().find(|path| path.is_file());
    found.with_context(|| format!("no {LIBRARY} in {}", dir.display()))
}
