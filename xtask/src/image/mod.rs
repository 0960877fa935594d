//! `cargo xtask image`: boot files.

mod config;
mod formats;
mod tools;
mod version;

use crate::output;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use formats::Boot;
use lab::image::{self, Apps, Contents};
use lab::{tool, ui};
use pack::BuiltIn;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The form of a boot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The kernel's ELF file with an entry of PVH, for monitors of virtual machines
    Elf,
    /// One file for everything else: a Linux kernel image and an EFI application at once
    Efi,
    /// A CD that boots under BIOS and UEFI, also as a USB stick
    Iso,
    /// A disk that boots under UEFI
    Disk,
    /// A directory for a TFTP or HTTP server
    Pxe,
    /// A unified kernel image with systemd's stub
    Uki,
}

impl Format {
    const fn file(self) -> &'static str {
        match self {
            Self::Elf => "ferrolite.elf",
            Self::Efi => "ferrolite.efi",
            Self::Iso => "ferrolite.iso",
            Self::Disk => "ferrolite.img",
            Self::Pxe => "pxe",
            Self::Uki => "ferrolite-uki.efi",
        }
    }
}

/// The options of `cargo xtask image`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Form of the file
    #[arg(long, value_enum)]
    format: Format,
    /// Directory for the file; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Applications of the image, separated by commas, as in wordcount,grep [default: all]
    #[arg(long, value_name = "LIST")]
    apps: Option<Apps>,
    /// Words key=value that are built into the file, in front of those of the loader, which count before them
    #[arg(long, value_name = "WORDS")]
    cmdline: Option<String>,
    /// File with lines key=value, to be built in; those that the loader passes count before them
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File with the cluster key, to be built in; everybody who can read the boot file has the key then.
    /// Without this option the loader passes the key, in an initrd
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Key and certificate (PEM) with which the EFI program is signed for Secure Boot
    #[arg(long, num_args = 2, value_names = ["KEY", "CERT"])]
    sign: Option<Vec<PathBuf>>,
}

impl Options {
    /// Returns the options of a file with all applications and nothing built in.
    fn of(format: Format, out: &Path) -> Self {
        Self { format, out: out.to_owned(), apps: None, cmdline: None, config: None, key: None, sign: None }
    }

    /// Fails unless the options fit together.
    fn check(&self) -> Result<()> {
        let builds_in = self.cmdline.is_some() || self.config.is_some() || self.key.is_some();
        if self.format == Format::Elf && (builds_in || self.sign.is_some()) {
            bail!(
                "--cmdline, --config, --key and --sign are not for --format elf: the ELF file has no room for them"
            );
        }
        for word in self.cmdline.as_deref().unwrap_or_default().split_ascii_whitespace() {
            bootconfig::key_of(word).map_err(|why| anyhow!("--cmdline: {why}"))?;
        }
        for (file, what) in self.sign.iter().flatten().zip(["PRIVATE KEY", "CERTIFICATE"]) {
            let text = read(file).context("--sign")?;
            let is_there = String::from_utf8_lossy(&text).contains(&format!("{what}-----"));
            ensure!(is_there, "--sign: {} has no {} in PEM", file.display(), what.to_lowercase());
        }
        self.check_out().with_context(|| format!("cannot write to {}", self.out.display()))
    }

    /// Fails unless the directory for the file is there, or can be made. A build takes long, so this comes
    /// first.
    fn check_out(&self) -> io::Result<()> {
        let there = self.out.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        tempfile::tempfile_in(there).map(drop)
    }
}

/// Builds the image and writes the boot file. Prints its path and size.
pub(crate) fn image(options: &Options) -> Result<()> {
    options.check()?;
    let module = config::module(options.config.as_deref(), options.key.as_deref())?;
    let apps = options.apps.clone().unwrap_or_default();
    let version = version::of(&apps);
    let image = image::build_quietly(&Contents::with(apps), tool::run_visible)?;
    let kernel = read(&image.elf)?;
    if options.format == Format::Elf {
        return write(&options.out, &[(options.format.file().into(), pack::without_symbols(&kernel)?)]);
    }
    let stub = read(&image::stub(tool::run_visible)?)?;
    let cmdline = options.cmdline.as_deref().unwrap_or_default();
    let efi = pack::universal(&stub, &kernel, BuiltIn { cmdline, module: &module, version: &version })?;
    let boot = Boot { efi, sign: options.sign.as_deref(), version: &version };
    let content = match options.format {
        Format::Elf | Format::Efi => boot.signed()?,
        Format::Iso => boot.iso()?,
        Format::Disk => boot.disk()?,
        Format::Uki => boot.uki()?,
        Format::Pxe => return write(&options.out.join(options.format.file()), &boot.pxe()?),
    };
    write(&options.out, &[(options.format.file().into(), content)])
}

/// Writes the ELF file and the boot file with all applications into a directory.
pub(crate) fn boot_files(out: &Path) -> Result<()> {
    [Format::Elf, Format::Efi].into_iter().try_for_each(|format| image(&Options::of(format, out)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes files into a directory, and prints their paths and sizes. Each file is complete or absent.
fn write(dir: &Path, files: &[(PathBuf, Vec<u8>)]) -> Result<()> {
    for (name, bytes) in files {
        let path = dir.join(name);
        let parent = path.parent().unwrap_or(dir);
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        let (file, path) = output::beside("boot file", &path)?;
        let context = || format!("cannot write {}", path.display());
        fs::write(file.path(), bytes).with_context(context)?;
        file.persist(&path).with_context(context)?;
        println!("{}: {}", path.display(), ui::bytes(bytes.len() as u64));
    }
    Ok(())
}
