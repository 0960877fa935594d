//! `cargo xtask bench connect`: measures the set-up of connections in a simulated cluster, over softroce.

use super::program;
use super::table::Table;
use super::target::{self, Bound, Target};
use anyhow::Result;
use clap::Args;
use serde::Deserialize;

/// The most that a first operation takes beside a message to the manager and back, in operations to a
/// connected peer.
const MOST: f64 = 5.0;
/// The least number of connections that a node makes in a second, one after the other.
const LEAST: f64 = 1000.0;

/// The size of the simulation.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Peers to which one node connects
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=500))]
    peers: u16,
    /// Time of a message to the manager, or from it, in microseconds
    #[arg(long, value_name = "US", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    manager_us: u32,
    /// Fails if a target is missed
    #[arg(long)]
    strict: bool,
}

/// The output of the simulation (`sim`'s example `connect`).
#[derive(Debug, Deserialize)]
struct Output {
    first_us: f64,
    connected_us: f64,
    manager_us: f64,
    connections_per_s: f64,
    wall_us: f64,
}

impl Output {
    fn targets(&self) -> [Target; 2] {
        let most = MOST * self.connected_us + self.manager_us;
        let rate = Some(self.connections_per_s);
        [
            Target::new("first call to a peer", Some(self.first_us), "us", Bound::AtMost(most)),
            Target::new("connections of a node in a second", rate, "", Bound::AtLeast(LEAST)),
        ]
    }
}

/// Runs the simulation and prints its figures.
pub(super) fn bench(options: &Options) -> Result<()> {
    let sizes = [("--peers", u32::from(options.peers)), ("--manager-us", options.manager_us)];
    let arguments = sizes.map(|(name, value)| [name.to_owned(), value.to_string()]);
    let output: Output = program::simulate("sim", "connect", arguments.as_flattened())?;
    let mut table = Table::new(
        "The set-up of connections",
        "medians in virtual time, in which processors cost nothing; the last line is real time of one \
         processor for all nodes and the manager, for a connection, two calls and the question",
        &["figure", "us"],
    );
    for (what, us) in [
        ("first call to a peer", output.first_us),
        ("call to a connected peer", output.connected_us),
        ("question to the manager, and its answer", output.manager_us),
        ("real time of a peer", output.wall_us),
    ] {
        table.row([what.to_owned(), format!("{us:.1}")]);
    }
    println!("\n{}", table.text());
    let targets = output.targets();
    println!("{}", target::table(&targets, &[]).text());
    target::judge(options.strict, &targets, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_targets_are_five_calls_and_the_manager_and_a_thousand_connections() {
        let output = |first_us, connections_per_s| Output {
            first_us,
            connected_us: 20.0,
            manager_us: 200.0,
            connections_per_s,
            wall_us: 1.0,
        };
        assert_eq!(output(300.0, 1000.0).targets().map(|target| target.met), [true, true]);
        assert_eq!(output(301.0, 999.0).targets().map(|target| target.met), [false, false]);
    }
}
