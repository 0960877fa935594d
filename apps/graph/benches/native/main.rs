//! Graph algorithms at native speed, on nodes in this process: one thread for each, over an RNIC that
//! completes at once.
//!
//! `cargo xtask bench apps` writes a graph by `--write`, and starts `--serve`, which obeys lines on its
//! standard input: `run ALGORITHM` answers `time SECONDS`, `result FILE` writes the result of the latest run.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used, reason = "a benchmark may fail")]

mod cluster;
mod job;
mod node;
mod text;

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

/// The value of an argument `--NAME VALUE`.
fn value(name: &str) -> Option<String> {
    let mut given = std::env::args().skip_while(|argument| argument != name);
    given.next()?;
    given.next()
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    let given = value(name).map(|text| text.parse().unwrap_or_else(|_| panic!("{name} wants a number")));
    given.unwrap_or(default)
}

fn main() {
    if let Some(file) = value("--write") {
        let written = text::write(Path::new(&file), number("--scale", 10), number("--seed", 1));
        println!("vertices {}\nedges {}\nsource {}", written.vertices, written.edges, written.source);
    } else if let Some(file) = value("--serve") {
        serve(&PathBuf::from(file), number("--nodes", 1), number("--source", 0));
    } else {
        println!("cargo xtask bench apps calls this with --write FILE or --serve FILE");
    }
}

/// Obeys the lines of standard input.
fn serve(file: &Path, nodes: u8, source: u64) {
    let graph = text::read(file);
    println!("edges {}", graph.len());
    let mut cluster = cluster::Cluster::start(nodes, graph, source);
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        match line.split_once(' ') {
            Some(("run", algorithm)) => println!("time {}", cluster.run(algorithm)),
            Some(("result", file)) => {
                cluster.write(Path::new(file));
                println!("written");
            }
            _ => panic!("{line:?} is no command"),
        }
        std::io::stdout().flush().unwrap();
    }
    // The nodes end with the process.
    std::process::exit(0);
}
