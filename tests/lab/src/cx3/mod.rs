//! Linux machines on emulated ConnectX-3 cards, for tests and measurements.

pub mod lab;
pub mod plan;

pub use lab::Lab;
pub use plan::Plan;

use crate::cargo::{self, Profile};
use crate::{paths, setup, ui};
use anyhow::Result;
use qemu::Qemu;
use qemu::linux::{Image, Release};
use std::path::PathBuf;
use std::sync::LazyLock;

/// The programs that the machines need.
pub struct Tools {
    /// A QEMU with vfio-user devices.
    pub qemu: Qemu,
    /// The program `cx3`.
    pub program: PathBuf,
}

impl Tools {
    /// Returns the programs for runs and tests, installing what is missing. The inner error says why there is
    /// no QEMU for these machines.
    pub fn get() -> Result<Result<Self, &'static str>> {
        Self::of(Profile::Dev)
    }

    /// Returns the programs for measurements: `cx3` is compiled as it ships.
    pub fn to_measure() -> Result<Result<Self, &'static str>> {
        Self::of(Profile::Release)
    }

    fn of(profile: Profile) -> Result<Result<Self, &'static str>> {
        static QEMU: LazyLock<Result<Qemu, String>> =
            LazyLock::new(|| setup::vfio_user_qemu().map_err(|e| ui::one_line(&e)));
        Ok(match &*QEMU {
            Ok(qemu) => Ok(Self { qemu: qemu.clone(), program: cargo::program("cx3", profile)? }),
            Err(why) => Err(why),
        })
    }
}

/// Returns the image of the Linux guests of a release, with further packages.
pub fn image(release: Release, packages: &[&str]) -> Result<Image> {
    Image::build_of(&paths::target().join("linux-guest"), release, packages)
}
