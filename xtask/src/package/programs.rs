//! The programs and the library, as they ship.

use anyhow::{Context, Result};
use lab::cargo::{self, Profile};
use lab::{setup, tool};
use std::path::PathBuf;

/// The name by which the linker of programs records the library, and the loader finds it.
const SONAME: &str = "libferrolite.so.0";

/// The files that cargo has built.
pub(super) struct Programs {
    directory: PathBuf,
    /// The manager, if it is built with etcd.
    manager: Option<PathBuf>,
}

impl Programs {
    /// Builds the programs and the library, with RNICs through libibverbs. Only the library that ships has
    /// its name inside: tests load it by its file name. With `etcd` the manager can keep its state there.
    pub(super) fn build(profile: Profile, etcd: bool) -> Result<Self> {
        setup::bindings()?;
        let optimised: &[&str] = if profile == Profile::Release { &["--release"] } else { &[] };
        let mut build = cargo::host("build");
        build.args(optimised).args(["--workspace", "--features", cargo::LIBIBVERBS]);
        build.args(["--bin", "ferrolite", "--bin", "lite-node", "--bin", "cx3", "--lib"]);
        tool::run_visible(&mut build).context("the programs do not build")?;
        if profile == Profile::Release {
            let mut library = cargo::host("rustc");
            library.args(["--release", "--package", "ferrolite", "--features", "ferrolite/libibverbs"]);
            library.args(["--lib", "--crate-type", "cdylib", "--"]);
            library.arg(format!("-Clink-arg=-Wl,-soname,{SONAME}"));
            tool::run_visible(&mut library).context("the library for C does not build")?;
        }
        let manager = etcd.then(|| {
            let (mut build, program) = cargo::manager_with_etcd(profile)?;
            tool::run_visible(&mut build).context("the manager with etcd does not build").map(|()| program)
        });
        Ok(Self { directory: profile.dir(), manager: manager.transpose()? })
    }

    /// Returns the file of a program.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        match &self.manager {
            Some(manager) if name == "ferrolite" => manager.clone(),
            _ => self.directory.join(name),
        }
    }

    /// Returns the file of the shared library.
    pub(super) fn library(&self) -> PathBuf {
        self.directory.join("libferrolite.so")
    }
}
