//! `lite-node`: the daemon that makes a Linux host a node of the cluster.
#![forbid(unsafe_code)]

mod cli;
mod settings;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The texts of the errors contain their causes.
            eprintln!("lite-node: {error}");
            ExitCode::FAILURE
        }
    }
}
