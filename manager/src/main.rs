//! `ferrolite-manager`: the daemon and its command line.
#![forbid(unsafe_code)]

mod cli;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferrolite-manager: {error}");
            ExitCode::FAILURE
        }
    }
}
