//! The common part of all measurements: the programs under test, built once, and jobs on clusters of their
//! own.

use anyhow::{Context, Result};
use lab::appliances::Programs;
use lab::cargo::Profile;
use lab::manager::{self, Manager};
use lab::{image, paths, setup, tool};
use qemu::Qemu;
use qemu::linux::Image as LinuxImage;
use qemu::linux::baseline::build_rate;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// The time limit of one job.
const LIMIT: Duration = Duration::from_secs(300);

/// The programs under test, and a directory for files.
pub(super) struct Lab {
    pub qemu: Qemu,
    /// Copies of the programs, so that later builds do not influence the figures.
    pub programs: Programs,
    /// The size of the kernel without symbols, in bytes.
    pub stripped_bytes: u64,
    dir: TempDir,
}

/// The parts of a Linux guest.
pub(super) struct Linux {
    pub image: LinuxImage,
    /// The word count as a single process.
    pub rate: PathBuf,
}

/// The results of a job.
pub(super) struct Job {
    /// The figures of `cargo xtask run --json`.
    pub figures: Value,
    pub output: Vec<u8>,
}

impl Lab {
    /// Builds the programs.
    pub(super) fn new() -> Result<Self> {
        let qemu = setup::qemu()?;
        let image = image::build()?;
        let manager = manager::build(Profile::Release)?;
        let dir = TempDir::with_prefix("ferrolite-")?;
        let programs = Programs::of(dir.path());
        for (from, to) in [(&image.elf, &programs.kernel), (&manager, &programs.manager)] {
            std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
        Ok(Self { qemu, programs, stripped_bytes: image.stripped_bytes, dir })
    }

    /// Returns the directory for files of the measurements. Its path is short, because of sockets.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a new daemon.
    pub(super) fn manager(&self) -> Result<Manager> {
        Manager::start(&self.programs.manager, 0, self.dir())
    }

    /// Returns the Linux guest for comparisons: packages of the host's Debian, and our word count built for
    /// it.
    pub(super) fn linux(&self) -> Result<Linux> {
        let cache = paths::target().join("linux-guest");
        let image = LinuxImage::build(&cache)?;
        let rate = build_rate(&paths::root(), &cache.join("rate"))?;
        Ok(Linux { image, rate })
    }

    /// Runs one job on a cluster that is booted for it, as users run it. `args` are further options of
    /// `cargo xtask run`.
    pub(super) fn job(&self, args: &[&str], input: &Path) -> Result<Job> {
        self.job_of(&self.programs, args, input)
    }

    /// Runs a job as [`job`](Self::job) does, with programs that are in one directory.
    pub(super) fn job_of(&self, programs: &Programs, args: &[&str], input: &Path) -> Result<Job> {
        let [json, output] = ["run.json", "run.out"].map(|name| self.dir().join(name));
        let mut command = Command::new("/proc/self/exe");
        let dir = programs.kernel.parent().context("the kernel is in no directory")?;
        command.args(["run", "--accel", "tcg", "--programs"]).arg(dir);
        command.args(args).arg("--input").arg(input);
        command.arg("--json").arg(&json).arg("--output").arg(&output);
        tool::run_ok(&mut command, &paths::state()?.join("bench.log"), LIMIT)?;
        let figures = serde_json::from_slice(&std::fs::read(json)?).context("the figures of a run")?;
        Ok(Job { figures, output: std::fs::read(output)? })
    }
}
