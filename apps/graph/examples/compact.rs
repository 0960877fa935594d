//! Writes an edge list in the compact form `FLG1`, with weights if all lines have them:
//! `cargo run -p graph --release --example compact -- edges.txt edges.flg`.
#![allow(clippy::print_stderr, reason = "a program tells what is wrong")]

use graph::{Fault, Format, parse_edges, to_flg1};
use std::process::ExitCode;

/// Returns the compact form of a text.
fn compact(text: &[u8]) -> Result<Vec<u8>, Fault> {
    let read = |weights| {
        let mut edges = Vec::new();
        parse_edges(text, Format { weights }, |from, to, weight| edges.push((from, to, weight)))?;
        Ok(to_flg1(&edges, weights))
    };
    read(true).or_else(|_: Fault| read(false))
}

fn main() -> ExitCode {
    let [_, from, to] = &std::env::args().collect::<Vec<_>>()[..] else {
        eprintln!("usage: compact EDGES OUTPUT");
        return ExitCode::FAILURE;
    };
    let text = match std::fs::read(from) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("error: cannot read {from}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = match compact(&text) {
        Ok(bytes) => std::fs::write(to, bytes).map_err(|error| format!("cannot write {to}: {error}")),
        Err(Fault { offset, reason }) => Err(format!("{from}: byte {offset}: {reason}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
