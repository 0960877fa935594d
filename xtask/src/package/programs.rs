//! The programs and the library, as they ship.

use anyhow::{Context, Result};
use lab::cargo::{self, Profile};
use lab::{setup, tool};
use std::path::PathBuf;

/// The name by which the linker of programs records the library, and the loader finds it.
const SONAME: &str = "libferrolite.so.0";

/// The directory of what cargo has built.
pub(super) struct Programs(PathBuf);

impl Programs {
    /// Builds the programs and the library, with RNICs through libibverbs. Only the library that ships has
    /// its name inside: tests load it by its file name.
    pub(super) fn build(profile: Profile) -> Result<Self> {
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
        Ok(Self(profile.dir()))
    }

    /// Returns the file of a program.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the file of the shared library.
    pub(super) fn library(&self) -> PathBuf {
        self.0.join("libferrolite.so")
    }
}
