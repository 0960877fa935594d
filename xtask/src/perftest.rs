//! `cargo xtask perftest`: the eight programs between appliances and a Linux guest on one fabric, cell by
//! cell.
//! A cell is one run of one program (`lab::perftest`).

use crate::bench::Table;
use anyhow::{Result, bail, ensure};
use clap::Args;
use lab::appliances::Programs;
use lab::cargo::Profile;
use lab::perftest::cell::{self, Cell, Direction, PROGRAMS};
use lab::perftest::lab::Lab;
use lab::perftest::plan::Plan;
use lab::{image, interrupt, manager, ui};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// Selection of cells.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Client and server: appliance-linux, linux-appliance, appliance-appliance or all
    #[arg(long, value_name = "FROM-TO", default_value = "all")]
    direction: String,
    /// Programs, separated by commas [default: all eight]
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',')]
    program: Vec<String>,
    /// Message lengths in bytes, separated by commas [default: 8 B to 8 MiB]; atomics always have 8
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=8 << 20))]
    sizes: Vec<u32>,
    /// Path MTUs, separated by commas [default: 1024,4096]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    mtu: Vec<u32>,
    /// Shares of frames that the fabric loses, separated by commas [default: 0,0.01]
    #[arg(long, value_name = "SHARE", value_delimiter = ',')]
    loss: Vec<f64>,
    /// Fewer cells: 4 sizes, path MTU 4096, no loss, few iterations
    #[arg(long)]
    quick: bool,
    /// Seed that decides which frames are lost
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// File for a capture of all frames on the fabric as they were sent, for Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Directory with the kernel (`ferrolite.elf`) and the manager (`ferrolite`) to run
    /// [default: built here]
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// File for the results, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Options {
    /// Returns the cells, with related ones next to each other.
    fn cells(&self) -> Result<Vec<Cell>> {
        let directions = match self.direction.as_str() {
            "all" => Direction::ALL.to_vec(),
            name => match Direction::ALL.into_iter().find(|d| d.to_string() == name) {
                Some(direction) => vec![direction],
                None => bail!(
                    "--direction {name}: want appliance-linux, linux-appliance, appliance-appliance or all"
                ),
            },
        };
        let default = |given: &[u32], quick: &[u32], full: &[u32]| match given {
            [] if self.quick => quick.to_vec(),
            [] => full.to_vec(),
            given => given.to_vec(),
        };
        let sizes = default(&self.sizes, &cell::QUICK_SIZES, &cell::SIZES);
        let mtus = default(&self.mtu, &[4096], &[1024, 4096]);
        for mtu in &mtus {
            ensure!(
                [256, 512, 1024, 2048, 4096].contains(mtu),
                "--mtu {mtu}: want 256, 512, 1024, 2048 or 4096"
            );
        }
        let losses = match &self.loss[..] {
            [] if self.quick => vec![0.0],
            [] => vec![0.0, 0.01],
            given => given.to_vec(),
        };
        for loss in &losses {
            ensure!((0.0..=0.5).contains(loss), "--loss {loss}: want a share from 0 to 0.5");
        }
        let mut programs = Vec::new();
        for name in &self.program {
            let Some(program) = PROGRAMS.iter().find(|p| **p == name) else {
                bail!("--program {name}: want one of {}", PROGRAMS.join(", "));
            };
            programs.push(*program);
        }
        if programs.is_empty() {
            programs.extend(PROGRAMS);
        }
        let mut cells = Vec::new();
        for loss in losses {
            for &mtu in &mtus {
                for &direction in &directions {
                    for &program in &programs {
                        let sizes = if program.starts_with("ib_atomic") { &[8][..] } else { &sizes[..] };
                        let cell = |&size: &u32| Cell::new(program, direction, size, mtu, loss, self.quick);
                        cells.extend(sizes.iter().map(cell));
                    }
                }
            }
        }
        Ok(cells)
    }
}

/// Runs the cells. Fails if a cell fails.
pub(crate) fn perftest(options: &Options) -> Result<()> {
    let cells = options.cells()?;
    interrupt::watch()?;
    let programs = match &options.programs {
        Some(dir) => Programs::given(dir)?,
        None => Programs { kernel: image::build()?.elf, manager: manager::build(Profile::Dev)? },
    };
    let linux = cells.iter().any(|c| c.direction.has_linux());
    let plan = Plan { linux, seed: options.seed, pcap: options.pcap.as_deref(), ..Plan::default() };
    let mut lab = Lab::boot(programs, &plan)?;
    let started = Instant::now();
    let mut results = Vec::new();
    let mut failed = 0;
    for (n, cell) in cells.iter().enumerate() {
        interrupt::check()?;
        let begun = Instant::now();
        let result = lab.run(cell);
        let seconds = begun.elapsed().as_secs_f64();
        let (said, error) = match &result {
            Ok(figure) => (figure.to_string(), None),
            Err(error) => (format!("FAILED: {}", ui::one_line(error)), Some(ui::one_line(error))),
        };
        eprintln!("  {}/{} {cell}: {said} ({seconds:.1} s)", n + 1, cells.len());
        failed += usize::from(error.is_some());
        results.push((cell, result.ok(), error, seconds));
    }
    let seconds = started.elapsed().as_secs_f64();
    let mut table = Table::new(
        "perftest",
        "client to server; us of an operation for latencies (typical), MiB/s for bandwidths, as the client says",
        &["program", "direction", "bytes", "MTU", "loss", "figure"],
    );
    for (cell, figure, ..) in &results {
        let figure = figure.as_ref().map_or_else(|| "FAILED".to_owned(), ToString::to_string);
        let Cell { program, direction, size, mtu, loss, .. } = cell;
        table.row([
            (*program).to_owned(),
            direction.to_string(),
            size.to_string(),
            mtu.to_string(),
            loss.to_string(),
            figure,
        ]);
    }
    print!("{}", table.text());
    println!("{} cells, {failed} failed, {seconds:.0} s", cells.len());
    if let Some(path) = &options.json {
        let cells: Vec<Value> = results
            .iter()
            .map(|(cell, figure, error, seconds)| {
                json!({
                    "program": cell.program, "direction": cell.direction.to_string(), "bytes": cell.size,
                    "mtu": cell.mtu, "loss": cell.loss, "iterations": cell.iterations,
                    "p50_us": figure.as_ref().and_then(cell::Figure::p50_us),
                    "p99_us": figure.as_ref().and_then(cell::Figure::p99_us),
                    "average_mib_s": figure.as_ref().and_then(cell::Figure::average_mib_s),
                    "error": error, "seconds": seconds,
                })
            })
            .collect();
        let whole = json!({ "cells": cells, "failed": failed, "seconds": seconds });
        std::fs::write(path, format!("{whole}\n"))?;
    }
    ensure!(failed == 0, "{failed} of {} cells failed", cells.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        options: Options,
    }

    fn cells(words: &str) -> Result<Vec<Cell>> {
        let words = std::iter::once("perftest").chain(words.split_whitespace());
        Words::try_parse_from(words)?.options.cells()
    }

    #[test]
    fn the_full_matrix() {
        let all = cells("").unwrap();
        // Six programs have all sizes, two have one; three directions, two MTUs, with and without loss.
        assert_eq!(all.len(), (6 * cell::SIZES.len() + 2) * 3 * 2 * 2);
        let quick = cells("--quick").unwrap();
        assert_eq!(quick.len(), (6 * 4 + 2) * 3);
        assert!(quick.iter().all(|c| c.mtu == 4096 && c.loss == 0.0));
        let some =
            cells("--direction linux-appliance --program ib_read_bw,ib_atomic_lat --sizes 1,7 --mtu 256")
                .unwrap();
        assert_eq!(some.len(), 6);
        assert!(cells("--direction sideways").is_err() && cells("--program ib_bw").is_err());
        assert!(cells("--mtu 1500").is_err() && cells("--loss 2").is_err() && cells("--sizes 0").is_err());
    }
}
