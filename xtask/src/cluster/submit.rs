//! A job on the cluster.

use super::state::Home;
use crate::output::beside;
use crate::share::RdmaOptions;
use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::manager::Job;
use lab::text;
use platform::TimeLimit;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;

/// The number of lines of a result that are printed if it is not kept.
const SHOWN: usize = 10;

/// The options of `cargo xtask cluster submit`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Application to run
    #[arg(long, value_name = "NAME", default_value = "wordcount")]
    app: String,
    /// Number of nodes that take part [default: all that have the application]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u16>::new().range(1..=4095))]
    nodes: Option<u16>,
    /// Argument of the application; repeatable
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    args: Vec<String>,
    /// Time limit of the job, as in 90s, 15m or 2h; then the job fails [default: no limit]
    #[arg(long, value_name = "LIMIT")]
    time: Option<TimeLimit>,
    #[command(flatten)]
    rdma: RdmaOptions,
    /// Keeps the output of the job on the nodes as a dataset of this name, which `--input lite:NAME` reads
    #[arg(long, value_name = "NAME", conflicts_with = "output")]
    keep: Option<String>,
    /// Input file; repeatable [default: a text of several MB from a Debian package, or from this machine]
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// File for the whole result [default: only the first ten lines are printed]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File for the figures of the job, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs a job.
pub(super) fn submit(home: &Home, options: &Options) -> Result<()> {
    let state = home.running()?;
    let json = options.json.as_deref().map(|path| beside("figures", path)).transpose()?;
    let mut inputs = options.input.clone();
    if inputs.is_empty() && text::is_wanted(&options.app, &options.args) {
        inputs.push(text::default()?.path);
    }
    let work = TempDir::with_prefix("ferrolite-").context("cannot make a temporary directory")?;
    let result = options.output.clone().unwrap_or_else(|| work.path().join("result"));
    let figures = work.path().join("figures");
    let job = Job {
        app: &options.app,
        // Zero stands for all nodes.
        nodes: options.nodes.unwrap_or_default(),
        inputs: &inputs,
        args: &options.args,
        time: options.time,
        keep: options.keep.as_deref(),
        more: &options.rdma.words(),
    };
    let mut command = state.client("submit");
    job.describe(&mut command, &result, &figures);
    let status = command.stdin(Stdio::null()).status().context("cannot run the manager's program")?;
    if !status.success() {
        bail!("the job has no result");
    }
    if options.output.is_none() && options.keep.is_none() {
        print_first(&result)?;
    }
    if let Some((file, path)) = json {
        std::fs::copy(figures, file.path()).with_context(|| format!("cannot write {}", path.display()))?;
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn print_first(result: &Path) -> Result<()> {
    let file = File::open(result).context("there is no result")?;
    for line in BufReader::new(file).split(b'\n').take(SHOWN) {
        println!("{}", String::from_utf8_lossy(&line?));
    }
    Ok(())
}
