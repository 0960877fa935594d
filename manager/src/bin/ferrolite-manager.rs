//! `ferrolite-manager`: the former name of `ferrolite`. Runs the program of that name beside it, in its own
//! process.
#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(own) => own.with_file_name("ferrolite"),
        Err(error) => {
            eprintln!("ferrolite-manager: cannot find its own file: {error}");
            return ExitCode::FAILURE;
        }
    };
    let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
    eprintln!("ferrolite-manager: cannot run {}: {error}", program.display());
    ExitCode::FAILURE
}
