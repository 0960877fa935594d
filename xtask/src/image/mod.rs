//! `cargo xtask image`: boot files.

mod config;
mod formats;
mod tools;
mod version;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use formats::Boot;
use lab::image::{self, Apps, Contents};
use lab::{tool, ui};
use pack::BuiltIn;
use std::fs;
use std::path::{Path, PathBuf};

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
        let mut words = self.cmdline.as_deref().unwrap_or_default().split_ascii_whitespace();
        if let Some(word) = words.find(|word| !word.contains('=')) {
            bail!("--cmdline: `{word}` is not key=value");
        }
        for file in self.sign.iter().flatten() {
            read(file).context("--sign")?;
        }
        Ok(())
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
    fs::create_dir_all(&options.out).with_context(|| format!("cannot make {}", options.out.display()))?;
    let path = options.out.join(options.format.file());
    if options.format == Format::Elf {
        return write(&path, &pack::without_symbols(&kernel)?);
    }
    let stub = read(&image::stub(tool::run_visible)?)?;
    let cmdline = options.cmdline.as_deref().unwrap_or_default();
    let efi = pack::universal(&stub, &kernel, BuiltIn { cmdline, module: &module, version: &version })?;
    let boot = Boot { efi, sign: options.sign.as_deref(), version: &version };
    match options.format {
        Format::Elf | Format::Efi => write(&path, &boot.signed()?),
        Format::Iso => write(&path, &boot.iso()?),
        Format::Disk => write(&path, &boot.disk()?),
        Format::Uki => write(&path, &boot.uki()?),
        Format::Pxe => boot.pxe(&path),
    }
}

/// Writes the ELF file and the boot file with all applications into a directory.
pub(crate) fn boot_files(out: &Path) -> Result<()> {
    [Format::Elf, Format::Efi].into_iter().try_for_each(|format| image(&Options::of(format, out)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file, and prints its path and size.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    ensure!(!path.is_dir(), "{} is a directory", path.display());
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: {}", path.display(), ui::bytes(bytes.len() as u64));
    Ok(())
}
