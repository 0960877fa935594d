//! `cargo xtask package`: Debian packages of the manager, the Linux node and the emulated card.

mod archive;
mod contents;
mod manual;
mod programs;
mod version;

use crate::image;
use anyhow::{Context, Result, ensure};
use archive::Archive;
use clap::Args;
use contents::{PACKAGES, Package, Source};
use lab::cargo::Profile;
use lab::{paths, ui};
use programs::Programs;
use std::fs;
use std::path::{Path, PathBuf};
use version::Version;

/// The options of `cargo xtask package`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Directory for the packages; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The Debian revision: a package of one commit that is built again with a higher number is an upgrade
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) revision: u32,
    /// Packs the programs that tests use, which are built sooner but are slow and large; not to be shipped
    #[arg(long)]
    pub(crate) dev: bool,
    /// Packs a manager that can keep its state in etcd, for clusters of several managers; needs protoc
    #[arg(long)]
    pub(crate) etcd: bool,
}

/// Builds the programs and the boot files as they ship, and writes the packages. Prints the path and the size
/// of each.
pub(crate) fn package(options: &Options) -> Result<()> {
    archive::check_tools()?;
    manual::tool()?;
    let version = Version::of_checkout(options.revision)?;
    fs::create_dir_all(&options.out).with_context(|| format!("cannot make {}", options.out.display()))?;
    let profile = if options.dev { Profile::Dev } else { Profile::Release };
    let programs = Programs::build(profile, options.etcd)?;
    let boot_files = tempfile::tempdir()?;
    image::boot_files(boot_files.path())?;
    let builder = Builder { version: &version, programs: &programs, boot_files: boot_files.path() };
    for package in &PACKAGES {
        let path = builder.write(package, &options.out)?;
        let size = fs::metadata(&path).with_context(|| format!("no package {}", path.display()))?.len();
        println!("{}: {}", path.display(), ui::bytes(size));
    }
    Ok(())
}

/// The parts of all packages.
struct Builder<'a> {
    version: &'a Version,
    programs: &'a Programs,
    boot_files: &'a Path,
}

impl Builder<'_> {
    /// Writes one package into a directory, and returns its path.
    fn write(&self, package: &Package, out: &Path) -> Result<PathBuf> {
        let description = paths::root().join("host/packages").join(package.name);
        let archive = Archive::new(package.name, self.version)?;
        for file in package.files {
            let bytes = self.read(file.source, &description)?;
            archive.add(file.place, &bytes, 0o644)?;
        }
        if let Some(place) = package.library {
            archive.add_stripped(place, &self.programs.library(), 0o644)?;
        }
        for (link, target) in package.links {
            archive.link(link, target)?;
        }
        for program in package.programs {
            let path = self.programs.program(program);
            archive.add_stripped(&format!("usr/bin/{program}"), &path, 0o755)?;
            for page in manual::pages(&path)? {
                archive.add_compressed(&format!("usr/share/man/man1/{}.1", page.name), &page.text)?;
            }
        }
        archive.finish(&description, out)
    }

    /// Returns the contents of a file that is installed.
    fn read(&self, source: Source, description: &Path) -> Result<Vec<u8>> {
        let path = match source {
            Source::Package(name) => description.join(name),
            Source::Repository(path) => paths::root().join(path),
            Source::BootFile(name) => self.boot_files.join(name),
        };
        ensure!(path.is_file(), "{} is no file", path.display());
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}
