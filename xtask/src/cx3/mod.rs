//! Linux machines on emulated ConnectX-3 cards, for tests and figures.

pub mod lab;
pub mod plan;

pub use lab::Lab;
pub use plan::Plan;

use crate::{paths, setup, tool, ui};
use anyhow::{Context, Result};
use qemu::Qemu;
use qemu::linux::{Image, Release};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// What the machines are made of.
pub struct Tools {
    /// A QEMU with vfio-user devices.
    pub qemu: Qemu,
    /// The program `cx3`.
    pub program: PathBuf,
}

impl Tools {
    /// Gets what is missing. The inner error says why there is no QEMU for these machines.
    pub fn get() -> Result<Result<&'static Self, &'static str>> {
        static TOOLS: OnceLock<Result<Tools, String>> = OnceLock::new();
        if TOOLS.get().is_none() {
            let tools = match setup::vfio_user_qemu() {
                Ok(qemu) => Ok(Self { qemu, program: build()? }),
                Err(e) => Err(ui::one_line(&e)),
            };
            TOOLS.get_or_init(|| tools);
        }
        let tools = TOOLS.get().context("no tools")?;
        Ok(tools.as_ref().map_err(String::as_str))
    }
}

/// Builds `cx3`, optimised: its speed is most of what two machines see.
fn build() -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--release", "--package", "connectx3", "--bin", "cx3"]);
    tool::run_visible(cargo.current_dir(paths::root())).context("cx3 does not build")?;
    Ok(paths::target().join("release/cx3"))
}

/// The image of the Linux guests, by release, with further packages.
pub fn image(release: Release, packages: &[&str]) -> Result<Image> {
    Image::build_of(&paths::target().join("linux-guest"), release, packages)
}
