//! `cargo xtask run`: a cluster of appliances in QEMU that runs one job.

mod options;
mod report;

pub(crate) use options::Options;

use crate::output::beside;
use anyhow::{Context, Result, anyhow, bail};
use lab::appliances::{self, Appliances, Plan, Programs};
use lab::cargo::Profile;
use lab::cx3::Tools;
use lab::image::{self, Contents};
use lab::manager::{self, Manager};
use lab::{interrupt, paths, setup, text, ui};
use qemu::Qemu;
use qemu::accel::Choice;
use qemu::vm::Accel;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
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

    let Prepared { qemu, cx3, programs } = prepare(options, &plan)?;
    let accel = accel(&qemu, options, &programs.kernel)?;
    interrupt::check()?;

    // The path is short because of the sockets in the directory. Only this user can read it, because of the
    // key in it.
    let work = TempDir::with_prefix("ferrolite-").context("cannot make a temporary directory")?;
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let mut manager = Manager::start(&programs.manager, options.port, work.path())?;
    let appliances = Appliances {
        qemu: &qemu,
        cx3: cx3.as_deref(),
        kernel: &programs.kernel,
        accel,
        memory_mb: options.memory_mb(input_bytes),
        plan: &plan,
        consoles: consoles.as_deref(),
        work: work.path(),
    };
    let mut running = appliances.start(&manager)?;
    let [members, result, figures] = ["members", "result", "figures"].map(|name| work.path().join(name));
    let left = deadline.saturating_duration_since(Instant::now());
    let joining = manager.wait_nodes(options.nodes, left, &members)?;
    running.supervise(joining, &mut manager, deadline)?;
    let mut earlier = Vec::new();
    for left in (0..options.repeat).rev() {
        let job = manager.submit(&options.job(), &result, &figures)?;
        running.supervise(job, &mut manager, deadline)?;
        if left > 0 {
            earlier.push(report::job_figures(&figures)?);
        }
    }
    let fabric = running.stop()?;

    let report = report::Report::read(&figures, earlier, &members, options, accel, &fabric)?;
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

/// Prerequisites of a run on this machine.
struct Prepared {
    qemu: Qemu,
    /// The program `cx3`, if a node has a card.
    cx3: Option<PathBuf>,
    programs: Programs,
}

/// Builds or fetches the prerequisites: the kernel, QEMU and the programs of the host. They are built in
/// parallel, because each build leaves a processor idle for part of its time. Each prints its duration.
fn prepare(options: &Options, plan: &Plan) -> Result<Prepared> {
    // This check comes before minutes of compiling.
    setup::check_qemu_available()?;
    let contents = Contents::with(options.apps.clone().unwrap_or_default());
    let build = options.programs.is_none();
    if build {
        eprintln!(
            "  building the kernel and the manager, side by side: a minute or two if nothing is compiled yet"
        );
    }
    std::thread::scope(|scope| {
        let kernel = build
            .then(|| scope.spawn(|| ui::stage("the kernel's image", || Ok(image::build_of(&contents)?.elf))));
        let manager =
            build.then(|| scope.spawn(|| ui::stage("the manager", || manager::build(Profile::Dev))));
        let (qemu, cx3) = if plan.cards().next().is_some() {
            let tools = ui::stage("the emulated ConnectX-3", || {
                Tools::get()?.map_err(|why| anyhow!("--nic {}: {why}", options.nics()))
            })?;
            (tools.qemu, Some(tools.program))
        } else {
            (setup::qemu()?, None)
        };
        let joined = |built: ScopedJoinHandle<'_, Result<PathBuf>>| {
            built.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let programs = match (&options.programs, kernel.map(joined), manager.map(joined)) {
            (None, Some(kernel), Some(manager)) => Programs { kernel: kernel?, manager: manager? },
            (Some(dir), ..) => Programs::of(dir),
            _ => bail!("nothing was built"),
        };
        Ok(Prepared { qemu, cx3, programs })
    })
}

fn with_input(options: &Options) -> Result<Options> {
    let mut options = options.clone();
    // A generated graph is the job's own input.
    let generates = options.args.iter().any(|arg| arg.starts_with("generate="));
    if options.input.is_empty() && !generates {
        let text = text::default()?;
        eprintln!("  input: {} ({})", text.path.display(), text.about);
        options.input.push(text.path);
    }
    Ok(options)
}

/// Returns the accelerator of the guests.
fn accel(qemu: &Qemu, options: &Options, kernel: &Path) -> Result<Accel> {
    match options.accel {
        Choice::Only(accel) => Ok(accel),
        Choice::Auto => appliances::decide(qemu, options.machine, kernel),
    }
}
