//! `cargo xtask run`: a cluster of appliances in QEMU that runs one job.

mod cluster;
pub mod manager;
mod options;
mod report;
mod subnet;

pub use cluster::{card_of, reason};
pub use manager::Manager;
pub use options::{Options, RdmaNic};
pub use subnet::start_opensm;

use crate::cargo::Profile;
use crate::cx3::Tools;
use crate::image::Contents;
use crate::{image, interrupt, paths, setup, text, ui};
use anyhow::{Context, Result, anyhow, bail};
use cluster::Cluster;
use qemu::Qemu;
use qemu::accel::{Choice, Probe};
use qemu::vm::{Accel, Exit};
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};
use tempfile::{NamedTempFile, TempDir};

/// The exit status of the kernel after a success.
pub const SUCCESS: Exit = Exit::Guest(16);

/// The programs of a cluster.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The appliance's kernel, with symbols.
    pub kernel: PathBuf,
    /// The manager: daemon and client.
    pub manager: PathBuf,
}

impl Programs {
    /// Returns the programs in a directory, by the names that their builds give them.
    pub fn of(dir: &Path) -> Self {
        Self { kernel: dir.join("ferrolite"), manager: dir.join("ferrolite-manager") }
    }
}

/// Runs a job. After a failure, no process keeps running and no output file exists.
pub fn run(options: &Options) -> Result<()> {
    options.check()?;
    let options = &with_input(options)?;
    let input_bytes = options.input_bytes()?;
    let output = options.output.as_deref().map(|path| beside("output", path)).transpose()?;
    let json = options.json.as_deref().map(|path| beside("figures", path)).transpose()?;
    let consoles = options.console.clone().map(paths::made).transpose()?;
    interrupt::watch()?;

    let Prepared { qemu, cx3, programs } = prepare(options)?;
    let accel = accel(&qemu, options, &programs.kernel)?;
    interrupt::check()?;

    // The path is short because of the sockets in the directory. Only this user can read it, because of the
    // key in it.
    let work = TempDir::with_prefix("ferrolite-").context("cannot make a temporary directory")?;
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let mut manager = Manager::start(&programs.manager, options.port, work.path())?;
    let cluster = Cluster {
        qemu: &qemu,
        cx3: cx3.as_deref(),
        kernel: &programs.kernel,
        accel,
        memory_mb: options.memory_mb(input_bytes),
        options,
        consoles: consoles.as_deref(),
        work: work.path(),
    };
    let mut running = cluster.start(&manager)?;
    let [members, result, figures] = ["members", "result", "figures"].map(|name| work.path().join(name));
    let left = deadline.saturating_duration_since(Instant::now());
    let joining = manager.wait_nodes(options.nodes, left, &members)?;
    running.supervise(joining, &mut manager, deadline)?;
    let job = manager.submit(options, &result, &figures)?;
    running.supervise(job, &mut manager, deadline)?;
    let fabric = running.stop()?;

    let report = report::Report::read(&figures, &members, options, accel, &fabric)?;
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
fn prepare(options: &Options) -> Result<Prepared> {
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
        let (qemu, cx3) = if options.cards().next().is_some() {
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
    if options.input.is_empty() {
        let text = text::default()?;
        eprintln!("  input: {} ({})", text.path.display(), text.about);
        options.input.push(text.path);
    }
    Ok(options)
}

/// Creates a temporary file beside the target. It is created before the work, so that a target that cannot be
/// written is found early, and renamed at the end, so that the target is complete or absent.
pub fn beside(what: &str, path: &Path) -> Result<(NamedTempFile, PathBuf)> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let context = || format!("cannot write the {what} {}", path.display());
    if path.is_dir() {
        return Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)).with_context(context);
    }
    let file = tempfile::Builder::new().prefix(".ferrolite-").permissions(mode(0o644)).tempfile_in(dir);
    Ok((file.with_context(context)?, path.to_owned()))
}

fn mode(bits: u32) -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(bits)
}

/// Returns the accelerator of the guests.
fn accel(qemu: &Qemu, options: &Options, kernel: &Path) -> Result<Accel> {
    match options.accel {
        Choice::Only(accel) => Ok(accel),
        Choice::Auto => decide(qemu, options.machine, kernel),
    }
}

/// Returns the accelerator that the probe finds to work here.
pub fn decide(qemu: &Qemu, machine: qemu::vm::Machine, kernel: &Path) -> Result<Accel> {
    let cache = paths::state()?.join(format!("accel-{machine}.json"));
    let probe = Probe { kernel, cmdline: "probe=hypervisor", success: &SUCCESS, machine, cache: &cache };
    if let Some(verdict) = probe.known() {
        return Ok(verdict.accel);
    }
    let verdict = ui::step("choosing between KVM and TCG", || probe.decide(qemu))?;
    eprintln!("  {}: {}", verdict.accel, verdict.reason);
    Ok(verdict.accel)
}
