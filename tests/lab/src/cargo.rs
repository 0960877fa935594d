//! Cargo for the host workspace.
//!
//! Every invocation selects the whole workspace and one of two profiles. Each crate then has one set of
//! features and is compiled once, whether xtask, a test or a program needs it. The kernel's workspace is
//! built by `image`.

use crate::{paths, setup, tool};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

/// The target triple of both workspaces: the kernel has that of the host.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The features of all packages that use libibverbs, as an argument of `--features`. The bindings need cmake
/// and libclang to build.
pub const LIBIBVERBS: &str = "ibverbs/libibverbs,lite-node/libibverbs,ferrolite/libibverbs";

/// The profile with which a program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// For runs and tests: shares all compiled crates with xtask.
    Dev,
    /// The profile of shipped programs, for measurements.
    Release,
}

impl Profile {
    /// Returns the directory of the profile's programs.
    pub fn dir(self) -> PathBuf {
        paths::target().join(self.name())
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// Returns `cargo SUBCOMMAND`, to be run at the top of the workspace.
pub fn host(subcommand: &str) -> Command {
    let mut command = Command::new("cargo");
    command.arg(subcommand).current_dir(paths::root());
    command
}

/// Builds a program, once per process. Returns its file.
pub fn program(name: &'static str, profile: Profile) -> Result<PathBuf> {
    static BUILT: Mutex<Vec<(&str, Profile)>> = Mutex::new(Vec::new());
    // The lock is held while cargo runs: another thread that needs the same program waits for it.
    let mut built = BUILT.lock().unwrap_or_else(|e| e.into_inner());
    if !built.contains(&(name, profile)) {
        let mut cargo = host("build");
        cargo.args(["--workspace", "--bin", name]);
        if profile == Profile::Release {
            cargo.arg("--release");
        }
        tool::run_visible(&mut cargo).with_context(|| format!("{name} does not build"))?;
        built.push((name, profile));
    }
    Ok(profile.dir().join(name))
}

/// Returns the command that builds the manager with etcd, and the program that it makes. The directory is its
/// own, because no other program needs the crates that come with etcd.
pub fn manager_with_etcd(profile: Profile) -> Result<(Command, PathBuf)> {
    setup::protobuf()?;
    let target = paths::target().join("etcd");
    let mut build = host("build");
    build.args(["--package", "manager", "--bin", "ferrolite", "--features", "etcd", "--target-dir"]);
    build.arg(&target).args((profile == Profile::Release).then_some("--release"));
    Ok((build, target.join(profile.name()).join("ferrolite")))
}

/// Returns the file of a program that the build of the tests has made, as in `examples/explore`.
pub fn built_for_tests(name: &str) -> Result<PathBuf> {
    let path = Profile::Dev.dir().join(name);
    anyhow::ensure!(path.is_file(), "no {}: `cargo xtask test build::host` makes it", path.display());
    Ok(path)
}
