//! `cargo xtask run`: a cluster of appliances in QEMU, or of processes, that runs one job.

mod nodes;
mod options;
mod report;

pub(crate) use options::Options;

use crate::output::beside;
use anyhow::{Context, Result};
use lab::manager::Manager;
use lab::{interrupt, paths, text};
use nodes::{Directories, Prepared};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Runs a job. After a failure, no process keeps running and no output file exists.
pub(crate) fn run(options: &Options) -> Result<()> {
    let plan = options.plan()?;
    let options = &with_input(options)?;
    let input_bytes = options.input_bytes()?;
    let output = options.output.as_deref().map(|path| beside("output", path)).transpose()?;
    let json = options.json.as_deref().map(|path| beside("figures", path)).transpose()?;
    let consoles = options.console.clone().map(paths::made).transpose()?;
    interrupt::watch()?;

    let prepared = Prepared::new(options, &plan)?;

    // The path is short because of the sockets in the directory. Only this user can read it, because of the
    // key in it.
    let work = TempDir::with_prefix("ferrolite-").context("cannot make a temporary directory")?;
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let mut manager = Manager::start(&prepared.manager, options.port, work.path())?;
    let directories = Directories { consoles: consoles.as_deref(), work: work.path() };
    let mut running = prepared.start(&plan, options.memory_mb(input_bytes), directories, &manager)?;
    let [members, result, figures] = ["members", "result", "figures"].map(|name| work.path().join(name));
    let left = deadline.saturating_duration_since(Instant::now());
    let joining = manager.wait_nodes(options.nodes, left, &members)?;
    running.supervise(joining, &mut manager, deadline)?;
    let (mut earlier, more) = (Vec::new(), options.rdma.words());
    let kept: Vec<PathBuf> = options.keep.iter().map(|name| format!("lite:{name}").into()).collect();
    let repeated = (0..options.repeat).map(|_| options.job(&more));
    for (number, job) in repeated.chain(options.next_job(&kept, &more)).enumerate() {
        if number > 0 {
            earlier.push(report::job_figures(&figures)?);
        }
        let job = manager.submit(&job, &result, &figures)?;
        running.supervise(job, &mut manager, deadline)?;
    }
    let fabric = running.stop()?;

    let report = report::Report::read(&figures, earlier, &members, options, prepared.accel(), &fabric)?;
    report.print(&result)?;
    for (file, from) in [(json, None), (output, Some(&result))] {
        let Some((file, path)) = file else { continue };
        match from {
            Some(from) => std::fs::copy(from, file.path()).map(|_| ()),
            None => std::fs::write(file.path(), report.json()),
        }
        .with_context(|| format!("cannot write {}", path.display()))?;
        file.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn with_input(options: &Options) -> Result<Options> {
    let mut options = options.clone();
    if options.input.is_empty() && text::is_wanted(&options.app, &options.args) {
        let text = text::default()?;
        eprintln!("  input: {} ({})", text.path.display(), text.about);
        options.input.push(text.path);
    }
    Ok(options)
}
