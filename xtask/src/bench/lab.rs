//! What all measurements share: the programs under test, built once, and jobs on clusters of their own.

use crate::run::manager::{self, Manager};
use crate::{image, paths, setup, tool};
use anyhow::{Context, Result, ensure};
use qemu::Qemu;
use qemu::linux::Image as LinuxImage;
use qemu::linux::baseline::build_rate;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// Longest that one job may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The programs under test and a place for files.
pub struct Lab {
    pub qemu: Qemu,
    /// The appliance's kernel.
    pub kernel: PathBuf,
    /// Its size without symbols, in bytes.
    pub stripped_bytes: u64,
    manager: PathBuf,
    built: SystemTime,
    dir: TempDir,
}

/// A Linux guest's parts.
pub struct Linux {
    pub image: LinuxImage,
    /// The word count as a single process.
    pub rate: PathBuf,
}

/// What a job left.
pub struct Job {
    /// The figures of `cargo xtask run --json`.
    pub figures: Value,
    pub output: Vec<u8>,
}

impl Lab {
    /// Builds what is needed.
    pub fn new() -> Result<Self> {
        let qemu = setup::qemu()?;
        let image = image::build()?;
        let manager = manager::build()?;
        Ok(Self {
            qemu,
            built: modified(&image.elf)?,
            kernel: image.elf,
            stripped_bytes: image.stripped_bytes,
            manager,
            dir: TempDir::with_prefix("ferrolite-")?,
        })
    }

    /// Where files of the measurements go. Short, because of sockets.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A daemon of its own.
    pub fn manager(&self) -> Result<Manager> {
        Manager::start(&self.manager, 0, self.dir())
    }

    /// The Linux to compare to: packages of the host's Debian, and our word count built for it.
    pub fn linux(&self) -> Result<Linux> {
        let cache = paths::target().join("linux-guest");
        let image = LinuxImage::build(&cache)?;
        let rate = build_rate(&paths::root(), &cache.join("rate"))?;
        Ok(Linux { image, rate })
    }

    /// One job on a cluster that is booted for it and ends with it, as users run it. `args` are further options of `cargo xtask run`.
    pub fn job(&self, args: &[&str], input: &Path) -> Result<Job> {
        let [json, output] = ["run.json", "run.out"].map(|name| self.dir().join(name));
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", "--accel", "tcg"]).args(args).arg("--input").arg(input);
        command.arg("--json").arg(&json).arg("--output").arg(&output);
        tool::run_ok(&mut command, &paths::state()?.join("bench.log"), LIMIT)?;
        let figures = serde_json::from_slice(&std::fs::read(json)?).context("the figures of a run")?;
        Ok(Job { figures, output: std::fs::read(output)? })
    }

    /// An error if somebody has built another kernel meanwhile: its figures must not be mixed with the first one's.
    pub fn unchanged(&self) -> Result<()> {
        ensure!(modified(&self.kernel)? == self.built, "the kernel was built anew during the measurement");
        Ok(())
    }
}

fn modified(path: &Path) -> Result<SystemTime> {
    let meta = std::fs::metadata(path).with_context(|| format!("no {}", path.display()))?;
    Ok(meta.modified()?)
}
