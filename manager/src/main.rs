//! `ferrolite`: the command line, and the daemon of the manager.
#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::of_process().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferrolite: {}", cli::sentence(&error));
            cli::Failure::of(&error).into()
        }
    }
}
