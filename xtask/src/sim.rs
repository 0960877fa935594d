//! `cargo xtask sim`: simulated clusters under random work and faults, and what must hold.

use anyhow::{Context, Result, bail};
use clap::Args;
use lab::cargo;

/// The exit status of the program for an option that it does not know.
const UNKNOWN: i32 = 2;

/// The options of `cargo xtask sim`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Nodes of the cluster at the start, 3 to 64
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(3..=64))]
    nodes: u16,
    /// The RNICs of the nodes, in turn: softroce, cx3, cx3-vf, or cx3:PROFILE (the emulated card with the
    /// appliance's driver)
    #[arg(long, value_name = "LIST", default_value = "softroce")]
    nic: String,
    /// The number of steps of each task
    #[arg(long, value_name = "K", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    steps: u32,
    /// Runs this seed alone, exactly as it ran before; prints all of it if it fails
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Runs the seeds from 1 to this number until one fails
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "soak"], value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: Option<u64>,
    /// Runs fresh seeds until one fails, for at most this time (one minute without this option, --seed and
    /// --seeds)
    #[arg(long, value_name = "MINUTES", conflicts_with = "seed")]
    soak: Option<f64>,
    /// The application that the tasks use: `log` is LITE-Log [default: everything that LITE offers]
    #[arg(long, value_name = "APP", value_parser = ["log"])]
    app: Option<String>,
    /// Puts a bug into LITE, the manager or the application, which a run must find; `help` lists them
    #[arg(long, value_name = "BUG")]
    planted: Option<String>,
}

/// Runs simulated clusters as the options say.
pub(crate) fn sim(options: &Options) -> Result<()> {
    if options.soak.is_some_and(|minutes| !(0.01..=10_000.0).contains(&minutes)) {
        bail!("--soak takes 0.01 to 10000 minutes");
    }
    let mut cargo = cargo::host("run");
    cargo.args(["--quiet", "--example", "explore", "--"]);
    cargo.args(["--nodes", &options.nodes.to_string(), "--steps", &options.steps.to_string()]);
    cargo.args(["--nic", &options.nic]);
    if let Some(seed) = options.seed {
        cargo.args(["--seed", &seed.to_string()]);
    }
    if let Some(last) = options.seeds {
        cargo.args(["--seeds", &format!("1..{}", last + 1)]);
    }
    if let Some(minutes) = options.soak {
        cargo.args(["--minutes", &minutes.to_string()]);
    }
    if let Some(app) = &options.app {
        cargo.args(["--app", app]);
    }
    if let Some(bug) = &options.planted {
        cargo.args(["--planted", bug]);
    }
    // It says itself how far it is.
    let status = cargo.status().context("cargo does not start")?;
    if status.code() == Some(UNKNOWN) {
        // It has said what it does not know.
        std::process::exit(UNKNOWN);
    }
    if !status.success() {
        bail!("something did not hold, see above");
    }
    Ok(())
}
